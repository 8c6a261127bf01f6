from collections.abc import Iterable
from typing import Any

from headrace.types import Buffer

COMPILED: bool

class ConsumerRecord:
    key: Any
    value: Any
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        timestamp_type: int = 0,
        key: Any = None,
        value: Any = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    @property
    def leader_epoch(self) -> int: ...

def decode_batches(
    buffer: Buffer,
    topic: str,
    partition: int,
    position: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    records_min: int = 1,
    max_bytes: int = ...,
    check_crcs: bool = True,
) -> tuple[list[ConsumerRecord], int, int]: ...
def decode_records(
    buffer: Buffer,
    topic: str,
    partition: int,
    position: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    max_bytes: int = ...,
    check_crcs: bool = True,
) -> list[ConsumerRecord]: ...
