"""The set of voters and its history (KIP-853), majorities, and counts of votes."""

from collections.abc import Iterable, Sequence

from headrace.raft.messages import UNKNOWN_OFFSET, Voter, Voters


def majority(count: int) -> int:
    """The smallest number of voters that is more than half of `count`."""
    return count // 2 + 1


def held_by_majority(values: Iterable[int]) -> int:
    """The largest value that a majority has reached; `values` has one for each voter."""
    ordered = sorted(values, reverse=True)
    return ordered[majority(len(ordered)) - 1]


class VoteCount:
    """The votes of a round.

    Invariant: the first response of a voter stands, and only voters of the round count.
    """

    __slots__ = ("_granted", "_refused", "_voters")

    def __init__(self, voters: Iterable[int]) -> None:
        self._voters = frozenset(voters)
        self._granted: set[int] = set()
        self._refused: set[int] = set()

    def count(self, voter: int, *, granted: bool) -> None:
        """Count a voter's response; a response that will never come counts as a refusal."""
        if voter in self._voters and voter not in self._granted | self._refused:
            (self._granted if granted else self._refused).add(voter)

    @property
    def granted(self) -> tuple[int, ...]:
        """The ids of the voters that granted their vote, in order."""
        return tuple(sorted(self._granted))

    def refused_by(self, voter: int) -> bool:
        """Whether a voter has refused its vote."""
        return voter in self._refused

    @property
    def won(self) -> bool:
        return len(self._granted) >= majority(len(self._voters))

    @property
    def lost(self) -> bool:
        """Whether the round cannot be won any more."""
        return len(self._voters) - len(self._refused) < majority(len(self._voters))


class VoterHistory:
    """The configured voters, and those of every VotersRecord in the log.

    Invariant: offsets rise. The last entry is in effect whether it is committed or not: that is
    safe because successive sets differ by one voter, so that their majorities overlap (Raft
    dissertation §4.1). Truncating the log removes entries.
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
        """The node ids of the voters in effect, in order."""
        return tuple(self._by_id)

    @property
    def offset(self) -> int:
        """The offset of the VotersRecord in effect; -1 if the configured voters are in effect."""
        return self._entries[-1][0]

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._by_id

    def may_include(self, node_id: int, high_watermark: int) -> bool:
        """Whether a node is a voter, or was before a VotersRecord that may not be committed."""
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
        """Forget the VotersRecords at and after `end_offset`."""
        while self._entries[-1][0] >= end_offset:
            self._entries.pop()
        self._changed()

    def restart(self, offset: int, voters: Voters | None) -> None:
        """Replace the history by the voters of a snapshot that ends at `offset`.

        A snapshot without voters was made while the configured voters were in effect.
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
