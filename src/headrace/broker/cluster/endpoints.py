"""Where a broker is reached by whom: each listener has an address of its own."""

from typing import TYPE_CHECKING

from headrace.metadata.image import BrokerImage, Endpoint

if TYPE_CHECKING:
    from headrace.broker.node import Node


def endpoint_of(broker: BrokerImage, listener: str | None) -> Endpoint | None:
    """The address of a broker for those who use a listener; its first one if it has not that."""
    for endpoint in broker.endpoints:
        if endpoint.name == listener:
            return endpoint
    return broker.endpoints[0] if broker.endpoints else None


def controller_for_clients(node: "Node") -> int:
    """The broker that clients take for the controller: that one, if it is a broker, or this one.

    Any broker will do, since it passes on what the controller has to answer.
    """
    leader = node.store.image.brokers.get(node.quorum.leader.leader_id)
    return node.node_id if leader is None or leader.fenced else leader.broker_id
