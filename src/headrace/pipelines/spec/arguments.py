"""The arguments of the Python builder, for editors and type checkers: the keys of a file by kind.

What they mean is in `table.py`; a test compares the two.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

# A value that ends as text: an option of Spark or of a client.
Value: TypeAlias = str | int | float | bool
Values: TypeAlias = Mapping[str, Value]
Location: TypeAlias = str | PathLike[str]
Names: TypeAlias = str | Sequence[str]
Mode: TypeAlias = Literal["append", "update", "complete"]
Keep: TypeAlias = Sequence[str | Mapping[str, str]] | Mapping[str, str]
Schema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]


class WatermarkKeys(TypedDict):
    """How late events may come."""

    column: str
    delay: str


class DeadLetterKeys(TypedDict, total=False):
    """Where undecodable records go."""

    topic: str
    options: Values


class DecodeKeys(TypedDict, total=False):
    """What decoding has beside its format and schema."""

    framing: Literal["none", "confluent"]
    keep: Keep
    options: Values
    on_error: Literal["dead-letter", "drop", "fail"]


class SourceKeys(TypedDict, total=False):
    """The keys of a source."""

    topic: str
    topics: Names
    pattern: str
    starting: str
    decode: str | Mapping[str, object]
    format: str
    path: Location
    schema: str
    watermark: WatermarkKeys
    streaming: bool
    options: Values


class IcebergKeys(TypedDict, total=False):
    """An Iceberg table."""

    table: str
    catalog: Values
    location: Location


class PostgresKeys(TypedDict, total=False):
    """A table of PostgreSQL."""

    dsn: str
    table: str
    keys: Names
    create: bool


class ConsoleKeys(TypedDict, total=False):
    """How a batch is shown."""

    rows: int


class SinkKeys(TypedDict, total=False):
    """The keys of a sink, beside what it is from."""

    mode: Mode
    trigger: str
    topic: str
    topic_expression: str
    key: str
    value: str
    headers: str
    partition: str
    timestamp: str
    parquet: Location
    json: Location
    csv: Location
    orc: Location
    delta: Location
    partition_by: Names
    iceberg: IcebergKeys
    postgresql: PostgresKeys
    console: ConsoleKeys | int
    options: Values


class Settings(TypedDict, total=False):
    """The keys of a pipeline, beside its name and its parts."""

    description: str
    broker: str | Values
    checkpoint: Location
    trigger: str
    parallelism: int
    group: str
    dead_letters: str | DeadLetterKeys
    spark: Values
