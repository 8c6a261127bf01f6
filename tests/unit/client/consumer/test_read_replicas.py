"""Reading from a replica nearer than the leader (KIP-392), and leaders that answers name."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.aio import Consumer
from headrace.client.consumer.fetcher import ReadReplicas
from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.types import TopicPartition
from tests.unit.client.consumer.fakes import Fetchable, on_fakes

TP = TopicPartition("orders", 0)

Run = Callable[..., Any]


class Racked(Fetchable):
    """Broker 1 leads; it sends consumers of rack "b" to broker 2, which follows."""

    def __init__(self) -> None:
        super().__init__(2)
        self.add_topic("orders", 1)
        self.follower_faults: list[ErrorCode] = []
        self.hints: dict[int, tuple[int, int]] = {}
        self.endpoints: list[NodeEndpoint] = []
        self.is_redirecting = True

    def fetchers(self) -> list[int]:
        """Who was asked, one after the other."""
        return [node for node, request in self.requests if isinstance(request, FetchRequest)]

    def _Fetch(self, node: int, request: Any) -> FetchResponse:
        [topic] = request.topics
        [wanted] = topic.partitions
        leader = self.logs[TP].leader
        response = super()._Fetch(leader if node == 2 else node, request)
        if node == 2 and leader != 2:
            if self.follower_faults:
                self._refuse(response, wanted.partition, self.follower_faults.pop(0))
        elif node == leader and request.rack_id == "b" and self.is_redirecting:
            response.responses[0].partitions = [
                PartitionData(
                    partition_index=wanted.partition, preferred_read_replica=2, records=b""
                )
            ]
        for part in response.responses[0].partitions:
            if part.error_code and node in self.hints:
                leader_id, epoch = self.hints[node]
                part.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)
                response.node_endpoints = self.endpoints
        return response

    def _refuse(self, response: FetchResponse, partition: int, code: ErrorCode) -> None:
        answer = PartitionData(partition_index=partition, error_code=code)
        response.responses[0].partitions = [answer]


@pytest.fixture
def brokers() -> Racked:
    return Racked()


@pytest.fixture
def run(brokers: Racked, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(test: Callable[[Consumer], Awaitable[Any]], **options: Any) -> Any:
        return on_fakes(brokers, monkeypatch, test, **options)

    return run


async def values(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(100):
        found += [record.value for record in await consumer.poll(1000)]
        if len(found) >= count:
            break
    return found


async def read_three(consumer: Consumer) -> list[bytes]:
    consumer.assign([TP])
    return await values(consumer, 3)


def write_three(brokers: Racked) -> None:
    for value in (b"a", b"b", b"c"):
        brokers.write(TP, value)


def test_the_leader_sends_a_consumer_to_a_replica_in_its_rack(brokers: Racked, run: Run) -> None:
    write_three(brokers)
    assert run(read_three, client_rack="b") == [b"a", b"b", b"c"]
    assert brokers.fetchers()[0] == 1
    assert set(brokers.fetchers()[1:]) == {2}


def test_without_a_rack_the_leader_is_read(brokers: Racked, run: Run) -> None:
    write_three(brokers)
    assert run(read_three) == [b"a", b"b", b"c"]
    assert set(brokers.fetchers()) == {1}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_after_an_error_of_a_follower_its_leader_is_asked(
    brokers: Racked, run: Run, code: ErrorCode
) -> None:
    write_three(brokers)
    brokers.follower_faults = [code]
    # No reset, even where an offset is out of range: a follower may only be behind.
    assert run(read_three, client_rack="b", auto_offset_reset="earliest") == [b"a", b"b", b"c"]
    assert brokers.fetchers()[:3] == [1, 2, 1]


def test_a_follower_that_never_has_it_is_not_asked_in_a_hot_loop(brokers: Racked, run: Run) -> None:
    write_three(brokers)
    brokers.follower_faults = [ErrorCode.OFFSET_OUT_OF_RANGE] * 1000

    async def read(consumer: Consumer) -> None:
        consumer.assign([TP])
        await consumer.seek(TP, 1)
        assert await consumer.poll(5000) == []
        assert await consumer.position(TP) == 1

    run(read, client_rack="b")
    assert len(brokers.fetchers()) < 150


def test_a_follower_that_is_gone_leaves_the_leader(brokers: Racked, run: Run) -> None:
    write_three(brokers)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        found = [record.value for record in await consumer.poll(1000, max_records=1)]
        brokers.down, brokers.is_redirecting = {2}, False
        return found + await values(consumer, 2)

    assert run(read, client_rack="b", fetch_max_bytes=1) == [b"a", b"b", b"c"]
    assert brokers.fetchers()[-1] == 1


def test_a_preference_ends_after_a_while() -> None:
    replicas = ReadReplicas(max_age_s=10)
    assert replicas.preferred(TP, now=0) is None
    replicas.prefer(TP, 2, now=0)
    assert replicas.preferred(TP, now=9.9) == 2
    assert replicas.preferred(TP, now=10) is None
    assert not replicas.drop(TP)
    replicas.prefer(TP, 2, now=20)
    assert replicas.drop(TP)
    assert replicas.preferred(TP, now=20) is None


def test_the_leader_is_asked_again_when_a_preference_ends(brokers: Racked, run: Run) -> None:
    brokers.write(TP, b"a")

    async def read(consumer: Consumer) -> None:
        consumer.assign([TP])
        await values(consumer, 1)
        for _ in range(5):
            await consumer.poll(1000)

    run(read, client_rack="b", metadata_max_age_ms=3000)
    assert brokers.fetchers().count(1) in (2, 3)


def test_a_leader_that_an_answer_names_is_asked_without_asking_for_metadata(
    brokers: Racked, run: Run
) -> None:
    brokers.write(TP, b"before")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        found = await values(consumer, 1)
        brokers.logs[TP].leader = 2
        brokers.hints = {1: (2, 1)}
        brokers.write(TP, b"after")
        asked = len(brokers.sent(MetadataRequest))
        found += await values(consumer, 1)
        assert len(brokers.sent(MetadataRequest)) == asked
        return found

    assert run(read) == [b"before", b"after"]


def test_a_leader_at_an_address_that_an_answer_names_is_found(brokers: Racked, run: Run) -> None:
    brokers.write(TP, b"before")
    address = brokers.nodes[2]
    metadata = brokers._Metadata

    def one_broker(node: int, request: Any) -> Any:
        answer = metadata(node, request)
        answer.brokers = [broker for broker in answer.brokers if broker.node_id == 1]
        return answer

    brokers._Metadata = one_broker  # type: ignore[method-assign]
    brokers.endpoints = [NodeEndpoint(node_id=2, host=address.host, port=address.port)]

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        found = await values(consumer, 1)
        brokers.logs[TP].leader = 2
        brokers.hints = {1: (2, 1)}
        brokers.write(TP, b"after")
        return found + await values(consumer, 1)

    assert run(read) == [b"before", b"after"]


@pytest.mark.parametrize("hint", [(1, 5), (2, 0), (9, 5), (-1, -1)])
def test_a_word_that_helps_nobody_is_not_taken(
    brokers: Racked, run: Run, hint: tuple[int, int]
) -> None:
    """It names the broker that was asked, an older epoch, a broker nobody knows, or nobody."""
    brokers.write(TP, b"there")
    brokers.fetch_faults.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3)
    brokers.hints = {1: hint}

    async def read(consumer: Consumer) -> tuple[list[bytes], float]:
        consumer.assign([TP])
        begun = brokers.clock.monotonic()
        return await values(consumer, 1), brokers.clock.monotonic() - begun

    found, took_s = run(read)
    assert found == [b"there"]
    assert took_s > 0.2, "it waits, and asks for metadata"
