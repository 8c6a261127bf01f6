"""Time, as shells see it. Cores never import this: they take `now_ms` as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell reads the time, so that a simulator can supply its own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as clients and segment files see it; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never run backwards; for timeouts."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class SteadyClock:
    """Another clock's time of day at the start, and its steady seconds since.

    For timeouts that are told in milliseconds since the epoch: a jump of the system's time must not
    end every session at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._offset_ms + self._clock.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic()
