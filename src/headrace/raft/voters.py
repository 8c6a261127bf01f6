"""Who votes (KIP-853), how many are a majority, and what a majority has."""

from collections.abc import Iterable, Sequence

from headrace.raft.messages import UNKNOWN_OFFSET, Voter, Voters


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


class VoterHistory:
    """The voters as of every VotersRecord in the log, on top of the configured ones.

    Invariant: offsets rise. The last entry is in effect whether it is committed or not: that is
    safe because two sets that follow each other differ by one voter, so that their majorities
    overlap (Raft dissertation §4.1). Truncating the log takes an entry back.
    """

    __slots__ = ("_by_id", "_entries")

    def __init__(self, configured: Voters, history: Sequence[tuple[int, Voters]]) -> None:
        self._entries: list[tuple[int, Voters]] = [(UNKNOWN_OFFSET, _by_id(configured))]
        self._by_id: dict[int, Voter] = {}
        for offset, voters in history:
            self._entries.append((offset, _by_id(voters)))
        self._changed()

    @property
    def voters(self) -> Voters:
        """The voters in effect, by node id."""
        return self._entries[-1][1]

    @property
    def ids(self) -> tuple[int, ...]:
        """Their node ids, in order."""
        return tuple(self._by_id)

    @property
    def offset(self) -> int:
        """Where the record of the voters in effect is; -1 if they are the configured ones."""
        return self._entries[-1][0]

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._by_id

    def may_include(self, node_id: int, high_watermark: int) -> bool:
        """Whether a node is a voter, or was one before a record that may not be committed."""
        return any(
            any(voter.node_id == node_id for voter in voters)
            for voters in self._since(high_watermark)
        )

    def _since(self, high_watermark: int) -> list[Voters]:
        found = []
        for offset, voters in reversed(self._entries):
            found.append(voters)
            if offset < high_watermark:
                break
        return found

    def append(self, offset: int, voters: Voters) -> None:
        assert offset > self.offset, (offset, self.offset)
        self._entries.append((offset, _by_id(voters)))
        self._changed()

    def truncate(self, end_offset: int) -> None:
        """Forget the records at and after `end_offset`."""
        while self._entries[-1][0] >= end_offset:
            self._entries.pop()
        self._changed()

    def restart(self, offset: int, voters: Voters | None) -> None:
        """Begin again with the voters of a snapshot that ends at `offset`.

        A snapshot without voters was made while the configured ones were in effect.
        """
        del self._entries[1:]
        if voters is not None:
            self._entries.append((offset - 1, _by_id(voters)))
        self._changed()

    def _changed(self) -> None:
        self._by_id = {voter.node_id: voter for voter in self.voters}


def _by_id(voters: Voters) -> Voters:
    return tuple(sorted(voters, key=lambda voter: voter.node_id))


def with_voter(voters: Voters, added: Voter) -> Voters:
    return _by_id((*voters, added))


def without_voter(voters: Voters, node_id: int) -> Voters:
    return tuple(voter for voter in voters if voter.node_id != node_id)
