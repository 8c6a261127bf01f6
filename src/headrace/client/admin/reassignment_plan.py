"""Plans of replica assignments that move as little data as possible.

In order of their weight, the aims are:

1. Every replica is on one of the given brokers, and no broker has two replicas of a partition.
2. No rack gets a second replica of a partition before every rack has one.
3. The replica counts of brokers differ by one at most.
4. Nothing moves without need. Of the topics that could move, the one that is spread least evenly
   does, and of its partitions the smallest.
5. The preferred-leader counts of brokers are as equal as possible. That moves no data.

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
    """No assignment satisfies the request; the text says why."""


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """The new replicas of the partitions that change, and their replicas before."""

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
        """The number of bytes that are copied between brokers."""
        return sum(sizes.get(tp, 0) * len(new) for tp, new in self.added().items())


def make_plan(
    brokers: Mapping[int, str | None],
    assignment: Assignment,
    *,
    sizes: Mapping[TopicPartition, int] | None = None,
    balance: bool = True,
    replication_factor: int | None = None,
) -> ReassignmentPlan:
    """Plan the partitions of `assignment` onto `brokers`, given with their racks.

    Without `balance` only replicas on other brokers move. CannotPlan if there are too few brokers.
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
    # First within each topic, because a topic may be busier than the others, then over all topics.
    for topic in sorted({tp.topic for tp in assignment}):
        of_topic = {tp: replicas for tp, replicas in after.items() if tp.topic == topic}
        after |= _with_even_leaders(brokers, of_topic)
    after = _with_even_leaders(brokers, after)
    changed = [tp for tp in sorted(assignment) if after[tp] != tuple(assignment[tp])]
    return ReassignmentPlan(
        {tp: tuple(assignment[tp]) for tp in changed}, {tp: after[tp] for tp in changed}
    )


class _PlannedReplicas:
    """The replica assignment while it is being changed.

    Invariant: `load` counts the replicas on each broker; `_on[broker][topic]` has the topic's
    replicas that have not moved, at first the smallest first; `_moved[broker]` has those moved to
    the broker.
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
        """Give a partition `wanted` replicas, all of them on the given brokers."""
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
        """Move replicas of a partition until the racks share them as evenly as possible."""
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
        """Take one replica off a broker that has too many; returns whether that was possible."""
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
        """A chain of brokers, each able to pass a replica to the next, from `source` to a sink."""
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
        """Pass a replica along each step of a path that begins at its sink; returns whether it
        worked.
        """
        done: list[tuple[TopicPartition, int, int]] = []
        for new, old in pairwise(path):
            tp = self._movable(old, new, balance)
            if tp is None:
                # An earlier step took the replica that this step was to pass on.
                for moved, index, broker in reversed(done):
                    self._put(moved, index, broker)
                return False
            index = self._slots[tp].index(old)
            done.append((tp, index, old))
            self._put(tp, index, new)
        return True

    def _movable(self, source: int, sink: int, balance: bool) -> TopicPartition | None:
        """The best replica to move from one broker to another, or None if none may move."""
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
        """The unevenness of a partition over racks, after a move from `old` to `new`. Lower is
        better.
        """
        brokers = [new if broker == old else broker for broker in self._slots[tp]]
        shares = Counter(self._racks[broker] for broker in brokers if broker in self._racks)
        return sum(share * share for share in shares.values())

    def _best(self, tp: TopicPartition) -> int:
        """The best broker for an additional replica of a partition."""
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
    """The same replicas, reordered so that brokers are preferred leaders equally often.

    A broker that leads too often passes a partition to one of its other replicas, and if that
    broker leads too often itself, it passes on one of its own: along the shortest such path to a
    broker that leads too rarely. When no path is left, no other order is more even.
    """
    leads = dict.fromkeys(sorted(brokers), 0)
    leader = {tp: replicas[tp][0] for tp in sorted(replicas)}
    movable: dict[int, dict[int, dict[TopicPartition, None]]] = {
        lead: {other: {} for other in leads} for lead in leads
    }
    topics: dict[int, Counter[str]] = {broker: Counter() for broker in leads}
    for tp, broker in leader.items():
        leads[broker] += 1
        topics[broker][tp.topic] += 1
        for other in replicas[tp]:
            movable[broker][other][tp] = None
    while True:
        path = next(_leadership_paths(leads, movable), None)
        if path is None:
            break
        for old, new in pairwise(path):
            here, there = topics[old], topics[new]
            tp = min(movable[old][new], key=lambda tp: (there[tp.topic] - here[tp.topic], tp))
            leader[tp] = new
            for broker, step in ((old, -1), (new, 1)):
                leads[broker] += step
                topics[broker][tp.topic] += step
            for other in replicas[tp]:
                del movable[old][other][tp]
                movable[new][other][tp] = None
    return {
        tp: (leader[tp], *(broker for broker in given if broker != leader[tp]))
        for tp, given in replicas.items()
    }


def _leadership_paths(
    leads: Mapping[int, int], movable: Mapping[int, Mapping[int, Mapping[TopicPartition, None]]]
) -> Iterator[list[int]]:
    """The paths from brokers that lead too often, the worst first, to those that lead least."""
    for source in sorted(leads, key=lambda lead: (-leads[lead], lead)):
        came_from = {source: source}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            for there in leads:
                if there not in came_from and movable[here][there]:
                    came_from[there] = here
                    waiting.append(there)
        sink = min(came_from, key=lambda broker: (leads[broker], broker))
        if leads[sink] <= leads[source] - 2:
            path = [sink]
            while path[-1] != source:
                path.append(came_from[path[-1]])
            yield path[::-1]
