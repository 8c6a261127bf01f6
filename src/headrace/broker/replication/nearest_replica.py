"""Which replica a consumer should read, as Kafka's rack-aware selector chooses it (KIP-392)."""

from collections.abc import Mapping

from headrace.metadata.image import BrokerImage
from headrace.replication.leader import LeaderState


def nearest_replica(
    leadership: LeaderState, offset: int, rack: str, brokers: Mapping[int, BrokerImage]
) -> int:
    """The id of the replica in `rack` that has the most, if it has `offset`; else the leader's.

    Only such are chosen as are alive and in sync, and the leader itself if it is in that rack.
    """
    leader_id = leadership.node_id
    nearest, most = leader_id, -1
    for broker_id in (leader_id, *leadership.followers):
        broker = brokers.get(broker_id)
        if broker is None or broker.fenced or broker.rack != rack:
            continue
        if broker_id == leader_id:
            return leader_id
        follower = leadership.followers[broker_id]
        if broker_id in leadership.isr and (
            max(most + 1, offset) <= follower.log_end_offset and follower.log_start_offset <= offset
        ):
            nearest, most = broker_id, follower.log_end_offset
    return nearest
