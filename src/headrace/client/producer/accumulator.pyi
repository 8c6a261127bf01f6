from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from headrace.client.producer.batches import Batch, PartitionQueue
from headrace.client.producer.delivery import Delivery, Future
from headrace.client.producer.partitioners import Partitioner
from headrace.client.producer_options import ProducerOptions
from headrace.types import TopicPartition

COMPILED: bool

Pending: TypeAlias = tuple[
    str,
    bytes | None,
    bytes | None,
    list[tuple[str, bytes | None]] | None,
    int | None,
    int,
    Callable[..., object] | None,
    int,
]

class Waiter(Protocol):
    size_bytes: int
    is_granted: bool
    def wake(self) -> None: ...

class Slot:
    has_leader: bool
    queue: PartitionQueue | None
    batch_bytes_max: int
    @property
    def tp(self) -> TopicPartition: ...

class Accumulator:
    refusal: Callable[[], Exception] | None
    def __init__(
        self,
        options: ProducerOptions,
        wake: Callable[[], object],
        *,
        choice: Callable[[list[int]], int],
        partitioner: Partitioner = "murmur2",
        monotonic: Callable[[], float] = ...,
        wall: Callable[[], float] = ...,
    ) -> None: ...
    def send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: Callable[..., object] | None,
    ) -> Future | Pending: ...
    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int,
        on_delivery: Callable[..., object] | None,
        need: int,
        granted: bool,
    ) -> Future | None: ...
    def add_columns(
        self,
        name: str,
        index: int,
        encode: Callable[..., bytearray],
        count: int,
        raw_bytes: int,
    ) -> Delivery: ...
    def enter(self, waiter: Waiter) -> bool: ...
    def leave(self, waiter: Waiter) -> None: ...
    def hurry(self) -> list[Delivery]: ...
    @property
    def records(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    def partition_count(self, name: str) -> int: ...
    def sticky(self, name: str) -> int: ...
    def set_topic(self, name: str, leaders: Sequence[bool]) -> None: ...
    def drain(self, now: float) -> tuple[list[Slot], float]: ...
    def take(self, slot: Slot) -> Batch | None: ...
    def next_expiry(self) -> float: ...
    def drop(self, now: float | None = None) -> list[Batch]: ...
    def forget(self, delivery: Delivery) -> None: ...
    def free(self, batch: Batch) -> None: ...
