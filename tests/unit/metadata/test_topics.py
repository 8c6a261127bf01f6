"""Creating, deleting and growing topics: every answer a client can get."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from headrace.config import BrokerConfig, broker_config, describe_topic
from headrace.errors import ErrorCode
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.metadata.topics import (
    PARTITIONS_MAX,
    create_partitions,
    create_topics,
    delete_topics,
    new_topic_id,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.messages.metadata_records import (
    FenceBrokerRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from headrace.protocol.schema import decode_message, encode_message
from headrace.types import ZERO_UUID, uuid_text
from tests.unit.metadata.clusters import cluster, id_of, told


def topic(
    name: str, partitions: int = -1, replicas: int = -1, **configs: str | None
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def assigned(name: str, *replicas: Sequence[int], first: int = 0) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
        for partition, brokers in enumerate(replicas, first)
    ]
    return CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
    )


def create(
    image: Image,
    *topics: CreatableTopic,
    config: BrokerConfig | None = None,
    validate_only: bool = False,
) -> CommandResult[CreateTopicsResponse]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return create_topics(image, request, config=config or BrokerConfig(), random=Random(7))


def refused(image: Image, wanted: CreatableTopic, config: BrokerConfig | None = None) -> str:
    """The code and message of a topic that must not be created."""
    result = create(image, wanted, config=config)
    assert result.records == ()
    [answer] = result.response.topics
    assert answer.name == wanted.name
    assert (answer.topic_id, answer.num_partitions) == (ZERO_UUID, -1)
    return told(answer.error_code, answer.error_message)


def test_a_created_topic_is_in_the_image_as_it_was_answered() -> None:
    image = cluster(1, 2, 3)
    result = create(image, topic("orders", 6, 2, retention_ms="1000"))
    [answer] = result.response.topics
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.num_partitions, answer.replication_factor) == (6, 2)
    created = image.apply(result.records).topics["orders"]
    assert created.topic_id == answer.topic_id
    assert len(created.partitions) == 6
    for partition in created.partitions:
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert image.apply(result.records).configs == {(2, "orders"): {"retention.ms": "1000"}}


def test_the_response_can_be_sent_in_every_version() -> None:
    image = cluster(1, topics={"taken": [[1]]})
    response = create(image, topic("orders"), topic("taken"), topic("")).response
    for version in range(2, 8):
        decoded = decode_message(CreateTopicsResponse, version, encode_message(response, version))
        assert [result.error_code for result in decoded.topics] == [0, 36, 17]
    assert decode_message(CreateTopicsResponse, 7, encode_message(response, 7)) == response


def test_minus_one_means_the_brokers_defaults() -> None:
    config = broker_config({"num.partitions": "5", "default.replication.factor": "2"})
    [answer] = create(cluster(1, 2), topic("orders"), config=config).response.topics
    assert (answer.num_partitions, answer.replication_factor) == (5, 2)


def test_the_answer_tells_every_setting_and_its_source() -> None:
    config = broker_config({"compression.type": "zstd"}).with_overrides(
        {"message.max.bytes": "9"}, {"log.segment.bytes": "2000000"}
    )
    [answer] = create(cluster(1), topic("orders", retention_ms="7"), config=config).response.topics
    assert answer.configs is not None
    assert {config.name for config in answer.configs} == set(describe_topic(config, {}))
    sources = {config.name: (config.value, config.config_source) for config in answer.configs}
    assert sources["retention.ms"] == ("7", 1)
    assert sources["max.message.bytes"] == ("9", 2)
    assert sources["segment.bytes"] == ("2000000", 3)
    assert sources["compression.type"] == ("zstd", 4)
    assert sources["flush.ms"] == ("9223372036854775807", 5)
    assert not any(config.read_only or config.is_sensitive for config in answer.configs)


def test_one_topics_settings_do_not_show_in_anothers_answer() -> None:
    first, second = create(cluster(1), topic("a", retention_ms="7"), topic("b")).response.topics
    values = [
        {config.name: config.value for config in answer.configs or []} for answer in (first, second)
    ]
    assert [value["retention.ms"] for value in values] == ["7", "604800000"]


def test_validate_only_answers_the_same_and_records_nothing() -> None:
    image = cluster(1, topics={"taken": [[1]]})
    wanted = (topic("orders", 3), topic("taken"))
    result = create(image, *wanted, validate_only=True)
    assert result.records == ()
    good, bad = result.response.topics
    assert (good.error_code, good.num_partitions, good.topic_id) == (0, 3, ZERO_UUID)
    assert bad.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_bad_topic_does_not_fail_its_neighbours() -> None:
    image = cluster(1, topics={"taken": [[1]]})
    result = create(image, topic("a"), topic("taken"), topic("b/c"), topic("d", 0), topic("e"))
    codes = {answer.name: answer.error_code for answer in result.response.topics}
    assert codes == {
        "a": 0,
        "taken": ErrorCode.TOPIC_ALREADY_EXISTS,
        "b/c": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "d": ErrorCode.INVALID_PARTITIONS,
        "e": 0,
    }
    assert set(image.apply(result.records).topics) == {"taken", "a", "e"}


def test_a_topic_named_twice_is_created_not_even_once() -> None:
    result = create(cluster(1), topic("a"), topic("b"), topic("a", 5))
    codes = {answer.name: answer.error_code for answer in result.response.topics}
    assert codes == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
    assert len(result.response.topics) == 2
    assert set(cluster(1).apply(result.records).topics) == {"b"}


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        (topic("taken"), "TOPIC_ALREADY_EXISTS: topic 'taken' already exists"),
        (topic(""), "INVALID_TOPIC_EXCEPTION: the topic name is empty"),
        (topic("a_b"), "INVALID_TOPIC_EXCEPTION: 'a_b' collides with the topic 'a.b'"),
        (topic("__cluster_metadata"), "INVALID_REQUEST: __cluster_metadata is kept by the cluster"),
        (topic("t", 0), "INVALID_PARTITIONS: a topic cannot have 0 partitions; use at least 1"),
        (topic("t", -2), "INVALID_PARTITIONS: a topic cannot have -2 partitions; use at least 1"),
        (topic("t", 1, 0), "INVALID_REPLICATION_FACTOR: a replication factor of 0 is not possible"),
        (topic("t", 1, -2), "INVALID_REPLICATION_FACTOR: a replication factor of -2 is not"),
        (topic("t", 1, 4), "INVALID_REPLICATION_FACTOR: 4 replicas need as many brokers"),
        (topic("t", 10_001), "POLICY_VIOLATION: one request may create 10000 partitions"),
        (topic("t", 2**31 - 1), "POLICY_VIOLATION: one request may create 10000 partitions"),
        (topic("t", retention_ms=None), "INVALID_CONFIG: retention.ms has no value"),
        (topic("t", retention_ms="x"), "INVALID_CONFIG: retention.ms cannot be 'x': it must be"),
        (topic("t", retention_s="1"), "INVALID_CONFIG: unknown setting 'retention.s'; did you"),
        (topic("t", cleanup_policy="shred"), "INVALID_CONFIG: cleanup.policy cannot be 'shred"),
    ],
    ids=str,
)
def test_a_topic_that_cannot_be_is_refused_with_what_to_do(
    wanted: CreatableTopic, answer: str
) -> None:
    image = cluster(1, 2, 3, topics={"taken": [[1]], "a.b": [[1]]})
    assert refused(image, wanted).startswith(answer)


def test_names_collide_within_one_request_too() -> None:
    result = create(cluster(1), topic("a.b"), topic("a_b"), topic("ab"))
    assert [answer.error_code for answer in result.response.topics] == [
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        0,
    ]


def test_a_name_is_free_again_once_the_topic_it_collides_with_is_gone() -> None:
    image = cluster(1, topics={"a.b": [[1]]}).apply([RemoveTopicRecord(topic_id=id_of("a.b"))])
    assert create(image, topic("a_b")).response.topics[0].error_code == 0


def test_without_brokers_there_are_no_topics() -> None:
    assert refused(Image(), topic("t", 1, 1)).startswith("INVALID_REPLICATION_FACTOR")


def test_fenced_brokers_do_not_lead() -> None:
    image = cluster(1, 2).apply([FenceBrokerRecord(id=1, epoch=0)])
    created = image.apply(create(image, topic("t", 4, 1)).records).topics["t"]
    assert {partition.leader for partition in created.partitions} == {2}


def test_topics_of_a_request_share_its_partition_budget() -> None:
    result = create(
        cluster(1), topic("a", 6000), topic("b", 6000), topic("c", 4000, 2), topic("d", 4000)
    )
    assert [answer.error_code for answer in result.response.topics] == [
        0,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        0,
    ]


def test_a_full_cluster_takes_no_more_partitions() -> None:
    full = Image(brokers=cluster(1).brokers, partition_count=PARTITIONS_MAX - 2)
    assert "a cluster may have 200000 partitions" in refused(full, topic("t", 3))
    assert create(full, topic("t", 2)).response.topics[0].error_code == 0


def test_a_manual_assignment_is_kept_as_it_is() -> None:
    image = cluster(1, 2, 3)
    result = create(image, assigned("t", [3, 1], [1, 2]))
    [answer] = result.response.topics
    assert (answer.num_partitions, answer.replication_factor) == (2, 2)
    partitions = image.apply(result.records).topics["t"].partitions
    assert [partition.replicas for partition in partitions] == [(3, 1), (1, 2)]


def test_a_manual_assignment_may_come_in_any_order() -> None:
    image = cluster(1, 2)
    wanted = assigned("t", [1], [2])
    wanted.assignments.reverse()
    partitions = image.apply(create(image, wanted).records).topics["t"].partitions
    assert [partition.leader for partition in partitions] == [1, 2]


def test_a_replica_that_is_down_starts_out_of_sync() -> None:
    image = cluster(1, 2).apply([FenceBrokerRecord(id=1, epoch=0)])
    [partition] = image.apply(create(image, assigned("t", [1, 2])).records).topics["t"].partitions
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (2,), 2)


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [
        ([[]], "partition 0 has no replicas"),
        ([[2], [2, 2]], "partition 1 names a broker more than once"),
        ([[9]], "partition 0 names broker 9, which is not registered"),
        ([[-1]], "partition 0 names broker -1, which is not registered"),
        ([[2, 1], [2]], "partition 1 has 1 replicas, and other partitions have 2"),
        ([[1]], "partition 0 names only brokers that are down or shutting down"),
    ],
)
def test_a_manual_assignment_that_cannot_be_served_is_refused(
    replicas: list[list[int]], reason: str
) -> None:
    image = cluster(1, 2).apply([FenceBrokerRecord(id=1, epoch=0)])
    expected = f"INVALID_REPLICA_ASSIGNMENT: the assignment of {reason}"
    assert refused(image, assigned("t", *replicas)) == expected


def test_a_manual_assignment_must_cover_each_partition_once() -> None:
    image = cluster(1)
    assert "must be 0 to 0, without a gap" in refused(image, assigned("t", [1], first=1))
    twice = assigned("t", [1], [1])
    twice.assignments[1].partition_index = 0
    assert "a partition is assigned more than once" in refused(image, twice)


@pytest.mark.parametrize("field", ["num_partitions", "replication_factor"])
def test_a_manual_assignment_leaves_the_counts_open(field: str) -> None:
    wanted = assigned("t", [1])
    setattr(wanted, field, 1)
    assert refused(cluster(1), wanted).startswith("INVALID_REQUEST: with a manual assignment")


def test_a_manual_assignment_is_bounded() -> None:
    wanted = assigned("t", *([[1]] * 10_001))
    assert refused(cluster(1), wanted).startswith("POLICY_VIOLATION")


def test_topic_ids_are_version_4_uuids_that_are_no_command_line_option() -> None:
    random = Random(1)
    ids = {new_topic_id(random) for _ in range(2000)}
    assert len(ids) == 2000
    for topic_id in ids:
        assert topic_id[6] >> 4 == 4
        assert topic_id[8] >> 6 == 0b10
        assert not uuid_text(topic_id).startswith("-")


def delete(
    image: Image, *wanted: DeleteTopicState, config: BrokerConfig | None = None
) -> CommandResult[DeleteTopicsResponse]:
    request = DeleteTopicsRequest(topics=list(wanted))
    return delete_topics(image, request, config=config or BrokerConfig())


def test_topics_are_deleted_by_name_and_by_id() -> None:
    image = cluster(1, topics={"a": [[1]], "b": [[1]], "c": [[1]]})
    result = delete(image, DeleteTopicState(name="a"), DeleteTopicState(topic_id=id_of("b")))
    assert result.response.responses == [
        DeletableTopicResult(name="a", topic_id=id_of("a")),
        DeletableTopicResult(name="b", topic_id=id_of("b")),
    ]
    assert set(image.apply(result.records).topics) == {"c"}


def test_old_clients_delete_by_a_list_of_names() -> None:
    image = cluster(1, topics={"a": [[1]]})
    request = DeleteTopicsRequest(topic_names=["a", "gone"])
    result = delete_topics(image, request, config=BrokerConfig())
    assert [(response.name, response.error_code) for response in result.response.responses] == [
        ("a", 0),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert image.apply(result.records).topics == {}


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (
            DeleteTopicState(name="gone"),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "topic gone does not exist",
        ),
        (
            DeleteTopicState(topic_id=id_of("gone")),
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"no topic has the id {uuid_text(id_of('gone'))}",
        ),
        (
            DeleteTopicState(name="a", topic_id=id_of("a")),
            ErrorCode.INVALID_REQUEST,
            "not both",
        ),
        (DeleteTopicState(), ErrorCode.INVALID_REQUEST, "give the topic's name or its id"),
    ],
    ids=str,
)
def test_a_topic_that_cannot_be_deleted_does_not_stop_the_others(
    wanted: DeleteTopicState, code: ErrorCode, message: str
) -> None:
    image = cluster(1, topics={"a": [[1]], "b": [[1]]})
    result = delete(image, wanted, DeleteTopicState(name="b"))
    bad, good = result.response.responses
    assert (bad.error_code, bad.name, bad.topic_id) == (code, wanted.name, wanted.topic_id)
    assert message in (bad.error_message or "")
    assert good.error_code == 0
    assert result.records == (RemoveTopicRecord(topic_id=id_of("b")),)


@pytest.mark.parametrize(
    "again", [DeleteTopicState(name="a"), DeleteTopicState(topic_id=id_of("a"))], ids=str
)
def test_a_topic_named_twice_is_not_deleted(again: DeleteTopicState) -> None:
    image = cluster(1, topics={"a": [[1]]})
    result = delete(image, DeleteTopicState(name="a"), again)
    codes = {response.error_code for response in result.response.responses}
    assert codes == {ErrorCode.INVALID_REQUEST}
    assert result.records == ()


def test_deletion_can_be_switched_off() -> None:
    config = broker_config({"delete.topic.enable": "false"})
    image = cluster(1, topics={"a": [[1]]})
    result = delete(image, DeleteTopicState(name="a"), config=config)
    [answer] = result.response.responses
    assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert result.records == ()


def grow(
    image: Image,
    *wanted: tuple[str, int, list[list[int]] | None],
    validate_only: bool = False,
) -> CommandResult[CreatePartitionsResponse]:
    topics = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
        )
        for name, count, assignments in wanted
    ]
    request = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    return create_partitions(image, request)


def test_a_topic_grows_to_the_count_asked_for() -> None:
    image = cluster(1, 2, 3, topics={"a": [[2, 3], [3, 1]]})
    result = grow(image, ("a", 6, None))
    assert [
        (answer.name, answer.error_code, answer.error_message) for answer in result.response.results
    ] == [("a", 0, None)]
    after = image.apply(result.records)
    assert after.topics["a"].partitions[:2] == image.topics["a"].partitions
    assert Counter(partition.leader for partition in after.topics["a"].partitions) == {
        1: 2,
        2: 2,
        3: 2,
    }
    assert all(len(partition.replicas) == 2 for partition in after.topics["a"].partitions)
    assert after.partition_count == 6


def test_a_topic_that_moves_grows_by_partitions_of_its_target_size() -> None:
    image = cluster(1, 2, 3, topics={"a": [[1, 2]]})
    move = PartitionChangeRecord(
        topic_id=id_of("a"),
        partition_id=0,
        replicas=[2, 3, 1],
        adding_replicas=[3],
        removing_replicas=[1],
    )
    image = image.apply([move])
    grown = image.apply(grow(image, ("a", 2, None)).records).topics["a"].partitions[1]
    assert len(grown.replicas) == 2


def test_topics_of_one_partition_are_spread_over_the_brokers() -> None:
    image, random = cluster(1, 2, 3), Random(7)
    for number in range(30):
        request = CreateTopicsRequest(topics=[topic(f"t{number}", 1, 2)])
        made = create_topics(image, request, config=BrokerConfig(), random=random)
        image = image.apply(made.records)
    partitions = [value.partitions[0] for value in image.topics.values()]
    assert Counter(partition.leader for partition in partitions) == {1: 10, 2: 10, 3: 10}
    held = Counter(broker_id for partition in partitions for broker_id in partition.replicas)
    assert held == {1: 20, 2: 20, 3: 20}
    at_once = create(cluster(1, 2, 3), *(topic(f"t{number}", 1) for number in range(30)))
    topics = cluster(1, 2, 3).apply(at_once.records).topics.values()
    assert Counter(entry.partitions[0].leader for entry in topics) == {1: 10, 2: 10, 3: 10}


def test_fenced_brokers_get_replicas_only_where_others_are_too_few() -> None:
    image = cluster(1, 2, 3)
    image = image.apply([FenceBrokerRecord(id=2, epoch=image.brokers[2].epoch)])
    made = image.apply(create(image, topic("a", 4, 2)).records).topics["a"]
    assert {broker_id for partition in made.partitions for broker_id in partition.replicas} == {
        1,
        3,
    }
    wide = image.apply(create(image, topic("b", 2, 3)).records).topics["b"]
    for partition in wide.partitions:
        assert (partition.replicas[2], sorted(partition.isr), partition.leader) == (
            2,
            [1, 3],
            partition.replicas[0],
        )
    grown = image.apply(create(image, topic("b", 1, 3)).records)
    added = grown.apply(grow(grown, ("b", 2, None)).records).topics["b"].partitions[1]
    assert (added.replicas[2], sorted(added.isr)) == (2, [1, 3])
    assert refused(image, topic("c", 1, 4)).startswith("INVALID_REPLICATION_FACTOR: 4 replicas")


def test_a_topic_whose_first_broker_is_gone_can_still_grow() -> None:
    image = cluster(1, 2, topics={"a": [[9]]})
    partitions = image.apply(grow(image, ("a", 3, None)).records).topics["a"].partitions
    assert {partition.leader for partition in partitions[1:]} == {1, 2}


def test_new_partitions_can_be_assigned_by_hand() -> None:
    image = cluster(1, 2, topics={"a": [[1]]})
    result = grow(image, ("a", 3, [[2], [1]]))
    partitions = image.apply(result.records).topics["a"].partitions
    assert [partition.replicas for partition in partitions] == [(1,), (2,), (1,)]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "answer"),
    [
        ("gone", 3, None, "UNKNOWN_TOPIC_OR_PARTITION: topic gone does not exist"),
        ("a", 2, None, "INVALID_PARTITIONS: topic 'a' has 2 partitions, and 2 would not be more"),
        ("a", 1, None, "INVALID_PARTITIONS: topic 'a' has 2 partitions, and 1 would not be more"),
        ("a", -1, None, "INVALID_PARTITIONS"),
        ("a", 10_003, None, "POLICY_VIOLATION: one request may create 10000 partitions"),
        ("a", 2**31 - 1, None, "POLICY_VIOLATION: one request may create 10000 partitions"),
        ("a", 4, [[1]], "INVALID_REPLICA_ASSIGNMENT: 2 partitions are to be added, but the req"),
        ("a", 3, [[7]], "INVALID_REPLICA_ASSIGNMENT: the assignment of partition 2 names brok"),
        ("a", 3, [[1, 2]], "INVALID_REPLICA_ASSIGNMENT: the assignment of partition 2 has 2 rep"),
        ("wide", 2, None, "INVALID_REPLICATION_FACTOR: 3 replicas need as many brokers"),
    ],
)
def test_a_topic_that_cannot_grow_does_not_stop_the_others(
    name: str, count: int, assignments: list[list[int]] | None, answer: str
) -> None:
    image = cluster(1, 2, topics={"a": [[1], [1]], "b": [[1]], "wide": [[1, 2, 3]]})
    result = grow(image, (name, count, assignments), ("b", 2, None))
    bad, good = result.response.results
    assert told(bad.error_code, bad.error_message).startswith(answer)
    assert good.error_code == 0
    assert image.apply(result.records).partition_count == image.partition_count + 1


def test_topics_that_grow_in_one_request_share_its_partition_budget() -> None:
    image = cluster(1, topics={"a": [[1]], "b": [[1]], "c": [[1]]})
    result = grow(image, ("a", 6001, None), ("b", 6001, None), ("c", 4001, None))
    codes = [answer.error_code for answer in result.response.results]
    assert codes == [0, ErrorCode.POLICY_VIOLATION, 0]


def test_growing_is_only_tried_with_validate_only() -> None:
    image = cluster(1, topics={"a": [[1]]})
    result = grow(image, ("a", 2, None), validate_only=True)
    assert result.records == ()
    assert result.response.results[0].error_code == 0


def test_a_topic_named_twice_does_not_grow() -> None:
    image = cluster(1, topics={"a": [[1]]})
    result = grow(image, ("a", 2, None), ("a", 3, None))
    assert [answer.error_code for answer in result.response.results] == [ErrorCode.INVALID_REQUEST]
    assert result.records == ()


def test_an_error_answer_has_no_settings() -> None:
    [answer] = create(cluster(1), topic("")).response.topics
    assert answer == CreatableTopicResult(
        name="", error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=answer.error_message
    )
