from typing import Any

from headrace.protocol.layout import Schema
from headrace.types import Buffer

COMPILED: bool

def decode(schema: Schema, buffer: Buffer, position: int, max_elements: int) -> tuple[Any, int]: ...
