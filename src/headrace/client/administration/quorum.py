"""The controllers that keep the cluster's metadata: who they are, and how far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.client.administration.commands import Controller, is_refused_for_now, timeout_ms
from headrace.client.outcomes import check
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError
from headrace.net.addresses import Address
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponsePartitionData,
    PartitionData,
    ReplicaState,
    TopicData,
)
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.protocol.schema import Message

_METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A copy of the metadata log.

    Times are in milliseconds since 1970, None where they are not known, as of the leader itself.
    """

    node_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum at one moment.

    Voters decide what is committed, observers only follow. `endpoints` has the addresses of voters
    by their ids and the names of their listeners, as far as they are known.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, Mapping[str, Address]] = field(default_factory=dict)


class Quorum:
    """Commands about controllers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self) -> QuorumDescription:
        """The quorum as its leader sees it."""
        target = Controller(self._cluster)
        deadline = self._cluster.deadline()
        request = DescribeQuorumRequest(
            topics=[
                TopicData(topic_name=_METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])
            ]
        )

        async def ask() -> QuorumDescription:
            response = await target.send(request, deadline)
            check(response.error_code, response.error_message)
            found = [one for topic in response.topics for one in topic.partitions]
            if not found:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, "the broker says nothing of the quorum"
                )
            check(found[0].error_code, found[0].error_message, "the quorum")
            endpoints = {
                node.node_id: {one.name: Address(one.host, one.port) for one in node.listeners}
                for node in response.nodes
            }
            return _description(found[0], endpoints)

        return await self._cluster.retrying(ask, deadline)

    async def add_voter(
        self, node_id: int, directory_id: bytes, endpoints: Mapping[str, Address]
    ) -> None:
        """Let a node that follows the metadata log vote from now on."""
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=timeout_ms(self._cluster),
            voter_id=node_id,
            voter_directory_id=directory_id,
            listeners=[
                Listener(name=name, host=address.host, port=address.port)
                for name, address in endpoints.items()
            ],
        )
        await self._change(request, f"voter {node_id}")

    async def remove_voter(self, node_id: int, directory_id: bytes) -> None:
        """Let a node vote no longer."""
        request = RemoveRaftVoterRequest(
            cluster_id=None, voter_id=node_id, voter_directory_id=directory_id
        )
        await self._change(request, f"voter {node_id}")

    async def _change(self, request: Message, subject: str) -> None:
        target = Controller(self._cluster)
        deadline = self._cluster.deadline()
        refused: list[KafkaError] = []

        async def ask() -> None:
            refused.clear()
            response = await target.send_once(request, deadline)
            try:
                check(response.error_code, response.error_message, subject)
            except KafkaError as error:
                # Only what says that nothing was done is tried again.
                if is_refused_for_now(error):
                    raise
                refused.append(error)

        await self._cluster.retrying(ask, deadline)
        if refused:
            raise refused[0]


def _description(
    found: DescribeQuorumResponsePartitionData, endpoints: Mapping[int, Mapping[str, Address]]
) -> QuorumDescription:
    return QuorumDescription(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        tuple(_replica(one) for one in sorted(found.current_voters, key=_id)),
        tuple(_replica(one) for one in sorted(found.observers, key=_id)),
        endpoints,
    )


def _id(state: ReplicaState) -> int:
    return state.replica_id


def _replica(state: ReplicaState) -> QuorumReplica:
    def known(time_ms: int) -> int | None:
        return time_ms if time_ms >= 0 else None

    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        state.log_end_offset,
        known(state.last_fetch_timestamp),
        known(state.last_caught_up_timestamp),
    )
