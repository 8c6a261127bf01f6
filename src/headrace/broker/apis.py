"""The table of the APIs a node serves: handler, access rights, audience, quota.

A new API begins here: a row, the handler it names, and the message tables in `protocol/apis.py`.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, NamedTuple

from headrace.broker import forwarding
from headrace.broker.fetch_sessions import replica_of
from headrace.broker.handlers import (
    api_versions,
    configs,
    controller,
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
    security,
    telemetry,
    topics,
    transactions,
    write_txn_markers,
)
from headrace.broker.handlers import (
    metadata as cluster,
)
from headrace.broker.handlers import (
    topics as reassignments,
)
from headrace.broker.handlers import (
    transactions as describe_producers,
)
from headrace.broker.handlers import (
    transactions as init_producer_id,
)
from headrace.broker.request import Access, Handler, RequestContext
from headrace.config import BrokerConfig
from headrace.metadata.image import ConfigResourceType
from headrace.protocol.apis import Api
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType


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

    A sender needs every right of `access`, which the dispatcher asks the authorizer for. A handler
    that answers for each of many resources may ask `RequestContext.allowed` of the same rights.
    `forwarded` requests are accepted at every listener and answered by the active controller; other
    nodes pass them on to it, except those for which `is_local` is true. The handler of a
    `read_only` API changes nothing that outlives the request, so that a bug in it costs its client
    the connection; a bug in any other handler stops the process. Requests that are answered
    `before_ready` do not wait until the node has caught up: a quorum forms with them.
    """

    api: Api
    handler: Handler
    access: tuple[Access, ...]
    audience: Audience = Audience.CLIENTS
    quota: QuotaClass = QuotaClass.REQUEST
    forwarded: bool = False
    read_only: bool = False
    before_ready: bool = False
    is_local: Callable[[Any], bool] | None = None


_CONTROLLERS, _EVERYONE = Audience.CONTROLLERS, Audience.EVERYONE

_READ, _WRITE, _CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
_DELETE, _ALTER, _DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
_CLUSTER_ACTION, _IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
_TOPIC, _GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
_CLUSTER, _TRANSACTIONAL_ID = AclResourceType.CLUSTER, AclResourceType.TRANSACTIONAL_ID

# Kinds of keys in FindCoordinator.
_GROUP_KEY, _TRANSACTION_KEY = 0, 1

# For everybody: requests before and for authentication, and about the sender itself.
FREE: tuple[Access, ...] = ()


def _cluster(operation: AclOperation) -> tuple[Access, ...]:
    return (Access(operation, _CLUSTER, lambda context, request: (CLUSTER_NAME,)),)


_CLUSTER_WORK = _cluster(_CLUSTER_ACTION)


def _group(operation: AclOperation) -> Access:
    return Access(operation, _GROUP, lambda context, request: (request.group_id,))


def _transactional_id(operation: AclOperation) -> Access:
    def names(context: RequestContext, request: Any) -> Iterable[str]:
        return () if request.transactional_id is None else (request.transactional_id,)

    return Access(operation, _TRANSACTIONAL_ID, names)


def _listed(operation: AclOperation, resource_type: AclResourceType, field: str) -> Access:
    """A right to every resource whose name is in a list of a request."""
    return Access(operation, resource_type, lambda context, request: getattr(request, field))


def _topics(operation: AclOperation, field: str = "topics") -> Access:
    """A right to every topic that a field of a request has, or to all topics if it is null."""
    return Access(
        operation, _TOPIC, lambda context, request: _names(context, getattr(request, field))
    )


def _names(context: RequestContext, topics: Iterable[Any] | None) -> Iterable[str]:
    """The names of topics; an id that no topic has is left to the handler."""
    image = context.node.store.image
    if topics is None:
        yield from image.topics
        return
    for topic in topics:
        name = topic.topic if hasattr(topic, "topic") else topic.name
        if name:
            yield name
        elif (found := image.topics_by_id.get(topic.topic_id)) is not None:
            yield found.name


def _described_topics(context: RequestContext, request: MetadataRequest) -> Iterable[str]:
    # Version 0 has no null: without topics it describes them all.
    return _names(context, request.topics if context.version > 0 else request.topics or None)


def _is_follower(request: FetchRequest) -> bool:
    return replica_of(request)[0] >= 0


def _consumed_topics(context: RequestContext, request: FetchRequest) -> Iterable[str]:
    return () if _is_follower(request) else _names(context, request.topics)


def _cluster_of_follower(context: RequestContext, request: FetchRequest) -> Iterable[str]:
    return (CLUSTER_NAME,) if _is_follower(request) else ()


def _groups_of_offsets(context: RequestContext, request: OffsetFetchRequest) -> Iterable[str]:
    return [group.group_id for group in request.groups] or (request.group_id,)


def _topics_of_offsets(context: RequestContext, request: OffsetFetchRequest) -> Iterable[str]:
    # Without topics all offsets of a group are fetched, which the right to the group allows.
    yield from _names(context, request.topics or ())
    for group in request.groups:
        yield from _names(context, group.topics or ())


def _keys_to_find(request: FindCoordinatorRequest, key_type: int) -> Iterable[str]:
    if request.key_type != key_type:
        return ()
    return request.coordinator_keys or (request.key,)


def _cluster_of_idempotence(
    context: RequestContext, request: InitProducerIdRequest
) -> Iterable[str]:
    return (CLUSTER_NAME,) if request.transactional_id is None else ()


def _transactional_id_to_extend(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> Iterable[str]:
    return () if request.transactions else (request.v3_and_below_transactional_id,)


def _cluster_of_verifier(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> Iterable[str]:
    """The cluster, if a broker verifies transactions of its clients (version 4, KIP-890)."""
    return (CLUSTER_NAME,) if request.transactions else ()


def _configs(operation: AclOperation) -> tuple[Access, ...]:
    """Rights to topics and groups whose settings are named, or to the cluster for any other."""

    def named(resource_type: int) -> Callable[[RequestContext, Any], Iterable[str]]:
        return lambda context, request: [
            resource.resource_name
            for resource in request.resources
            if resource.resource_type == resource_type
        ]

    def cluster(context: RequestContext, request: Any) -> Iterable[str]:
        own = {ConfigResourceType.TOPIC, ConfigResourceType.GROUP}
        return [CLUSTER_NAME for resource in request.resources if resource.resource_type not in own]

    return (
        Access(operation, _TOPIC, named(ConfigResourceType.TOPIC)),
        Access(operation, _GROUP, named(ConfigResourceType.GROUP)),
        Access(operation, _CLUSTER, cluster),
    )


SERVED = (
    ServedApi(
        Api.PRODUCE,
        produce.produce,
        (_topics(_WRITE, "topic_data"), _transactional_id(_WRITE)),
        quota=QuotaClass.PRODUCE,
    ),
    ServedApi(
        Api.FETCH,
        fetch.fetch,
        (
            Access(_READ, _TOPIC, _consumed_topics),
            Access(_CLUSTER_ACTION, _CLUSTER, _cluster_of_follower),
        ),
        audience=_EVERYONE,
        quota=QuotaClass.FETCH,
        before_ready=True,
    ),
    ServedApi(Api.LIST_OFFSETS, log_offsets.list_offsets, (_topics(_DESCRIBE),), read_only=True),
    ServedApi(
        Api.METADATA,
        metadata.metadata,
        (Access(_DESCRIBE, _TOPIC, _described_topics),),
        read_only=True,
    ),
    ServedApi(Api.OFFSET_COMMIT, group_offsets.offset_commit, (_group(_READ), _topics(_READ))),
    ServedApi(
        Api.OFFSET_FETCH,
        group_offsets.offset_fetch,
        (
            Access(_DESCRIBE, _GROUP, _groups_of_offsets),
            Access(_DESCRIBE, _TOPIC, _topics_of_offsets),
        ),
        read_only=True,
    ),
    ServedApi(
        Api.FIND_COORDINATOR,
        find_coordinator.find_coordinator,
        (
            Access(_DESCRIBE, _GROUP, lambda _, request: _keys_to_find(request, _GROUP_KEY)),
            Access(
                _DESCRIBE,
                _TRANSACTIONAL_ID,
                lambda _, request: _keys_to_find(request, _TRANSACTION_KEY),
            ),
        ),
        read_only=True,
    ),
    ServedApi(Api.JOIN_GROUP, groups.join_group, (_group(_READ),)),
    ServedApi(Api.HEARTBEAT, groups.heartbeat, (_group(_READ),)),
    ServedApi(Api.LEAVE_GROUP, groups.leave_group, (_group(_READ),)),
    ServedApi(Api.SYNC_GROUP, groups.sync_group, (_group(_READ),)),
    ServedApi(
        Api.DESCRIBE_GROUPS,
        groups.describe_groups,
        (_listed(_DESCRIBE, _GROUP, "groups"),),
        read_only=True,
    ),
    # Unlike Kafka: without the right to the cluster the whole list is refused, and not only that
    # part of it which the sender may not see.
    ServedApi(Api.LIST_GROUPS, groups.list_groups, _cluster(_DESCRIBE), read_only=True),
    ServedApi(Api.SASL_HANDSHAKE, security.handshake, FREE, audience=_EVERYONE),
    ServedApi(
        Api.API_VERSIONS,
        api_versions.api_versions,
        FREE,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.CREATE_TOPICS,
        topics.create,
        (_topics(_CREATE),),
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(
        Api.DELETE_TOPICS,
        topics.delete,
        (_topics(_DELETE), _listed(_DELETE, _TOPIC, "topic_names")),
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(Api.DELETE_RECORDS, log_offsets.delete_records, (_topics(_DELETE),)),
    ServedApi(
        Api.INIT_PRODUCER_ID,
        init_producer_id.init_producer_id,
        (_transactional_id(_WRITE), Access(_IDEMPOTENT_WRITE, _CLUSTER, _cluster_of_idempotence)),
    ),
    ServedApi(
        Api.OFFSET_FOR_LEADER_EPOCH,
        log_offsets.offset_for_leader_epoch,
        (_topics(_DESCRIBE),),
        read_only=True,
    ),
    ServedApi(
        Api.ADD_PARTITIONS_TO_TXN,
        transactions.add_partitions_to_txn,
        (
            Access(_WRITE, _TRANSACTIONAL_ID, _transactional_id_to_extend),
            _topics(_WRITE, "v3_and_below_topics"),
            Access(_CLUSTER_ACTION, _CLUSTER, _cluster_of_verifier),
        ),
    ),
    ServedApi(
        Api.ADD_OFFSETS_TO_TXN,
        transactions.add_offsets_to_txn,
        (_transactional_id(_WRITE), _group(_READ)),
    ),
    ServedApi(Api.END_TXN, transactions.end_txn, (_transactional_id(_WRITE),)),
    ServedApi(
        Api.WRITE_TXN_MARKERS,
        write_txn_markers.write_txn_markers,
        _CLUSTER_WORK,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.TXN_OFFSET_COMMIT,
        group_offsets.txn_offset_commit,
        (_transactional_id(_WRITE), _group(_READ), _topics(_READ)),
    ),
    ServedApi(
        Api.DESCRIBE_ACLS,
        security.list_acls,
        _cluster(_DESCRIBE),
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.CREATE_ACLS, security.add_acls, _cluster(_ALTER), audience=_EVERYONE),
    ServedApi(Api.DELETE_ACLS, security.remove_acls, _cluster(_ALTER), audience=_EVERYONE),
    ServedApi(
        Api.DESCRIBE_CONFIGS,
        configs.describe,
        _configs(_DESCRIBE_CONFIGS),
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.ALTER_CONFIGS, configs.alter, _configs(_ALTER_CONFIGS), forwarded=True),
    ServedApi(Api.ALTER_REPLICA_LOG_DIRS, log_dirs.alter_replica_log_dirs, _cluster(_ALTER)),
    ServedApi(
        Api.DESCRIBE_LOG_DIRS, log_dirs.describe_log_dirs, _cluster(_DESCRIBE), read_only=True
    ),
    ServedApi(Api.SASL_AUTHENTICATE, security.authenticate, FREE, audience=_EVERYONE),
    ServedApi(
        Api.CREATE_PARTITIONS,
        topics.add_partitions,
        (_topics(_ALTER),),
        quota=QuotaClass.CONTROLLER_MUTATION,
        forwarded=True,
    ),
    ServedApi(Api.CREATE_DELEGATION_TOKEN, security.create_token, FREE, audience=_EVERYONE),
    ServedApi(Api.RENEW_DELEGATION_TOKEN, security.renew_token, FREE, audience=_EVERYONE),
    ServedApi(Api.EXPIRE_DELEGATION_TOKEN, security.expire_token, FREE, audience=_EVERYONE),
    ServedApi(
        Api.DESCRIBE_DELEGATION_TOKEN,
        security.describe_tokens,
        FREE,
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(Api.DELETE_GROUPS, groups.delete_groups, (_listed(_DELETE, _GROUP, "groups_names"),)),
    ServedApi(Api.ELECT_LEADERS, controller.elect_leaders, _cluster(_ALTER), forwarded=True),
    ServedApi(
        Api.INCREMENTAL_ALTER_CONFIGS,
        configs.alter_incrementally,
        _configs(_ALTER_CONFIGS),
        forwarded=True,
        is_local=configs.changes_log_levels,
    ),
    ServedApi(
        Api.ALTER_PARTITION_REASSIGNMENTS,
        reassignments.alter_reassignments,
        _cluster(_ALTER),
        forwarded=True,
    ),
    ServedApi(
        Api.LIST_PARTITION_REASSIGNMENTS,
        reassignments.list_reassignments,
        _cluster(_DESCRIBE),
        forwarded=True,
        read_only=True,
    ),
    ServedApi(Api.OFFSET_DELETE, group_offsets.offset_delete, (_group(_DELETE), _topics(_READ))),
    ServedApi(
        Api.DESCRIBE_CLIENT_QUOTAS,
        quotas.describe_quotas,
        _cluster(_DESCRIBE_CONFIGS),
        read_only=True,
    ),
    ServedApi(
        Api.ALTER_CLIENT_QUOTAS, quotas.alter_quotas, _cluster(_ALTER_CONFIGS), audience=_EVERYONE
    ),
    ServedApi(
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
        security.describe_credentials,
        _cluster(_DESCRIBE),
        audience=_EVERYONE,
        read_only=True,
    ),
    ServedApi(
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        security.alter_credentials,
        _cluster(_ALTER),
        audience=_EVERYONE,
    ),
    ServedApi(Api.VOTE, quorum.vote, _CLUSTER_WORK, audience=_CONTROLLERS, quota=QuotaClass.NONE),
    ServedApi(
        Api.BEGIN_QUORUM_EPOCH,
        quorum.begin_quorum_epoch,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.END_QUORUM_EPOCH,
        quorum.end_quorum_epoch,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.DESCRIBE_QUORUM,
        quorum.describe_quorum,
        _cluster(_DESCRIBE),
        forwarded=True,
        read_only=True,
    ),
    ServedApi(
        Api.ALTER_PARTITION,
        controller.alter_partition,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.UPDATE_FEATURES, features.update_features, _cluster(_ALTER), forwarded=True),
    ServedApi(
        Api.ENVELOPE,
        forwarding.open_envelope,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.FETCH_SNAPSHOT,
        quorum.fetch_snapshot,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
        read_only=True,
    ),
    ServedApi(
        Api.DESCRIBE_CLUSTER,
        cluster.describe_cluster,
        FREE,
        audience=_EVERYONE,
        read_only=True,
        before_ready=True,
    ),
    ServedApi(
        Api.DESCRIBE_PRODUCERS,
        describe_producers.describe_producers,
        (_topics(_READ),),
        read_only=True,
    ),
    ServedApi(
        Api.BROKER_REGISTRATION,
        controller.register,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.BROKER_HEARTBEAT,
        controller.heartbeat,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.UNREGISTER_BROKER, controller.unregister, _cluster(_ALTER), forwarded=True),
    ServedApi(
        Api.DESCRIBE_TRANSACTIONS,
        transactions.describe_transactions,
        (_listed(_DESCRIBE, _TRANSACTIONAL_ID, "transactional_ids"),),
        read_only=True,
    ),
    ServedApi(
        Api.LIST_TRANSACTIONS, transactions.list_transactions, _cluster(_DESCRIBE), read_only=True
    ),
    ServedApi(
        Api.ALLOCATE_PRODUCER_IDS,
        controller.allocate_producer_ids,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(Api.GET_TELEMETRY_SUBSCRIPTIONS, telemetry.get_subscriptions, FREE),
    ServedApi(Api.PUSH_TELEMETRY, telemetry.push, FREE),
    ServedApi(
        Api.ASSIGN_REPLICAS_TO_DIRS,
        controller.assign_replicas_to_dirs,
        _CLUSTER_WORK,
        audience=_CONTROLLERS,
        quota=QuotaClass.NONE,
    ),
    ServedApi(
        Api.LIST_CONFIG_RESOURCES,
        configs.list_resources,
        _cluster(_DESCRIBE_CONFIGS),
        read_only=True,
    ),
    ServedApi(
        Api.DESCRIBE_TOPIC_PARTITIONS,
        metadata.describe_topic_partitions,
        # Without topics it describes them all.
        (
            Access(
                _DESCRIBE, _TOPIC, lambda context, request: _names(context, request.topics or None)
            ),
        ),
        read_only=True,
    ),
    ServedApi(Api.ADD_RAFT_VOTER, quorum.add_raft_voter, _cluster(_ALTER), forwarded=True),
    ServedApi(Api.REMOVE_RAFT_VOTER, quorum.remove_raft_voter, _cluster(_ALTER), forwarded=True),
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
