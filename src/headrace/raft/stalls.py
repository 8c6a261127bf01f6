"""Time in which this process did not run, so that it is not taken for the silence of others.

A process that the machine did not let run for a second finds a second without a word of its peers,
and their words unread in its sockets. Such time moves the deadlines of the core.
"""


class StallMeter:
    """Measures how late the shell's calls come, which it promises every `interval_ms`.

    The interval itself is never forgiven. So of a process that hardly runs, each turn counts as an
    interval of silence at least, and it misses a leader that is gone after a fixed number of turns.
    """

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        # When the next call is due; None before the first one.
        self.due_ms: int | None = None

    def stall_ms(self, now_ms: int) -> int:
        """Milliseconds by which this call is late."""
        late_ms = 0 if self.due_ms is None else max(now_ms - self.due_ms, 0)
        self.due_ms = now_ms + self.interval_ms
        return late_ms
