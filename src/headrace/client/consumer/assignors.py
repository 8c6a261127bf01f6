"""Partition assignors: range, round-robin, sticky and cooperative-sticky, by Kafka's names."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import cycle
from typing import ClassVar, TypeAlias

from headrace.client.consumer.consumer_protocol import (
    NO_GENERATION,
    MemberSubscription,
    decode_generation,
    decode_previous,
    encode_generation,
    encode_previous,
)
from headrace.types import TopicPartition

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "MemberSubscription",
]

# The partitions of each member, by its id.
Assignment: TypeAlias = dict[str, list[TopicPartition]]


class Assignor(ABC):
    """A strategy by which the leader of a group assigns the partitions.

    It has no state, so that every member would decide the same. Unlike Kafka: racks are carried
    along and ignored.
    """

    name: ClassVar[str]
    # Whether members may keep partitions while the group rebalances (KIP-429).
    is_cooperative: ClassVar[bool] = False

    def user_data(self, previous: Iterable[TopicPartition], generation: int) -> bytes | None:
        """The user data that a member sends the leader besides its topics; usually None."""
        return None

    @abstractmethod
    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignment:
        """Assign the partitions of all existing topics to the members that subscribe to them.

        Every member has an entry, which may be empty.
        """


def member_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """The members in Java's order: static members by their instance ids, then the others.

    Member ids change with every start, instance ids do not.
    """

    def key(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, instance_id or "", member_id)

    return sorted(members, key=key)


def subscribers(members: Mapping[str, MemberSubscription]) -> dict[str, list[str]]:
    """The subscribers of each topic, in `member_order`; topics in order of their names."""
    found: dict[str, list[str]] = {}
    for member_id in member_order(members):
        for topic in dict.fromkeys(members[member_id].topics):
            found.setdefault(topic, []).append(member_id)
    return dict(sorted(found.items()))


# Partitions distributed evenly, moving as few as possible from their previous owners.
#
# Topics with the same subscribers are one class: their partitions can be exchanged for one another.
# First every member keeps its partitions, then unowned partitions go to the members with the
# fewest, and then partitions move from members with more to members with fewer, along the shortest
# path: directly, or through members that pass one on and get one. Rule: when no such path leads to
# a member from another with at least two more, no assignment is more even (it is an optimal
# semi-matching).


class AssignmentBuilder:
    """An assignment in the making. Members and classes are numbers, in a fixed order."""

    def __init__(
        self,
        partition_counts: Mapping[str, int],
        subscribers: Mapping[str, Sequence[str]],
        members: Sequence[str],
        kept: Mapping[TopicPartition, str],
    ) -> None:
        self._members = members
        number_of = {member_id: number for number, member_id in enumerate(members)}
        self._loads = [0] * len(members)
        # For each class: subscriber number to the partitions of the class that it has.
        self._held: list[dict[int, list[TopicPartition]]] = []
        self._classes_of: list[list[int]] = [[] for _ in members]
        free: list[list[TopicPartition]] = []
        for readers, topics in _classes(partition_counts, subscribers, number_of):
            for reader in readers:
                self._classes_of[reader].append(len(self._held))
            self._held.append({reader: [] for reader in readers})
            free.append([])
            for topic in topics:
                for index in range(partition_counts[topic]):
                    tp = TopicPartition(topic, index)
                    owner = number_of.get(kept.get(tp, ""), -1)
                    if owner in self._held[-1]:
                        self._held[-1][owner].append(tp)
                        self._loads[owner] += 1
                    else:
                        free[-1].append(tp)
        # Partitions without a previous owner: moving them again takes nothing from an owner.
        self._fresh = {tp for partitions in free for tp in partitions}
        for held, partitions in zip(self._held, free, strict=True):
            self._give_out(held, partitions)

    @property
    def assignment(self) -> dict[str, list[TopicPartition]]:
        """The partitions of each member, in order."""
        return {
            member_id: sorted(
                tp
                for class_number in self._classes_of[number]
                for tp in self._held[class_number][number]
            )
            for number, member_id in enumerate(self._members)
        }

    def level(self) -> None:
        """Move partitions until no move makes the assignment more even."""
        # First partitions without a previous owner: then fewer have to be taken from their owners.
        self._level(fresh_only=True)
        self._level(fresh_only=False)

    def _level(self, *, fresh_only: bool) -> None:
        queue = [(load, number) for number, load in enumerate(self._loads)]
        heapify(queue)
        while queue:
            # The least loaded receivers first: a receiver that finds no donor now never will, since
            # its donors have nothing to spare for receivers with even less.
            number = queue[0][1]
            if self._relieve_another(number, fresh_only=fresh_only):
                heapreplace(queue, (self._loads[number], number))
            else:
                heappop(queue)

    def _give_out(
        self, held: dict[int, list[TopicPartition]], partitions: Iterable[TopicPartition]
    ) -> None:
        """Assign the unowned partitions of a class to the members with the fewest."""
        queue = [(self._loads[number], number) for number in held]
        heapify(queue)
        for tp in partitions:
            load, number = queue[0]
            # New partitions are last in the list, and moved first if need be.
            held[number].append(tp)
            self._loads[number] += 1
            heapreplace(queue, (load + 1, number))

    def _relieve_another(self, receiver: int, *, fresh_only: bool) -> bool:
        """Give a member one more partition, along a chain from a member with at least two more."""
        enough = self._loads[receiver] + 2
        # The receiver that each reached member would pass a partition to, and the partition's
        # class.
        passes_to: dict[int, tuple[int, int]] = {receiver: (receiver, -1)}
        level = [receiver]
        seen_classes: set[int] = set()
        while level:
            reached: list[int] = []
            for taker in level:
                for class_number in self._classes_of[taker]:
                    if class_number in seen_classes:
                        continue
                    seen_classes.add(class_number)
                    for holder, partitions in self._held[class_number].items():
                        if not partitions or (fresh_only and partitions[-1] not in self._fresh):
                            continue
                        if holder not in passes_to:
                            passes_to[holder] = (taker, class_number)
                            reached.append(holder)
            giver = max(reached, key=lambda number: self._loads[number], default=receiver)
            if self._loads[giver] >= enough:
                self._pass_along(giver, receiver, passes_to)
                return True
            level = reached
        return False

    def _pass_along(
        self, giver: int, receiver: int, passes_to: Mapping[int, tuple[int, int]]
    ) -> None:
        self._loads[giver] -= 1
        self._loads[receiver] += 1
        holder = giver
        while holder != receiver:
            taker, moving_class = passes_to[holder]
            self._held[moving_class][taker].append(self._held[moving_class][holder].pop())
            holder = taker


def _classes(
    partition_counts: Mapping[str, int],
    subscribers: Mapping[str, Sequence[str]],
    number_of: Mapping[str, int],
) -> list[tuple[tuple[int, ...], list[str]]]:
    """The subscribers and topics of each class, classes with the fewest subscribers first."""
    topics_of: dict[tuple[int, ...], list[str]] = {}
    for topic, readers in subscribers.items():
        if partition_counts.get(topic, 0) > 0:
            topics_of.setdefault(tuple(number_of[reader] for reader in readers), []).append(topic)
    return sorted(topics_of.items(), key=lambda item: (len(item[0]), item))


# Range assignment: each topic is cut into ranges, one for each subscriber.
#
# Topics with as many partitions and the same subscribers are cut alike, so that records with the
# same key in both meet in one member.


class RangeAssignor(Assignor):
    """Kafka's `range`, the default: a contiguous range of each topic for each subscriber."""

    name = "range"

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignment:
        assignment: Assignment = {member_id: [] for member_id in members}
        for topic, readers in subscribers(members).items():
            size, longer = divmod(partition_counts.get(topic, 0), len(readers))
            start = 0
            for place, member_id in enumerate(readers):
                # The first members get one more, until the remainder is used up.
                end = start + size + (place < longer)
                assignment[member_id] += [TopicPartition(topic, n) for n in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor(Assignor):
    """Kafka's `roundrobin`: even where all members subscribe to the same topics."""

    name = "roundrobin"

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignment:
        assignment: Assignment = {member_id: [] for member_id in members}
        turns = cycle(member_order(members))
        for topic, readers in subscribers(members).items():
            allowed = set(readers)
            for number in range(partition_counts.get(topic, 0)):
                # A member that does not subscribe to the topic is skipped and loses its turn, as in
                # Java.
                member_id = next(turn for turn in turns if turn in allowed)
                assignment[member_id].append(TopicPartition(topic, number))
        return assignment


# Sticky assignment: as even as possible, and members keep what they can (KIP-54, KIP-429).
#
# `sticky` members revoke all their partitions before they join, and list them for the leader;
# `cooperative-sticky` members keep them. Their leader gives a partition to a new owner only when
# the old one does not claim it any more, which takes a second rebalance.


class StickyAssignor(Assignor):
    """Kafka's `sticky`: the user data has a member's previous partitions and their generation."""

    name = "sticky"

    def user_data(self, previous: Iterable[TopicPartition], generation: int) -> bytes | None:
        return encode_previous(previous, generation) if generation != NO_GENERATION else None

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignment:
        claims = {
            # Some clients send it in the field meant for cooperative members instead.
            member_id: decode_previous(member.user_data) or (member.owned, member.generation)
            for member_id, member in members.items()
        }
        return _balanced(partition_counts, members, _owners(claims))


class CooperativeStickyAssignor(Assignor):
    """Kafka's `cooperative-sticky`: a partition changes owner only after the old one revoked it."""

    name = "cooperative-sticky"
    is_cooperative = True

    def user_data(self, previous: Iterable[TopicPartition], generation: int) -> bytes | None:
        # The leader reads the generation from here for members before subscription version 2.
        return encode_generation(generation)

    def assign(
        self, partition_counts: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignment:
        claims = {
            member_id: (member.owned, _generation(member)) for member_id, member in members.items()
        }
        assignment = _balanced(partition_counts, members, _owners(claims))
        claimed_by: dict[TopicPartition, set[str]] = {}
        for member_id, member in members.items():
            for tp in member.owned:
                claimed_by.setdefault(tp, set()).add(member_id)
        return {
            member_id: [tp for tp in mine if member_id in claimed_by.get(tp, {member_id})]
            for member_id, mine in assignment.items()
        }


def _generation(subscription: MemberSubscription) -> int:
    if subscription.generation != NO_GENERATION:
        return subscription.generation
    return decode_generation(subscription.user_data)


def _balanced(
    partition_counts: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    kept: Mapping[TopicPartition, str],
) -> Assignment:
    balance = AssignmentBuilder(partition_counts, subscribers(members), member_order(members), kept)
    balance.level()
    return balance.assignment


def _owners(
    claims: Mapping[str, tuple[Collection[TopicPartition], int]],
) -> dict[TopicPartition, str]:
    """The last owner of each partition. If two members claim it for one generation, neither owns
    it.
    """
    latest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, str] = {}
    for member_id, (partitions, generation) in claims.items():
        for tp in set(partitions):
            if tp not in latest or generation > latest[tp]:
                latest[tp] = generation
                owners[tp] = member_id
            elif generation == latest[tp]:
                owners.pop(tp, None)
    return owners


ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
    )
}
