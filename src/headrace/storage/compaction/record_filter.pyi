from headrace.protocol.batch import BatchHeader
from headrace.storage.compaction.key_table import KeyTable
from headrace.storage.compaction.output import CompactionOutput
from headrace.types import Buffer

COMPILED: bool
NOTHING: int
EVERYTHING: int
SOMETHING: int

class RecordFilter:
    def __init__(
        self,
        table: KeyTable,
        output: CompactionOutput,
        table_end: int,
        now_ms: int,
        horizon_ms: int,
        kept_offsets: list[int],
    ) -> None: ...
    @property
    def records_read(self) -> int: ...
    @property
    def records_kept(self) -> int: ...
    def is_kept(self, last_offset: int) -> bool: ...
    def filter_batches(self, chunk: Buffer, start: int, end: int, last_at: int) -> int: ...
    def filter_records(
        self, payload: Buffer, header: BatchHeader, discard: bool, wants_horizon: bool
    ) -> int: ...
    def kept_records(self, payload: Buffer, header: BatchHeader) -> memoryview: ...
    def put(
        self,
        chunk: Buffer,
        header: BatchHeader,
        left: int,
        body: Buffer = b"",
        into: CompactionOutput | None = None,
    ) -> None: ...
