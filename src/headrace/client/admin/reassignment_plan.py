"""Plans of replica assignments that move as little data as they can.

In order of their weight, the aims are:

1. Every replica is on one of the brokers that may have some, and no broker has two of a partition.
2. No rack gets a second replica of a partition before every rack has one.
3. Brokers have as many replicas as each other, give or take one.
4. Nothing moves that need not. Of what could, the topic goes that is spread least evenly, and of
   its partitions the smallest.
5. Brokers are the preferred leaders of as many partitions as each other. That moves no data.

Rule: the same arguments give the same plan, in whatever order mappings hold them.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import HeadraceError
from headrace.types import TopicPartition

Assignment = Mapping[TopicPartition, tuple[int, ...]]


class CannotPlan(HeadraceError):
    """There is no assignment that does what was asked for; the text says why."""


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """New replicas of the partitions that change, and what these had before."""

    before: Assignment
    after: Assignment

    def added(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The brokers that must copy each partition."""
        return {
            tp: new
            for tp, replicas in self.after.items()
            if (new := tuple(replica for replica in replicas if replica not in self.before[tp]))
        }

    def moved_bytes(self, sizes: Mapping[TopicPartition, int]) -> int:
        """The bytes that are copied between brokers."""
        return sum(sizes.get(tp, 0) * len(new) for tp, new in self.added().items())


def make_plan(
    brokers: Mapping[int, str | None],
    assignment: Assignment,
    *,
    sizes: Mapping[TopicPartition, int] | None = None,
    balance: bool = True,
    replication_factor: int | None = None,
) -> ReassignmentPlan:
    """Plan the partitions of `assignment` onto `brokers`, which come with their racks.

    Without `balance` only replicas move that are on other brokers. CannotPlan if there are too few
    brokers.
    """
    if not brokers:
        raise CannotPlan("no broker is left to have replicas")
    state = _PlannedReplicas(brokers, assignment, sizes or {})
    for tp in sorted(assignment):
        wanted = replication_factor or len(assignment[tp])
        if wanted > len(brokers):
            raise CannotPlan(
                f"{tp} needs {wanted} replicas, and only {len(brokers)} brokers may have some;"
                " add brokers, or ask for fewer replicas"
            )
        state.resize(tp, wanted)
    if balance:
        for tp in sorted(assignment):
            state.mend_racks(tp)
    while state.even_out(balance):
        pass
    after = state.replicas()
    # First within each topic, because one may be busier than the others, then over all of them.
    for topic in sorted({tp.topic for tp in assignment}):
        of_topic = {tp: replicas for tp, replicas in after.items() if tp.topic == topic}
        after |= _with_even_leaders(brokers, of_topic)
    after = _with_even_leaders(brokers, after)
    changed = [tp for tp in sorted(assignment) if after[tp] != tuple(assignment[tp])]
    return ReassignmentPlan(
        {tp: tuple(assignment[tp]) for tp in changed}, {tp: after[tp] for tp in changed}
    )


class _PlannedReplicas:
    """Replicas while they are moved about.

    Invariant: `load` counts the replicas on each broker, `_on[broker][topic]` has those of a topic
    that are where they were, at first the smallest first, and `_moved[broker]` those that came.
    """

    def __init__(
        self,
        brokers: Mapping[int, str | None],
        assignment: Assignment,
        sizes: Mapping[TopicPartition, int],
    ) -> None:
        self._racks = {broker: brokers[broker] for broker in sorted(brokers)}
        self._original = assignment
        self._slots = {tp: list(assignment[tp]) for tp in sorted(assignment)}
        self.load = dict.fromkeys(self._racks, 0)
        self._topics: dict[int, Counter[str]] = {broker: Counter() for broker in self._racks}
        self._on: dict[int, dict[str, dict[TopicPartition, None]]] = {
            broker: {} for broker in self._racks
        }
        self._moved: dict[int, dict[TopicPartition, None]] = {broker: {} for broker in self._racks}
        for tp in sorted(assignment, key=lambda tp: (sizes.get(tp, 0), tp)):
            for broker in assignment[tp]:
                if broker in self.load:
                    self._enter(tp, broker)

    def replicas(self) -> dict[TopicPartition, tuple[int, ...]]:
        return {tp: tuple(slots) for tp, slots in self._slots.items()}

    def resize(self, tp: TopicPartition, wanted: int) -> None:
        """Give a partition so many replicas, all of them on brokers that may have some."""
        slots = self._slots[tp]
        for index, broker in enumerate(slots):
            if broker not in self.load and index < wanted:
                self._put(tp, index, self._best(tp))
        while len(slots) > wanted:
            gone = [broker for broker in slots if broker not in self.load]
            worst = (
                gone[-1] if gone else max(slots[1:], key=lambda slot: self._reluctance(tp, slot))
            )
            slots.remove(worst)
            if worst in self.load:
                self._leave(tp, worst)
        while len(slots) < wanted:
            broker = self._best(tp)
            slots.append(broker)
            self._enter(tp, broker)

    def mend_racks(self, tp: TopicPartition) -> None:
        """Move replicas of a partition until no rack has more of them than it must."""
        slots = self._slots[tp]
        while True:
            crowding = self._crowding(tp)
            steps = [
                (self._crowding(tp, old, new), -self.load[old], self.load[new], new, old)
                for old in slots
                for new in self.load
                if new not in slots
            ]
            best = min(steps, default=None)
            if best is None or best[0] >= crowding:
                return
            self._put(tp, slots.index(best[4]), best[3])

    def even_out(self, balance: bool) -> bool:
        """Take one replica off a broker that has too many; whether that could be done."""
        for source in sorted(self.load, key=lambda broker: (-self.load[broker], broker)):
            sinks = [broker for broker in self.load if self.load[broker] <= self.load[source] - 2]
            sinks.sort(key=lambda broker: (self.load[broker], broker))
            for sink in sinks:
                tp = self._movable(source, sink, balance)
                if tp is not None:
                    self._put(tp, self._slots[tp].index(source), sink)
                    return True
            path = self._path(source, sinks, balance)
            if path is not None and self._shift(path, balance):
                return True
        return False

    def _path(self, source: int, sinks: list[int], balance: bool) -> list[int] | None:
        """Brokers each of which can hand a replica to the next, from one to the least loaded."""
        came_from = {source: source}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            for there in self.load:
                if there not in came_from and self._movable(here, there, balance) is not None:
                    came_from[there] = here
                    waiting.append(there)
        for sink in sinks:
            if sink in came_from:
                path = [sink]
                while path[-1] != source:
                    path.append(came_from[path[-1]])
                return path
        return None

    def _shift(self, path: list[int], balance: bool) -> bool:
        """Hand a replica on along a path that begins at its sink; whether that could be done."""
        done: list[tuple[TopicPartition, int, int]] = []
        for new, old in pairwise(path):
            tp = self._movable(old, new, balance)
            if tp is None:
                # A step before took the replica that this one was to hand on.
                for moved, index, broker in reversed(done):
                    self._put(moved, index, broker)
                return False
            index = self._slots[tp].index(old)
            done.append((tp, index, old))
            self._put(tp, index, new)
        return True

    def _movable(self, source: int, sink: int, balance: bool) -> TopicPartition | None:
        """The replica that had best go from one broker to another, if any may."""
        here, there = self._topics[source], self._topics[sink]

        def gap(topic: str) -> tuple[int, str]:
            return there[topic] - here[topic], topic

        for tp in sorted(self._moved[source], key=lambda tp: (gap(tp.topic), tp)):
            if self._may_move(tp, source, sink):
                return tp
        if not balance:
            return None
        topics = sorted(self._on[source], key=gap)
        for topic in topics:
            for tp in self._on[source][topic]:
                if self._may_move(tp, source, sink):
                    return tp
        return None

    def _may_move(self, tp: TopicPartition, source: int, sink: int) -> bool:
        if sink in self._slots[tp]:
            return False
        return self._crowding(tp, source, sink) <= self._crowding(tp)

    def _crowding(self, tp: TopicPartition, old: int = -1, new: int = -1) -> int:
        """Less, the more evenly racks share a partition; after a move from `old` to `new`."""
        brokers = [new if broker == old else broker for broker in self._slots[tp]]
        shares = Counter(self._racks[broker] for broker in brokers if broker in self._racks)
        return sum(share * share for share in shares.values())

    def _best(self, tp: TopicPartition) -> int:
        """The broker that had best get one more replica of a partition."""
        slots = self._slots[tp]
        taken = Counter(self._racks[broker] for broker in slots if broker in self._racks)
        return min(
            (broker for broker in self.load if broker not in slots),
            key=lambda broker: (
                taken[self._racks[broker]],
                self._topics[broker][tp.topic],
                self.load[broker],
                broker,
            ),
        )

    def _reluctance(self, tp: TopicPartition, broker: int) -> tuple[int, int, int]:
        shares = Counter(self._racks.get(holder) for holder in self._slots[tp])
        return shares[self._racks.get(broker)], self.load[broker], broker

    def _put(self, tp: TopicPartition, index: int, broker: int) -> None:
        old = self._slots[tp][index]
        if old in self.load:
            self._leave(tp, old)
        self._slots[tp][index] = broker
        self._enter(tp, broker)

    def _enter(self, tp: TopicPartition, broker: int) -> None:
        self.load[broker] += 1
        self._topics[broker][tp.topic] += 1
        if broker in self._original[tp]:
            self._on[broker].setdefault(tp.topic, {})[tp] = None
        else:
            self._moved[broker][tp] = None

    def _leave(self, tp: TopicPartition, broker: int) -> None:
        self.load[broker] -= 1
        self._topics[broker][tp.topic] -= 1
        if broker in self._original[tp]:
            del self._on[broker][tp.topic][tp]
        else:
            del self._moved[broker][tp]


def _with_even_leaders(
    brokers: Mapping[int, str | None], replicas: Assignment
) -> dict[TopicPartition, tuple[int, ...]]:
    """The same replicas, with other ones first where that makes brokers lead equally often.

    A broker that leads too often hands a partition to one of its other replicas, and if these lead
    too often themselves, they hand on one of theirs: the shortest such way to a broker that leads
    too rarely. When no way is left, no other order is more even.
    """
    leads = dict.fromkeys(sorted(brokers), 0)
    leader = {tp: replicas[tp][0] for tp in sorted(replicas)}
    handed: dict[int, dict[int, dict[TopicPartition, None]]] = {
        lead: {other: {} for other in leads} for lead in leads
    }
    topics: dict[int, Counter[str]] = {broker: Counter() for broker in leads}
    for tp, broker in leader.items():
        leads[broker] += 1
        topics[broker][tp.topic] += 1
        for other in replicas[tp]:
            handed[broker][other][tp] = None
    while True:
        path = next(_handovers(leads, handed), None)
        if path is None:
            break
        for old, new in pairwise(path):
            here, there = topics[old], topics[new]
            tp = min(handed[old][new], key=lambda tp: (there[tp.topic] - here[tp.topic], tp))
            leader[tp] = new
            for broker, step in ((old, -1), (new, 1)):
                leads[broker] += step
                topics[broker][tp.topic] += step
            for other in replicas[tp]:
                del handed[old][other][tp]
                handed[new][other][tp] = None
    return {
        tp: (leader[tp], *(broker for broker in given if broker != leader[tp]))
        for tp, given in replicas.items()
    }


def _handovers(
    leads: Mapping[int, int], handed: Mapping[int, Mapping[int, Mapping[TopicPartition, None]]]
) -> Iterator[list[int]]:
    """The ways from brokers that lead too often, the worst first, to those that lead least."""
    for source in sorted(leads, key=lambda lead: (-leads[lead], lead)):
        came_from = {source: source}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            for there in leads:
                if there not in came_from and handed[here][there]:
                    came_from[there] = here
                    waiting.append(there)
        sink = min(came_from, key=lambda broker: (leads[broker], broker))
        if leads[sink] <= leads[source] - 2:
            path = [sink]
            while path[-1] != source:
                path.append(came_from[path[-1]])
            yield path[::-1]
