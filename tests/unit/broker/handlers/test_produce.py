"""Produce as its handler answers it: when, and what to whom it does not accept."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.handlers.produce import produce
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.errors import ErrorCode
from headrace.metadata.image import PartitionImage
from headrace.protocol.apis import Api, RequestHeader, decode_response, encode_response
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.protocol.records import encode_batch
from tests.unit.broker.handling import FOLLOWS, LEADS, TOPIC, TOPIC_ID, OneNode, batch, image_of
from tests.unit.client.virtual_time import run

TWO_AT_LEAST = TopicConfig(min_insync_replicas=2)


def sending(node: OneNode, acks: int, **settings: Any) -> ProduceRequest:
    records = memoryview(batch(b"a", now_ms=node.clock.now_ms(), **settings))
    data = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
    )


def only(response: ProduceResponse) -> PartitionProduceResponse:
    [topic] = response.responses
    [partition] = topic.partition_responses
    return partition


def send(node: OneNode, acks: int, version: int = 10, **settings: Any) -> ProduceResponse:
    """The answer to a request that need not wait."""
    answer = produce(node.context(version), sending(node, acks, **settings))
    assert isinstance(answer, ProduceResponse), "it waits"
    return answer


def send_and_wait(node: OneNode, **settings: Any) -> asyncio.Future[ProduceResponse]:
    answer = produce(node.context(10), sending(node, -1, **settings))
    assert isinstance(answer, Awaitable), "it does not wait"
    return asyncio.ensure_future(cast("Awaitable[ProduceResponse]", answer))


def replicate(partition: Partition, *replicas: int) -> None:
    for replica in replicas:
        partition.follower_fetched(replica, replica * 10, partition.log.log_end_offset, 0)


def on_loop(directory: Path, test: Callable[[OneNode], Coroutine[Any, Any, None]]) -> None:
    node = OneNode(directory)
    run(node.clock, test(node))


def test_all_is_answered_when_every_replica_has_it(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        waiting = send_and_wait(node)
        replicate(partition, 2)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        replicate(partition, 3)
        result = only(await waiting)
        assert (result.error_code, result.base_offset) == (0, 0)

    on_loop(tmp_path, test)


def test_one_is_answered_when_the_leader_has_it(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        result = only(send(node, 1))
        assert (result.error_code, result.base_offset) == (0, 0)
        assert partition.high_watermark == 0

    on_loop(tmp_path, test)


def test_what_nobody_takes_times_out(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        node.add()
        result = only(await send_and_wait(node))
        assert (result.error_code, result.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)

    on_loop(tmp_path, test)


def test_with_too_few_in_sync_all_is_refused_and_one_is_not(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, replace(LEADS, isr=(1,)), config=TWO_AT_LEAST)
        assert only(send(node, -1)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.log_end_offset == 0
        assert only(send(node, 1)).error_code == 0

    on_loop(tmp_path, test)


def test_too_few_in_sync_after_the_append_is_a_timeout(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, replace(LEADS, isr=(1, 2)), config=TWO_AT_LEAST)
        waiting = send_and_wait(node)
        partition.update(replace(LEADS, isr=(1,), partition_epoch=10))
        result = only(await waiting)
        # As in Kafka: it may be committed later, when there are enough.
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert partition.high_watermark == 0

    on_loop(tmp_path, test)


def test_without_a_lease_nothing_is_taken(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, PartitionImage((1,), (1,), leader=1))
        node.membership.may_write = False
        for acks in (-1, 1):
            result = only(send(node, acks))
            assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert result.current_leader.leader_id == -1, "it cannot know who leads"
        assert partition.log.log_end_offset == 0

    on_loop(tmp_path, test)


@pytest.mark.parametrize(("version", "told"), [(9, -1), (10, 2)])
def test_who_asks_a_follower_is_told_the_leader(tmp_path: Path, version: int, told: int) -> None:
    async def test(node: OneNode) -> None:
        node.add(0, FOLLOWS)
        node.node.store.image = image_of(FOLLOWS)
        response = send(node, 1, version)
        result = only(response)
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert result.current_leader.leader_id == told
        assert [node_endpoint.node_id for node_endpoint in response.node_endpoints] == (
            [2] if told == 2 else []
        )

    on_loop(tmp_path, test)


def test_who_waits_when_leadership_ends_is_told_the_next_leader(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        waiting = send_and_wait(node)
        image = replace(FOLLOWS, leader_epoch=5, partition_epoch=10)
        node.node.store.image = image_of(image)
        partition.follow(image)
        response = await waiting
        result = only(response)
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 5)

    on_loop(tmp_path, test)


def test_a_duplicate_is_answered_when_the_first_is_committed(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        settings = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        first = send_and_wait(node, **settings)
        second = send_and_wait(node, **settings)
        replicate(partition, 2, 3)
        assert only(await first).base_offset == only(await second).base_offset == 0
        assert partition.log.log_end_offset == 1

    on_loop(tmp_path, test)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_the_topics_of_coordinators_are_written_by_brokers_alone(
    tmp_path: Path, topic: str
) -> None:
    async def test(node: OneNode) -> None:
        request = sending(node, 1)
        request.topic_data[0].name = topic
        answer = produce(node.context(10), request)
        assert isinstance(answer, ProduceResponse)
        assert only(answer).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    on_loop(tmp_path, test)


def test_batches_wait_for_an_earlier_one_that_too_few_replicas_refused(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, replace(LEADS, isr=(1,)), config=TWO_AT_LEAST)
        producer = {"producer_id": 7, "producer_epoch": 0}
        refused = only(send(node, -1, base_sequence=0, **producer))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        partition.update(replace(LEADS, isr=(1, 2), partition_epoch=10))
        for sequence in (1, 2, 3, 4):
            later = only(send(node, 1, base_sequence=sequence, **producer))
            assert later.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence in range(5):
            assert only(send(node, 1, base_sequence=sequence, **producer)).error_code == 0

    on_loop(tmp_path, test)


def test_a_batch_whose_bytes_were_damaged_says_nothing_of_sequences(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        node.add(0, PartitionImage((1,), (1,), leader=1))
        request = sending(node, 1, producer_id=7, producer_epoch=0, base_sequence=0)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        records[-1] ^= 1
        answer = produce(node.context(10), request)
        assert isinstance(answer, ProduceResponse)
        assert only(answer).error_code == ErrorCode.CORRUPT_MESSAGE
        later = only(send(node, 1, producer_id=7, producer_epoch=0, base_sequence=1))
        assert later.error_code == 0

    on_loop(tmp_path, test)


def test_a_repeated_batch_is_answered_when_the_first_one_is_committed(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        producer = {"producer_id": 7, "producer_epoch": 0}
        first, second = (send_and_wait(node, base_sequence=n, **producer) for n in (0, 1))
        again = send_and_wait(node, base_sequence=0, **producer)
        await asyncio.sleep(0)
        for replica in (2, 3):
            partition.follower_fetched(replica, replica * 10, 1, 0)
        assert only(await first).base_offset == 0
        assert only(await again).base_offset == 0
        assert not second.done()
        replicate(partition, 2, 3)
        assert only(await second).base_offset == 1

    on_loop(tmp_path, test)


@pytest.mark.parametrize("version", [7, 8, 13])
def test_records_without_a_key_in_a_compacted_topic_are_named(tmp_path: Path, version: int) -> None:
    async def test(node: OneNode) -> None:
        alone = PartitionImage((1,), (1,), leader=1)
        node.add(0, alone, config=TopicConfig(cleanup_policy=("compact",)))
        now_ms = node.clock.now_ms()
        rows = [(now_ms, key, b"v", ()) for key in (b"k", None, b"k")]
        request = sending(node, 1)
        topic = request.topic_data[0]
        topic.topic_id = TOPIC_ID
        topic.partition_data[0].records = memoryview(bytearray(encode_batch(rows)))
        answer = produce(node.context(version), request)
        assert isinstance(answer, ProduceResponse)
        result = only(answer)
        assert (result.error_code, result.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert [record_error.batch_index for record_error in result.record_errors] == [1]
        assert "1 of 3 records are refused" in (result.error_message or "")
        frame = b"".join(encode_response(RequestHeader(0, version, 0, "test", 0), answer))
        _, sent = decode_response(Api.PRODUCE, version, frame[4:])
        assert len(only(sent).record_errors) == (1 if version >= 8 else 0)

    on_loop(tmp_path, test)
