from headrace.protocol.columns import BinaryColumn, HeaderColumn
from headrace.types import Buffer

COMPILED: bool

def partitions_of_keys(keys: BinaryColumn, partition_count: int) -> bytearray: ...
def group_rows(partitions: Buffer, partition_count: int) -> tuple[bytearray, list[int]]: ...
def cut_rows(
    timestamps: Buffer,
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    headers: HeaderColumn | None,
    rows: Buffer | None,
    start: int,
    end: int,
    bytes_max: int,
    record_bytes_max: int = 0,
    first_row: int = 0,
) -> tuple[list[int], list[int]]: ...
