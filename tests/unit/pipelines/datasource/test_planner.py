"""Which offsets a stream reads next, against brokers that are values in a test."""

from collections.abc import Iterable, Mapping

import pytest

from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.pipelines.datasource.brokers import FoundPartitions
from headrace.pipelines.datasource.errors import DataLoss, SourceError
from headrace.pipelines.datasource.offset_ranges import (
    OffsetRange,
    Offsets,
    StreamOffset,
    from_json,
    to_json,
)
from headrace.pipelines.datasource.planner import DISCOVERY_S, Planner
from headrace.pipelines.datasource.read_options import (
    EARLIEST,
    LATEST,
    Bound,
    MicroBatchLimits,
    stream_options,
)
from headrace.types import TopicPartition

A0, A1, A2, B0 = (TopicPartition(*entry) for entry in (("a", 0), ("a", 1), ("a", 2), ("b", 0)))
ALL = MicroBatchLimits()
OLD, NEW = "b2xkb2xkb2xkb2xkb2xkbw", "bmV3bmV3bmV3bmV3bmV3bg"


class FakeBrokers:
    """Partitions as pairs of their first offset and their end."""

    def __init__(self, logs: dict[TopicPartition, tuple[int, int]], named: str) -> None:
        self.logs = logs
        self.named = named
        self.groups: dict[str, Offsets] = {}
        self.commits: list[Offsets] = []
        self.refuses_commits = False
        self.topic_ids: dict[str, str] = {}

    def find(self) -> FoundPartitions:
        topics = {tp.topic for tp in self.logs}
        missing = () if self.named in topics else (self.named,)
        return FoundPartitions(tuple(self.logs), missing, dict(self.topic_ids))

    def require(self) -> FoundPartitions:
        return self.find()

    def missing(self, names: tuple[str, ...]) -> SourceError:
        return SourceError(f"{names} are missing")

    def _side(self, partitions: Iterable[TopicPartition], side: int) -> Offsets:
        wanted = list(partitions)
        for tp in wanted:
            if tp not in self.logs:
                raise UnknownTopic(f"{tp} does not exist")
        return {tp: self.logs[tp][side] for tp in wanted}

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._side(partitions, 0)

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._side(partitions, 1)

    def resolve(self, bound: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
        sides = {EARLIEST: 0, LATEST: 1}
        return {
            tp: self.logs[tp][sides[place.offset]] if place.offset in sides else place.offset or 0
            for tp, place in bound.places(partitions).items()
            if place.offset is not None
        }

    def sizes_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: 100 * (self.logs[tp][1] - self.logs[tp][0]) for tp in partitions}

    def committed(self, group: str) -> Offsets:
        return self.groups.get(group, {})

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.refuses_commits:
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        self.commits.append(dict(offsets))
        self.groups.setdefault(group, {}).update(offsets)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Query:
    """A planner with all it needs, and what it said last."""

    def __init__(self, logs: dict[TopicPartition, tuple[int, int]], **given: str) -> None:
        self.options = stream_options({"subscribe": "a", "startingOffsets": "earliest"} | given)
        self.brokers = FakeBrokers(logs, "a")
        self.clock = FakeClock()
        self.planner = self.restarted()

    def restarted(self) -> Planner:
        self.planner = Planner(self.options, self.brokers, self.clock, parallelism=2)
        return self.planner

    # Offsets of topics whose ids nobody knows, as most tests have them.

    def initial(self) -> Offsets:
        return self.planner.initial().offsets

    def latest(self, start: Offsets, limits: MicroBatchLimits) -> Offsets:
        return self.planner.latest(StreamOffset(start), limits).offsets

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        return self.planner.ranges(StreamOffset(start), StreamOffset(end))

    def commit(self, offsets: Offsets) -> None:
        self.planner.commit(StreamOffset(offsets))

    @property
    def ends(self) -> Offsets | None:
        return None if self.planner.ends is None else self.planner.ends.offsets

    def later(self) -> None:
        self.clock.seconds += DISCOVERY_S


def test_from_the_beginning_to_the_end() -> None:
    query = Query({A0: (3, 10), A1: (0, 5)})
    start = query.initial()
    assert start == {A0: 3, A1: 0}
    end = query.latest(start, ALL)
    assert end == {A0: 10, A1: 5}
    assert query.ends == end
    assert query.ranges(start, end) == [OffsetRange("a", 0, 3, 10), OffsetRange("a", 1, 0, 5)]
    assert query.latest(end, ALL) == end
    assert query.ranges(end, end) == []


def test_the_start_is_the_same_however_often_it_is_asked() -> None:
    query = Query({A0: (0, 10)}, startingOffsets="latest")
    assert query.initial() == {A0: 10}
    query.brokers.logs[A0] = (0, 20)
    assert query.initial() == {A0: 10}


def test_latest_is_put_into_the_checkpoint_before_anything_is_read() -> None:
    query = Query({A0: (0, 10)}, startingOffsets="latest")
    start = query.initial()
    query.brokers.logs[A0] = (0, 20)
    assert query.latest(start, ALL) == start
    assert query.latest(start, ALL) == {A0: 20}


def test_offsets_never_go_back() -> None:
    query = Query({A0: (0, 10)}, failOnDataLoss="false")
    assert query.latest({A0: 30}, ALL) == {A0: 30}
    assert query.latest({A0: 30}, MicroBatchLimits(max_offsets=1)) == {A0: 30}


def test_a_partition_that_shrank_is_a_loss() -> None:
    query = Query({A0: (0, 10)})
    with pytest.raises(DataLoss, match=r"a-0 ends at offset 10.*up to 30.*failOnDataLoss to false"):
        query.latest({A0: 30}, ALL)


def test_new_partitions_are_read_from_their_beginning() -> None:
    query = Query({A0: (0, 10)})
    end = query.latest({A0: 0}, ALL)
    query.brokers.logs[A1] = (0, 7)
    assert query.latest(end, ALL) == {A0: 10}
    query.later()
    grown = query.latest(end, ALL)
    assert grown == {A0: 10, A1: 7}
    assert query.ranges(end, grown) == [OffsetRange("a", 1, 0, 7)]


def test_a_new_partition_that_has_lost_records_is_a_loss_and_a_new_topic_is_not() -> None:
    query = Query({A0: (0, 10), A1: (4, 7)})
    assert query.latest({A0: 10}, ALL) == {A0: 10, A1: 7}
    with pytest.raises(DataLoss, match="a-1 begins at offset 4, and 0 was to be read"):
        query.ranges({A0: 10}, {A0: 10, A1: 7})
    both = Query({A0: (0, 10), B0: (4, 7)}, subscribe="a,b")
    end = both.latest({A0: 10}, ALL)
    assert both.ranges({A0: 10}, end) == [OffsetRange("b", 0, 4, 7)]


def test_expired_offsets() -> None:
    query = Query({A0: (5, 10)})
    with pytest.raises(DataLoss, match="a-0 begins at offset 5, and 2 was to be read"):
        query.ranges({A0: 2}, {A0: 10})
    lenient = Query({A0: (5, 10)}, failOnDataLoss="false")
    assert lenient.ranges({A0: 2}, {A0: 10}) == [OffsetRange("a", 0, 5, 10)]
    assert lenient.ranges({A0: 2}, {A0: 4}) == []


def test_a_dropped_topic() -> None:
    query = Query({A0: (0, 10)})
    end = query.latest({A0: 0}, ALL)
    query.brokers.logs.clear()
    with pytest.raises(DataLoss, match="a-0 is gone, and the query has read it up to offset 10"):
        query.latest(end, ALL)


def test_a_dropped_topic_that_comes_again_is_read_again_if_losses_are_allowed() -> None:
    query = Query({A0: (0, 10)}, failOnDataLoss="false")
    end = query.latest({A0: 0}, ALL)
    query.brokers.logs.clear()
    assert query.latest(end, ALL) == {}
    query.brokers.logs[A0] = (0, 3)
    query.later()
    assert query.latest({}, ALL) == {A0: 3}


def test_a_topic_that_is_dropped_after_planning_is_for_the_tasks_to_tell() -> None:
    query = Query({A0: (0, 10)})
    query.brokers.logs.clear()
    assert query.ranges({A0: 2}, {A0: 10}) == [OffsetRange("a", 0, 2, 10)]


def test_a_topic_that_was_never_there_is_a_mistake() -> None:
    query = Query({B0: (0, 10)}, subscribe="a,b")
    with pytest.raises(SourceError, match="missing"):
        query.latest({B0: 0}, ALL)


def test_a_checkpoint_of_another_query() -> None:
    query = Query({A0: (0, 10)}, groupId="g")
    with pytest.raises(SourceError, match=r"of a query that reads b, .* a new checkpoint"):
        query.latest({B0: 5}, ALL)
    assert query.brokers.commits == []
    with pytest.raises(SourceError, match="it is of another query"):
        from_json(17)
    with pytest.raises(SourceError, match="give this query a checkpoint of its own"):
        from_json({"a": 17})


def test_available_now_ends_at_what_was_there() -> None:
    query = Query({A0: (0, 10), A1: (0, 4)}, maxOffsetsPerTrigger="7", minOffsetsPerTrigger="6")
    position = query.initial()
    query.planner.aim_at_now()
    query.brokers.logs |= {A0: (0, 99), A2: (0, 50)}
    query.later()
    seen = []
    while (end := query.latest(position, query.options.limits)) != position:
        position = end
        seen.append(position)
    assert position == {A0: 10, A1: 4}
    assert len(seen) == 2
    assert query.ends == {A0: 99, A1: 4, A2: 50}


def test_waiting_for_enough() -> None:
    query = Query({A0: (0, 10)}, minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    limits = query.options.limits
    end = query.latest({A0: 0}, limits)
    query.brokers.logs[A0] = (0, 12)
    assert query.latest(end, limits) == end
    query.clock.seconds += 10
    assert query.latest(end, limits) == {A0: 12}


def test_bytes_are_estimated_from_the_size_on_disk() -> None:
    query = Query({A0: (1000, 2000)})
    assert query.latest({A0: 1000}, MicroBatchLimits(max_bytes=20_000)) == {A0: 1200}


def test_the_group_follows_what_is_complete() -> None:
    query = Query({A0: (0, 10)}, groupId="g")
    start = query.initial()
    end = query.latest(start, ALL)
    assert query.brokers.groups["g"] == {A0: 0}
    query.commit(start)
    for _ in range(3):
        query.latest(end, ALL)
    query.commit(end)
    assert query.brokers.commits == [{A0: 0}, {A0: 10}]


def test_a_group_that_cannot_be_told_stops_nothing() -> None:
    query = Query({A0: (0, 10)}, groupId="g")
    query.brokers.refuses_commits = True
    assert query.latest({A0: 0}, ALL) == {A0: 10}


def test_the_group_says_where_to_start_if_it_is_asked() -> None:
    logs = {A0: (0, 10), A1: (0, 10)}
    ignored = Query(logs, groupId="g")
    ignored.brokers.groups["g"] = {A0: 7}
    assert ignored.initial() == {A0: 0, A1: 0}
    asked = Query(logs, groupId="g", groupOffsets="start")
    asked.brokers.groups["g"] = {A0: 7}
    assert asked.initial() == {A0: 7, A1: 0}


def test_offsets_survive_the_checkpoint() -> None:
    offsets = {A1: 5, A0: 3, B0: 0}
    plain = StreamOffset(offsets)
    assert to_json(plain) == {"a": {"0": 3, "1": 5}, "b": {"0": 0}}
    assert from_json(to_json(plain)) == plain
    position = StreamOffset(offsets, {"a": OLD, "b": NEW})
    assert to_json(position) == to_json(plain) | {"#topicIds": {"a": OLD, "b": NEW}}
    assert from_json(to_json(position)) == position


def test_positions_carry_the_ids_of_their_topics() -> None:
    query = Query({A0: (0, 10)})
    query.brokers.topic_ids = {"a": OLD}
    start = query.planner.initial()
    assert start == StreamOffset({A0: 0}, {"a": OLD})
    end = query.planner.latest(start, ALL)
    assert end == query.planner.ends == StreamOffset({A0: 10}, {"a": OLD})
    assert query.planner.ranges(start, end) == [OffsetRange("a", 0, 0, 10, OLD)]


def test_a_topic_created_again_is_a_loss_even_if_it_has_more_records_than_were_read() -> None:
    query = Query({A0: (0, 150)})
    query.brokers.topic_ids = {"a": NEW}
    with pytest.raises(DataLoss, match=r"topic a was deleted and created again.*a-0 100.*earliest"):
        query.planner.latest(StreamOffset({A0: 100}, {"a": OLD}), ALL)


@pytest.mark.parametrize("option", [("recreatedTopics", "earliest"), ("failOnDataLoss", "false")])
def test_a_topic_created_again_is_read_from_its_beginning_by_option(
    option: tuple[str, str],
) -> None:
    query = Query({A0: (3, 150), A1: (0, 20)}, **dict([option]))
    query.brokers.topic_ids = {"a": NEW}
    start = StreamOffset({A0: 100, A1: 30}, {"a": OLD})
    end = query.planner.latest(start, ALL)
    assert end == StreamOffset({A0: 150, A1: 20}, {"a": NEW})
    # Also when the micro-batch is planned again after a restart, from what the checkpoint has.
    for planner in (query.planner, query.restarted()):
        assert planner.ranges(start, end) == [
            OffsetRange("a", 0, 3, 150, NEW),
            OffsetRange("a", 1, 0, 20, NEW),
        ]
    assert query.planner.latest(end, ALL) == end


def test_a_checkpoint_without_ids_takes_the_topics_for_the_ones_it_has_read() -> None:
    query = Query({A0: (0, 150)})
    query.brokers.topic_ids = {"a": NEW}
    end = query.planner.latest(StreamOffset({A0: 100}), ALL)
    assert end == StreamOffset({A0: 150}, {"a": NEW})
