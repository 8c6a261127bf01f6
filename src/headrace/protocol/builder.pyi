from collections.abc import Iterable

from headrace.types import Buffer

COMPILED: bool

class BatchBuilder:
    def __init__(self, size_bytes_max: int) -> None: ...
    @property
    def size_bytes_max(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] | None = (),
    ) -> int: ...
    def clear(self) -> None: ...
    def finish(
        self,
        *,
        compression: int = 0,
        level: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        last: bool = False,
    ) -> bytearray: ...
