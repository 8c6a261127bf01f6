from headrace.protocol.columns import BinaryColumn, HeaderColumn
from headrace.types import Buffer

COMPILED: bool

def encode_columns(
    timestamps: Buffer,
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    headers: HeaderColumn | None = None,
    start: int = 0,
    end: int | None = None,
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
    rows: Buffer | None = None,
) -> bytearray: ...
