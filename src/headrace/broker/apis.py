"""The table of the APIs a node serves: handler, rule of `broker/access`, audience, quota.

A new API begins here: a row, the handler it names, and the message tables in `protocol/apis.py`.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from headrace.broker import forwarding
from headrace.broker.access import (
    cluster_rules,
    group_rules,
    topic_rules,
    transaction_rules,
)
from headrace.broker.access.rules import NO_RIGHT_NEEDED, AccessRule
from headrace.broker.handlers import (
    acls,
    api_versions,
    configs,
    controller,
    delegation_tokens,
    features,
    fetch,
    find_coordinator,
    group_offsets,
    groups,
    log_dirs,
    log_offsets,
    metadata,
    produce,
    quorum,
    quotas,
    sasl,
    scram,
    telemetry,
    topics,
    transactions,
)
from headrace.broker.handlers import (
    transactions as write_txn_markers,
)
from headrace.broker.request import Handler
from headrace.config import BrokerConfig
from headrace.protocol.apis import Api


class Audience(Enum):
    """The senders of an API's requests, which decide at which listeners it is served."""

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
    """An API that a node serves: its handler, the rights it needs, and how it is dispatched.

    `access` has the rights that the API needs, and answers in the handler's place as far as the
    sender lacks them; a handler of which it has no check asks `RequestContext.may` itself.
    `forwarded` requests are accepted at every listener and answered by the active controller; other
    nodes pass them on to it, except those for which `is_local` is true. The handler of a
    `read_only` API changes nothing that outlives the request, so that a bug in it costs its client
    the connection; a bug in any other handler stops the process. Requests that are answered
    `before_ready` do not wait until the node has caught up: a quorum forms with them.
    """

    api: Api
    handler: Handler
    access: AccessRule
    audience: Audience = Audience.CLIENTS
    quota: QuotaClass = QuotaClass.REQUEST
    forwarded: bool = False
    read_only: bool = False
    before_ready: bool = False
    is_local: Callable[[Any], bool] | None = None


_CONTROLLERS, _EVERYONE = Audience.CONTROLLERS, Audience.EVERYONE


SERVED = (
    ServedApi(Api.PRODUCE, produce.produce, topic_rules.PRODUCE, quota=QuotaClass.PRODUCE),
    ServedApi(
        Api.FETCH,
        fetch.fetch,
        topic_rules.FETCH,
        audience=_EVERYONE,
        quota=QuotaClass.FETCH,
        before_ready=True,
    ),
    ServedApi(Api.LIST_OFFSETS, log_offsets.list_offsets, topic_rules.LIST_OFFSETS, read_only=True),
    ServedApi(Api.METADATA, metadata.metadata, topic_rules.METADATA, read_only=True),
    ServedApi(Api.OFFSET_COMMIT, group_offsets.offset_commit, group_rules.OFFSET_COMMIT),
    ServedApi(
        Api.OFFSET_FETCH, group_offsets.offset_fetch, group_rules.OFFSET_FETCH, read_only=True
    ),
    ServedApi(
        Api.FIND_COORDINATOR,
        find_coordinator.find_coordinator,
        group_rules.FIND_COORDINATOR,
        read_only=True,
    ),
    ServedApi(Api.JOIN_GROUP, groups.join_group, group_rules.MEMBER),
    ServedApi(Api.HEARTBEAT, groups.heartbeat, group_rules.MEMBER),
    ServedApi(Api.LEAVE_GROUP, groups.leave_group, group_rules.MEMBER),
    ServedApi(Api.SYNC_GROUP, groups.sync_group, group_rules.MEMBER),
    ServedApi(
        Api.DESCRIBE_GROUPS, groups.describe_groups, group_rules.DESCRIBE_GROUPS, read_only=True
    ),
    ServedApi(Api.LIST_GROUPS, groups.list_groups, group_rules.LIST_GROUPS, read_only=True),
    ServedApi(
        Api.SASL_HANDSHAKE,
        sasl.handshake,
        NO_RIGHT_NEEDED,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.API_VERSIONS,
        api_versions.api_versions,
        NO_RIGHT_NEEDED,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.CREATE_TOPICS,
        topics.create,
        topic_rules.CREATE_TOPICS,
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(
        Api.DELETE_TOPICS,
        topics.delete,
        topic_rules.DELETE_TOPICS,
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(Api.DELETE_RECORDS, log_offsets.delete_records, topic_rules.DELETE_RECORDS),
    ServedApi(
        Api.INIT_PRODUCER_ID, transactions.init_producer_id, transaction_rules.INIT_PRODUCER_ID
    ),
    ServedApi(
        Api.OFFSET_FOR_LEADER_EPOCH,
        log_offsets.offset_for_leader_epoch,
        topic_rules.OFFSET_FOR_LEADER_EPOCH,
        read_only=True,
    ),
    ServedApi(
        Api.ADD_PARTITIONS_TO_TXN,
        transactions.add_partitions_to_txn,
        transaction_rules.ADD_PARTITIONS_TO_TXN,
    ),
    ServedApi(
        Api.ADD_OFFSETS_TO_TXN,
        transactions.add_offsets_to_txn,
        transaction_rules.ADD_OFFSETS_TO_TXN,
    ),
    ServedApi(Api.END_TXN, transactions.end_txn, transaction_rules.END_TXN),
    ServedApi(
        Api.WRITE_TXN_MARKERS,
        write_txn_markers.write_txn_markers,
        transaction_rules.WRITE_TXN_MARKERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.TXN_OFFSET_COMMIT, group_offsets.txn_offset_commit, transaction_rules.TXN_OFFSET_COMMIT
    ),
    ServedApi(
        Api.DESCRIBE_ACLS,
        acls.describe,
        cluster_rules.DESCRIBE,
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.CREATE_ACLS, acls.create, cluster_rules.CREATE_ACLS, forwarded=True),
    ServedApi(Api.DELETE_ACLS, acls.delete, cluster_rules.DELETE_ACLS, forwarded=True),
    ServedApi(
        Api.DESCRIBE_CONFIGS,
        configs.describe,
        cluster_rules.DESCRIBE_CONFIGS,
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.ALTER_CONFIGS, configs.alter, cluster_rules.ALTER_CONFIGS, forwarded=True),
    ServedApi(
        Api.ALTER_REPLICA_LOG_DIRS,
        log_dirs.alter_replica_log_dirs,
        cluster_rules.ALTER_REPLICA_LOG_DIRS,
    ),
    ServedApi(
        Api.DESCRIBE_LOG_DIRS,
        log_dirs.describe_log_dirs,
        cluster_rules.DESCRIBE_LOG_DIRS,
        read_only=True,
    ),
    ServedApi(
        Api.SASL_AUTHENTICATE,
        sasl.authenticate,
        NO_RIGHT_NEEDED,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.CREATE_PARTITIONS,
        topics.add_partitions,
        topic_rules.CREATE_PARTITIONS,
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(
        Api.CREATE_DELEGATION_TOKEN,
        delegation_tokens.create_delegation_token,
        cluster_rules.CREATE_TOKEN,
        forwarded=True,
        is_local=delegation_tokens.is_answered_here,
    ),
    ServedApi(
        Api.RENEW_DELEGATION_TOKEN,
        delegation_tokens.renew_delegation_token,
        NO_RIGHT_NEEDED,
        forwarded=True,
        is_local=delegation_tokens.is_answered_here,
    ),
    ServedApi(
        Api.EXPIRE_DELEGATION_TOKEN,
        delegation_tokens.expire_delegation_token,
        NO_RIGHT_NEEDED,
        forwarded=True,
        is_local=delegation_tokens.is_answered_here,
    ),
    ServedApi(
        Api.DESCRIBE_DELEGATION_TOKEN,
        delegation_tokens.describe_delegation_token,
        cluster_rules.DESCRIBE_TOKENS,
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.DELETE_GROUPS, groups.delete_groups, group_rules.DELETE_GROUPS),
    ServedApi(
        Api.ELECT_LEADERS, controller.elect_leaders, cluster_rules.ELECT_LEADERS, forwarded=True
    ),
    ServedApi(
        Api.INCREMENTAL_ALTER_CONFIGS,
        configs.alter_incrementally,
        cluster_rules.INCREMENTAL_ALTER_CONFIGS,
        forwarded=True,
        is_local=configs.changes_log_levels,
    ),
    ServedApi(
        Api.ALTER_PARTITION_REASSIGNMENTS,
        topics.alter_reassignments,
        cluster_rules.ALTER,
        forwarded=True,
    ),
    ServedApi(
        Api.LIST_PARTITION_REASSIGNMENTS,
        topics.list_reassignments,
        cluster_rules.DESCRIBE,
        forwarded=True,
        read_only=True,
    ),
    ServedApi(Api.OFFSET_DELETE, group_offsets.offset_delete, group_rules.OFFSET_DELETE),
    ServedApi(
        Api.DESCRIBE_CLIENT_QUOTAS,
        quotas.describe_quotas,
        cluster_rules.DESCRIBE_CLIENT_QUOTAS,
        read_only=True,
    ),
    ServedApi(
        Api.ALTER_CLIENT_QUOTAS,
        quotas.alter_quotas,
        cluster_rules.ALTER_CLIENT_QUOTAS,
        forwarded=True,
    ),
    ServedApi(
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
        scram.describe_user_scram_credentials,
        cluster_rules.DESCRIBE,
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        scram.alter_user_scram_credentials,
        cluster_rules.ALTER_USER_SCRAM_CREDENTIALS,
        forwarded=True,
    ),
    ServedApi(
        Api.VOTE, quorum.vote, cluster_rules.NODES, audience=_CONTROLLERS, quota=QuotaClass.NONE
    ),
    ServedApi(
        Api.BEGIN_QUORUM_EPOCH,
        quorum.begin_quorum_epoch,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.END_QUORUM_EPOCH,
        quorum.end_quorum_epoch,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.DESCRIBE_QUORUM,
        quorum.describe_quorum,
        cluster_rules.DESCRIBE,
        forwarded=True,
        read_only=True,
    ),
    ServedApi(
        Api.ALTER_PARTITION,
        controller.alter_partition,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.UPDATE_FEATURES, features.update_features, cluster_rules.ALTER, forwarded=True),
    ServedApi(
        Api.ENVELOPE,
        forwarding.open_envelope,
        cluster_rules.ENVELOPE,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.FETCH_SNAPSHOT,
        quorum.fetch_snapshot,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
        read_only=True,
    ),
    ServedApi(
        Api.DESCRIBE_CLUSTER,
        metadata.describe_cluster,
        cluster_rules.DESCRIBE_CLUSTER,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.DESCRIBE_PRODUCERS,
        transactions.describe_producers,
        topic_rules.DESCRIBE_PRODUCERS,
        read_only=True,
    ),
    ServedApi(
        Api.BROKER_REGISTRATION,
        controller.register,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.BROKER_HEARTBEAT,
        controller.heartbeat,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.UNREGISTER_BROKER, controller.unregister, cluster_rules.ALTER, forwarded=True),
    ServedApi(
        Api.DESCRIBE_TRANSACTIONS,
        transactions.describe_transactions,
        transaction_rules.DESCRIBE_TRANSACTIONS,
        read_only=True,
    ),
    ServedApi(
        Api.LIST_TRANSACTIONS,
        transactions.list_transactions,
        transaction_rules.LIST_TRANSACTIONS,
        read_only=True,
    ),
    ServedApi(
        Api.ALLOCATE_PRODUCER_IDS,
        controller.allocate_producer_ids,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.CONSUMER_GROUP_HEARTBEAT,
        groups.consumer_group_heartbeat,
        group_rules.CONSUMER_MEMBER,
    ),
    ServedApi(
        Api.CONSUMER_GROUP_DESCRIBE,
        groups.consumer_group_describe,
        group_rules.DESCRIBE_CONSUMER_GROUPS,
        read_only=True,
    ),
    ServedApi(Api.GET_TELEMETRY_SUBSCRIPTIONS, telemetry.get_subscriptions, NO_RIGHT_NEEDED),
    ServedApi(Api.PUSH_TELEMETRY, telemetry.push, NO_RIGHT_NEEDED),
    ServedApi(
        Api.ASSIGN_REPLICAS_TO_DIRS,
        controller.assign_replicas_to_dirs,
        cluster_rules.NODES,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.LIST_CONFIG_RESOURCES,
        configs.list_resources,
        cluster_rules.DESCRIBE_CONFIGS_OF_CLUSTER,
        read_only=True,
    ),
    ServedApi(
        Api.DESCRIBE_TOPIC_PARTITIONS,
        metadata.describe_topic_partitions,
        topic_rules.DESCRIBE_TOPIC_PARTITIONS,
        read_only=True,
    ),
    ServedApi(Api.ADD_RAFT_VOTER, quorum.add_raft_voter, cluster_rules.ALTER, forwarded=True),
    ServedApi(Api.REMOVE_RAFT_VOTER, quorum.remove_raft_voter, cluster_rules.ALTER, forwarded=True),
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
