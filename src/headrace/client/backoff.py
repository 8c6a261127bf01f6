"""Exponential backoff between attempts."""

from dataclasses import dataclass
from random import Random

FIRST_S = 0.05
MOST_S = 1.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: doubled each time up to a limit, varied by a fifth.

    The jitter keeps clients that failed together from retrying together.
    """

    first_s: float = FIRST_S
    most_s: float = MOST_S

    def delay_s(self, attempts: int, rng: Random) -> float:
        """The pause after this number of failed attempts."""
        # The exponent is bounded: a float overflows long before a client stops trying.
        doubled: float = self.first_s * 2.0 ** min(attempts, 32)
        return min(doubled, self.most_s) * rng.uniform(0.8, 1.2)
