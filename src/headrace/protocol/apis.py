"""The APIs of the protocol, and the encoding of requests and responses with their headers.

`Api` is the list of APIs: key, versions and fields are those of the message classes, one module for
each API in `protocol/messages`, where a new version begins. Handlers and rights of the APIs that a
node serves are in `broker/apis.py`, where a new API begins.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct as Layout
from typing import Any, NamedTuple

from headrace.errors import ProtocolError
from headrace.protocol.message_codec import decode, encode_frame
from headrace.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    assign_replicas_to_dirs,
    begin_quorum_epoch,
    broker_heartbeat,
    broker_registration,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_quorum_epoch,
    end_txn,
    envelope,
    expire_delegation_token,
    fetch,
    fetch_snapshot,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    remove_raft_voter,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    vote,
    write_txn_markers,
)
from headrace.protocol.schema import (
    REQUEST_ELEMENTS_MAX,
    RESPONSE_ELEMENTS_MAX,
    VERSION_MAX,
    Message,
    schema_of,
)
from headrace.types import Buffer


def encode_uvarint(number: int) -> bytes:
    """An unsigned varint: groups of seven bits, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The unsigned varint at a position, and the position after it."""
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(buffer):
            raise ProtocolError("a varint is cut short")
        byte = buffer[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ProtocolError("a varint has more than five bytes")


class _ApiRow(NamedTuple):
    request: type[Message]
    response: type[Message]
    stable_until: int = VERSION_MAX
    announced_from: int | None = None


class Api(IntEnum):
    """An API, with its key as value: its message classes, and the versions to be used.

    Versions above `stable_until` are known and not served. `announced_from` is the version from
    which on ApiVersions announces the API, if that is lower than the first served version.
    """

    request: type[Message]
    response: type[Message]
    stable_until: int
    announced_from: int | None

    def __new__(
        cls,
        request: type[Message],
        response: type[Message],
        stable_until: int,
        announced_from: int | None,
    ) -> "Api":
        assert (request.api_key, request.versions) == (response.api_key, response.versions)
        member = int.__new__(cls, request.api_key)
        member._value_ = request.api_key
        member.request = request
        member.response = response
        member.stable_until = stable_until
        member.announced_from = announced_from
        return member

    @property
    def kafka_name(self) -> str:
        """The name of the API in Kafka's documentation, such as `ListOffsets`."""
        return self.request.__name__.removesuffix("Request")

    # Clients based on old librdkafka give up if Produce is not announced from version 0 on.
    PRODUCE = _ApiRow(produce.ProduceRequest, produce.ProduceResponse, announced_from=0)
    FETCH = _ApiRow(fetch.FetchRequest, fetch.FetchResponse)
    LIST_OFFSETS = _ApiRow(list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse)
    METADATA = _ApiRow(metadata.MetadataRequest, metadata.MetadataResponse)
    OFFSET_COMMIT = _ApiRow(offset_commit.OffsetCommitRequest, offset_commit.OffsetCommitResponse)
    OFFSET_FETCH = _ApiRow(offset_fetch.OffsetFetchRequest, offset_fetch.OffsetFetchResponse)
    FIND_COORDINATOR = _ApiRow(
        find_coordinator.FindCoordinatorRequest, find_coordinator.FindCoordinatorResponse
    )
    JOIN_GROUP = _ApiRow(join_group.JoinGroupRequest, join_group.JoinGroupResponse)
    HEARTBEAT = _ApiRow(heartbeat.HeartbeatRequest, heartbeat.HeartbeatResponse)
    LEAVE_GROUP = _ApiRow(leave_group.LeaveGroupRequest, leave_group.LeaveGroupResponse)
    SYNC_GROUP = _ApiRow(sync_group.SyncGroupRequest, sync_group.SyncGroupResponse)
    DESCRIBE_GROUPS = _ApiRow(
        describe_groups.DescribeGroupsRequest, describe_groups.DescribeGroupsResponse
    )
    LIST_GROUPS = _ApiRow(list_groups.ListGroupsRequest, list_groups.ListGroupsResponse)
    SASL_HANDSHAKE = _ApiRow(
        sasl_handshake.SaslHandshakeRequest, sasl_handshake.SaslHandshakeResponse
    )
    API_VERSIONS = _ApiRow(api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse)
    CREATE_TOPICS = _ApiRow(create_topics.CreateTopicsRequest, create_topics.CreateTopicsResponse)
    DELETE_TOPICS = _ApiRow(delete_topics.DeleteTopicsRequest, delete_topics.DeleteTopicsResponse)
    DELETE_RECORDS = _ApiRow(
        delete_records.DeleteRecordsRequest, delete_records.DeleteRecordsResponse
    )
    # Version 6 is for two-phase commit, which Kafka itself still hides.
    INIT_PRODUCER_ID = _ApiRow(
        init_producer_id.InitProducerIdRequest,
        init_producer_id.InitProducerIdResponse,
        stable_until=5,
    )
    OFFSET_FOR_LEADER_EPOCH = _ApiRow(
        offset_for_leader_epoch.OffsetForLeaderEpochRequest,
        offset_for_leader_epoch.OffsetForLeaderEpochResponse,
    )
    ADD_PARTITIONS_TO_TXN = _ApiRow(
        add_partitions_to_txn.AddPartitionsToTxnRequest,
        add_partitions_to_txn.AddPartitionsToTxnResponse,
    )
    ADD_OFFSETS_TO_TXN = _ApiRow(
        add_offsets_to_txn.AddOffsetsToTxnRequest, add_offsets_to_txn.AddOffsetsToTxnResponse
    )
    END_TXN = _ApiRow(end_txn.EndTxnRequest, end_txn.EndTxnResponse)
    WRITE_TXN_MARKERS = _ApiRow(
        write_txn_markers.WriteTxnMarkersRequest, write_txn_markers.WriteTxnMarkersResponse
    )
    TXN_OFFSET_COMMIT = _ApiRow(
        txn_offset_commit.TxnOffsetCommitRequest, txn_offset_commit.TxnOffsetCommitResponse
    )
    DESCRIBE_ACLS = _ApiRow(describe_acls.DescribeAclsRequest, describe_acls.DescribeAclsResponse)
    CREATE_ACLS = _ApiRow(create_acls.CreateAclsRequest, create_acls.CreateAclsResponse)
    DELETE_ACLS = _ApiRow(delete_acls.DeleteAclsRequest, delete_acls.DeleteAclsResponse)
    DESCRIBE_CONFIGS = _ApiRow(
        describe_configs.DescribeConfigsRequest, describe_configs.DescribeConfigsResponse
    )
    ALTER_CONFIGS = _ApiRow(alter_configs.AlterConfigsRequest, alter_configs.AlterConfigsResponse)
    ALTER_REPLICA_LOG_DIRS = _ApiRow(
        alter_replica_log_dirs.AlterReplicaLogDirsRequest,
        alter_replica_log_dirs.AlterReplicaLogDirsResponse,
    )
    DESCRIBE_LOG_DIRS = _ApiRow(
        describe_log_dirs.DescribeLogDirsRequest, describe_log_dirs.DescribeLogDirsResponse
    )
    SASL_AUTHENTICATE = _ApiRow(
        sasl_authenticate.SaslAuthenticateRequest, sasl_authenticate.SaslAuthenticateResponse
    )
    CREATE_PARTITIONS = _ApiRow(
        create_partitions.CreatePartitionsRequest, create_partitions.CreatePartitionsResponse
    )
    CREATE_DELEGATION_TOKEN = _ApiRow(
        create_delegation_token.CreateDelegationTokenRequest,
        create_delegation_token.CreateDelegationTokenResponse,
    )
    RENEW_DELEGATION_TOKEN = _ApiRow(
        renew_delegation_token.RenewDelegationTokenRequest,
        renew_delegation_token.RenewDelegationTokenResponse,
    )
    EXPIRE_DELEGATION_TOKEN = _ApiRow(
        expire_delegation_token.ExpireDelegationTokenRequest,
        expire_delegation_token.ExpireDelegationTokenResponse,
    )
    DESCRIBE_DELEGATION_TOKEN = _ApiRow(
        describe_delegation_token.DescribeDelegationTokenRequest,
        describe_delegation_token.DescribeDelegationTokenResponse,
    )
    DELETE_GROUPS = _ApiRow(delete_groups.DeleteGroupsRequest, delete_groups.DeleteGroupsResponse)
    ELECT_LEADERS = _ApiRow(elect_leaders.ElectLeadersRequest, elect_leaders.ElectLeadersResponse)
    INCREMENTAL_ALTER_CONFIGS = _ApiRow(
        incremental_alter_configs.IncrementalAlterConfigsRequest,
        incremental_alter_configs.IncrementalAlterConfigsResponse,
    )
    ALTER_PARTITION_REASSIGNMENTS = _ApiRow(
        alter_partition_reassignments.AlterPartitionReassignmentsRequest,
        alter_partition_reassignments.AlterPartitionReassignmentsResponse,
    )
    LIST_PARTITION_REASSIGNMENTS = _ApiRow(
        list_partition_reassignments.ListPartitionReassignmentsRequest,
        list_partition_reassignments.ListPartitionReassignmentsResponse,
    )
    OFFSET_DELETE = _ApiRow(offset_delete.OffsetDeleteRequest, offset_delete.OffsetDeleteResponse)
    DESCRIBE_CLIENT_QUOTAS = _ApiRow(
        describe_client_quotas.DescribeClientQuotasRequest,
        describe_client_quotas.DescribeClientQuotasResponse,
    )
    ALTER_CLIENT_QUOTAS = _ApiRow(
        alter_client_quotas.AlterClientQuotasRequest, alter_client_quotas.AlterClientQuotasResponse
    )
    DESCRIBE_USER_SCRAM_CREDENTIALS = _ApiRow(
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest,
        describe_user_scram_credentials.DescribeUserScramCredentialsResponse,
    )
    ALTER_USER_SCRAM_CREDENTIALS = _ApiRow(
        alter_user_scram_credentials.AlterUserScramCredentialsRequest,
        alter_user_scram_credentials.AlterUserScramCredentialsResponse,
    )
    VOTE = _ApiRow(vote.VoteRequest, vote.VoteResponse)
    BEGIN_QUORUM_EPOCH = _ApiRow(
        begin_quorum_epoch.BeginQuorumEpochRequest, begin_quorum_epoch.BeginQuorumEpochResponse
    )
    END_QUORUM_EPOCH = _ApiRow(
        end_quorum_epoch.EndQuorumEpochRequest, end_quorum_epoch.EndQuorumEpochResponse
    )
    DESCRIBE_QUORUM = _ApiRow(
        describe_quorum.DescribeQuorumRequest, describe_quorum.DescribeQuorumResponse
    )
    ALTER_PARTITION = _ApiRow(
        alter_partition.AlterPartitionRequest, alter_partition.AlterPartitionResponse
    )
    UPDATE_FEATURES = _ApiRow(
        update_features.UpdateFeaturesRequest, update_features.UpdateFeaturesResponse
    )
    ENVELOPE = _ApiRow(envelope.EnvelopeRequest, envelope.EnvelopeResponse)
    FETCH_SNAPSHOT = _ApiRow(
        fetch_snapshot.FetchSnapshotRequest, fetch_snapshot.FetchSnapshotResponse
    )
    DESCRIBE_CLUSTER = _ApiRow(
        describe_cluster.DescribeClusterRequest, describe_cluster.DescribeClusterResponse
    )
    DESCRIBE_PRODUCERS = _ApiRow(
        describe_producers.DescribeProducersRequest, describe_producers.DescribeProducersResponse
    )
    BROKER_REGISTRATION = _ApiRow(
        broker_registration.BrokerRegistrationRequest,
        broker_registration.BrokerRegistrationResponse,
    )
    BROKER_HEARTBEAT = _ApiRow(
        broker_heartbeat.BrokerHeartbeatRequest, broker_heartbeat.BrokerHeartbeatResponse
    )
    UNREGISTER_BROKER = _ApiRow(
        unregister_broker.UnregisterBrokerRequest, unregister_broker.UnregisterBrokerResponse
    )
    DESCRIBE_TRANSACTIONS = _ApiRow(
        describe_transactions.DescribeTransactionsRequest,
        describe_transactions.DescribeTransactionsResponse,
    )
    LIST_TRANSACTIONS = _ApiRow(
        list_transactions.ListTransactionsRequest, list_transactions.ListTransactionsResponse
    )
    ALLOCATE_PRODUCER_IDS = _ApiRow(
        allocate_producer_ids.AllocateProducerIdsRequest,
        allocate_producer_ids.AllocateProducerIdsResponse,
    )
    CONSUMER_GROUP_HEARTBEAT = _ApiRow(
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
    )
    CONSUMER_GROUP_DESCRIBE = _ApiRow(
        consumer_group_describe.ConsumerGroupDescribeRequest,
        consumer_group_describe.ConsumerGroupDescribeResponse,
    )
    GET_TELEMETRY_SUBSCRIPTIONS = _ApiRow(
        get_telemetry_subscriptions.GetTelemetrySubscriptionsRequest,
        get_telemetry_subscriptions.GetTelemetrySubscriptionsResponse,
    )
    PUSH_TELEMETRY = _ApiRow(
        push_telemetry.PushTelemetryRequest, push_telemetry.PushTelemetryResponse
    )
    ASSIGN_REPLICAS_TO_DIRS = _ApiRow(
        assign_replicas_to_dirs.AssignReplicasToDirsRequest,
        assign_replicas_to_dirs.AssignReplicasToDirsResponse,
    )
    LIST_CONFIG_RESOURCES = _ApiRow(
        list_config_resources.ListConfigResourcesRequest,
        list_config_resources.ListConfigResourcesResponse,
    )
    DESCRIBE_TOPIC_PARTITIONS = _ApiRow(
        describe_topic_partitions.DescribeTopicPartitionsRequest,
        describe_topic_partitions.DescribeTopicPartitionsResponse,
    )
    ADD_RAFT_VOTER = _ApiRow(
        add_raft_voter.AddRaftVoterRequest, add_raft_voter.AddRaftVoterResponse
    )
    REMOVE_RAFT_VOTER = _ApiRow(
        remove_raft_voter.RemoveRaftVoterRequest, remove_raft_voter.RemoveRaftVoterResponse
    )


# Every API by its key.
APIS: dict[int, Api] = {int(api): api for api in Api}


def served_versions(api_key: int) -> tuple[int, int]:
    """The first and last version of an API that a broker accepts."""
    api = APIS[api_key]
    first, last = api.request.versions
    return first, min(last, api.stable_until)


def announced_versions(api_keys: Iterable[int]) -> list[api_versions.ApiVersion]:
    """The entries of an ApiVersions response for these APIs."""
    announced = []
    for key in sorted(api_keys):
        api = APIS[key]
        first, last = served_versions(key)
        first = first if api.announced_from is None else api.announced_from
        announced.append(api_versions.ApiVersion(api_key=key, min_version=first, max_version=last))
    return announced


class RequestHeader(NamedTuple):
    """The header of a request; `body` is the position of the request's body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


_HEAD = Layout(">hhih")
_CORRELATION = Layout(">i")
_FLEXIBLE_CORRELATION = Layout(">ib")


def read_request_header(frame: memoryview) -> RequestHeader:
    """Decode the header of a request, whose API key and version may be unknown."""
    if len(frame) < 8:
        raise ProtocolError(f"a request of {len(frame)} bytes has no header")
    # Request header version 0 ended before the client id; a null client id takes two bytes.
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
    api = APIS.get(api_key)
    if api is not None and version >= api.request.flexible_from:
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
    """Decode the body of a request. Bytes after it are ignored, as in Kafka's brokers."""
    schema = schema_of(APIS[header.api_key].request, header.api_version)
    return decode(schema, frame, header.body, REQUEST_ELEMENTS_MAX)[0]


def encode_response(header: RequestHeader, response: Message) -> list[Buffer]:
    """The frame of the response to a request, as buffers to send in order."""
    schema = schema_of(type(response), header.api_version)
    # A client must be able to read the ApiVersions response before it knows our versions.
    if schema.flexible and header.api_key != Api.API_VERSIONS:
        head = _FLEXIBLE_CORRELATION.pack(header.correlation_id, 0)
    else:
        head = _CORRELATION.pack(header.correlation_id)
    return encode_frame(schema, response, head)


def encode_request(
    request: Message, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """The frame of a request, as buffers to send in order."""
    schema = schema_of(type(request), version)
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    head = _HEAD.pack(request.api_key, version, correlation_id, length) + name
    return encode_frame(schema, request, head + b"\0" if schema.flexible else head)


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Decode the correlation id and the body of a response frame, given without its length.

    Bytes after the body are ignored, as in Kafka's clients.
    """
    if len(frame) < 5:
        raise ProtocolError(f"a response of {len(frame)} bytes")
    schema = schema_of(APIS[api_key].response, version)
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    position = 4
    if schema.flexible and api_key != Api.API_VERSIONS:
        position = _skip_tags(memoryview(frame), position)
    return correlation_id, decode(schema, frame, position, RESPONSE_ELEMENTS_MAX)[0]
