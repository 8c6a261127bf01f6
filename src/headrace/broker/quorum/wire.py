"""Conversion between values of the consensus core and Kafka's messages.

Rule: one topic, one partition. A message with any other number of partitions is refused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from headrace.errors import ErrorCode, KafkaError, error_code
from headrace.net.addresses import Address
from headrace.protocol.messages import begin_quorum_epoch as begin
from headrace.protocol.messages import end_quorum_epoch as end
from headrace.protocol.messages import fetch, fetch_snapshot, quorum_records, vote
from headrace.protocol.schema import Message
from headrace.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    Leadership,
    OffsetAndEpoch,
    Request,
    Response,
    Voter,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
    Voters,
)
from headrace.types import Buffer

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"

_PARTITION = 0
_HIGH_WATERMARK_UNKNOWN = -1

Addresses: TypeAlias = dict[int, Address]
Data = TypeVar("Data")


def _single_partition(topics: Iterable[Any], code: ErrorCode = ErrorCode.INVALID_REQUEST) -> Any:
    """The only partition in a message; KafkaError if there are none or several."""
    found = [partition for topic in topics for partition in topic.partitions]
    if len(found) != 1:
        raise KafkaError(code, f"{len(found)} partitions where the metadata log has one")
    return found[0]


# -- requests between voters


def encode_request(
    request: Request, voter: Voter, endpoints: Sequence[VoterEndpoint], cluster_id: str | None
) -> Message:
    """A request of the core to `voter`; `endpoints` are those of this node."""
    if isinstance(request, VoteRequest):
        asked = vote.PartitionData(
            replica_epoch=request.epoch,
            replica_id=request.candidate_id,
            replica_directory_id=request.candidate_directory_id,
            voter_directory_id=voter.directory_id,
            last_offset_epoch=request.last_epoch,
            last_offset=request.offset,
            pre_vote=request.pre_vote,
        )
        topics = [vote.TopicData(topic_name=METADATA_TOPIC, partitions=[asked])]
        return vote.VoteRequest(cluster_id=cluster_id, voter_id=voter.node_id, topics=topics)
    if isinstance(request, BeginEpochRequest):
        begun = begin.PartitionData(
            voter_directory_id=voter.directory_id,
            leader_id=request.leader_id,
            leader_epoch=request.epoch,
        )
        return begin.BeginQuorumEpochRequest(
            cluster_id=cluster_id,
            voter_id=voter.node_id,
            topics=[begin.TopicData(topic_name=METADATA_TOPIC, partitions=[begun])],
            leader_endpoints=[
                begin.LeaderEndpoint(name=endpoint.name, host=endpoint.host, port=endpoint.port)
                for endpoint in endpoints
            ],
        )
    ended = end.PartitionData(
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=list(request.preferred_successors),
        preferred_candidates=[
            end.ReplicaInfo(candidate_id=node_id) for node_id in request.preferred_successors
        ],
    )
    return end.EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[end.TopicData(topic_name=METADATA_TOPIC, partitions=[ended])],
        leader_endpoints=[
            end.LeaderEndpoint(name=endpoint.name, host=endpoint.host, port=endpoint.port)
            for endpoint in endpoints
        ],
    )


def decode_vote(request: vote.VoteRequest) -> VoteRequest:
    asked: vote.PartitionData = _single_partition(request.topics)
    return VoteRequest(
        epoch=asked.replica_epoch,
        candidate_id=asked.replica_id,
        candidate_directory_id=asked.replica_directory_id,
        last_epoch=asked.last_offset_epoch,
        offset=asked.last_offset,
        pre_vote=asked.pre_vote,
    )


def decode_begin_epoch(request: begin.BeginQuorumEpochRequest) -> BeginEpochRequest:
    begun: begin.PartitionData = _single_partition(request.topics)
    return BeginEpochRequest(epoch=begun.leader_epoch, leader_id=begun.leader_id)


def decode_end_epoch(request: end.EndQuorumEpochRequest) -> EndEpochRequest:
    ended: end.PartitionData = _single_partition(request.topics)
    successors = [candidate.candidate_id for candidate in ended.preferred_candidates]
    return EndEpochRequest(
        epoch=ended.leader_epoch,
        leader_id=ended.leader_id,
        preferred_successors=tuple(successors or ended.preferred_successors),
    )


def encode_response(response: Response, leader: Address | None) -> Message:
    """A response of the core; `leader` is the address of the leader that it names."""
    if isinstance(response, VoteResponse):
        voted = vote.VoteResponsePartitionData(
            error_code=response.error,
            leader_id=response.leader_id,
            leader_epoch=response.epoch,
            vote_granted=response.granted,
        )
        return vote.VoteResponse(
            topics=[vote.VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=[voted])],
            node_endpoints=_endpoint(vote.NodeEndpoint, response.leader_id, leader),
        )
    if isinstance(response, BeginEpochResponse):
        begun = begin.BeginQuorumEpochResponsePartitionData(
            error_code=response.error,
            leader_id=response.leader_id,
            leader_epoch=response.epoch,
        )
        topic = begin.BeginQuorumEpochResponseTopicData(
            topic_name=METADATA_TOPIC, partitions=[begun]
        )
        return begin.BeginQuorumEpochResponse(
            topics=[topic],
            node_endpoints=_endpoint(begin.NodeEndpoint, response.leader_id, leader),
        )
    ended = end.EndQuorumEpochResponsePartitionData(
        error_code=response.error, leader_id=response.leader_id, leader_epoch=response.epoch
    )
    return end.EndQuorumEpochResponse(
        topics=[end.EndQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[ended])],
        node_endpoints=_endpoint(end.NodeEndpoint, response.leader_id, leader),
    )


def _endpoint(kind: type[Data], node_id: int, address: Address | None) -> list[Data]:
    if address is None or node_id < 0:
        return []
    return [kind(node_id=node_id, host=address.host, port=address.port)]  # type: ignore[call-arg]


def decode_response(response: Any) -> tuple[Response, Addresses]:
    """The response of a voter, and addresses in it; KafkaError if it refused the request."""
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "another controller refused a request")
    partition = _single_partition(response.topics, ErrorCode.UNKNOWN_SERVER_ERROR)
    error, epoch, leader = (
        error_code(partition.error_code),
        partition.leader_epoch,
        partition.leader_id,
    )
    addresses = addresses_in(response.node_endpoints)
    if isinstance(response, vote.VoteResponse):
        return VoteResponse(epoch, leader, partition.vote_granted, error), addresses
    if isinstance(response, begin.BeginQuorumEpochResponse):
        return BeginEpochResponse(epoch, leader, error), addresses
    return EndEpochResponse(epoch, leader, error), addresses


def addresses_in(endpoints: Iterable[Any]) -> Addresses:
    """The addresses of nodes by id, from the endpoints in a response."""
    return {endpoint.node_id: Address(endpoint.host, endpoint.port) for endpoint in endpoints}


# -- fetches


def encode_fetch(
    request: FetchRequest, cluster_id: str | None, max_wait_ms: int, max_bytes: int
) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(
        partition=_PARTITION,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=max_bytes,
        replica_directory_id=request.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=fetch.ReplicaState(replica_id=request.replica_id),
        replica_id=request.replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def decode_fetch(request: fetch.FetchRequest) -> tuple[FetchRequest, int]:
    """The fetch, and the limit on the bytes of records in its response."""
    partition: fetch.FetchPartition = _single_partition(request.topics)
    replica_id = request.replica_state.replica_id
    return FetchRequest(
        replica_id=replica_id if replica_id >= 0 else request.replica_id,
        directory_id=partition.replica_directory_id,
        epoch=partition.current_leader_epoch,
        offset=partition.fetch_offset,
        last_epoch=partition.last_fetched_epoch,
        high_watermark=partition.high_watermark,
    ), min(request.max_bytes, partition.partition_max_bytes)


def encode_fetched(
    response: FetchResponse, records: Buffer, leader: Address | None
) -> fetch.FetchResponse:
    result = fetch.PartitionData(
        partition_index=_PARTITION,
        error_code=response.error,
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=response.log_start_offset,
        current_leader=fetch.LeaderIdAndEpoch(
            leader_id=response.leader_id, leader_epoch=response.epoch
        ),
        aborted_transactions=[],
        records=records,
    )
    if response.diverging is not None:
        result.diverging_epoch = fetch.EpochEndOffset(
            epoch=response.diverging.epoch, end_offset=response.diverging.offset
        )
    if response.snapshot is not None:
        result.snapshot_id = fetch.SnapshotId(
            end_offset=response.snapshot.offset, epoch=response.snapshot.epoch
        )
    topic = fetch.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[result]
    )
    return fetch.FetchResponse(
        responses=[topic],
        node_endpoints=_endpoint(fetch.NodeEndpoint, response.leader_id, leader),
    )


def decode_fetched(response: fetch.FetchResponse) -> tuple[FetchResponse, Buffer, Addresses]:
    """The response of the leader, the records in it, and addresses in it."""
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "another controller refused a fetch")
    partition: fetch.PartitionData = _single_partition(
        response.responses, ErrorCode.UNKNOWN_SERVER_ERROR
    )
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    decoded = FetchResponse(
        epoch=partition.current_leader.leader_epoch,
        leader_id=partition.current_leader.leader_id,
        error=error_code(partition.error_code),
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
        diverging=None
        if diverging.end_offset < 0
        else OffsetAndEpoch(diverging.end_offset, diverging.epoch),
        snapshot=None
        if snapshot.end_offset < 0
        else OffsetAndEpoch(snapshot.end_offset, snapshot.epoch),
    )
    return decoded, partition.records or b"", addresses_in(response.node_endpoints)


def encode_snapshot_fetch(
    snapshot: OffsetAndEpoch,
    position: int,
    *,
    replica_id: int,
    epoch: int,
    cluster_id: str | None,
    max_bytes: int,
) -> fetch_snapshot.FetchSnapshotRequest:
    partition = fetch_snapshot.PartitionSnapshot(
        partition=_PARTITION,
        current_leader_epoch=epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
    )
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=replica_id,
        max_bytes=max_bytes,
        topics=[fetch_snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    )


def decode_snapshot_fetch(
    request: fetch_snapshot.FetchSnapshotRequest,
) -> fetch_snapshot.PartitionSnapshot:
    partition: fetch_snapshot.PartitionSnapshot = _single_partition(request.topics)
    return partition


def decode_snapshot_piece(
    response: fetch_snapshot.FetchSnapshotResponse,
) -> fetch_snapshot.FetchSnapshotResponsePartitionSnapshot:
    """The piece of a snapshot in a response; KafkaError if it was refused."""
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "a snapshot was refused")
    piece: fetch_snapshot.FetchSnapshotResponsePartitionSnapshot = _single_partition(
        response.topics, ErrorCode.UNKNOWN_SERVER_ERROR
    )
    if piece.error_code:
        raise KafkaError(error_code(piece.error_code), "a snapshot was refused")
    return piece


# -- control records


def voters_record(voters: Voters) -> quorum_records.VotersRecord:
    return quorum_records.VotersRecord(
        voters=[
            quorum_records.VotersRecordVoter(
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id,
                endpoints=[
                    quorum_records.Endpoint(
                        name=endpoint.name, host=endpoint.host, port=endpoint.port
                    )
                    for endpoint in voter.endpoints
                ],
                k_raft_version_feature=quorum_records.KRaftVersionFeature(max_supported_version=1),
            )
            for voter in voters
        ]
    )


def voters_in(record: quorum_records.VotersRecord) -> Voters:
    return tuple(
        Voter(
            voter.voter_id,
            voter.voter_directory_id,
            tuple(
                VoterEndpoint(endpoint.name, endpoint.host, endpoint.port)
                for endpoint in voter.endpoints
            ),
        )
        for voter in record.voters
    )


def leader_change(leader_id: int, leadership: Leadership) -> quorum_records.LeaderChangeMessage:
    """The control record of a new leader, at the version that `kafka-dump-log` expects: 0."""
    return quorum_records.LeaderChangeMessage(
        version=0,
        leader_id=leader_id,
        voters=[quorum_records.Voter(voter_id=voter_id) for voter_id in leadership.voters],
        granting_voters=[
            quorum_records.Voter(voter_id=voter_id) for voter_id in leadership.granting_voters
        ],
    )
