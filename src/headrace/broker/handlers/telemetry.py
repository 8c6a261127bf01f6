"""GetTelemetrySubscriptions and PushTelemetry: metrics that clients push (KIP-714)."""

from random import Random
from uuid import UUID

from headrace.broker.request import RequestContext
from headrace.broker.telemetry import (
    ACCEPTED_COMPRESSION,
    ClientAttributes,
    ClientTelemetry,
    TelemetryPush,
    TelemetryRequest,
)
from headrace.errors import KafkaError
from headrace.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from headrace.types import ZERO_UUID, uuid_text

# Kafka's name for the software of a client that sent none.
_UNKNOWN = "unknown"


def get_subscriptions(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    node = context.node
    instance_id = request.client_instance_id
    if instance_id == ZERO_UUID:
        instance_id = _new_instance_id(node.rng)
    try:
        subscribed = _telemetry(context).subscribe(instance_id, _asking(context))
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=subscribed.subscription_id,
        accepted_compression_types=[int(codec) for codec in ACCEPTED_COMPRESSION],
        push_interval_ms=subscribed.interval_ms,
        telemetry_max_bytes=node.config.telemetry_max_bytes,
        delta_temporality=True,
        requested_metrics=list(subscribed.metrics),
    )


def push(context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    asking = _asking(context)
    received = TelemetryPush(
        request.client_instance_id,
        asking.client,
        0,
        request.terminating,
        request.compression_type,
        request.metrics,
    )
    limit = context.node.config.telemetry_max_bytes
    try:
        _telemetry(context).push(request.subscription_id, received, asking, limit)
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()


def _new_instance_id(rng: Random) -> bytes:
    """A random id whose text has no dash in front: tools would parse it as an option."""
    while True:
        instance_id = UUID(bytes=rng.randbytes(16), version=4).bytes
        if not uuid_text(instance_id).startswith("-"):
            return instance_id


def _telemetry(context: RequestContext) -> ClientTelemetry:
    telemetry = context.node.telemetry
    telemetry.update_subscriptions(context.node.store.image.configs)
    return telemetry


def _asking(context: RequestContext) -> TelemetryRequest:
    connection = context.connection
    name, version = connection.peer_software if connection is not None else ("", "")
    port = connection.peer.rpartition(":")[2] if connection is not None else ""
    client = ClientAttributes(
        context.client_id, name or _UNKNOWN, version or _UNKNOWN, context.host, port
    )
    return TelemetryRequest(client, connection, int(context.node.clock.monotonic() * 1000))
