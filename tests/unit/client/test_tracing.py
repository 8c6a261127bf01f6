"""Spans around records: what was processed is a child of what was sent, across the headers."""

import subprocess
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, get_current_span

from headrace.client.tracing import context_of, process_span, send_span, with_context
from headrace.protocol.consumer_records import ConsumerRecord

HOSTILE = [
    [("traceparent", b"\xff\xfe")],
    [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
    [("traceparent", b"1" * 100_000)],
    [("traceparent", None)],
    [(f"h{number}", b"") for number in range(10_000)],
]


def received(headers: object) -> ConsumerRecord:
    """A record as a consumer gets it: with the values of its headers as bytes."""
    return ConsumerRecord("orders", 2, 41, value=b"one tea", headers=headers)  # type: ignore[arg-type]


def test_the_span_of_processing_is_a_child_of_the_span_of_sending() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with send_span("orders", [("kind", b"tea"), ("traceparent", b"stale")], tracer) as headers:
        pass
    assert [name for name, _ in headers] == ["kind", "traceparent"]
    with process_span(received(headers), tracer):
        assert get_current_span().is_recording()
    sent, processed = exporter.get_finished_spans()
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert processed.attributes is not None
    assert processed.attributes["messaging.kafka.offset"] == 41
    assert processed.attributes["messaging.destination.partition.id"] == "2"


def test_headers_without_a_context_begin_a_trace_of_their_own() -> None:
    for headers in ([], *HOSTILE):
        context = context_of(received(headers))
        assert not get_current_span(context).get_span_context().is_valid


def test_without_a_span_headers_stay_as_they_are() -> None:
    assert with_context({"kind": b"tea"}) == [("kind", b"tea")]


def test_clients_import_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, headrace, headrace.aio; headrace.Producer, headrace.Consumer;"
        " sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
