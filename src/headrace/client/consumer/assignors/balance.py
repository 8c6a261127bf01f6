"""Partitions shared out evenly, moving as few as possible from where they were.

Topics with the same subscribers are one class: their partitions can be exchanged for one another.
First everybody keeps what it had, then what nobody has goes to whoever has least, and then
partitions wander from those with more to those with less, along the shortest way there is:
directly, or through members that give one and take one. Rule: when no such way leads from a member
to another with at least two more, no assignment is more even (it is an optimal semi-matching).
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from headrace.types import TopicPartition


class Balance:
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
        # For each class, by the numbers of its subscribers, the partitions each of them has.
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
        for held, partitions in zip(self._held, free, strict=True):
            self._give_out(held, partitions)

    @property
    def assignment(self) -> dict[str, list[TopicPartition]]:
        """Who has what, in order."""
        return {
            member_id: sorted(
                tp for one in self._classes_of[number] for tp in self._held[one][number]
            )
            for number, member_id in enumerate(self._members)
        }

    def level(self) -> None:
        """Move partitions until no move makes the assignment more even."""
        queue = [(load, number) for number, load in enumerate(self._loads)]
        heapify(queue)
        while queue:
            # Those with least first: who finds nothing then will not find anything later either,
            # because all it could be given by has nothing to spare for those with even less.
            number = queue[0][1]
            if self._relieve_another(number):
                heapreplace(queue, (self._loads[number], number))
            else:
                heappop(queue)

    def _give_out(
        self, held: dict[int, list[TopicPartition]], partitions: Iterable[TopicPartition]
    ) -> None:
        """Give what nobody had of a class to whoever has least."""
        queue = [(self._loads[number], number) for number in held]
        heapify(queue)
        for tp in partitions:
            load, number = queue[0]
            # What is new comes last, and leaves first if it has to.
            held[number].append(tp)
            self._loads[number] += 1
            heapreplace(queue, (load + 1, number))

    def _relieve_another(self, receiver: int) -> bool:
        """Give a member one more, at the end of a chain, from one that has at least two more."""
        enough = self._loads[receiver] + 2
        # Where each member reached would pass a partition on to, and of which class it would be.
        passes_to: dict[int, tuple[int, int]] = {receiver: (receiver, -1)}
        level = [receiver]
        seen_classes: set[int] = set()
        while level:
            reached: list[int] = []
            for taker in level:
                for one in self._classes_of[taker]:
                    if one in seen_classes:
                        continue
                    seen_classes.add(one)
                    for holder, partitions in self._held[one].items():
                        if partitions and holder not in passes_to:
                            passes_to[holder] = (taker, one)
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
            taker, one = passes_to[holder]
            self._held[one][taker].append(self._held[one][holder].pop())
            holder = taker


def _classes(
    partition_counts: Mapping[str, int],
    subscribers: Mapping[str, Sequence[str]],
    number_of: Mapping[str, int],
) -> list[tuple[tuple[int, ...], list[str]]]:
    """Subscribers and topics of each class, those with least choice first."""
    topics_of: dict[tuple[int, ...], list[str]] = {}
    for topic, readers in subscribers.items():
        if partition_counts.get(topic, 0) > 0:
            topics_of.setdefault(tuple(number_of[one] for one in readers), []).append(topic)
    return sorted(topics_of.items(), key=lambda one: (len(one[0]), one))
