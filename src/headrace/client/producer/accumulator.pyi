from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.client.producer.batches import PartitionQueue, ProducerBatch
from headrace.client.producer.delivery import BatchDelivery, Future
from headrace.client.producer_options import ProducerOptions
from headrace.client.types import Headers, OnDelivery, Pending, ProducerRecord
from headrace.types import TopicPartition

# The lengths of a header's name and value take less than this.
HEADER_OVERHEAD_BYTES = 10

def encode_headers(topic: str, headers: Any) -> tuple[list[tuple[str, bytes | None]], int]: ...

COMPILED: bool

class Waiter(Protocol):
    size_bytes: int
    is_granted: bool
    def wake(self) -> None: ...

class PartitionBuffer:
    has_leader: bool
    queue: PartitionQueue | None
    batch_bytes_max: int
    @property
    def tp(self) -> TopicPartition: ...

class Buffers:
    refusal: Callable[[], Exception] | None
    home: int | None
    def __init__(
        self,
        options: ProducerOptions,
        wake: Callable[[], object],
        *,
        choice: Callable[[list[int]], int],
        monotonic: Callable[[], float],
    ) -> None: ...
    @property
    def records(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def add_columns(
        self,
        name: str,
        index: int,
        encode: Callable[..., bytearray],
        count: int,
        raw_bytes: int,
    ) -> BatchDelivery: ...
    def enter(self, waiter: Waiter) -> bool: ...
    def leave(self, waiter: Waiter) -> None: ...
    def refuse(
        self, failure: Callable[[], Exception] | None, *known: Callable[[], Exception] | None
    ) -> bool: ...
    def close_open_batches(self) -> list[BatchDelivery]: ...
    def partition_count(self, name: str) -> int: ...
    def sticky(self, name: str) -> int: ...
    def set_topic(self, name: str, leaders: Sequence[bool]) -> None: ...
    def drain(self, now: float) -> tuple[list[PartitionBuffer], float]: ...
    def take(self, buffer: PartitionBuffer) -> ProducerBatch | None: ...
    def next_expiry(self) -> float: ...
    def drop(self, now: float | None = None) -> list[ProducerBatch]: ...
    def forget(self, delivery: BatchDelivery) -> None: ...
    def free(self, batch: ProducerBatch) -> None: ...

class Accumulator(Buffers):
    def __init__(
        self,
        options: ProducerOptions,
        wake: Callable[[], object],
        *,
        choice: Callable[[list[int]], int],
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None: ...
    def send(
        self,
        topic: str | ProducerRecord,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Future | Pending: ...
    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int,
        on_delivery: OnDelivery | None,
        need: int,
        granted: bool,
    ) -> Future | None: ...

class RecordSender:
    _accumulator: Accumulator
    def __init__(self, accumulator: Accumulator) -> None: ...
    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future: ...
    def _send_later(self, pending: Pending) -> Future: ...
