"""The wait of a query for brokers that do not answer. Pure: the time is an argument."""

_PAUSE_S_MAX = 15.0


class Outage:
    """Since when a query waits for its brokers, and when it is started again.

    The pauses between attempts grow, and there is no last attempt: a query goes on from its
    checkpoint however long the brokers were away.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._attempts = 0
        self._retry_at_s: float | None = now_s + 1.0

    def is_due(self, now_s: float) -> bool:
        """Whether the query is to be started again now."""
        return self._retry_at_s is not None and now_s >= self._retry_at_s

    def is_pausing(self, now_s: float) -> bool:
        """Whether the query rests until the next attempt."""
        return self._retry_at_s is not None and now_s < self._retry_at_s

    def attempted(self) -> None:
        """The query was started again."""
        self._attempts += 1
        self._retry_at_s = None

    def failed(self, now_s: float) -> None:
        """The query met the same again."""
        self._retry_at_s = now_s + min(2.0**self._attempts, _PAUSE_S_MAX)

    def duration_s(self, now_s: float) -> float:
        """How long the query has waited."""
        return now_s - self._since_s
