from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from headrace.protocol.batch import BatchHeader
from headrace.types import Buffer

COMPILED: bool

Headers: TypeAlias = Iterable[tuple[str, Buffer | None]]

class Record:
    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    def __iter__(self) -> Iterator[Any]: ...

def decode_rows(
    buffer: Buffer,
    header: BatchHeader | None = None,
    from_offset: int = 0,
    max_bytes: int = ...,
    check_crcs: bool = True,
) -> list[Record]: ...
def encode_batch(
    records: Iterable[tuple[int, Buffer | None, Buffer | None, Headers]],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray: ...
