from typing import Any

from headrace.types import Buffer

COMPILED: bool
KINDS: dict[str, int]

class Field:
    name: str
    def __init__(
        self,
        name: str,
        kind: str,
        is_array: bool,
        nullable: bool,
        compact: bool,
        tag: int,
        schema: Schema | None,
        default: object,
    ) -> None: ...

class Schema:
    cls: type[Any]
    flexible: bool
    def __init__(
        self,
        cls: type[Any],
        fields: list[Field],
        tagged: dict[int, Field],
        absent: list[Field],
        flexible: bool,
    ) -> None: ...

def decode(schema: Schema, buffer: Buffer, position: int, max_elements: int) -> tuple[Any, int]: ...
def encode(schema: Schema, message: object) -> bytes: ...
def encode_frame(schema: Schema, message: object, header: bytes) -> list[Buffer]: ...
