"""The cluster itself: its id, its brokers and its controller."""

from dataclasses import dataclass

from headrace.client.metadata import Broker
from headrace.client.transport.cluster import Cluster


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster at one moment, its brokers by their ids. `controller_id` is -1 while none is."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


async def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """The cluster as it is now."""
    deadline = cluster.deadline()
    view = await cluster.retrying(lambda: cluster.refresh((), deadline), deadline)
    brokers = tuple(view.brokers[node_id] for node_id in sorted(view.brokers))
    return ClusterDescription(view.cluster_id, view.controller_id, brokers)
