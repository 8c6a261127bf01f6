"""Text of others on a terminal."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.errors import explain
from headrace.cli.output import json_line, json_shown, template_format, value_shown
from headrace.cli.terminal_text import for_terminal, printable, printable_json, printable_lines
from headrace.errors import HeadraceError
from headrace.protocol.consumer_records import ConsumerRecord

CLEAR_SCREEN = "\x1b[2J"
REVERSED = "\u202egpj.exe"


def record(value: bytes, key: bytes = b"k") -> ConsumerRecord:
    return ConsumerRecord("orders", 0, 1, 0, 0, key, value, [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 東京 🙂", "plain ü 東京 🙂"),
        (CLEAR_SCREEN, "\\x1b[2J"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("a\tb\r\n", "a\\x09b\\x0d\\x0a"),
        (REVERSED, "\\u202egpj.exe"),
        ("a\u200bb\u2066c\ufeff", "a\\u200bb\\u2066c\\ufeff"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
    ],
)
def test_characters_that_act_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_keep_their_ends_and_tabs() -> None:
    assert printable_lines("a\tb\n\x1bc\r") == "a\tb\n\\x1bc\\x0d"


@given(st.text())
def test_nothing_that_acts_is_left(text: str) -> None:
    assert not [entry for entry in printable(text) if unicodedata.category(entry) in {"Cc", "Cs"}]
    assert not set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f") & set(
        printable(text)
    )


@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same(document: dict[str, str]) -> None:
    shown = printable_json(json.dumps(document, ensure_ascii=False))
    assert json.loads(shown) == document
    assert shown == printable(shown)


def test_bytes_that_are_not_text_are_escaped() -> None:
    assert for_terminal(b"\xff\x00a\n") == b"\\xff\\x00a\n"


def test_records_on_a_terminal_are_escaped_in_every_format() -> None:
    hostile = record(f"{CLEAR_SCREEN}{REVERSED}".encode(), key=b"\x07")
    assert value_shown(hostile) == b"\\x1b[2J\\u202egpj.exe\n"
    assert b"\x1b" not in json_shown(hostile)
    assert json.loads(json_shown(hostile)) == json.loads(json_line(hostile))
    # The user's own colours stay, those of the record do not.
    form = template_format("\\x1b[1m%k\\x1b[0m %v\\n", shown=True)
    assert form(hostile) == b"\x1b[1m\\x07\x1b[0m \\x1b[2J\\u202egpj.exe\n"
    assert template_format("%k")(hostile) == b"\x07"


def test_errors_from_a_cluster_are_escaped() -> None:
    assert explain(HeadraceError(f"group {CLEAR_SCREEN}x\n is gone")) == "group \\x1b[2Jx is gone"
