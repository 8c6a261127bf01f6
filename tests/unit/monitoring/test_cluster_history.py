from dataclasses import replace

from headrace.client.admin.cluster import BrokerHealth, ClusterDescription, LogDirectory
from headrace.client.admin.groups import GroupDescription, GroupListing, MemberDescription
from headrace.client.cluster_metadata import BrokerInfo, PartitionInfo, TopicInfo
from headrace.errors import ErrorCode, KafkaError
from headrace.monitoring.cluster_history import STALLED_MS, ClusterHistory, ClusterSample
from headrace.net.addresses import Address
from headrace.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def topic(name: str, *isrs: tuple[int, ...], leader: int = 1) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(index, leader, 0, (1, 2), isr, ()) for index, isr in enumerate(isrs)
    )
    return TopicInfo(name, bytes(16), False, partitions)


def directory(path: str = "/d", usable: int = 90, **sizes: int) -> LogDirectory:
    replicas = {TopicPartition(*_split(name)): size for name, size in sizes.items()}
    return LogDirectory(path, None, replicas, 100, usable)


def _split(name: str) -> tuple[str, int]:
    topic, _, number = name.partition("_")
    return topic, int(number)


def sample(time_ms: int, **parts: object) -> ClusterSample:
    brokers = tuple(BrokerInfo(node, Address("h", 9092 + node), None) for node in (1, 2))
    whole = ClusterSample(
        time_ms,
        description=ClusterDescription("id", 1, brokers),
        topics={"a": topic("a", (1, 2), (1, 2))},
    )
    return replace(whole, **parts)  # type: ignore[arg-type]


def offsets(time_ms: int, **ends: int) -> ClusterSample:
    found = {TopicPartition(*_split(name)): end for name, end in ends.items()}
    return ClusterSample(time_ms, end_offsets=found, offsets_ms=time_ms)


def test_rates_are_of_the_time_between_two_samples() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    state = history.add(offsets(1000, a_0=100, a_1=7))
    assert state.topics["a"].messages_per_s is None
    state = history.add(offsets(3000, a_0=300, a_1=7))
    assert state.topics["a"].messages_per_s == 100.0
    assert state.messages_per_s == 100.0
    assert state.brokers[1].messages_per_s == 100.0
    assert state.brokers[2].messages_per_s == 0.0
    assert list(history.topic_rates("a")) == [(3000, 100.0)]


def test_a_topic_created_anew_has_no_negative_rate() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    history.add(offsets(1000, a_0=100))
    state = history.add(offsets(2000, a_0=3))
    assert state.topics["a"].messages_per_s is None
    state = history.add(offsets(3000, a_0=5))
    assert state.topics["a"].messages_per_s == 2.0


def test_sizes_are_those_of_the_largest_replica() -> None:
    history = ClusterHistory()
    health = {
        1: BrokerHealth((directory(a_0=50, a_1=10),), {}, ()),
        2: BrokerHealth((directory(a_0=40, a_1=20),), {}, ()),
    }
    state = history.add(sample(1000, health=health))
    assert state.topics["a"].size_bytes == 70
    assert state.size_bytes == 120
    assert state.brokers[2].size_bytes == 60
    assert history.partition_size(A1) == 20


def test_a_failed_part_keeps_its_last_value_and_its_error() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    state = history.add(
        ClusterSample(2000, errors={"metadata": "no answer"}, asked=frozenset({"metadata"}))
    )
    assert state.errors == {"metadata": "no answer"}
    assert list(state.topics) == ["a"]
    state = history.add(replace(sample(3000), asked=frozenset({"metadata"})))
    assert state.errors == {}


def group_sample(
    time_ms: int, committed: int, end: int, members: int = 1, owns: tuple[TopicPartition, ...] = ()
) -> ClusterSample:
    member = MemberDescription("m-1", None, "m", "10.0.0.1", ("a",), owns or (A0,))
    return ClusterSample(
        time_ms,
        end_offsets={A0: end},
        offsets_ms=time_ms,
        groups={"g": GroupListing("g", "Stable", "classic", "consumer", 1)},
        members={"g": GroupDescription("g", "Stable", "consumer", "range", 1, (member,) * members)},
        committed={"g": {A0: committed}},
    )


def test_lag_in_seconds_is_the_age_of_the_next_record() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    history.add(group_sample(1000, 100, 100))
    history.add(group_sample(2000, 100, 200))
    state = history.add(group_sample(12_000, 150, 200))
    # Offset 150 was written between 1000 and 2000 ms.
    assert state.groups["g"].lag == 50
    assert state.groups["g"].lag_s == 10.5
    assert not state.groups["g"].is_at_least
    [lag] = history.partition_lags("g")
    assert (lag.committed_offset, lag.end_offset, lag.member_id) == (150, 200, "m-1")
    lags, seconds = history.group_lag("g")
    assert [value for _, value in lags] == [0.0, 100.0, 50.0]
    assert seconds.last == 10.5


def test_a_lag_older_than_the_samples_is_a_lower_bound() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    history.add(group_sample(1000, 5, 100))
    state = history.add(group_sample(4000, 5, 100))
    assert state.groups["g"].lag_s == 3.0
    assert state.groups["g"].is_at_least


def test_a_partition_that_is_assigned_and_never_committed_has_no_lag() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    history.add(group_sample(1000, 5, 5, owns=(A0, A1)))
    assert [(lag.tp, lag.lag) for lag in history.partition_lags("g")] == [(A0, 0), (A1, None)]


def test_a_group_that_commits_nothing_while_it_lags_is_a_problem() -> None:
    history = ClusterHistory()
    history.add(sample(1000))
    history.add(group_sample(1000, 5, 100))
    state = history.add(group_sample(1000 + STALLED_MS - 1, 5, 100))
    assert state.problems == ()
    [problem] = history.add(group_sample(1000 + STALLED_MS, 5, 100)).problems
    assert (problem.check, problem.name, problem.severity) == ("stalled-group", "g", "warning")
    assert history.add(group_sample(2000 + STALLED_MS, 6, 100)).problems == ()
    # Nobody reads: that is lag, but nothing that is stuck.
    assert history.add(group_sample(3000 + 2 * STALLED_MS, 6, 100, members=0)).problems == ()


def test_problems_of_brokers_and_disks() -> None:
    history = ClusterHistory()
    health: dict[int, BrokerHealth | KafkaError] = {
        1: BrokerHealth((directory(usable=9),), {}, ()),
        2: KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 2: refused"),
    }
    state = history.add(sample(1000, health=health, topics={"a": topic("a", (1,))}))
    assert [problem.check for problem in state.problems] == [
        "broker",
        "under-replicated",
        "disk-space",
    ]
    assert state.brokers[2].error is not None
    assert state.brokers[2].lagging == 1


def test_the_history_of_deleted_topics_is_dropped() -> None:
    history = ClusterHistory()
    for second in range(1, 50):
        name = f"t{second}"
        history.add(sample(second * 2000, topics={name: topic(name, (1, 2))}))
        history.add(offsets(second * 2000, **{f"{name}_0": 0}))
        history.add(offsets(second * 2000 + 1000, **{f"{name}_0": 10}))
    assert len(history._topic_rates) == 1
