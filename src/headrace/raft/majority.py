"""Counting: how many are a majority, what they have, and who voted how."""

from collections.abc import Iterable


def majority(count: int) -> int:
    """How many of `count` voters are more than half."""
    return count // 2 + 1


def held_by_majority(values: Iterable[int]) -> int:
    """The largest value that more than half of the voters have reached. One value per voter."""
    ordered = sorted(values, reverse=True)
    return ordered[majority(len(ordered)) - 1]


class VoteCount:
    """Votes in one round, by voter.

    Invariant: the first answer of a voter stands, and only voters of the round count.
    """

    __slots__ = ("_granted", "_refused", "_voters")

    def __init__(self, voters: Iterable[int]) -> None:
        self._voters = frozenset(voters)
        self._granted: set[int] = set()
        self._refused: set[int] = set()

    def count(self, voter: int, *, granted: bool) -> None:
        """Note an answer. One that will never come is a refusal."""
        if voter in self._voters and voter not in self._granted | self._refused:
            (self._granted if granted else self._refused).add(voter)

    @property
    def granted(self) -> tuple[int, ...]:
        """Who voted for us, by id."""
        return tuple(sorted(self._granted))

    def refused_by(self, voter: int) -> bool:
        """Whether that voter said no already."""
        return voter in self._refused

    @property
    def won(self) -> bool:
        return len(self._granted) >= majority(len(self._voters))

    @property
    def lost(self) -> bool:
        """Whether it cannot be won any more."""
        return len(self._voters) - len(self._refused) < majority(len(self._voters))
