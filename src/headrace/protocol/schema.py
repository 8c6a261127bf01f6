"""Declaration of message classes, and their compilation into a `Schema` for each version.

A message is a class whose attributes are declared with the field functions below. Versions are
written as in Kafka: "3+" from version 3 on, "0-12" up to version 12. Every field has a default,
for new objects and for messages decoded from a version without the field.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, dataclass_transform

from headrace.errors import ProtocolError
from headrace.protocol.message_codec import Field, Schema, decode, encode
from headrace.types import Buffer

# A request may name every partition of a large broker; more would be an attack on memory.
REQUEST_ELEMENTS_MAX = 250_000
# Responses come from a trusted broker, and each partition in Metadata has several elements.
RESPONSE_ELEMENTS_MAX = 10_000_000

# The first tag of fields that Kafka does not have. Kafka's tags begin at 0, and its clients and
# brokers skip unknown tags.
OWN_TAG_MIN = 10_000
# The highest version number that fits the int16 of the request header.
VERSION_MAX = 32767
_ALL = (0, VERSION_MAX)


class FieldSpec(NamedTuple):
    """The declaration of a field, for all versions."""

    kind: str
    versions: tuple[int, int]
    nullable: tuple[int, int] | None
    tag: int | None
    default: object
    struct: "type[Struct] | None" = None
    is_array: bool = False


@cache
def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if dash:
        return int(first), int(last)
    if text.endswith("+"):
        return int(text[:-1]), _ALL[1]
    return int(text), int(text)


def _field(kind: str) -> Callable[..., Any]:
    def declare(
        versions: str = "0+",
        *,
        nullable: str | None = None,
        tag: int | None = None,
        default: object,
    ) -> Any:
        null = None if nullable is None else _range(nullable)
        return FieldSpec(kind, _range(versions), null, tag, default)

    declare.__name__ = kind
    return declare


boolean = _field("bool")
int8 = _field("int8")
int16 = _field("int16")
uint16 = _field("uint16")
int32 = _field("int32")
uint32 = _field("uint32")
int64 = _field("int64")
float64 = _field("float64")
string = _field("string")
raw = _field("bytes")
records = _field("records")
uuid = _field("uuid")


def struct(
    of: "type[Struct]",
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    default: object,
) -> Any:
    """Declare a nested struct. `default=...` is a struct with all fields at their defaults.

    That default is a single object shared by all messages: replace it, never change it.
    """
    null = None if nullable is None else _range(nullable)
    return FieldSpec("struct", _range(versions), null, tag, of() if default is ... else default, of)


def array(
    of: "type[Struct] | Callable[..., Any]",
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    default: object,
) -> Any:
    """Declare an array of structs, or of a field function's kind. `default=...` is empty."""
    null = None if nullable is None else _range(nullable)
    empty: object = [] if default is ... else default
    if isinstance(of, type):
        return FieldSpec("struct", _range(versions), null, tag, empty, of, True)
    return FieldSpec(of.__name__, _range(versions), null, tag, empty, None, True)


def _initializer(specs: Mapping[str, FieldSpec]) -> Callable[..., None]:
    """A keyword-only `__init__`, generated as source because responses are on the hot path."""
    scope: dict[str, Any] = {}
    parameters, lines = [], []
    for name, spec in specs.items():
        if isinstance(spec.default, list):
            parameters.append(f"{name}=...")
            lines.append(f" self.{name} = [] if {name} is ... else {name}")
        else:
            scope[f"_default_{name}"] = spec.default
            parameters.append(f"{name}=_default_{name}")
            lines.append(f" self.{name} = {name}")
    star = ", *, " if parameters else ""
    source = f"def __init__(self{star}{', '.join(parameters)}):\n" + ("\n".join(lines) or " pass")
    exec(source, scope)  # noqa: S102 - the names come from our own tables
    return cast("Callable[..., None]", scope["__init__"])


def _initialize_first(self: "Struct", **values: object) -> None:
    """Generate `__init__` for the first object: a process uses few of the hundreds of structs."""
    cls = type(self)
    cls.__init__ = _initializer(cls.__specs__)  # type: ignore[method-assign]
    cls.__init__(self, **values)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean, int8, int16, uint16, int32, uint32, int64, float64, string, raw, records, uuid,
        struct, array,
    ),
)  # fmt: skip
class _StructMeta(type):
    def __new__(
        meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **facts: Any
    ) -> "_StructMeta":
        specs = {key: value for key, value in namespace.items() if isinstance(value, FieldSpec)}
        for key in specs:
            del namespace[key]
        namespace["__slots__"] = tuple(specs)
        namespace["__specs__"] = specs
        namespace.setdefault("__init__", _initialize_first)
        return super().__new__(meta, name, bases, namespace, **facts)


class Struct(metaclass=_StructMeta):
    """A struct of a message, with slots, a keyword constructor, equality and repr."""

    __specs__: ClassVar[Mapping[str, FieldSpec]]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__specs__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__specs__)
        return f"{type(self).__name__}({shown})"


class Message(Struct):
    """A whole message: its `api_key` (or record type), its versions, and the flexible ones."""

    api_key: ClassVar[int]
    versions: ClassVar[tuple[int, int]]
    flexible_from: ClassVar[int]

    def __init_subclass__(
        cls, *, api_key: int = -1, versions: tuple[int, int], flexible_from: int = _ALL[1]
    ) -> None:
        cls.api_key = api_key
        cls.versions = versions
        cls.flexible_from = flexible_from


AnyMessage = TypeVar("AnyMessage", bound=Message)


@cache
def schema_of(cls: type[Message], version: int) -> Schema:
    """The compiled schema of one version of a message; made on first use and cached."""
    first, last = cls.versions
    if not first <= version <= last:
        raise ProtocolError(f"{cls.__name__} has versions {first} to {last}, not {version}")
    return _compile(cls, version, version >= cls.flexible_from)


def _compile(cls: type[Struct], version: int, flexible: bool) -> Schema:
    fields: list[Field] = []
    tagged: dict[int, Field] = {}
    absent: list[Field] = []
    for name, spec in cls.__specs__.items():
        present = spec.versions[0] <= version <= spec.versions[1]
        nullable = spec.nullable is not None and spec.nullable[0] <= version <= spec.nullable[1]
        inner = _compile(spec.struct, version, flexible) if spec.struct and present else None
        tag = -1 if spec.tag is None else spec.tag
        field = Field(name, spec.kind, spec.is_array, nullable, flexible, tag, inner, spec.default)
        if not present:
            absent.append(field)
        elif spec.tag is None:
            fields.append(field)
        else:
            tagged[spec.tag] = field
    return Schema(cls, fields, dict(sorted(tagged.items())), absent, flexible)


def encode_message(message: Message, version: int) -> bytes:
    """The body of a message, without frame and header."""
    return encode(schema_of(type(message), version), message)


def decode_message(cls: type[AnyMessage], version: int, buffer: Buffer) -> AnyMessage:
    """The inverse of `encode_message`; bytes left over are an error."""
    message, end = decode(schema_of(cls, version), buffer, 0, RESPONSE_ELEMENTS_MAX)
    if end != len(buffer):
        raise ProtocolError(f"{len(buffer) - end} bytes left over after {cls.__name__}")
    return cast("AnyMessage", message)
