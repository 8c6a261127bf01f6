"""Timers in a heap; a deadline that moves back updates its heap entry lazily."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

_Entry: TypeAlias = "tuple[int, int, Timer]"

# The number of dead entries below which removing them is not worth a pass over the heap.
_SLACK = 64


class Timer:
    """A deadline that may move, and a callback that gets the time as its last argument.

    `fire` may be set after the timer is made, but before it is started.
    """

    __slots__ = ("deadline_ms", "entry", "fire")

    def __init__(self, fire: Callable[..., None] | None = None) -> None:
        self.fire = fire
        self.deadline_ms: int | None = None
        self.entry: _Entry | None = None


class Deadlines:
    """Running timers, ordered by deadline.

    Invariant: a timer with a deadline has one entry on the heap, not later than the deadline. So
    moving a deadline back, which every heartbeat does, is an assignment; the entry is moved when
    its time comes. Entries left by timers that were stopped or moved forward are dropped when they
    reach the top of the heap, or all at once when they outnumber the live entries.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._sequence = 0
        self._running = 0

    def __len__(self) -> int:
        """The number of heap entries, dead entries included."""
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The time of the next call of `fire_due`, which may then find nothing to do."""
        return self._heap[0][0] if self._heap else None

    def start(self, timer: Timer, deadline_ms: int) -> None:
        """Set or move the deadline of a timer."""
        if timer.deadline_ms is None:
            self._running += 1
        timer.deadline_ms = deadline_ms
        if timer.entry is None or deadline_ms < timer.entry[0]:
            self._push(timer, deadline_ms)

    def stop(self, timer: Timer) -> None:
        if timer.deadline_ms is not None:
            timer.deadline_ms = None
            self._running -= 1

    def fire_due(self, now_ms: int, limit: int, *arguments: object) -> None:
        """Fire the timers whose deadline has passed, but inspect at most `limit` entries.

        Each callback gets `arguments` and the time.
        """
        for _ in range(limit):
            if not self._heap or self._heap[0][0] > now_ms:
                return
            entry = heappop(self._heap)
            timer = entry[2]
            if timer.entry is not entry:
                continue
            timer.entry = None
            if timer.deadline_ms is None:
                continue
            if timer.deadline_ms > now_ms:
                self._push(timer, timer.deadline_ms)
                continue
            self.stop(timer)
            assert timer.fire is not None
            timer.fire(*arguments, now_ms)

    def _push(self, timer: Timer, deadline_ms: int) -> None:
        if len(self._heap) > 2 * self._running + _SLACK:
            self._drop_dead_entries()
        self._sequence += 1
        timer.entry = (deadline_ms, self._sequence, timer)
        heappush(self._heap, timer.entry)

    def _drop_dead_entries(self) -> None:
        live = []
        for entry in self._heap:
            timer = entry[2]
            if timer.entry is entry:
                if timer.deadline_ms is None:
                    timer.entry = None
                else:
                    live.append(entry)
        heapify(live)
        self._heap = live
