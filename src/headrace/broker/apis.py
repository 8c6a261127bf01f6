"""The APIs a node serves: each with its handler and what dispatch does with its requests.

A new API begins here: a row, the handler it names, and the message tables in `protocol/apis.py`.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from headrace.broker import forwarding
from headrace.broker.handlers import (
    api_versions,
    cluster,
    configs,
    controller,
    describe_producers,
    features,
    fetch,
    find_coordinator,
    groups,
    init_producer_id,
    list_offsets,
    log_dirs,
    metadata,
    offset_for_leader_epoch,
    offsets,
    produce,
    quorum,
    quotas,
    reassignments,
    records,
    security,
    telemetry,
    topics,
    transactions,
    txn_markers,
    txn_offsets,
)
from headrace.broker.request import Handler
from headrace.config import BrokerConfig
from headrace.protocol.apis import Api


class Audience(Enum):
    """Who sends the requests of an API, and so at which listeners it is served."""

    CLIENTS = auto()  # Clients and other brokers, at the listeners of brokers.
    CONTROLLERS = auto()  # Other nodes, at the listeners of controllers.
    EVERYONE = auto()  # At every listener; the node that is asked answers.


class QuotaClass(Enum):
    """The quota that a client's requests are counted against."""

    PRODUCE = auto()  # Bytes written, and the time of the broker.
    FETCH = auto()  # Bytes read, and the time of the broker.
    REQUEST = auto()  # The time of the broker.
    CONTROLLER_MUTATION = auto()  # Partitions created and deleted (KIP-599), and the time.
    NONE = auto()  # Work of the cluster itself.


class ServedApi(NamedTuple):
    """What a node does with the requests of an API.

    `forwarded` requests come in at every listener and are answered by the active controller; a node
    that is not it passes them on, but for those of which `is_local` is true. The handler of a
    `read_only` API changes nothing that outlives the request, so that a bug in it costs its client
    the connection; a bug in any other handler stops the process. Requests that are answered
    `before_ready` do not wait until the node has caught up: a quorum forms with them.
    """

    api: Api
    handler: Handler
    audience: Audience = Audience.CLIENTS
    quota: QuotaClass = QuotaClass.REQUEST
    forwarded: bool = False
    read_only: bool = False
    before_ready: bool = False
    is_local: Callable[[Any], bool] | None = None


_CONTROLLERS, _EVERYONE = Audience.CONTROLLERS, Audience.EVERYONE

SERVED = (
    ServedApi(Api.PRODUCE, produce.produce, quota=QuotaClass.PRODUCE),
    ServedApi(
        Api.FETCH, fetch.fetch, audience=_EVERYONE, quota=QuotaClass.FETCH, before_ready=True
    ),
    ServedApi(Api.LIST_OFFSETS, list_offsets.list_offsets, read_only=True),
    ServedApi(Api.METADATA, metadata.metadata, read_only=True),
    ServedApi(Api.OFFSET_COMMIT, offsets.offset_commit),
    ServedApi(Api.OFFSET_FETCH, offsets.offset_fetch, read_only=True),
    ServedApi(Api.FIND_COORDINATOR, find_coordinator.find_coordinator, read_only=True),
    ServedApi(Api.JOIN_GROUP, groups.join_group),
    ServedApi(Api.HEARTBEAT, groups.heartbeat),
    ServedApi(Api.LEAVE_GROUP, groups.leave_group),
    ServedApi(Api.SYNC_GROUP, groups.sync_group),
    ServedApi(Api.DESCRIBE_GROUPS, groups.describe_groups, read_only=True),
    ServedApi(Api.LIST_GROUPS, groups.list_groups, read_only=True),
    ServedApi(Api.SASL_HANDSHAKE, security.handshake, audience=_EVERYONE),
    ServedApi(
        Api.API_VERSIONS,
        api_versions.api_versions,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.CREATE_TOPICS, topics.create, quota=QuotaClass.CONTROLLER_MUTATION, forwarded=True
    ),
    ServedApi(
        Api.DELETE_TOPICS, topics.delete, quota=QuotaClass.CONTROLLER_MUTATION, forwarded=True
    ),
    ServedApi(Api.DELETE_RECORDS, records.delete_records),
    ServedApi(Api.INIT_PRODUCER_ID, init_producer_id.init_producer_id),
    ServedApi(
        Api.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch.offset_for_leader_epoch, read_only=True
    ),
    ServedApi(Api.ADD_PARTITIONS_TO_TXN, transactions.add_partitions_to_txn),
    ServedApi(Api.ADD_OFFSETS_TO_TXN, transactions.add_offsets_to_txn),
    ServedApi(Api.END_TXN, transactions.end_txn),
    ServedApi(Api.WRITE_TXN_MARKERS, txn_markers.write_txn_markers, quota=QuotaClass.NONE),
    ServedApi(Api.TXN_OFFSET_COMMIT, txn_offsets.txn_offset_commit),
    ServedApi(Api.DESCRIBE_ACLS, security.list_acls, audience=_EVERYONE, read_only=True),
    ServedApi(Api.CREATE_ACLS, security.add_acls, audience=_EVERYONE),
    ServedApi(Api.DELETE_ACLS, security.remove_acls, audience=_EVERYONE),
    ServedApi(Api.DESCRIBE_CONFIGS, configs.describe, audience=_EVERYONE, read_only=True),
    ServedApi(Api.ALTER_CONFIGS, configs.alter, forwarded=True),
    ServedApi(Api.ALTER_REPLICA_LOG_DIRS, log_dirs.alter_replica_log_dirs),
    ServedApi(Api.DESCRIBE_LOG_DIRS, log_dirs.describe_log_dirs, read_only=True),
    ServedApi(Api.SASL_AUTHENTICATE, security.authenticate, audience=_EVERYONE),
    ServedApi(
        Api.CREATE_PARTITIONS,
        topics.add_partitions,
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(Api.CREATE_DELEGATION_TOKEN, security.create_token, audience=_EVERYONE),
    ServedApi(Api.RENEW_DELEGATION_TOKEN, security.renew_token, audience=_EVERYONE),
    ServedApi(Api.EXPIRE_DELEGATION_TOKEN, security.expire_token, audience=_EVERYONE),
    ServedApi(
        Api.DESCRIBE_DELEGATION_TOKEN, security.describe_tokens, audience=_EVERYONE, read_only=True
    ),
    ServedApi(Api.DELETE_GROUPS, groups.delete_groups),
    ServedApi(Api.ELECT_LEADERS, controller.elect_leaders, forwarded=True),
    ServedApi(
        Api.INCREMENTAL_ALTER_CONFIGS,
        configs.alter_incrementally,
        forwarded=True,
        is_local=configs.names_loggers,
    ),
    ServedApi(Api.ALTER_PARTITION_REASSIGNMENTS, reassignments.alter, forwarded=True),
    ServedApi(
        Api.LIST_PARTITION_REASSIGNMENTS, reassignments.listed, forwarded=True, read_only=True
    ),
    ServedApi(Api.OFFSET_DELETE, offsets.offset_delete),
    ServedApi(Api.DESCRIBE_CLIENT_QUOTAS, quotas.describe_quotas, read_only=True),
    ServedApi(Api.ALTER_CLIENT_QUOTAS, quotas.alter_quotas, audience=_EVERYONE),
    ServedApi(
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
        security.describe_credentials,
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.ALTER_USER_SCRAM_CREDENTIALS, security.alter_credentials, audience=_EVERYONE),
    ServedApi(Api.VOTE, quorum.vote, audience=_CONTROLLERS, quota=QuotaClass.NONE),
    ServedApi(
        Api.BEGIN_QUORUM_EPOCH,
        quorum.begin_quorum_epoch,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.END_QUORUM_EPOCH, quorum.end_quorum_epoch, audience=_CONTROLLERS, quota=QuotaClass.NONE
    ),
    ServedApi(Api.DESCRIBE_QUORUM, quorum.describe_quorum, forwarded=True, read_only=True),
    ServedApi(
        Api.ALTER_PARTITION,
        controller.alter_partition,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.UPDATE_FEATURES, features.update_features, forwarded=True),
    ServedApi(Api.ENVELOPE, forwarding.open_envelope, audience=_CONTROLLERS, quota=QuotaClass.NONE),
    ServedApi(
        Api.FETCH_SNAPSHOT,
        quorum.fetch_snapshot,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
        read_only=True,
    ),
    ServedApi(
        Api.DESCRIBE_CLUSTER,
        cluster.describe_cluster,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(Api.DESCRIBE_PRODUCERS, describe_producers.describe_producers, read_only=True),
    ServedApi(
        Api.BROKER_REGISTRATION, controller.register, audience=_CONTROLLERS, quota=QuotaClass.NONE
    ),
    ServedApi(
        Api.BROKER_HEARTBEAT, controller.heartbeat, audience=_CONTROLLERS, quota=QuotaClass.NONE
    ),
    ServedApi(Api.UNREGISTER_BROKER, controller.unregister, forwarded=True),
    ServedApi(Api.DESCRIBE_TRANSACTIONS, transactions.describe_transactions, read_only=True),
    ServedApi(Api.LIST_TRANSACTIONS, transactions.list_transactions, read_only=True),
    ServedApi(
        Api.ALLOCATE_PRODUCER_IDS,
        controller.allocate_producer_ids,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.GET_TELEMETRY_SUBSCRIPTIONS, telemetry.get_subscriptions),
    ServedApi(Api.PUSH_TELEMETRY, telemetry.push),
    ServedApi(
        Api.ASSIGN_REPLICAS_TO_DIRS,
        controller.assign_replicas_to_dirs,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.LIST_CONFIG_RESOURCES, configs.list_resources, read_only=True),
    ServedApi(Api.DESCRIBE_TOPIC_PARTITIONS, metadata.describe_topic_partitions, read_only=True),
    ServedApi(Api.ADD_RAFT_VOTER, quorum.add_raft_voter, forwarded=True),
    ServedApi(Api.REMOVE_RAFT_VOTER, quorum.remove_raft_voter, forwarded=True),
)


def served_at(config: BrokerConfig, listener: str) -> list[ServedApi]:
    """The APIs that are answered at a listener of a node."""
    own_listener = bool(config.controller_listener_names)
    for_controllers = listener in config.controller_listener_names
    takes_clients = config.is_broker and not for_controllers
    takes_controllers = config.is_controller and (for_controllers or not own_listener)
    takes = {
        Audience.CLIENTS: takes_clients,
        Audience.CONTROLLERS: takes_controllers,
        Audience.EVERYONE: True,
    }
    return [row for row in SERVED if row.forwarded or takes[row.audience]]
