from collections.abc import Callable
from typing import Any

from headrace.client.producer.buffers import Buffers
from headrace.client.producer.delivery import Future
from headrace.client.producer.values import Headers, OnDelivery, Pending, ProducerRecord
from headrace.client.producer_options import ProducerOptions

COMPILED: bool

class Accumulator(Buffers):
    def __init__(
        self,
        options: ProducerOptions,
        wake: Callable[[], object],
        *,
        choice: Callable[[list[int]], int],
        monotonic: Callable[[], float] = ...,
        wall: Callable[[], float] = ...,
    ) -> None: ...
    def send(
        self,
        topic: str,
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
