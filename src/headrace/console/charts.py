"""Charts of time series, as the geometry of an SVG; the template draws it.

Rule: pure. Coordinates are of a box of WIDTH by HEIGHT, which the page stretches.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT = 600, 120
_POINTS_SHOWN_MAX = 300
# A gap between points so many times longer than usual breaks the line.
_GAP_FACTOR = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a chart: its name, and the path of its line."""

    name: str
    path: str
    area: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: lines, the largest value of the scale, and the span of its times."""

    label: str
    lines: tuple[Line, ...]
    top: str
    latest: str
    since_s: float
    # The points as JSON, for the values under a pointer: [[time_ms, text], ...] of the first line.
    points: str

    @property
    def is_empty(self) -> bool:
        return not self.lines


def chart(
    label: str,
    series: Mapping[str, Iterable[tuple[int, float]]],
    text: Callable[[float], str],
) -> Chart:
    """A chart of named series; those with fewer than two points are left out."""
    points = {name: list(values)[-_POINTS_SHOWN_MAX:] for name, values in series.items()}
    points = {name: values for name, values in points.items() if len(values) > 1}
    if not points:
        return Chart(label, (), "", "", 0.0, "[]")
    start = min(values[0][0] for values in points.values())
    end = max(values[-1][0] for values in points.values())
    top = nice_ceiling(max(value for values in points.values() for _, value in values))
    lines = tuple(
        _line(name, values, start, max(end - start, 1), top) for name, values in points.items()
    )
    first = next(iter(points.values()))
    shown = json.dumps([[at, text(value)] for at, value in first], separators=(",", ":"))
    return Chart(label, lines, text(top), text(first[-1][1]), (end - start) / 1000, shown)


def nice_ceiling(value: float) -> float:
    """The next larger of 1, 2, 5, 10, 20, ... : the top of a scale."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10
    while power / 10 >= value:
        power /= 10
    return next(power * share for share in (0.1, 0.2, 0.5, 1.0) if power * share >= value)


def _line(name: str, values: list[tuple[int, float]], start: int, span: int, top: float) -> Line:
    steps = sorted(later[0] - at[0] for at, later in pairwise(values))
    gap = steps[len(steps) // 2] * _GAP_FACTOR
    runs: list[list[str]] = []
    before = None
    for at, value in values:
        if before is None or at - before > gap:
            runs.append([])
        x = (at - start) / span * WIDTH
        # Half a unit of room, so that a line at the edge is not cut in half.
        y = HEIGHT - 1 - min(max(value, 0.0) / top, 1.0) * (HEIGHT - 4)
        runs[-1].append(f"{x:.1f},{y:.1f}")
        before = at
    path = " ".join(f"M{' L'.join(run)}" for run in runs)
    area = " ".join(
        f"M{run[0].split(',')[0]},{HEIGHT} L{' L'.join(run)} L{run[-1].split(',')[0]},{HEIGHT} Z"
        for run in runs
    )
    return Line(name, path, area)
