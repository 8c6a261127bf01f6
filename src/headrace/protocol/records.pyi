from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from headrace.protocol.batch import (
    HEADER_SIZE as HEADER_SIZE,
)
from headrace.protocol.batch import (
    LOG_OVERHEAD as LOG_OVERHEAD,
)
from headrace.protocol.batch import (
    NO_PRODUCER_ID as NO_PRODUCER_ID,
)
from headrace.protocol.batch import (
    NO_TIMESTAMP as NO_TIMESTAMP,
)
from headrace.protocol.batch import (
    BatchHeader as BatchHeader,
)
from headrace.protocol.batch import (
    RefusedBatch as RefusedBatch,
)
from headrace.protocol.batch import (
    assign as assign,
)
from headrace.protocol.batch import (
    check_batch as check_batch,
)
from headrace.protocol.batch import (
    read_header as read_header,
)
from headrace.protocol.batch import (
    scan_headers as scan_headers,
)
from headrace.protocol.batch import (
    stamp_log_append_time as stamp_log_append_time,
)
from headrace.protocol.batch import (
    stamp_max_timestamp as stamp_max_timestamp,
)
from headrace.protocol.batch import (
    validate as validate,
)
from headrace.protocol.column_decoder import decode_columns as decode_columns
from headrace.protocol.column_encoder import encode_columns as encode_columns
from headrace.protocol.columns import (
    BinaryColumn as BinaryColumn,
)
from headrace.protocol.columns import (
    Columns as Columns,
)
from headrace.protocol.columns import (
    HeaderColumn as HeaderColumn,
)
from headrace.protocol.compression import (
    EXPANDED_BYTES_MAX as EXPANDED_BYTES_MAX,
)
from headrace.protocol.compression import (
    recompress as recompress,
)
from headrace.protocol.compression import (
    record_bytes as record_bytes,
)
from headrace.protocol.record_scan import check_records as check_records
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
