"""Metrics in OTLP: the reader against the encoder of OpenTelemetry, and hostile bytes."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

from headrace.errors import ProtocolError
from headrace.protocol.otlp_metrics import MetricPoint, decode_points


def encoded(*metrics: Metric) -> bytes:
    scope = ScopeMetrics(metrics=metrics)
    return MetricsData(
        resource_metrics=[ResourceMetrics(scope_metrics=[scope])]
    ).SerializeToString()


def test_gauges_and_sums_are_read_with_their_attributes() -> None:
    node = KeyValue(key="node_id", value=AnyValue(int_value=-1))
    topic = KeyValue(key="topic", value=AnyValue(string_value="orders"))
    data = encoded(
        Metric(
            name="rtt.avg",
            gauge=Gauge(data_points=[NumberDataPoint(as_double=1.5, attributes=[node, topic])]),
        ),
        Metric(
            name="sent",
            sum=Sum(
                data_points=[NumberDataPoint(as_int=-7), NumberDataPoint(as_int=2**40)],
                aggregation_temporality=AGGREGATION_TEMPORALITY_DELTA,
            ),
        ),
    )
    assert list(decode_points(data)) == [
        MetricPoint("rtt.avg", (("node_id", "-1"), ("topic", "orders")), 1.5, False, False),
        MetricPoint("sent", (), -7, True, True),
        MetricPoint("sent", (), 2**40, True, True),
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_points_or_a_protocol_error(data: bytes) -> None:
    try:
        points = list(islice(decode_points(data), 1000))
    except ProtocolError:
        return
    assert all(isinstance(point, MetricPoint) for point in points)


def test_a_message_that_is_cut_off_is_refused() -> None:
    data = encoded(Metric(name="sent", sum=Sum(data_points=[NumberDataPoint(as_int=1)])))
    for size in range(1, len(data)):
        with pytest.raises(ProtocolError):
            list(decode_points(data[:size]))
