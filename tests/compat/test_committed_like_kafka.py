"""The same transactions in Apache Kafka and here: the same records and offsets for who reads."""

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.compat.apache import apache_kafka
from tests.integration.requests import batch
from tests.integration.transactions.raw import GROUP, RawProducer, check, patiently
from tests.integration.transactions.reading import end, group_offsets, read_committed, stable
from tests.integration.wire import Wire, create_topic, fetch, produce
from tests.support import BrokerProcess

RUNS = 6
STEPS = 30
PARTITIONS = 2
UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
# So that later offsets overtake those of open transactions, and these end then, a few times.
KINDS = ("write", "write beside", "delete", *3 * ["offset"], *2 * ["offset beside"], *3 * ["end"])


class Step(NamedTuple):
    kind: str
    producer: int
    partition: int
    committed: bool


class Seen(NamedTuple):
    """What there is for readers, in words that two brokers can have in common."""

    stable_offset: int
    end_offset: int
    values: list[bytes | None]
    batches: list[tuple[int, int, bool]]
    aborted: list[tuple[int, int]]
    producers: list[tuple[int, int, int]]
    offsets: dict[int, tuple[int, int]]
    stable_offsets: dict[int, tuple[int, int]]


class Peer:
    """A broker, with two producers on one partition and in one group."""

    def __init__(self, address: str, name: str, *, old: bool) -> None:
        self._address = address
        self._name = name
        create_topic(address, name, PARTITIONS)
        patiently(self._check_leaders)
        self._producers = [
            RawProducer(address, f"{name}/{number}", old=old).init() for number in range(2)
        ]
        self._epochs = [producer.epoch for producer in self._producers]
        self._coordinator = self._producers[0].brokers.coordinator(name, GROUP)

    def _check_leaders(self) -> None:
        """KafkaError if a partition is not led yet: Kafka answers before its broker has begun."""
        with Wire(self._address) as wire:
            for partition in range(PARTITIONS):
                check(fetch(wire, self._name, 0, partition=partition).error_code)

    def perform(self, step: Step, number: int) -> None:
        producer, name = self._producers[step.producer], self._name
        if step.kind == "write":
            patiently(lambda: producer.send(name, b"%d" % number))
        elif step.kind == "write beside":
            with Wire(self._address) as wire:
                assert produce(wire, name, batch(b"%d" % number)).error_code == 0
        elif step.kind == "offset":
            patiently(lambda: producer.send_offsets(name, name, {step.partition: number}))
        elif step.kind == "offset beside":
            patiently(lambda: self._commit(step.partition, number))
        elif step.kind == "delete":
            patiently(lambda: self._delete(step.partition))
        elif producer.describe().transaction_state == "Ongoing":
            producer.commit() if step.committed else producer.abort()
            producer.wait_until("CompleteCommit" if step.committed else "CompleteAbort")

    def _commit(self, partition: int, offset: int) -> None:
        wanted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=self._name, partitions=[wanted])
        with Wire(self._coordinator) as wire:
            [found] = wire.ask(OffsetCommitRequest(group_id=self._name, topics=[topic]), 8).topics
        for result in found.partitions:
            check(result.error_code)

    def _delete(self, partition: int) -> None:
        wanted = OffsetDeleteRequestPartition(partition_index=partition)
        topic = OffsetDeleteRequestTopic(name=self._name, partitions=[wanted])
        with Wire(self._coordinator) as wire:
            code = wire.ask(OffsetDeleteRequest(group_id=self._name, topics=[topic]), 0).error_code
        if code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(code)

    def look(self) -> Seen:
        address, name = self._address, self._name
        with Wire(address) as wire:
            found = fetch(wire, name, 0, committed=True)
            assert (found.last_stable_offset, found.error_code) == (stable(address, name), 0)
            described = wire.ask(
                DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0])])
            )
        headers = scan_headers(found.records or b"")
        ids = {producer.producer_id: number for number, producer in enumerate(self._producers)}
        reached = headers[-1].next_offset if headers else 0
        return Seen(
            found.last_stable_offset,
            end(address, name),
            read_committed(address, name),
            [(header.base_offset, header.next_offset, header.is_control) for header in headers],
            # Kafka names some behind what it sends, too.
            sorted(
                (ids[aborted_transaction.producer_id], aborted_transaction.first_offset)
                for aborted_transaction in found.aborted_transactions
                if aborted_transaction.first_offset < reached
            ),
            sorted(
                (
                    ids[active_producer.producer_id],
                    active_producer.producer_epoch - self._epochs[ids[active_producer.producer_id]],
                    active_producer.current_txn_start_offset,
                )
                for active_producer in described.topics[0].partitions[0].active_producers
            ),
            self._offsets(stable=False),
            self._offsets(stable=True),
        )

    def _offsets(self, *, stable: bool) -> dict[int, tuple[int, int]]:
        name, every = self._name, range(PARTITIONS)
        # It asks again while the coordinator is loading.
        found = patiently(
            lambda: group_offsets(self._coordinator, name, name, *every, stable=stable)
        )
        return dict(found)


def require_same(theirs: Seen, ours: Seen) -> None:
    assert ours._replace(stable_offsets={}) == theirs._replace(stable_offsets={})
    for partition, wanted in theirs.stable_offsets.items():
        got = ours.stable_offsets[partition]
        if got != wanted:
            # What a later offset has overtaken cannot change anything; Kafka does not look.
            assert (wanted, got) == (UNSTABLE, ours.offsets[partition])


@pytest.mark.timeout(300)
def test_readers_find_what_they_find_in_kafka(broker: BrokerProcess, tmp_path: Path) -> None:
    with apache_kafka(tmp_path / "kafka") as kafka:
        for seed in range(RUNS):
            random, name = Random(seed), f"read-{seed}"
            theirs, ours = (
                Peer(address, name, old=bool(seed % 2))
                for address in (kafka.bootstrap_servers, broker.address)
            )
            for number in range(STEPS):
                step = Step(
                    random.choice(KINDS),
                    random.randrange(2),
                    random.randrange(PARTITIONS),
                    random.random() < 0.5,
                )
                theirs.perform(step, number)
                ours.perform(step, number)
                require_same(theirs.look(), ours.look())
