"""Limits on a rate: bytes, seconds of work, partitions or connections per second.

Sans-IO: the time is an argument.
"""


class TokenBucket:
    """A limit of `rate` units per second, for those who share it.

    Time earns credit, and what is charged spends it. Whoever overdraws it waits until the debt is
    earned, so that the average over any longer time is the rate, however large single charges are.
    Invariant: credit is at most what `burst_s` seconds earn.
    """

    __slots__ = ("_as_of", "_burst_s", "_credit", "rate")

    def __init__(self, rate: float, burst_s: float, now: float, first_s: float) -> None:
        """A limit whose credit begins with what `first_s` seconds earn."""
        assert rate > 0, rate
        self.rate = rate
        self._burst_s = burst_s
        self._credit = rate * min(first_s, burst_s)
        self._as_of = now

    def charge(self, amount: float, now: float) -> float:
        """Spend credit; the seconds to wait until none is owed."""
        self._earn(now)
        self._credit -= amount
        return -self._credit / self.rate if self._credit < 0 else 0.0

    def wait_s(self, now: float) -> float:
        """The seconds to wait until no credit is owed; 0 if none is."""
        self._earn(now)
        return -self._credit / self.rate if self._credit < 0 else 0.0

    def credit(self, now: float) -> float:
        """The amount that may be spent without a wait; a debt if it is below zero."""
        self._earn(now)
        return self._credit

    def change(self, rate: float, burst_s: float, now: float) -> None:
        """Use another rate from now on. Debt stays, and is earned at the new rate."""
        assert rate > 0, rate
        self._earn(now)
        self.rate = rate
        self._burst_s = burst_s
        self._credit = min(self._credit, rate * burst_s)

    def _earn(self, now: float) -> None:
        if now > self._as_of:
            earned = self._credit + (now - self._as_of) * self.rate
            self._credit = min(earned, self.rate * self._burst_s)
            self._as_of = now
