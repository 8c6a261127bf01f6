from typing import Any

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
