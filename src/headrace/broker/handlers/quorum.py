"""Requests between controllers, DescribeQuorum, AddRaftVoter and RemoveRaftVoter."""

from headrace.broker.quorum.quorum import METADATA_TOPIC, QuorumNode
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages import describe_quorum as describe
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from headrace.protocol.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from headrace.protocol.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.protocol.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from headrace.protocol.messages.vote import VoteRequest, VoteResponse
from headrace.protocol.schema import Message
from headrace.raft.messages import ReplicaProgress, Voter, VoterEndpoint

_CHANGE_SECONDS_MAX = 60.0
_REMOVE_SECONDS = 30.0


def vote(context: RequestContext, request: VoteRequest) -> Message:
    try:
        return context.node.quorum.vote(request)
    except KafkaError as error:
        return VoteResponse(error_code=error.code)


def begin_quorum_epoch(context: RequestContext, request: BeginQuorumEpochRequest) -> Message:
    try:
        return context.node.quorum.begin_epoch(request)
    except KafkaError as error:
        return BeginQuorumEpochResponse(error_code=error.code)


def end_quorum_epoch(context: RequestContext, request: EndQuorumEpochRequest) -> Message:
    try:
        return context.node.quorum.end_epoch(request)
    except KafkaError as error:
        return EndQuorumEpochResponse(error_code=error.code)


async def fetch_snapshot(
    context: RequestContext, request: FetchSnapshotRequest
) -> FetchSnapshotResponse:
    return await context.node.quorum.fetch_snapshot(request)


def describe_quorum(
    context: RequestContext, request: describe.DescribeQuorumRequest
) -> describe.DescribeQuorumResponse:
    quorum = context.node.quorum
    topics = [
        describe.DescribeQuorumResponseTopicData(
            topic_name=topic.topic_name,
            partitions=[
                _described(quorum, topic.topic_name, partition.partition_index)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return describe.DescribeQuorumResponse(topics=topics, nodes=_nodes(quorum))


def _described(
    quorum: QuorumNode, topic: str, partition: int
) -> describe.DescribeQuorumResponsePartitionData:
    if topic != METADATA_TOPIC or partition != 0:
        return describe.DescribeQuorumResponsePartitionData(
            partition_index=partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    leader = quorum.leader
    result = describe.DescribeQuorumResponsePartitionData(
        leader_id=leader.leader_id,
        leader_epoch=leader.epoch,
        high_watermark=quorum.high_watermark,
        error_message=None,
    )
    if not quorum.is_leader:
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return result
    voters, observers = quorum.progress()
    result.current_voters = [_state(replica) for replica in voters]
    result.observers = [_state(replica) for replica in observers]
    return result


def _state(progress: ReplicaProgress) -> describe.ReplicaState:
    return describe.ReplicaState(
        replica_id=progress.node_id,
        replica_directory_id=progress.directory_id,
        log_end_offset=progress.end_offset,
        last_fetch_timestamp=progress.last_fetch_ms,
        last_caught_up_timestamp=progress.last_caught_up_ms,
    )


def _nodes(quorum: QuorumNode) -> list[describe.Node]:
    nodes = []
    for voter in quorum.voters:
        listeners = [
            describe.Listener(name=endpoint.name, host=endpoint.host, port=endpoint.port)
            for endpoint in voter.endpoints
        ]
        nodes.append(describe.Node(node_id=voter.node_id, listeners=listeners))
    return nodes


async def add_raft_voter(
    context: RequestContext, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    voter = Voter(
        request.voter_id,
        request.voter_directory_id,
        tuple(
            VoterEndpoint(listener.name, listener.host, listener.port)
            for listener in request.listeners
        ),
    )
    seconds = min(max(request.timeout_ms / 1000, 0.0), _CHANGE_SECONDS_MAX)
    try:
        _check_change(context, request.cluster_id)
        await context.node.quorum.add_voter(voter, seconds, wait=request.ack_when_committed)
    except KafkaError as error:
        return AddRaftVoterResponse(error_code=error.code, error_message=error.detail or None)
    return AddRaftVoterResponse(error_message=None)


async def remove_raft_voter(
    context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    try:
        _check_change(context, request.cluster_id)
        await context.node.quorum.remove_voter(request.voter_id, _REMOVE_SECONDS)
    except KafkaError as error:
        return RemoveRaftVoterResponse(error_code=error.code, error_message=error.detail or None)
    return RemoveRaftVoterResponse(error_message=None)


def _check_change(context: RequestContext, cluster_id: str | None) -> None:
    if cluster_id and cluster_id != context.node.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is the cluster {context.node.cluster_id}"
        )
