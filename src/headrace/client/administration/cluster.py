"""The cluster itself: its id, its brokers and its controller."""

from dataclasses import dataclass

from headrace.client.administration.commands import (
    Controller,
    is_refused_for_now,
    result,
    settle,
)
from headrace.client.metadata import Broker
from headrace.client.outcomes import check, failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import KafkaError
from headrace.net.addresses import Address
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster at one moment, its brokers by their ids. `controller_id` is -1 while none is."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


async def describe_cluster(cluster: Cluster, *, include_fenced: bool) -> ClusterDescription:
    """The cluster as it is now."""
    deadline = cluster.deadline()
    if include_fenced:
        return await cluster.retrying(lambda: _with_fenced(cluster, deadline), deadline)
    view = await cluster.retrying(lambda: cluster.refresh((), deadline), deadline)
    brokers = tuple(view.brokers[node_id] for node_id in sorted(view.brokers))
    return ClusterDescription(view.cluster_id, view.controller_id, brokers)


async def _with_fenced(cluster: Cluster, deadline: float) -> ClusterDescription:
    response = await cluster.call(DescribeClusterRequest(include_fenced_brokers=True), deadline)
    check(response.error_code, response.error_message)
    brokers = [
        Broker(one.broker_id, Address(one.host, one.port), one.rack, one.is_fenced)
        for one in response.brokers
    ]
    brokers.sort(key=lambda broker: broker.node_id)
    return ClusterDescription(response.cluster_id, response.controller_id, tuple(brokers))


async def unregister_broker(cluster: Cluster, broker_id: int) -> None:
    """Let the cluster forget a broker."""
    target = Controller(cluster)

    async def ask(missing: list[int], deadline: float) -> dict[int, KafkaError | None]:
        response = await target.send_once(UnregisterBrokerRequest(broker_id=broker_id), deadline)
        error = failure(response.error_code, response.error_message, f"broker {broker_id}")
        return {broker_id: error}

    result(await settle(cluster, [broker_id], ask, is_refused_for_now), broker_id)
