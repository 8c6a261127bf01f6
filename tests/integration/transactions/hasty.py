"""A producer of transactions version 2 that sends the next end before the last one is answered.

The epoch rises by one with each end, so the next request can be written without the answer. It
meets the coordinator while the transaction before is prepared, as a request of a quick client does
on a busy machine.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.end_txn import EndTxnRequest
from tests.integration.transactions.raw import (
    NEW_END,
    NEW_PRODUCE,
    RawProducer,
    check,
    patiently,
)
from tests.integration.wire import Wire, produce_request, produced

# After these a batch is not in the log, and the client may abort.
_NOT_WRITTEN = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS}


class HastyProducer:
    """One producer, with a connection for ends and another one for records."""

    def __init__(self, address: str, transactional_id: str) -> None:
        self._raw = RawProducer(address, transactional_id).init()
        self._coordinator = Wire(self._raw.brokers.coordinator(transactional_id))
        self._leader = Wire(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._coordinator.close()
        self._leader.close()

    def wait_until(self, state: str) -> None:
        self._raw.wait_until(state)

    def write(self, topic: str, partitions: int, value: bytes) -> None:
        """Write a record to each partition, as often as it takes."""
        for partition in range(partitions):
            patiently(partial(self._written, topic, partition, value))

    def commit_and_abort(self) -> None:
        """The abort of a transaction in which nothing was sent, as that of Java's client."""
        self._send_end(committed=True, epoch=self._raw.epoch)
        self._send_end(committed=False, epoch=self._raw.epoch + 1)
        self._ended(self._coordinator.receive(), committed=True)
        self._ended(self._coordinator.receive(), committed=False)

    def commit_and_abort_unflushed(self, topic: str, value: bytes) -> None:
        """The abort of a transaction whose first batch is still on its way, as that of franz-go."""
        self._send_end(committed=True, epoch=self._raw.epoch)
        self._raw.epoch += 1
        self._send_batch(topic, 0, value)
        self._raw.epoch -= 1
        self._send_end(committed=False, epoch=self._raw.epoch + 1)
        self._ended(self._coordinator.receive(), committed=True)
        code = error_code(produced(self._leader.receive()).error_code)
        assert code is ErrorCode.NONE or code in _NOT_WRITTEN, code
        self._ended(self._coordinator.receive(), committed=False)

    def _written(self, topic: str, partition: int, value: bytes) -> None:
        self._send_batch(topic, partition, value)
        check(produced(self._leader.receive()).error_code)

    def _send_batch(self, topic: str, partition: int, value: bytes) -> None:
        data = self._raw.batch(topic, [value], partition)
        request = produce_request(topic, data, partition=partition)
        request.transactional_id = self._raw.transactional_id
        self._leader.send(request, NEW_PRODUCE)

    def _send_end(self, *, committed: bool, epoch: int) -> None:
        request = EndTxnRequest(
            transactional_id=self._raw.transactional_id,
            producer_id=self._raw.producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        self._coordinator.send(request, NEW_END)

    def _ended(self, answer: Any, *, committed: bool) -> None:
        """Take over the epoch of an answer, asking again as long as the broker wants that."""

        def attempt() -> Any:
            nonlocal answer
            asked, answer = answer, None
            if asked is None:
                self._send_end(committed=committed, epoch=self._raw.epoch)
                asked = self._coordinator.receive()
            check(asked.error_code)
            return asked

        done = patiently(attempt)
        assert done.producer_id == self._raw.producer_id
        assert done.producer_epoch == self._raw.epoch + 1
        self._raw.epoch = done.producer_epoch


def play_empty(producer: HastyProducer, topic: str, partitions: int, pairs: int) -> list[bytes]:
    """Commits, each with the abort of an empty transaction right behind; what was committed."""
    for number in range(pairs):
        producer.write(topic, partitions, b"%d" % number)
        producer.commit_and_abort()
    return [b"%d" % number for number in range(pairs)]


def play_unflushed(producer: HastyProducer, topic: str, partitions: int, pairs: int) -> list[bytes]:
    """As `play_empty`, with a batch that is sent and not waited for before the abort."""
    for number in range(pairs):
        producer.write(topic, partitions, b"%d" % number)
        producer.commit_and_abort_unflushed(topic, b"aborted")
    return [b"%d" % number for number in range(pairs)]


SEQUENCES: Mapping[str, Callable[[HastyProducer, str, int, int], list[bytes]]] = MappingProxyType(
    {"empty": play_empty, "unflushed": play_unflushed}
)
