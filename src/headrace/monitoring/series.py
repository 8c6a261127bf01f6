"""Time series of bounded length, for charts and for the age of offsets.

Rule: a series keeps its newest points, in arrays, so that ten thousand of them cost megabytes.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator

# Ten minutes of a sample every two seconds, or half an hour of one every six.
POINTS_MAX = 300


class Series:
    """Points (time in ms, value) in ascending time. A value that is unknown has no point."""

    __slots__ = ("_times", "_values", "points_max")

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self.points_max = points_max
        self._times = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self._times, self._values, strict=True))

    @property
    def last(self) -> float | None:
        """The newest value; None without any."""
        return self._values[-1] if self._values else None

    def add(self, time_ms: int, value: float) -> None:
        """Append a point. A time that does not grow (the clock was set back) begins anew."""
        if self._times and time_ms <= self._times[-1]:
            del self._times[:], self._values[:]
        self._times.append(time_ms)
        self._values.append(value)
        # Cut a tenth at once: removing one point at a time would move the arrays every time.
        if len(self._times) > self.points_max:
            cut = max(self.points_max // 10, 1)
            del self._times[:cut], self._values[:cut]


class OffsetTimes:
    """The log end offsets of a partition over time, which date the writing of an offset.

    Invariant: times and offsets ascend; only points at which the offset grew are kept.
    """

    __slots__ = ("_offsets", "_points_max", "_times")

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._times = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, time_ms: int, end_offset: int) -> None:
        """Note the log end offset at a time."""
        if self._offsets and (end_offset < self._offsets[-1] or time_ms <= self._times[-1]):
            # The topic was created anew, or its log truncated, or the clock set back.
            del self._times[:], self._offsets[:]
        if len(self._offsets) > 1 and self._offsets[-2] == end_offset:
            # Nothing was written in between: the latest time at which that was so is enough.
            self._times[-1] = time_ms
            return
        self._times.append(time_ms)
        self._offsets.append(end_offset)
        if len(self._times) > self._points_max:
            cut = max(self._points_max // 10, 1)
            del self._times[:cut], self._offsets[:cut]

    def written_at(self, offset: int) -> tuple[float, bool] | None:
        """When the record at `offset` was written, and whether that is exact enough to believe.

        (time, False) if it was written before the first point: the time is the latest it can be.
        None if the log had not reached it at the last point.
        """
        at = bisect_right(self._offsets, offset)
        if at == len(self._offsets):
            return None
        if at == 0:
            return self._times[0], False
        before, after = self._offsets[at - 1], self._offsets[at]
        share = (offset - before) / (after - before)
        start = self._times[at - 1]
        return start + share * (self._times[at] - start), True
