"""Serializers and deserializers: the built-in ones by name, and errors of failing ones.

Rule: None is never passed to a serializer or a deserializer. The key of a record without a key, and
the value of a tombstone, stay None in any format.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeAlias

from headrace.client.errors import SerializationFailed

Serializer: TypeAlias = Callable[[Any], bytes]
Deserializer: TypeAlias = Callable[[bytes], Any]
Part: TypeAlias = Literal["key", "value"]


def string_to_bytes(value: Any) -> bytes:
    """Text as UTF-8.

    >>> string_to_bytes("naïve")
    b'na\\xc3\\xafve'
    """
    if not isinstance(value, str):
        raise TypeError(f"it is {_kind(value)}, and the string serializer takes str")
    return value.encode()


def string_from_bytes(data: bytes) -> str:
    """UTF-8 as text.

    >>> string_from_bytes(b"na\\xc3\\xafve")
    'naïve'
    """
    return data.decode()


def json_to_bytes(value: Any) -> bytes:
    """JSON without spaces, in UTF-8. Numbers that JSON does not have (NaN, infinity) are refused.

    >>> json_to_bytes({"user": 7, "city": "Zürich"}).decode()
    '{"user":7,"city":"Zürich"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def json_from_bytes(data: bytes) -> Any:
    """The value that JSON in UTF-8 stands for.

    >>> json_from_bytes(b'{"user":7}')
    {'user': 7}
    """
    return json.loads(data)


SERIALIZERS: dict[str, Serializer] = {"string": string_to_bytes, "json": json_to_bytes}
DESERIALIZERS: dict[str, Deserializer] = {"string": string_from_bytes, "json": json_from_bytes}


def encoder(serializer: Serializer | None, part: Part) -> Callable[[str, Any], bytes | None]:
    """A function from a topic's keys or values to bytes, which may raise SerializationFailed."""
    if serializer is None:
        return _key_to_bytes if part == "key" else _value_to_bytes

    def encode(topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            data = serializer(value)
        except Exception as error:
            raise SerializationFailed(
                f"topic {topic}: {part}_serializer failed on a {part} of type {_kind(value)}:"
                f" {_words(error)}"
            ) from error
        if type(data) is bytes:
            return data
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        raise SerializationFailed(
            f"topic {topic}: {part}_serializer made {_kind(data)} of a {part} of type"
            f" {_kind(value)}; it must return bytes"
        )

    return encode


def _key_to_bytes(topic: str, key: Any) -> bytes | None:
    return _plain(topic, key, "key")


def _value_to_bytes(topic: str, value: Any) -> bytes | None:
    return _plain(topic, value, "value")


def _plain(topic: str, value: Any, part: Part) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"topic {topic}: a {part} must be bytes, str or None, not {_kind(value)};"
        f' give {part}_serializer=..., for example {part}_serializer="json"'
    )


class DecodedRecord(Protocol):
    """The fields of a record that `decode_all` needs."""

    key: Any
    value: Any

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


def decode_all(
    records: Iterable[DecodedRecord],
    key_deserializer: Deserializer | None,
    value_deserializer: Deserializer | None,
) -> None:
    """Deserialize keys and values in place; SerializationFailed names the first bad record.

    The records before it are deserialized, it and those after it are unchanged.
    """
    if key_deserializer is None and value_deserializer is None:
        return
    record: DecodedRecord | None = None
    part: Part = "key"
    try:
        for record in records:
            part = "key"
            key = record.key
            if key is not None and key_deserializer is not None:
                key = key_deserializer(key)
            part = "value"
            if record.value is not None and value_deserializer is not None:
                record.value = value_deserializer(record.value)
            record.key = key
    except Exception as error:
        if record is None:
            raise
        raise SerializationFailed(
            f"{record.topic}-{record.partition} offset {record.offset}:"
            f" {part}_deserializer failed: {_words(error)}; seek past the record to skip it"
        ) from error


def _kind(value: Any) -> str:
    return type(value).__name__


def _words(error: Exception) -> str:
    return f"{_kind(error)}: {error}" if str(error) else _kind(error)
