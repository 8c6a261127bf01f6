"""Records from standard input and files: lines, JSON lines, or whole files.

Rule: bounded memory whatever the input. A record longer than a broker could ever take is refused
while it is being read.
"""

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from headrace.errors import HeadraceError

Header: TypeAlias = tuple[str, bytes | None]

# No broker takes a request above socket.request.max.bytes, 100 MiB unless it is raised.
RECORD_BYTES_MAX = 100 * 1_048_576
_CHUNK_BYTES = 256 * 1024


class InputError(HeadraceError):
    """Input that is no record; the text says where and what to do."""


class InputRecord(NamedTuple):
    """A record as the input gives it. None leaves a choice to the options or the client."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class Place(NamedTuple):
    """Where in the input a record came from."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line} of {self.source}" if self.line else self.source


class Watch(NamedTuple):
    """What to call while reading."""

    on_read: Callable[[int], None]
    allow_interrupt: Callable[[], AbstractContextManager[None]]


def read_lines(stream: BinaryIO, name: str, watch: Watch) -> Iterator[tuple[Place, bytes]]:
    """The lines of a stream without their newlines; the last one may lack it."""
    number = 0
    pending: list[bytes] = []
    pending_bytes = 0
    for chunk in _chunks(stream, watch):
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        pending_bytes += len(first)
        if pending_bytes > RECORD_BYTES_MAX:
            raise InputError(
                f"line {number + 1} of {name} is longer than {RECORD_BYTES_MAX} bytes;"
                " no broker takes such a message"
            )
        if not rest:
            continue
        number += 1
        yield Place(name, number), b"".join(pending)
        for line in rest[:-1]:
            number += 1
            yield Place(name, number), line
        pending = [rest[-1]]
        pending_bytes = len(rest[-1])
    if pending_bytes:
        yield Place(name, number + 1), b"".join(pending)


def _chunks(stream: BinaryIO, watch: Watch) -> Iterator[bytes]:
    """Bytes as they come. Waiting for them is the one place where input may be interrupted."""
    try:
        descriptor: int | None = stream.fileno()
    except OSError:
        descriptor = None  # A stream in memory, which never makes us wait.
    while True:
        if descriptor is None:
            chunk = stream.read(_CHUNK_BYTES)
        else:
            with watch.allow_interrupt():
                chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        watch.on_read(len(chunk))
        yield chunk


def read_whole(stream: BinaryIO, name: str) -> bytes:
    """All of a stream as one record."""
    data = stream.read(RECORD_BYTES_MAX + 1)
    if len(data) > RECORD_BYTES_MAX:
        raise InputError(
            f"{name} is larger than {RECORD_BYTES_MAX} bytes; no broker takes such a message"
        )
    return data


def split_key(line: bytes, separator: bytes, place: Place) -> InputRecord:
    """A line of key, separator and value."""
    key, found, value = line.partition(separator)
    if not found:
        raise InputError(
            f"{place} has no key separator {separator.decode(errors='replace')!r};"
            " add it, or leave out --key-separator"
        )
    return InputRecord(value, key)


_FIELDS = frozenset(
    ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
)
# What `headrace consume --json` prints beyond that and a copy does not need.
_IGNORED = frozenset(("topic", "offset"))


def parse_json(line: bytes, place: Place) -> InputRecord:
    """A record from a JSON object, in the form that `headrace consume --json` prints."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        unknown = sorted(document.keys() - _FIELDS - _IGNORED)
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}")
        return InputRecord(
            _content(document, "value"),
            _content(document, "key"),
            _headers(document.get("headers")),
            _integer(document, "partition", 2**31 - 1),
            _integer(document, "timestamp", 2**63 - 1),
        )
    except (ValueError, RecursionError) as error:
        fields = "value, key, headers, partition and timestamp"
        raise InputError(
            f"{place} is no record: {error}; write one JSON object a line, with {fields}"
        ) from None


def _content(document: Mapping[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, base64 decoded, any other JSON value as JSON text."""
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        if document.get(name) is not None:
            raise ValueError(f"both {name} and {name}_base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, binascii.Error):
            raise ValueError(f"{name}_base64 is not base64") from None
    value = document.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode()


def _headers(document: Any) -> tuple[Header, ...]:
    """Headers as an object, or as a list of objects, which can repeat a name."""
    match document:
        case None:
            return ()
        case dict():
            return tuple(
                (name, _content({"value": value}, "value")) for name, value in document.items()
            )
        case list():
            return tuple(_header(one) for one in document)
        case _:
            raise ValueError("headers is neither an object nor a list")


def _header(document: Any) -> Header:
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise ValueError("a header without a name")
    return document["name"], _content(document, "value")


def _integer(document: Mapping[str, Any], name: str, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a number from 0 to {most}")
    return value
