"""Spans of OpenTelemetry around sending and processing records, joined by the records' headers.

    pip install 'headrace[tracing]'

    from headrace.client.tracing import process_span, send_span

    with send_span("orders") as headers:
        producer.send("orders", "one tea", headers=headers)
    for record in consumer:
        with process_span(record):
            ...

The context is in the headers `traceparent` and `tracestate` (W3C Trace Context), or in those of the
propagator that the application has set, so that other clients and languages go on with it. Clients,
brokers and the Spark source and sink hand headers on as they are; nothing of OpenTelemetry is
imported unless this module is.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.client.types import Headers
from headrace.errors import ConfigError

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
except ImportError as missing:
    raise ConfigError(
        f"spans need the API of OpenTelemetry ({missing}); run: pip install 'headrace[tracing]'"
    ) from None

if TYPE_CHECKING:
    from headrace.protocol.consumer_records import ConsumerRecord

# More headers, or longer ones, than a context has are no business of its reader.
_HEADERS_MAX = 64
_VALUE_BYTES_MAX = 8192


def with_context(headers: Headers = ()) -> list[tuple[str, bytes | str | None]]:
    """Headers with the context of the current span, in place of any that they had."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    given = headers.items() if isinstance(headers, Mapping) else headers
    return [
        *((name, value) for name, value in given if name not in carrier),
        *((name, value.encode()) for name, value in carrier.items()),
    ]


def context_of(record: "ConsumerRecord") -> Context:
    """The context that a record's headers carry; an empty one if they carry none."""
    carrier = {
        name: bytes(value).decode(errors="replace")
        for name, value in list(record.headers)[:_HEADERS_MAX]
        if value is not None and len(value) <= _VALUE_BYTES_MAX
    }
    return propagate.extract(carrier, context=Context())


@contextmanager
def send_span(
    topic: str, headers: Headers = (), tracer: trace.Tracer | None = None
) -> Iterator[list[tuple[str, bytes | str | None]]]:
    """A span of the kind PRODUCER; the value is the headers to send, which carry its context.

    It ends with the block: wait for the acknowledgement inside to have it in the span.
    """
    attributes = {
        **_SYSTEM,
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    with (tracer or trace.get_tracer("headrace")).start_as_current_span(
        f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    ):
        yield with_context(headers)


@contextmanager
def process_span(
    record: "ConsumerRecord", tracer: trace.Tracer | None = None
) -> Iterator[trace.Span]:
    """A span of the kind CONSUMER, the child of the span in whose context the record was sent."""
    attributes: dict[str, str | int] = {
        **_SYSTEM,
        "messaging.operation.type": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }
    with (tracer or trace.get_tracer("headrace")).start_as_current_span(
        f"process {record.topic}",
        context=context_of(record),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span


_SYSTEM = {"messaging.system": "kafka"}
