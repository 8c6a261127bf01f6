"""Charts: the scale, and lines that end where values are missing."""

import pytest

from headrace.console.charts import HEIGHT, WIDTH, chart, nice_ceiling


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.03, 0.05), (1, 1), (1.1, 2), (34, 50), (51, 100), (100, 100)]
)
def test_the_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)


def test_a_line_spans_the_box_and_breaks_at_a_gap() -> None:
    points = [(0, 0.0), (1000, 50.0), (2000, 100.0), (90_000, 100.0), (91_000, 0.0)]
    drawn = chart("Rate", {"a": points}, str)
    [line] = drawn.lines
    assert line.path.count("M") == 2
    assert line.path.startswith(f"M0.0,{HEIGHT - 1}.0 L")
    assert line.path.endswith(f"L{WIDTH}.0,{HEIGHT - 1}.0")
    assert (drawn.top, drawn.latest, drawn.since_s) == ("100.0", "0.0", 91.0)


def test_one_point_is_no_chart() -> None:
    assert chart("Rate", {"a": [(0, 1.0)]}, str).is_empty
