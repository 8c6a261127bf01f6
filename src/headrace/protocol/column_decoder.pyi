from headrace.protocol.columns import Columns
from headrace.types import Buffer

COMPILED: bool

def decode_columns(
    buffer: Buffer,
    start: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    max_bytes: int = ...,
    check_crcs: bool = True,
    with_control: bool = False,
    total_bytes_max: int = ...,
    with_keys: bool = True,
    with_values: bool = True,
    with_headers: bool = True,
) -> Columns: ...
