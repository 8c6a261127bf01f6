"""What no client library asks for, or not in every version, asked over a bare socket."""

import time
from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.compression import Compression
from headrace.protocol.messages import incremental_alter_configs
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest
from headrace.protocol.records import decode_rows
from headrace.testing.time_limits import scaled
from tests.integration.cluster_requests import CLUSTER_ANSWERS
from tests.integration.group_requests import GROUP_ANSWERS, find_coordinator
from tests.integration.requests import batch, requests_of
from tests.integration.security_requests import SECURITY_ANSWERS
from tests.integration.transaction_requests import TRANSACTION_ANSWERS
from tests.integration.wire import (
    FETCH_BY_NAME,
    Wire,
    create_topic,
    every_version,
    fetch,
    list_offset,
    produce,
    produced,
)
from tests.support import BrokerProcess
from tools.make_api_table import PAGE

NOW_MS = int(time.time() * 1000)
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
ANSWERS = GROUP_ANSWERS | CLUSTER_ANSWERS | TRANSACTION_ANSWERS | SECURITY_ANSWERS


def error_codes(value: Any) -> set[int]:
    """Every error code anywhere in a response."""
    found = set()
    if isinstance(value, list):
        for entry in value:
            found |= error_codes(entry)
    elif hasattr(value, "__specs__"):
        for name in value.__specs__:
            inner = getattr(value, name)
            found |= {inner} if name == "error_code" else error_codes(inner)
    return found


def test_every_api_that_is_announced_is_tested(shared_broker: BrokerProcess) -> None:
    with Wire(shared_broker.address) as wire:
        announced = {api_key.api_key for api_key in wire.ask(ApiVersionsRequest(), 0).api_keys}
    tested = {int(key) for key in requests_of("any", bytes(16))}
    assert announced == tested, "an API that is announced needs its entry in `requests_of`"


def test_what_is_announced_is_what_the_compatibility_page_says(
    shared_broker: BrokerProcess,
) -> None:
    with Wire(shared_broker.address) as wire:
        announced = {
            str(api_key.api_key): f"{api_key.min_version}-{api_key.max_version}"
            if api_key.min_version < api_key.max_version
            else str(api_key.min_version)
            for api_key in wire.ask(ApiVersionsRequest(), 0).api_keys
        }
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line[2:3].isdecimal()]
    told = {row[0].removeprefix("| "): row[4] for row in rows}
    assert announced == {key: versions for key, versions in told.items() if versions != "no"}


@pytest.mark.parametrize("api_key", requests_of("any", bytes(16)), ids=lambda key: key.name)
def test_every_version_of_every_api_is_answered(
    shared_broker: BrokerProcess, api_key: Api, topic: str
) -> None:
    topic_id = create_topic(shared_broker.address, topic)
    make = requests_of(topic, topic_id)[api_key]
    expected = ANSWERS.get(api_key, {0})
    if api_key is Api.DELETE_TOPICS:
        expected = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    with Wire(shared_broker.address) as wire:
        # As clients do: the first to ask for a coordinator makes the topic that its state is in.
        wire.ask(find_coordinator("any", 4), 4)
        wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["any"]), 4)
        for version in every_version(api_key):
            # The answer is read to its last byte by the tables of that very version.
            assert error_codes(wire.ask(make(version), version)) <= expected, version


def test_replies_come_in_the_order_of_pipelined_requests(
    shared_broker: BrokerProcess, topic: str
) -> None:
    topic_id = create_topic(shared_broker.address, topic)
    make = requests_of(topic, topic_id)
    with Wire(shared_broker.address) as wire:
        order = [Api.CREATE_PARTITIONS, Api.API_VERSIONS, Api.PRODUCE, Api.FETCH] * 20
        for number, api_key in enumerate(order):
            wire.send(make[api_key](number % 4))
        # `receive` checks that the correlation ids are those of the requests, in their order.
        for _ in order:
            wire.receive()


def test_a_client_that_pushes_its_metrics_is_held_to_its_subscription(
    shared_broker: BrokerProcess,
) -> None:
    with Wire(shared_broker.address) as wire:
        wanted = wire.ask(GetTelemetrySubscriptionsRequest())
        assert wanted.client_instance_id != bytes(16)
        assert (wanted.push_interval_ms, wanted.requested_metrics) == (300_000, [])
        client = GetTelemetrySubscriptionsRequest(client_instance_id=wanted.client_instance_id)
        assert wire.ask(client).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED

        def push(subscription_id: int, *, terminating: bool = False) -> int:
            request = PushTelemetryRequest(
                client_instance_id=wanted.client_instance_id,
                subscription_id=subscription_id,
                terminating=terminating,
            )
            return int(wire.ask(request).error_code)

        assert push(wanted.subscription_id) == ErrorCode.NONE
        assert push(wanted.subscription_id) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        unknown = wanted.subscription_id ^ 1
        assert push(unknown, terminating=True) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert push(wanted.subscription_id) == ErrorCode.INVALID_REQUEST


def test_topic_partitions_are_described_page_by_page(
    shared_broker: BrokerProcess, topic: str
) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    for name in names:
        create_topic(shared_broker.address, name, partitions=5)
    described: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    pages = 0
    with Wire(shared_broker.address) as wire:
        while pages == 0 or cursor is not None:
            pages += 1
            response = wire.ask(
                DescribeTopicPartitionsRequest(
                    topics=[TopicRequest(name=name) for name in reversed(names)],
                    response_partition_limit=4,
                    cursor=cursor,
                )
            )
            assert sum(len(topic.partitions) for topic in response.topics) <= 4
            for result in response.topics:
                assert result.error_code == 0
                described += [(result.name, each.partition_index) for each in result.partitions]
                # Null is allowed, and makes Kafka's Java client fail.
                assert all(each.eligible_leader_replicas == [] for each in result.partitions)
                assert all(each.last_known_elr == [] for each in result.partitions)
            cursor = response.next_cursor and Cursor(
                topic_name=response.next_cursor.topic_name,
                partition_index=response.next_cursor.partition_index,
            )
    assert described == [(name, partition) for name in names for partition in range(5)]
    assert pages == 4


def test_the_end_of_a_leader_epoch_is_told(shared_broker: BrokerProcess, topic: str) -> None:
    create_topic(shared_broker.address, topic)

    def ask(wire: Wire, current: int, epoch: int) -> Any:
        partition = OffsetForLeaderPartition(current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
        )
        [answered] = wire.ask(request).topics
        [result] = answered.partitions
        return result

    with Wire(shared_broker.address) as wire:
        produce(wire, topic, batch(b"1", b"2", b"3"))
        found = ask(wire, 0, 0)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 3)
        assert ask(wire, 7, 0).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        unknown = ask(wire, -1, 5)
        assert (unknown.error_code, unknown.end_offset) == (0, -1)


def test_offsets_that_have_names_are_found(shared_broker: BrokerProcess, topic: str) -> None:
    create_topic(shared_broker.address, topic)
    with Wire(shared_broker.address) as wire:
        produce(wire, topic, batch(b"1", b"2", timestamp=NOW_MS))
        produce(wire, topic, batch(b"newest", timestamp=NOW_MS + 1000))
        produce(wire, topic, batch(b"4", timestamp=NOW_MS + 500))
        latest, earliest, max_timestamp, earliest_local = -1, -2, -3, -4
        assert list_offset(wire, topic, latest) == 4
        assert list_offset(wire, topic, earliest) == 0
        assert list_offset(wire, topic, max_timestamp) == 2
        assert list_offset(wire, topic, earliest_local) == 0
        assert list_offset(wire, topic, NOW_MS + 1) == 1
        assert list_offset(wire, topic, NOW_MS + 1001) == -1
        partition = ListOffsetsPartition(timestamp=-77)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
        [answered] = wire.ask(request).topics
        assert answered.partitions[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_log_directories_tell_the_room_partitions_take(
    shared_broker: BrokerProcess, topic: str
) -> None:
    create_topic(shared_broker.address, topic, partitions=2)
    stored = batch(bytes(10_000))
    with Wire(shared_broker.address) as wire:
        produce(wire, topic, stored, partition=1)
        wanted = DescribableLogDirTopic(topic=topic, partitions=[0, 1])
        [directory] = wire.ask(DescribeLogDirsRequest(topics=[wanted])).results
    assert directory.error_code == 0
    assert directory.log_dir == str(shared_broker.data_dir)
    assert 0 < directory.usable_bytes <= directory.total_bytes
    [described] = directory.topics
    sizes = {
        partition.partition_index: partition.partition_size for partition in described.partitions
    }
    assert sizes == {0: 0, 1: len(stored)}


def fetch_request(
    wanted: dict[int, int],
    topic: str,
    *,
    session_id: int = 0,
    session_epoch: int = 0,
    forgotten: list[int] | None = None,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 10_000_000,
    partition_max_bytes: int = 1_000_000,
) -> FetchRequest:
    partitions = [
        FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        for partition, offset in wanted.items()
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=forgotten)]
        if forgotten
        else [],
    )


def answered_partitions(response: Any) -> dict[int, int]:
    """The partitions of a fetch answer, with the number of records each brought."""
    return {
        partition.partition_index: len(decode_rows(bytes(partition.records)))
        for topic in response.responses
        for partition in topic.partitions
    }


def test_a_fetch_session_tells_only_what_changed(shared_broker: BrokerProcess, topic: str) -> None:
    create_topic(shared_broker.address, topic, partitions=4)
    with Wire(shared_broker.address) as wire:
        produce(wire, topic, batch(b"a", b"b"), partition=2)
        first = wire.ask(fetch_request(dict.fromkeys(range(4), 0), topic), version=FETCH_BY_NAME)
        assert first.session_id > 0
        assert answered_partitions(first) == {0: 0, 1: 0, 2: 2, 3: 0}

        def go_on(epoch: int, wanted: dict[int, int], forgotten: list[int] | None = None) -> Any:
            request = fetch_request(
                wanted,
                topic,
                session_id=first.session_id,
                session_epoch=epoch,
                forgotten=forgotten,
            )
            return wire.ask(request, version=FETCH_BY_NAME)

        assert answered_partitions(go_on(1, {2: 2})) == {}
        produce(wire, topic, batch(b"c"), partition=1)
        produce(wire, topic, batch(b"d"), partition=3)
        assert answered_partitions(go_on(2, {}, forgotten=[3])) == {1: 1}
        assert answered_partitions(go_on(3, {1: 1})) == {}
        assert go_on(3, {}).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        lost = fetch_request({}, topic, session_id=first.session_id ^ 1, session_epoch=1)
        answer = wire.ask(lost, version=FETCH_BY_NAME)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_waits_for_its_minimum_of_bytes_and_no_longer_than_it_may(
    shared_broker: BrokerProcess, topic: str
) -> None:
    create_topic(shared_broker.address, topic)
    one = batch(bytes(1000))
    with Wire(shared_broker.address) as reader, Wire(shared_broker.address) as writer:
        begin = time.monotonic()
        request = fetch_request({0: 0}, topic, wait_ms=300, session_epoch=-1)
        assert answered_partitions(reader.ask(request, version=FETCH_BY_NAME)) == {0: 0}
        assert 0.25 <= time.monotonic() - begin < scaled(5.0)
        reader.send(
            fetch_request({0: 0}, topic, wait_ms=20_000, min_bytes=3 * len(one), session_epoch=-1),
            version=FETCH_BY_NAME,
        )
        for _ in range(3):
            produce(writer, topic, one)
        begin = time.monotonic()
        assert answered_partitions(reader.receive()) == {0: 3}
        assert time.monotonic() - begin < scaled(10.0)


def test_a_fetch_brings_one_batch_even_if_it_is_larger_than_asked_for(
    shared_broker: BrokerProcess, topic: str
) -> None:
    create_topic(shared_broker.address, topic, partitions=2)
    with Wire(shared_broker.address) as wire:
        for partition in (0, 1):
            produce(wire, topic, batch(bytes(50_000)), partition=partition)
        request = fetch_request({0: 0, 1: 0}, topic, max_bytes=10, partition_max_bytes=10)
        assert answered_partitions(wire.ask(request, version=FETCH_BY_NAME)) == {0: 1, 1: 0}


def test_a_fetch_outside_of_the_log_says_so(shared_broker: BrokerProcess, topic: str) -> None:
    topic_id = create_topic(shared_broker.address, topic)
    with Wire(shared_broker.address) as wire:
        produce(wire, topic, batch(b"v"))
        for offset in (-1, 2, 1 << 62):
            assert fetch(wire, topic, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        unknown = fetch(wire, topic, 0, partition=1)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wanted = FetchTopic(
            topic_id=bytes(15) + b"\7", partitions=[FetchPartition(partition_max_bytes=1000)]
        )
        [answered] = wire.ask(FetchRequest(max_bytes=1000, topics=[wanted])).responses
        assert answered.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        wanted.topic_id = topic_id
        [answered] = wire.ask(FetchRequest(max_bytes=1000, topics=[wanted])).responses
        assert answered.partitions[0].error_code == 0


def test_zstd_needs_a_version_of_produce_that_knows_it(
    shared_broker: BrokerProcess, topic: str
) -> None:
    create_topic(shared_broker.address, topic)
    data = PartitionProduceData(index=0, records=batch(b"v", compression=Compression.ZSTD))
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    with Wire(shared_broker.address) as wire:
        refused = produced(wire.ask(request, version=6))
        assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert produced(wire.ask(request, version=7)).error_code == 0


def test_a_setting_of_the_broker_changes_while_it_runs(start_broker: Any, topic: str) -> None:
    broker = start_broker()
    create_topic(broker.address, topic)

    def alter(wire: Wire, name: str, value: str | None, operation: int = 0) -> int:
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=BROKER_RESOURCE,
                    resource_name="1",
                    configs=[
                        incremental_alter_configs.AlterableConfig(
                            name=name, value=value, config_operation=operation
                        )
                    ],
                )
            ]
        )
        [answered] = wire.ask(request).responses
        code: int = answered.error_code
        return code

    with Wire(broker.address) as wire:
        assert produce(wire, topic, batch(bytes(5000))).error_code == 0
        assert alter(wire, "message.max.bytes", "2000") == 0
        refused = produce(wire, topic, batch(bytes(5000)))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert alter(wire, "node.id", "7") == ErrorCode.INVALID_REQUEST
        assert alter(wire, "message.max.bytes", "many") == ErrorCode.INVALID_REQUEST
    broker.restart()
    with Wire(broker.address) as wire:
        refused = produce(wire, topic, batch(bytes(5000)))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE, "lost by the restart"
        assert alter(wire, "message.max.bytes", None, operation=1) == 0
        assert produce(wire, topic, batch(bytes(5000))).error_code == 0
