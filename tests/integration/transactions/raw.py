"""Producers of transactions over bare sockets, which do exactly what a test tells them.

`old` ones speak as clients before Kafka 4 do: they add partitions themselves, and their epoch stays
from one transaction to the next. The others rely on transactions version 2.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.records import encode_batch
from headrace.protocol.schema import Message
from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import Deadline
from tests.integration.wire import Wire, produce_request, produced

TRANSACTION, GROUP = 1, 0
OLD_ADD, OLD_PRODUCE, OLD_END, OLD_COMMIT_OFFSETS = 3, 9, 3, 3
NEW_PRODUCE, NEW_END, NEW_COMMIT_OFFSETS = 12, 5, 5
PATIENCE_S = 60.0

# What a client asks again after.
TRANSIENT = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}


class Refused(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(error_code(code).name)
        self.code = code


class Brokers:
    """Who to ask what: one broker for all, or those of a cluster, each for its own."""

    def __init__(self, source: str | Cluster) -> None:
        self._source = source

    def coordinator(self, key: str, kind: int = TRANSACTION) -> str:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])

        def attempt() -> str:
            [found] = self.ask(self._any(), request).coordinators
            check(found.error_code)
            return f"{found.host}:{found.port}"

        return patiently(attempt)

    def leader(self, topic: str, partition: int) -> str:
        if isinstance(self._source, str):
            return self._source
        return self._source.broker(self._source.wait_for_leader(topic, partition)).bootstrap_servers

    @staticmethod
    def ask(address: str, request: Message, version: int | None = None) -> Any:
        with Wire(address) as wire:
            return wire.ask(request, version)

    def _any(self) -> str:
        if isinstance(self._source, str):
            return self._source
        return next(broker.bootstrap_servers for broker in self._source.brokers if broker.answers)


class RawProducer:
    """One producer. A call raises `Refused` with what the broker says, and never tries again."""

    def __init__(
        self, source: str | Cluster, transactional_id: str, *, old: bool = False, timeout_ms=60_000
    ) -> None:
        self.brokers = Brokers(source)
        self.transactional_id = transactional_id
        self.old = old
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()

    def init(self) -> "RawProducer":
        """Take the transactional id, fencing whoever had it; waits for its transaction to end."""

        def attempt() -> Any:
            answer = self.ask_coordinator(
                InitProducerIdRequest(
                    transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
                )
            )
            check(answer.error_code)
            return answer

        answer = patiently(attempt)
        self._added.clear()
        self._begin_epoch(answer.producer_id, answer.producer_epoch)
        return self

    def add(self, topic: str, partition: int = 0) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        [answered] = self.ask_coordinator(request, OLD_ADD).results_by_topic_v3_and_below
        [result] = answered.results_by_partition
        check(result.partition_error_code)
        self._added.add((topic, partition))

    def send(self, topic: str, *values: bytes, partition: int = 0, added: bool = False) -> int:
        """Write a batch, adding its partition before if need be; where it is."""
        if self.old and not added and (topic, partition) not in self._added:
            patiently(lambda: self.add(topic, partition))
        data = self.batch(topic, values, partition)
        request = produce_request(topic, data, partition=partition)
        request.transactional_id = self.transactional_id
        address = self.brokers.leader(topic, partition)
        version = OLD_PRODUCE if self.old else NEW_PRODUCE
        answer = produced(self.brokers.ask(address, request, version))
        check(answer.error_code)
        self._sequences[topic, partition] += len(values)
        return answer.base_offset

    def batch(self, topic: str, values: Iterable[bytes], partition: int = 0) -> bytes:
        now = int(time.time() * 1000)
        return bytes(
            encode_batch(
                [(now, None, value, ()) for value in values],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self._sequences.setdefault((topic, partition), 0),
                transactional=True,
            )
        )

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Make positions of a group part of the transaction."""
        if self.old:
            request: Message = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            check(self.ask_coordinator(request).error_code)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(partition_index=offset, committed_offset=at)
                        for offset, at in offsets.items()
                    ],
                )
            ],
        )
        version = OLD_COMMIT_OFFSETS if self.old else NEW_COMMIT_OFFSETS
        address = self.brokers.coordinator(group, GROUP)
        for answered in self.brokers.ask(address, commit, version).topics:
            for partition in answered.partitions:
                check(partition.error_code)

    def end(self, *, committed: bool) -> None:
        """Ask for the end; the markers come when they come."""
        answer = self.ask_coordinator(self._end_request(committed), self._end_version)
        check(answer.error_code)
        self._added.clear()
        if not self.old:
            self._begin_epoch(answer.producer_id, answer.producer_epoch)

    def send_end(self, coordinator: str, *, committed: bool) -> Wire:
        """Ask for the end, and do not wait for the answer, which comes over this connection."""
        wire = Wire(coordinator)
        wire.send(self._end_request(committed), self._end_version)
        return wire

    def commit(self) -> None:
        patiently(lambda: self.end(committed=True))

    def abort(self) -> None:
        patiently(lambda: self.end(committed=False))

    def describe(self) -> Any:
        """What the coordinator says of us."""

        def attempt() -> Any:
            request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
            [state] = self.ask_coordinator(request).transaction_states
            check(state.error_code)
            return state

        return patiently(attempt)

    def wait_until(self, state: str) -> None:
        deadline = Deadline(PATIENCE_S)
        while (found := self.describe().transaction_state) != state:
            assert not deadline.has_passed, f"{self.transactional_id} is {found}, not {state}"
            time.sleep(0.05)

    def ask_coordinator(self, request: Message, version: int | None = None) -> Any:
        address = self.brokers.coordinator(self.transactional_id)
        return self.brokers.ask(address, request, version)

    @property
    def _end_version(self) -> int:
        return OLD_END if self.old else NEW_END

    def _end_request(self, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        if (self.producer_id, self.epoch) != (producer_id, epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch


def check(code: int) -> None:
    if code:
        raise Refused(code)


def refusal(call: Callable[[], object]) -> ErrorCode:
    """What a call is refused with."""
    try:
        call()
    except Refused as error:
        return error_code(error.code)
    raise AssertionError("it was not refused")


def patiently(call: Callable[[], Any]) -> Any:
    """Do it again as long as it is refused for now, or nobody answers."""
    deadline = Deadline(PATIENCE_S)
    while True:
        try:
            return call()
        except (Refused, OSError, AssertionError) as error:
            transient = not isinstance(error, Refused) or error.code in TRANSIENT
            if not transient or deadline.has_passed:
                raise
            time.sleep(0.02)
