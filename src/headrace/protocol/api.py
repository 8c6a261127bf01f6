"""Which APIs there are, and how a request or response is put behind its header in a frame."""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct as Layout
from typing import Any, NamedTuple

from headrace.errors import ProtocolError
from headrace.protocol.decoder import decode
from headrace.protocol.encoder import encode_frame
from headrace.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    get_telemetry_subscriptions,
    push_telemetry,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from headrace.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from headrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from headrace.protocol.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.protocol.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from headrace.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from headrace.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.protocol.messages.vote import VoteRequest, VoteResponse
from headrace.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.protocol.schema import (
    REQUEST_ELEMENTS_MAX,
    RESPONSE_ELEMENTS_MAX,
    Message,
    schema_of,
)
from headrace.protocol.varints import read_uvarint
from headrace.types import Buffer

MESSAGES: tuple[tuple[type[Message], type[Message]], ...] = (
    (ProduceRequest, ProduceResponse),
    (FetchRequest, FetchResponse),
    (ListOffsetsRequest, ListOffsetsResponse),
    (MetadataRequest, MetadataResponse),
    (OffsetCommitRequest, OffsetCommitResponse),
    (OffsetFetchRequest, OffsetFetchResponse),
    (FindCoordinatorRequest, FindCoordinatorResponse),
    (JoinGroupRequest, JoinGroupResponse),
    (HeartbeatRequest, HeartbeatResponse),
    (LeaveGroupRequest, LeaveGroupResponse),
    (SyncGroupRequest, SyncGroupResponse),
    (DescribeGroupsRequest, DescribeGroupsResponse),
    (ListGroupsRequest, ListGroupsResponse),
    (ApiVersionsRequest, ApiVersionsResponse),
    (CreateTopicsRequest, CreateTopicsResponse),
    (DeleteTopicsRequest, DeleteTopicsResponse),
    (DeleteRecordsRequest, DeleteRecordsResponse),
    (InitProducerIdRequest, InitProducerIdResponse),
    (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    (EndTxnRequest, EndTxnResponse),
    (WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    (TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    (DescribeConfigsRequest, DescribeConfigsResponse),
    (AlterConfigsRequest, AlterConfigsResponse),
    (AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    (DescribeLogDirsRequest, DescribeLogDirsResponse),
    (CreatePartitionsRequest, CreatePartitionsResponse),
    (DeleteGroupsRequest, DeleteGroupsResponse),
    (IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    (OffsetDeleteRequest, OffsetDeleteResponse),
    (DescribeClusterRequest, DescribeClusterResponse),
    (DescribeProducersRequest, DescribeProducersResponse),
    (DescribeTransactionsRequest, DescribeTransactionsResponse),
    (ListTransactionsRequest, ListTransactionsResponse),
    (DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    (ElectLeadersRequest, ElectLeadersResponse),
    (AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    (ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    (VoteRequest, VoteResponse),
    (BeginQuorumEpochRequest, BeginQuorumEpochResponse),
    (EndQuorumEpochRequest, EndQuorumEpochResponse),
    (DescribeQuorumRequest, DescribeQuorumResponse),
    (AlterPartitionRequest, AlterPartitionResponse),
    (EnvelopeRequest, EnvelopeResponse),
    (FetchSnapshotRequest, FetchSnapshotResponse),
    (BrokerRegistrationRequest, BrokerRegistrationResponse),
    (BrokerHeartbeatRequest, BrokerHeartbeatResponse),
    (UnregisterBrokerRequest, UnregisterBrokerResponse),
    (UpdateFeaturesRequest, UpdateFeaturesResponse),
    (AllocateProducerIdsRequest, AllocateProducerIdsResponse),
    (AssignReplicasToDirsRequest, AssignReplicasToDirsResponse),
    (AddRaftVoterRequest, AddRaftVoterResponse),
    (RemoveRaftVoterRequest, RemoveRaftVoterResponse),
    (sasl_handshake.SaslHandshakeRequest, sasl_handshake.SaslHandshakeResponse),
    (describe_acls.DescribeAclsRequest, describe_acls.DescribeAclsResponse),
    (create_acls.CreateAclsRequest, create_acls.CreateAclsResponse),
    (delete_acls.DeleteAclsRequest, delete_acls.DeleteAclsResponse),
    (sasl_authenticate.SaslAuthenticateRequest, sasl_authenticate.SaslAuthenticateResponse),
    (
        create_delegation_token.CreateDelegationTokenRequest,
        create_delegation_token.CreateDelegationTokenResponse,
    ),
    (
        renew_delegation_token.RenewDelegationTokenRequest,
        renew_delegation_token.RenewDelegationTokenResponse,
    ),
    (
        expire_delegation_token.ExpireDelegationTokenRequest,
        expire_delegation_token.ExpireDelegationTokenResponse,
    ),
    (
        describe_delegation_token.DescribeDelegationTokenRequest,
        describe_delegation_token.DescribeDelegationTokenResponse,
    ),
    (
        describe_client_quotas.DescribeClientQuotasRequest,
        describe_client_quotas.DescribeClientQuotasResponse,
    ),
    (alter_client_quotas.AlterClientQuotasRequest, alter_client_quotas.AlterClientQuotasResponse),
    (
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest,
        describe_user_scram_credentials.DescribeUserScramCredentialsResponse,
    ),
    (
        alter_user_scram_credentials.AlterUserScramCredentialsRequest,
        alter_user_scram_credentials.AlterUserScramCredentialsResponse,
    ),
    (
        get_telemetry_subscriptions.GetTelemetrySubscriptionsRequest,
        get_telemetry_subscriptions.GetTelemetrySubscriptionsResponse,
    ),
    (push_telemetry.PushTelemetryRequest, push_telemetry.PushTelemetryResponse),
    (ListConfigResourcesRequest, ListConfigResourcesResponse),
)


class ApiKey(IntEnum):
    """The APIs this system speaks, by Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81


REQUESTS: dict[int, type[Message]] = {request.api_key: request for request, _ in MESSAGES}
RESPONSES: dict[int, type[Message]] = {response.api_key: response for _, response in MESSAGES}

# InitProducerId version 6 is for two-phase commit, which Kafka itself still hides.
_UNSTABLE = {ApiKey.INIT_PRODUCER_ID: 5}


def served_versions(api_key: int) -> tuple[int, int]:
    """The first and last version of an API that a broker accepts."""
    first, last = REQUESTS[api_key].versions
    return first, min(last, _UNSTABLE.get(ApiKey(api_key), last))


def announced_versions(api_keys: Iterable[int]) -> list[ApiVersion]:
    """APIs with their versions, as ApiVersions tells them."""
    announced = []
    for key in sorted(api_keys):
        first, last = served_versions(key)
        # Kafka announces Produce from 0 on: clients based on old librdkafka give up otherwise.
        first = 0 if key == ApiKey.PRODUCE else first
        announced.append(ApiVersion(api_key=key, min_version=first, max_version=last))
    return announced


class RequestHeader(NamedTuple):
    """What stands before the body of a request; `body` is where the body starts in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


_HEAD = Layout(">hhih")
_CORRELATION = Layout(">i")
_FLEXIBLE_CORRELATION = Layout(">ib")


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of a request whose API key and version may be unknown to us."""
    if len(frame) < 8:
        raise ProtocolError(f"a request of {len(frame)} bytes has no header")
    # The first request header ended before the client id; a null one costs two bytes.
    if len(frame) < _HEAD.size:
        raise ProtocolError("a request without a client id")
    api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
    body = 10
    client_id = None
    if length >= 0:
        body += length
        if body > len(frame):
            raise ProtocolError(f"a client id of {length} bytes in a frame of {len(frame)}")
        try:
            client_id = str(frame[10:body], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("the client id is not UTF-8") from None
    request = REQUESTS.get(api_key)
    if request is not None and version >= request.flexible_from:
        body = _skip_tags(frame, body)
    return RequestHeader(api_key, version, correlation_id, client_id, body)


def _skip_tags(frame: memoryview, position: int) -> int:
    if position < len(frame) and frame[position] == 0:
        return position + 1
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
        if position > len(frame):
            raise ProtocolError("a tagged field of the request header is cut short")
    return position


def decode_request(header: RequestHeader, frame: memoryview) -> Any:
    """The body of a request. Bytes after it are ignored, as Kafka's brokers ignore them."""
    schema = schema_of(REQUESTS[header.api_key], header.api_version)
    return decode(schema, frame, header.body, REQUEST_ELEMENTS_MAX)[0]


def encode_response(header: RequestHeader, response: Message) -> list[Buffer]:
    """The frame that answers a request, as buffers to send in order."""
    schema = schema_of(type(response), header.api_version)
    # A client that cannot know our version yet must be able to read the answer to ApiVersions.
    if schema.flexible and header.api_key != ApiKey.API_VERSIONS:
        head = _FLEXIBLE_CORRELATION.pack(header.correlation_id, 0)
    else:
        head = _CORRELATION.pack(header.correlation_id)
    return encode_frame(schema, response, head)


def encode_request(
    request: Message, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """A request as a client sends it, as buffers to send in order."""
    schema = schema_of(type(request), version)
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    head = _HEAD.pack(request.api_key, version, correlation_id, length) + name
    return encode_frame(schema, request, head + b"\0" if schema.flexible else head)


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """The correlation id and body of a response frame, without its length.

    Bytes after the body are ignored, as Kafka's clients ignore them.
    """
    if len(frame) < 5:
        raise ProtocolError(f"a response of {len(frame)} bytes")
    schema = schema_of(RESPONSES[api_key], version)
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    position = 4
    if schema.flexible and api_key != ApiKey.API_VERSIONS:
        position = _skip_tags(memoryview(frame), position)
    return correlation_id, decode(schema, frame, position, RESPONSE_ELEMENTS_MAX)[0]
