"""The replication throttle: a limit on the bytes per second of reassigned replicas (KIP-73).

Sans-IO: the time is an argument. A broker has one throttle as leader and one as follower, each
shared by all throttled partitions.
"""

from collections.abc import Sequence

_BURST_SECONDS = 1.0
_ALL = "*"


class Throttle:
    """A limit of `rate` bytes per second, on average over a second and more.

    Bytes are counted after they were sent or received, since the size of a fetch is not known
    before; the next fetch waits until the average is below the limit again.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._paid_until = float("-inf")

    @property
    def rate(self) -> int:
        """The limit in bytes per second."""
        return self._rate

    def change_rate(self, rate: int, now: float) -> None:
        """Use another rate from now on. Bytes above the old limit still have to be waited for."""
        owed = (self._paid_until - now) * self._rate
        self._rate = rate
        self._paid_until = now + max(owed / rate, -_BURST_SECONDS)

    def record(self, byte_count: int, now: float) -> None:
        """Count bytes that were sent or received."""
        self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + byte_count / self._rate

    def wait_s(self, now: float) -> float:
        """The seconds to wait before the next fetch; 0 if it may begin now."""
        return max(self._paid_until - now, 0.0)


def is_throttled(throttled_replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas (`partition:broker`, or `*`) has a replica."""
    if not throttled_replicas:
        return False
    return _ALL in throttled_replicas or f"{partition}:{broker_id}" in throttled_replicas
