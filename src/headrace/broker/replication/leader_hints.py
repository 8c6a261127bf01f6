"""Where the leader of a partition is, told with the refusal of who is not it (KIP-951).

So a client need not ask for metadata first. It is what this node's image says, which may be behind.
"""

from typing import NamedTuple

from headrace.broker.cluster.endpoints import endpoint_of
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode

HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHint(NamedTuple):
    """A leadership and the address of the broker it is given to."""

    leader_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def leader_hint(context: RequestContext, topic: str, index: int) -> LeaderHint | None:
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
