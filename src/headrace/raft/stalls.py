"""Stalls of this process, which must not be mistaken for silence of the other nodes.

A process that the machine did not let run for a second has received nothing for a second, although
messages wait unread in its sockets. Such stalls postpone the deadlines of the consensus core.
"""


class StallMeter:
    """The delay of calls that the shell has to make every `interval_ms`.

    The interval itself is never deducted. So even in a process that hardly runs, each call counts
    as an interval of silence, and a leader that is gone is noticed after a fixed number of calls.
    """

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        # The time of the next call; None before the first call.
        self.due_ms: int | None = None

    def stall_ms(self, now_ms: int) -> int:
        """The milliseconds by which this call is late."""
        late_ms = 0 if self.due_ms is None else max(now_ms - self.due_ms, 0)
        self.due_ms = now_ms + self.interval_ms
        return late_ms
