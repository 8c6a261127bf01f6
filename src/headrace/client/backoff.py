"""How long to wait before trying again."""

from random import Random

FIRST_S = 0.05
MOST_S = 1.0


def delay_s(attempts: int, rng: Random) -> float:
    """The pause after so many failed attempts: doubled each time up to a limit, varied by a fifth.

    The variation keeps clients that failed together from coming back together.
    """
    # The exponent is bounded: a float overflows long before a client stops trying.
    doubled: float = FIRST_S * 2.0 ** min(attempts, 32)
    return min(doubled, MOST_S) * rng.uniform(0.8, 1.2)
