"""Headers as an application gives them, into the pairs that a batch is written from."""

from collections.abc import Mapping
from typing import Any

# The lengths of a header's name and value take less than this.
HEADER_OVERHEAD_BYTES = 10


def encode_headers(topic: str, headers: Any) -> tuple[list[tuple[str, bytes | None]], int]:
    """The headers with their values as bytes, and at most how many bytes they take.

    >>> encode_headers("orders", {"trace": "7"})
    ([('trace', b'7')], 16)
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    encoded: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    try:
        for name, value in pairs:
            data = _value(topic, name, value)
            encoded.append((name, data))
            size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(data or b"")
    except (TypeError, ValueError) as error:
        if isinstance(error, _BadHeader):
            raise
        raise TypeError(
            f"topic {topic}: headers must be (name, value) pairs or a mapping, not {headers!r}"
        ) from None
    return encoded, size_bytes


class _BadHeader(TypeError):
    """A header that is a pair, but not of a name and a value."""


def _value(topic: str, name: Any, value: Any) -> bytes | None:
    if not isinstance(name, str):
        raise _BadHeader(f"topic {topic}: a header's name must be str, not {type(name).__name__}")
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _BadHeader(
        f"topic {topic}: header {name!r} must be bytes, str or None, not {type(value).__name__}"
    )
