"""Addresses of brokers: each listener's, the controller's, and a partition's leader (KIP-951)."""

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import ErrorCode
from headrace.metadata.image import BrokerImage, Endpoint

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.request import RequestContext


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


# Where the leader of a partition is, told with the refusal of who is not it (KIP-951).
#
# So a client need not ask for metadata first. It is what this node's image says, which may be
# behind.


HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHint(NamedTuple):
    """A leadership and the address of the broker it is given to."""

    leader_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def leader_hint(context: "RequestContext", topic: str, index: int) -> LeaderHint | None:
    """Who leads a partition, if that is known and the client can be told where it is."""
    image = context.node.store.image
    known = image.topics.get(topic)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    partition = known.partitions[index]
    if partition.leader == context.node.node_id and not context.node.membership.may_write:
        return None  # Who is cut off does not know who leads.
    broker = image.brokers.get(partition.leader)
    endpoint = None if broker is None else endpoint_of(broker, context.listener)
    if broker is None or endpoint is None:
        return None
    return LeaderHint(
        partition.leader, partition.leader_epoch, endpoint.host, endpoint.port, broker.rack
    )
