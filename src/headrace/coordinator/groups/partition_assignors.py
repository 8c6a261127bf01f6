"""The assignors of the coordinator, `uniform` and `range`: who is to read which partitions.

Both are functions of the members' subscriptions, their present targets, and the sizes of topics.
As in Kafka neither looks at racks. Unlike Kafka: members are taken in the order of their names, so
that the same group gives the same assignment wherever it is computed.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

# Rounds over all topics in which `uniform` moves partitions between unequal members.
_BALANCE_ROUNDS_MAX = 16


class SubscribedMember(NamedTuple):
    """What an assignor sees of a member: its topics by id, and its present target."""

    topics: frozenset[bytes]
    partitions: Mapping[bytes, frozenset[int]]
    instance_id: str | None = None


Members: TypeAlias = Mapping[str, SubscribedMember]
# The number of partitions of each subscribed topic that exists.
Sizes: TypeAlias = Mapping[bytes, int]
Assignment: TypeAlias = dict[str, dict[bytes, frozenset[int]]]
Assignor: TypeAlias = Callable[[Members, Sizes], Assignment]


def assign_range(members: Members, sizes: Sizes) -> Assignment:
    """Give each member of a topic a range of its partitions, topic by topic.

    Static members come first, by their instance id, so that ranges survive their restarts. Members
    of the same topics get the same ranges of them, so that equal keys meet in one member.
    """
    ordered = sorted(members, key=lambda name: _range_order(name, members[name]))
    assignment: Assignment = {member: {} for member in members}
    for topic_id, size in sizes.items():
        readers = [member for member in ordered if topic_id in members[member].topics]
        if not readers:
            continue
        share, extra = divmod(size, len(readers))
        start = 0
        for number, member in enumerate(readers):
            end = start + share + (number < extra)
            if end > start:
                assignment[member][topic_id] = frozenset(range(start, end))
            start = end
    return assignment


def _range_order(name: str, member: SubscribedMember) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or name


def assign_uniform(members: Members, sizes: Sizes) -> Assignment:
    """Give all members as many partitions as possible alike, and let them keep what they have."""
    topics = {member.topics.intersection(sizes) for member in members.values()}
    if len(topics) <= 1:
        return _assign_alike(members, sizes, topics.pop() if topics else frozenset())
    return _UnequalMembers(members, sizes).assign()


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _assign_alike(members: Members, sizes: Sizes, topics: frozenset[bytes]) -> Assignment:
    """Assign partitions to members that are subscribed to the same topics."""
    if not members:
        return {}
    kept = {member: _still_valid(members[member], sizes) for member in members}
    share, extra = divmod(sum(sizes[topic] for topic in topics), len(members))
    # Members with more partitions take the larger shares, so that fewest partitions move.
    by_size = sorted(members, key=lambda member: (-_count(kept[member]), member))
    shares = {member: share + (number < extra) for number, member in enumerate(by_size)}
    taken: dict[bytes, set[int]] = {topic: set() for topic in topics}
    for member in by_size:
        _cut(kept[member], shares[member])
        for topic in kept[member]:
            # Two members have one target only in a group that was converted.
            kept[member][topic] -= taken[topic]
            taken[topic] |= kept[member][topic]
    free = (
        (topic, partition)
        for topic in sorted(topics)
        for partition in range(sizes[topic])
        if partition not in taken[topic]
    )
    for member in sorted(members):
        room = shares[member] - _count(kept[member])
        for _, (topic, partition) in zip(range(room), free, strict=False):
            kept[member].setdefault(topic, set()).add(partition)
    return _frozen(kept)


def _still_valid(member: SubscribedMember, sizes: Sizes) -> dict[bytes, set[int]]:
    """The partitions of a member's target that it may keep."""
    kept = {}
    for topic in sorted(member.partitions):
        if topic in member.topics and topic in sizes:
            kept[topic] = {each for each in member.partitions[topic] if each < sizes[topic]}
    return kept


def _cut(partitions: dict[bytes, set[int]], size: int) -> None:
    """Remove partitions until `size` are left: the last ones of the last topics."""
    surplus = _count(partitions) - size
    for topic in sorted(partitions, reverse=True):
        if surplus <= 0:
            return
        for partition in sorted(partitions[topic], reverse=True)[:surplus]:
            partitions[topic].remove(partition)
            surplus -= 1


def _count(partitions: Mapping[bytes, Iterable[int]]) -> int:
    return sum(len(tuple(found)) for found in partitions.values())


def _frozen(assignment: Mapping[str, Mapping[bytes, set[int]]]) -> Assignment:
    return {
        member: {topic: frozenset(found) for topic, found in topics.items() if found}
        for member, topics in assignment.items()
    }


class _UnequalMembers:
    """Assigns partitions to members with different topics: sticky, then balanced topic by topic."""

    def __init__(self, members: Members, sizes: Sizes) -> None:
        self._sizes = sizes
        self._readers: dict[bytes, list[str]] = {topic: [] for topic in sizes}
        for name in sorted(members):
            for topic in members[name].topics.intersection(sizes):
                self._readers[topic].append(name)
        # Topics that few members read come first: the others have more choice.
        self._topics = sorted(
            (topic for topic, readers in self._readers.items() if readers),
            key=lambda topic: (
                -sizes[topic] / len(self._readers[topic]),
                len(self._readers[topic]),
                topic,
            ),
        )
        self._kept = {name: _still_valid(members[name], sizes) for name in sorted(members)}
        self._owners: dict[bytes, dict[int, str]] = {topic: {} for topic in sizes}
        for name, topics in self._kept.items():
            for topic, partitions in topics.items():
                for partition in tuple(partitions):
                    if self._owners[topic].setdefault(partition, name) != name:
                        partitions.remove(partition)
        self._loads = {name: _count(topics) for name, topics in self._kept.items()}

    def assign(self) -> Assignment:
        for topic in self._topics:
            self._assign_free(topic)
        for _ in range(_BALANCE_ROUNDS_MAX):
            if sum(self._balance(topic) for topic in self._topics) == 0:
                break
        return _frozen(self._kept)

    def _assign_free(self, topic: bytes) -> None:
        free = [each for each in range(self._sizes[topic]) if each not in self._owners[topic]]
        if not free:
            return
        least = [(self._loads[name], name) for name in self._readers[topic]]
        heapify(least)
        for partition in free:
            load, name = heappop(least)
            self._give(topic, partition, name)
            heappush(least, (load + 1, name))

    def _balance(self, topic: bytes) -> bool:
        """Move partitions of a topic from its busiest readers to its idlest; whether any moved."""
        readers = self._readers[topic]
        least = [(self._loads[name], name) for name in readers]
        most = [(-self._loads[name], name) for name in readers if self._kept[name].get(topic)]
        heapify(least)
        heapify(most)
        moved = False
        while most:
            load, giver = heappop(most)
            if -load != self._loads[giver] or not self._kept[giver].get(topic):
                continue
            while least[0][0] != self._loads[least[0][1]]:
                heappop(least)
            taker = least[0][1]
            if self._loads[giver] - self._loads[taker] <= 1:
                break
            partition = max(self._kept[giver][topic])
            self._kept[giver][topic].remove(partition)
            self._loads[giver] -= 1
            self._give(topic, partition, taker)
            for name in (giver, taker):
                heappush(least, (self._loads[name], name))
                heappush(most, (-self._loads[name], name))
            moved = True
        return moved

    def _give(self, topic: bytes, partition: int, name: str) -> None:
        self._kept[name].setdefault(topic, set()).add(partition)
        self._owners[topic][partition] = name
        self._loads[name] += 1
