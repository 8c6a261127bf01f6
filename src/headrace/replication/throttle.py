"""A limit on bytes a second for replicas that are being moved, so that clients keep their share.

Pure: the time is an argument. Leaders and followers have one each, which all their throttled
partitions share.
"""

from collections.abc import Sequence

_BURST_SECONDS = 1.0
_ALL = "*"


class Throttle:
    """Lets `rate` bytes a second through, on average over a second and more.

    Bytes are counted once they have passed, since nobody knows before how many a fetch brings; who
    passes after that waits until the average is right again.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._paid_until = float("-inf")

    @property
    def rate(self) -> int:
        """Bytes a second."""
        return self._rate

    def change_rate(self, rate: int, now: float) -> None:
        """Use another rate from now on. What is owed stays owed in bytes, not in seconds."""
        owed = (self._paid_until - now) * self._rate
        self._rate = rate
        self._paid_until = now + max(owed / rate, -_BURST_SECONDS)

    def record(self, byte_count: int, now: float) -> None:
        """Count bytes that have passed."""
        self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + byte_count / self._rate

    def wait_s(self, now: float) -> float:
        """How many seconds nothing more should pass; 0 if it may now."""
        return max(self._paid_until - now, 0.0)


def is_throttled(throttled_replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas has this one: `partition:broker`, or `*`."""
    if not throttled_replicas:
        return False
    return _ALL in throttled_replicas or f"{partition}:{broker_id}" in throttled_replicas
