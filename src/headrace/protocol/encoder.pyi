from headrace.protocol.layout import Schema
from headrace.types import Buffer

COMPILED: bool

def encode(schema: Schema, message: object) -> bytes: ...
def encode_frame(schema: Schema, message: object, header: bytes) -> list[Buffer]: ...
