"""Addresses of brokers for clients: by listener, of the controller, of leaders (KIP-951)."""

from typing import TYPE_CHECKING, NamedTuple, Self

from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.metadata.image import BrokerImage, EndpointImage
from headrace.net.addresses import Address
from headrace.types import SecurityProtocol

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.request import RequestContext


def endpoint_of(broker: BrokerImage, listener: str | None) -> EndpointImage | None:
    """The endpoint of a broker at a listener; its first endpoint if it lacks the listener."""
    for endpoint in broker.endpoints:
        if endpoint.name == listener:
            return endpoint
    return broker.endpoints[0] if broker.endpoints else None


class InterBrokerListener(NamedTuple):
    """The listener at which brokers reach each other, and its security protocol."""

    name: str
    protocol: SecurityProtocol

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        return cls(config.inter_broker_listener, config.inter_broker_protocol)

    def address_of(self, broker: BrokerImage) -> Address | None:
        """The address at which other brokers reach a broker; None if it has none for them.

        A broker that lacks the listener, in a cluster whose listeners are being changed, is reached
        at another one that speaks the same.
        """
        same_protocol: Address | None = None
        for endpoint in broker.endpoints:
            if endpoint.name == self.name:
                return Address(endpoint.host, endpoint.port)
            if same_protocol is None and endpoint.security_protocol == self.protocol:
                same_protocol = Address(endpoint.host, endpoint.port)
        return same_protocol


def controller_for_clients(node: "Node") -> int:
    """The controller id for clients: the active controller if it is a broker, else this broker.

    Any broker will do, since it forwards requests to the controller.
    """
    leader = node.store.image.brokers.get(node.quorum.leader.leader_id)
    return node.node_id if leader is None or leader.fenced else leader.broker_id


# Leader hints: the leader of a partition, sent with the error of a broker that is not the leader
# (KIP-951).
#
# They save clients a metadata request. Hints come from this node's image, which may be behind.


HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHint(NamedTuple):
    """The leader of a partition, its epoch and its address."""

    leader_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def leader_hint(context: "RequestContext", topic: str, index: int) -> LeaderHint | None:
    """The leader of a partition and its address; None if either is unknown."""
    image = context.node.store.image
    known = image.topics.get(topic)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    partition = known.partitions[index]
    if partition.leader == context.node.node_id and not context.node.membership.may_write:
        return None  # A broker that is cut off does not know the leader.
    broker = image.brokers.get(partition.leader)
    endpoint = None if broker is None else endpoint_of(broker, context.listener)
    if broker is None or endpoint is None:
        return None
    return LeaderHint(
        partition.leader, partition.leader_epoch, endpoint.host, endpoint.port, broker.rack
    )
