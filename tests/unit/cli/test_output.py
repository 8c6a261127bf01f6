import pytest

from headrace.cli.output import bytes_text, counted, print_table
from headrace.cli.terminal_text import printable


def test_a_table_for_a_pipe_is_aligned_and_keeps_long_cells_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["A", "LONG"], [("x" * 300, None), ("y\x1b[0m", 5)])
    assert capsys.readouterr().out.splitlines() == [
        "A" + " " * 301 + "LONG",
        "x" * 300,
        "y\\x1b[0m" + " " * 294 + "5",
    ]


def test_control_characters_are_escaped() -> None:
    assert printable("a\tb\x7f\x9bü") == "a\\x09b\\x7f\\x9bü"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3e15, "3000.0 TB")],
)
def test_sizes_have_decimal_units(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_nouns_agree_with_their_numbers() -> None:
    assert [counted(number, "record") for number in (0, 1, 2000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]
