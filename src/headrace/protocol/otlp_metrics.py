"""Metrics in OTLP, the protocol of OpenTelemetry, as clients push them (KIP-714): protobuf, read.

Only numbers are read, of gauges and sums, which is what Kafka's clients send; other kinds of points
and unknown fields are skipped. Rule: input is hostile: every length is checked, nothing recurses,
and the caller stops the generator after as many points as it wants.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from headrace.errors import ProtocolError

_DOUBLE = Struct("<d")
_LONG = Struct("<q")
_VARINT_BYTES_MAX = 10

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

# Fields by number: of MetricsData, ResourceMetrics, ScopeMetrics and Metric.
_RESOURCE_METRICS = 1
_SCOPE_METRICS = 2
_METRICS = 2
_NAME, _GAUGE, _SUM = 1, 5, 7
# Of Gauge and Sum.
_POINTS, _TEMPORALITY = 1, 2
# Of NumberDataPoint.
_AS_DOUBLE, _AS_INT, _ATTRIBUTES = 4, 6, 7
# Of KeyValue and AnyValue.
_KEY, _VALUE = 1, 2
_STRING, _BOOL, _INT, _FLOAT = 1, 2, 3, 4

_DELTA = 1


class MetricPoint(NamedTuple):
    """A number that a client measured.

    A sum only grows; `is_delta` says that it is what came since the last push.
    """

    metric: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_sum: bool
    is_delta: bool


def decode_points(data: bytes) -> Iterator[MetricPoint]:
    """The points of MetricsData; ProtocolError if the bytes are something else."""
    for resource in _messages(data, _RESOURCE_METRICS):
        for scope in _messages(resource, _SCOPE_METRICS):
            for metric in _messages(scope, _METRICS):
                yield from _points(metric)


def _points(metric: memoryview) -> Iterator[MetricPoint]:
    name, kinds = "", []
    for number, value in _fields(metric):
        if number == _NAME and isinstance(value, memoryview):
            name = _text(value)
        elif number in (_GAUGE, _SUM) and isinstance(value, memoryview):
            kinds.append((number == _SUM, value))
    for is_sum, points in kinds:
        is_delta = any(
            number == _TEMPORALITY and value == _DELTA for number, value in _fields(points)
        )
        for point in _messages(points, _POINTS):
            yield _number(name, point, is_sum, is_sum and is_delta)


def _number(name: str, point: memoryview, is_sum: bool, is_delta: bool) -> MetricPoint:
    number: float = 0
    attributes = []
    for field, value in _fields(point):
        if field == _AS_DOUBLE and isinstance(value, bytes):
            number = _DOUBLE.unpack(value)[0]
        elif field == _AS_INT and isinstance(value, bytes):
            number = _LONG.unpack(value)[0]
        elif field == _ATTRIBUTES and isinstance(value, memoryview):
            attributes.append(_attribute(value))
    return MetricPoint(name, tuple(attributes), number, is_sum, is_delta)


def _attribute(pair: memoryview) -> tuple[str, str]:
    key, text = "", ""
    for field, value in _fields(pair):
        if field == _KEY and isinstance(value, memoryview):
            key = _text(value)
        elif field == _VALUE and isinstance(value, memoryview):
            for kind, content in _fields(value):
                if kind == _STRING and isinstance(content, memoryview):
                    text = _text(content)
                elif kind == _FLOAT and isinstance(content, bytes):
                    text = repr(_DOUBLE.unpack(content)[0])
                elif kind == _BOOL and isinstance(content, int):
                    text = "true" if content else "false"
                elif kind == _INT and isinstance(content, int):
                    text = str(content - (1 << 64) if content >> 63 else content)
    return key, text


def _text(data: memoryview) -> str:
    return bytes(data).decode(errors="replace")


def _messages(data: bytes | memoryview, number: int) -> Iterator[memoryview]:
    """The nested messages of one field."""
    for field, value in _fields(data):
        if field == number and isinstance(value, memoryview):
            yield value


def _fields(data: bytes | memoryview) -> Iterator[tuple[int, int | bytes | memoryview]]:
    """The fields of a message: a varint is an int, eight bytes are bytes, the rest are views."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == _LENGTH:
            size, at = _varint(view, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError(f"OTLP metrics have a field of wire type {kind}")
        if size > len(view) - at:
            raise ProtocolError(f"OTLP metrics: {size} bytes of field {number} are cut off")
        content = view[at : at + size]
        at += size
        yield number, bytes(content) if kind == _FIXED64 else content


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if not byte & 0x80:
            return value, at
    raise ProtocolError("OTLP metrics have a number that does not end")
