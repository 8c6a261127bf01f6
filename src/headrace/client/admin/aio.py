"""The admin client for asyncio: `headrace.aio.Admin`.

Rule: a call about one subject raises its error. A call about several returns the result of each, in
the order they were named, or raises `SomeFailed`, whose `outcomes` have each result or error.

CLI commands start by importing this module, so imports that only some commands need are made when
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from headrace.client.admin.admin_requests import result, results
from headrace.client.admin.arguments import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    ConfigValue,
    addresses_of,
    broker_ids_of,
    by_partition,
    directory_id_of,
    name_of,
    names_of,
    number_of,
    partition_of,
    partitions_of,
)
from headrace.client.admin.topics import (
    BROKER_DEFAULT,
    EARLIEST,
    LATEST,
    CreatedTopic,
    NewTopic,
    OffsetAdmin,
    TopicAdmin,
)
from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.coordinator_lookup import CoordinatorLookup, CoordinatorType
from headrace.client.errors import Closed
from headrace.client.types import OffsetAndMetadata, OffsetAndTimestamp
from headrace.net.addresses import Address
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.acls import Acl, AclAdmin, AclSelection, Role, RoleAdmin
    from headrace.client.admin.cluster import (
        BrokerHealth,
        ClusterDescription,
        LogDirectory,
        QuorumAdmin,
        QuorumDescription,
    )
    from headrace.client.admin.configs import ConfigAdmin, ConfigEntry, ConfigOwner
    from headrace.client.admin.features import Features, UpdateFeaturesOptions
    from headrace.client.admin.groups import (
        GroupAdmin,
        GroupDescription,
        GroupListing,
        GroupOffsetAdmin,
        GroupProgress,
    )
    from headrace.client.admin.quotas import OwnerQuotas, QuotaOwner
    from headrace.client.admin.reassignments import Reassignment, ReassignmentAdmin
    from headrace.client.admin.topics import EligibleReplicas
    from headrace.client.admin.transactions import (
        FencedProducer,
        ProducerState,
        TransactionAdmin,
        TransactionDescription,
        TransactionListing,
    )
    from headrace.client.admin.users import (
        DelegationToken,
        ScramDeletion,
        ScramUpsertion,
        TokenAdmin,
        UserAdmin,
    )
    from headrace.client.options import AdminConfig


class AdminCalls:
    """The commands over one cluster, grouped by subject."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self.topics = TopicAdmin(cluster)
        self.offsets = OffsetAdmin(cluster)
        self._coordinators = CoordinatorLookup(cluster)

    @cached_property
    def configs(self) -> ConfigAdmin:
        from headrace.client.admin.configs import ConfigAdmin  # noqa: PLC0415

        return ConfigAdmin(self.cluster)

    @cached_property
    def users(self) -> UserAdmin:
        from headrace.client.admin.users import UserAdmin  # noqa: PLC0415

        return UserAdmin(self.cluster)

    @cached_property
    def tokens(self) -> TokenAdmin:
        from headrace.client.admin.users import TokenAdmin  # noqa: PLC0415

        return TokenAdmin(self.cluster)

    @cached_property
    def acls(self) -> AclAdmin:
        from headrace.client.admin.acls import AclAdmin  # noqa: PLC0415

        return AclAdmin(self.cluster)

    @cached_property
    def roles(self) -> RoleAdmin:
        from headrace.client.admin.acls import RoleAdmin  # noqa: PLC0415

        return RoleAdmin(self.configs, self.acls)

    @cached_property
    def groups(self) -> GroupAdmin:
        from headrace.client.admin.groups import GroupAdmin  # noqa: PLC0415

        return GroupAdmin(self.cluster, self._coordinators)

    @cached_property
    def group_offsets(self) -> GroupOffsetAdmin:
        from headrace.client.admin.groups import GroupOffsetAdmin  # noqa: PLC0415

        return GroupOffsetAdmin(self.cluster, self._coordinators)

    @cached_property
    def reassignments(self) -> ReassignmentAdmin:
        from headrace.client.admin.reassignments import (  # noqa: PLC0415
            ReassignmentAdmin,
        )

        return ReassignmentAdmin(self.cluster)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        from headrace.client.admin.transactions import TransactionAdmin  # noqa: PLC0415

        return TransactionAdmin(
            self.cluster, CoordinatorLookup(self.cluster, CoordinatorType.TRANSACTION)
        )

    @cached_property
    def quorum(self) -> QuorumAdmin:
        from headrace.client.admin.cluster import QuorumAdmin  # noqa: PLC0415

        return QuorumAdmin(self.cluster)


class AsyncAdmin:
    """Describes and changes the topics, settings, groups and offsets of a cluster, with `await`.

    It connects at the first call. Every call ends within `request_timeout_ms`; reads, and commands
    that may be repeated, are retried until then. `headrace.Admin` is the blocking equivalent, and
    has an example of each call.
    """

    def __init__(self, **config: Unpack[AdminConfig]) -> None:
        self._start(_cluster(**config))

    @classmethod
    def over(cls, cluster: ClusterClient) -> Self:
        """An admin client over a cluster; closing the admin client closes the cluster too.

        The cluster may be in use on this event loop.
        """
        admin = cls.__new__(cls)
        admin._start(cluster)
        return admin

    def _start(self, cluster: ClusterClient) -> None:
        self._client_id = cluster.client_id
        self._metrics = cluster.metrics
        self._engine: AdminCalls | None = AdminCalls(cluster)

    def __repr__(self) -> str:
        closed = "" if self._engine else ", closed"
        return f"<headrace.aio.Admin {self._client_id}{closed}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. May be called again; any other call raises `Closed` afterwards."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.cluster.close()

    @property
    def client_id(self) -> str:
        """The client id, which the broker's log and the metrics show."""
        return self._client_id

    def metrics(self) -> dict[str, float]:
        """The metrics of this admin client, under Kafka's names."""
        return self._metrics()

    @property
    def _open(self) -> AdminCalls:
        if self._engine is None:
            raise Closed(f"the admin client {self._client_id} is closed", advice="make a new one")
        return self._engine

    # -- topics

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, ConfigValue] | None = None,
    ) -> CreatedTopic:
        """Create a topic; -1 takes the broker's default for a number."""
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        return result(await self._open.topics.create([topic]), name)

    async def create_topics(self, topics: Iterable[NewTopic | str]) -> dict[str, CreatedTopic]:
        """Create topics; a plain name takes the broker's defaults for the rest."""
        return results(await self._open.topics.create(_new_topics(topics)))

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """The topics by name; internal topics only with `internal`."""
        return await self._open.topics.listed(internal=internal)

    async def describe_topic(self, name: str) -> TopicInfo:
        """A topic and its partitions; `UnknownTopic` if the topic does not exist."""
        return result(await self._open.topics.describe([name_of(name, "topic")]), name)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Topics and their partitions, in the order of the names."""
        return results(await self._open.topics.describe(names_of(names, "topic")))

    async def describe_eligible_replicas(
        self, names: Iterable[str]
    ) -> dict[TopicPartition, EligibleReplicas]:
        """Partitions of topics that have eligible leader replicas, or had them until a restart."""
        from headrace.client.admin.topics import (  # noqa: PLC0415
            describe_eligible_replicas,
        )

        return await describe_eligible_replicas(self._open.cluster, names_of(names, "topic"))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; `KafkaError` if the topic does not exist."""
        result(await self._open.topics.delete([name_of(name, "topic")]), name)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records."""
        results(await self._open.topics.delete(names_of(names, "topic")))

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Raise the numbers of partitions of topics to `counts`."""
        wanted = {
            name_of(name, "topic"): number_of(count, f"partitions of {name}", 1, INT32_MAX)
            for name, count in counts.items()
        }
        results(await self._open.topics.create_partitions(wanted))

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before offsets, or all with `LATEST`; returns the new log start
        offsets.
        """
        wanted = {
            tp: number_of(offset, f"offset of {tp}", LATEST, INT64_MAX)
            for tp, offset in by_partition(before, "before").items()
        }
        return results(await self._open.offsets.delete_records(wanted))

    # -- settings

    async def describe_configs(self, **owner: Unpack[ConfigOwner]) -> dict[str, ConfigEntry]:
        """The settings, by name, of the resource that a keyword names (`topic=`, `broker=`, ...)"""
        return await self._open.configs.describe(**owner)

    async def alter_configs(
        self, settings: Mapping[str, ConfigValue | None], **owner: Unpack[ConfigOwner]
    ) -> None:
        """Change settings of the resource that a keyword names; None restores the default."""
        await self._open.configs.alter(settings, **owner)

    async def list_config_resources(self, kinds: Iterable[str] = ()) -> dict[str, list[str]]:
        """The resources that can have settings, by kind: "topic", "broker", "group", ..."""
        return await self._open.configs.owners(kinds)

    # -- rights

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create access control lists; one that is there already is no error."""
        await self._open.acls.create(acls)

    async def describe_acls(self, **selection: Unpack[AclSelection]) -> list[Acl]:
        """The ACLs that all given conditions select."""
        return await self._open.acls.describe(**selection)

    async def delete_acls(self, **selection: Unpack[AclSelection]) -> list[Acl]:
        """Delete the ACLs that all given conditions select, and return them."""
        return await self._open.acls.delete(**selection)

    async def create_role(self, name: str, description: str = "") -> None:
        """Create a role; ACLs of the principal `Role:<name>` are its rights."""
        await self._open.roles.create(name, description)

    async def describe_roles(self, names: Iterable[str] = ()) -> dict[str, Role]:
        """Roles by name, with their members and rights; all if none is named."""
        return await self._open.roles.describe(names)

    async def delete_role(self, name: str) -> None:
        """Delete a role with its bindings and rights."""
        await self._open.roles.delete(name)

    async def bind_role(self, name: str, members: Iterable[str]) -> None:
        """Give a role to principals (`User:alice`), or to groups of tokens (`Group:ops`)."""
        await self._open.roles.bind(name, members)

    async def unbind_role(self, name: str, members: Iterable[str]) -> None:
        """Take a role from members."""
        await self._open.roles.unbind(name, members)

    # -- quotas

    async def describe_client_quotas(
        self, kinds: Iterable[str] = (), *, exact: bool = False, **owner: Unpack[QuotaOwner]
    ) -> list[OwnerQuotas]:
        """The quotas of all, or of those with these names and kinds ("user", "client_id", "ip").

        A name of None is the default of its kind. With `exact` only those that have nothing else.
        """
        from headrace.client.admin import quotas  # noqa: PLC0415

        cluster = self._open.cluster
        return await quotas.describe_client_quotas(cluster, kinds, exact=exact, **owner)

    async def alter_client_quotas(
        self,
        quotas: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        **owner: Unpack[QuotaOwner],
    ) -> None:
        """Set quotas of `user=`, `client_id=`, both or `ip=`; a value of None removes one.

        A name of None is the default of its kind.
        """
        from headrace.client.admin.quotas import alter_client_quotas  # noqa: PLC0415

        cluster = self._open.cluster
        await alter_client_quotas(cluster, quotas, validate_only=validate_only, **owner)

    # -- offsets

    async def offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offsets at `EARLIEST`, at `LATEST`, or of the first record not older than a time.

        A time is in milliseconds since 1970; the offset is -1 where no record is that late.
        """
        asked = {
            tp: number_of(time, f"time of {tp}", EARLIEST, INT64_MAX)
            for tp, time in by_partition(wanted, "wanted").items()
        }
        return await self._open.offsets.find(asked)

    # -- groups

    async def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> dict[str, GroupListing]:
        """The groups by name: all, or those in some states or of some types."""
        return await self._open.groups.listed(names_of(states, "state"), names_of(types, "type"))

    async def describe_group(self, name: str) -> GroupDescription:
        """A group and its members; `KafkaError` with GROUP_ID_NOT_FOUND if the group does not
        exist.
        """
        return result(await self._open.groups.describe([name_of(name, "group")]), name)

    async def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        """Groups and their members, in the order of the names."""
        return results(await self._open.groups.describe(names_of(names, "group")))

    async def group_progress(
        self, groups: Iterable[str | GroupDescription]
    ) -> dict[str, tuple[GroupProgress, ...]]:
        """The progress and lag of groups in the partitions they have committed or are assigned."""
        given = [groups] if isinstance(groups, str) else list(groups)
        described = await self.describe_groups(group for group in given if isinstance(group, str))
        known = [described[group] if isinstance(group, str) else group for group in given]
        return await self._open.group_offsets.progress(known)

    async def delete_groups(self, names: Iterable[str]) -> None:
        """Delete groups without members, with all their committed offsets."""
        results(await self._open.groups.delete(names_of(names, "group")))

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group; empty for a group that does not exist."""
        return await self._open.group_offsets.committed(name_of(group, "group"))

    async def offsets_of_groups(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of several groups, in few requests; empty for an unknown group."""
        return results(await self._open.group_offsets.committed_by(names_of(groups, "group")))

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group that has no members; the group need not exist."""
        wanted = {
            tp: _committed(tp, offset) for tp, offset in by_partition(offsets, "offsets").items()
        }
        if wanted:
            results(await self._open.group_offsets.commit(name_of(group, "group"), wanted))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group in topics that no member subscribes to."""
        wanted = partitions_of(partitions)
        if wanted:
            results(await self._open.group_offsets.delete(name_of(group, "group"), wanted))

    # -- transactions

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int | None = None,
        pattern: str | None = None,
    ) -> dict[str, TransactionListing]:
        """The transactional ids: all, or those in some states, of some producers, or open for that
        long.

        `pattern` is a regular expression, in the syntax of RE2, for the whole transactional id.
        """
        ids = [number_of(producer_id, "producer id", 0, INT64_MAX) for producer_id in producer_ids]
        if duration_ms is not None:
            number_of(duration_ms, "duration_ms", 0, INT64_MAX)
        wanted = None if pattern is None else name_of(pattern, "pattern")
        return await self._open.transactions.listed(
            names_of(states, "state"), ids, duration_ms, wanted
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """The state, producer and partitions of transactional ids."""
        names = names_of(transactional_ids, "transactional id")
        return results(await self._open.transactions.describe(names))

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], broker_id: int | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers, with their open transactions, that the leaders or one broker's replicas
        know.
        """
        wanted = partitions_of(partitions)
        return results(await self._open.transactions.producers(wanted, broker_id))

    async def abort_transaction(
        self,
        partition: TopicPartition,
        *,
        producer_id: int | None = None,
        start_offset: int | None = None,
    ) -> ProducerState:
        """Abort a hanging transaction in one partition: one that no coordinator will end."""
        from headrace.client.admin.transactions import open_producer  # noqa: PLC0415

        tp = partition_of(partition)
        if (producer_id is None) == (start_offset is None):
            raise TypeError("say which transaction: give a producer_id or a start_offset")
        producers = (await self.describe_producers([tp]))[tp]
        found = open_producer(tp, producers, producer_id=producer_id, start_offset=start_offset)
        await self._open.transactions.abort(tp, found)
        return found

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Fence the producers of transactional ids, and abort their open transactions."""
        names = names_of(transactional_ids, "transactional id")
        return results(await self._open.transactions.fence(names))

    # -- the cluster

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """The id, the controller and the brokers of the cluster; fenced brokers only on request."""
        from headrace.client.admin.cluster import describe_cluster  # noqa: PLC0415

        return await describe_cluster(self._open.cluster, include_fenced=include_fenced)

    async def unregister_broker(self, broker: int) -> None:
        """Remove the registration of a broker that was stopped for good and holds no replica."""
        from headrace.client.admin.cluster import unregister_broker  # noqa: PLC0415

        broker_id = number_of(broker, "broker", 0, INT32_MAX)
        await unregister_broker(self._open.cluster, broker_id)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, tuple[LogDirectory, ...]]:
        """The data directories of brokers, by default of all, with the size of each replica."""
        from headrace.client.admin.cluster import describe_log_dirs  # noqa: PLC0415

        return results(await describe_log_dirs(self._open.cluster, await self._ids(brokers)))

    async def describe_health(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, BrokerHealth]:
        """The health of replicas and data directories of brokers, by default of all."""
        from headrace.client.admin.cluster import describe_health  # noqa: PLC0415

        return results(await describe_health(self._open.cluster, await self._ids(brokers)))

    async def _ids(self, brokers: Iterable[int] | None) -> list[int]:
        """The given broker ids, or by default those of all active brokers."""
        if brokers is not None:
            return broker_ids_of(brokers, "brokers")
        return [broker.node_id for broker in (await self.describe_cluster()).brokers]

    async def alter_replica_log_dirs(
        self, broker: int, targets: Mapping[TopicPartition, str]
    ) -> None:
        """Start moving replicas of a broker to other directories in its `log.dirs`, by path."""
        from headrace.client.admin.cluster import alter_replica_log_dirs  # noqa: PLC0415

        broker_id = number_of(broker, "broker", 0, INT32_MAX)
        wanted = by_partition(targets, "targets")
        results(await alter_replica_log_dirs(self._open.cluster, broker_id, wanted))

    # -- replicas and leaders

    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Move partitions to these brokers, the preferred leader first; None cancels a move."""
        wanted = {
            tp: None if brokers is None else broker_ids_of(brokers, f"replicas of {tp}")
            for tp, brokers in by_partition(targets, "targets").items()
        }
        outcomes = await self._open.reassignments.alter(
            wanted, allow_replication_factor_change=allow_replication_factor_change
        )
        results(outcomes)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments under way: all, or those of some partitions."""
        wanted = None if partitions is None else partitions_of(partitions)
        return await self._open.reassignments.listed(wanted)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, bool]:
        """Elect the preferred replicas as leaders; returns whether each partition's leader changed.

        Without `partitions` all are elected, and the result has only those that changed. An unclean
        election takes a replica that is not in sync if no other is left: records may be lost by it.
        """
        wanted = None if partitions is None else partitions_of(partitions)
        return results(await self._open.reassignments.elect(wanted, unclean=unclean))

    # -- controllers

    async def describe_quorum(self) -> QuorumDescription:
        """The controllers, and how far each has replicated the metadata log."""
        return await self._open.quorum.describe()

    async def describe_features(self) -> Features:
        """The features of the cluster: the supported levels and the finalized level of each."""
        from headrace.client.admin import features  # noqa: PLC0415

        return await features.describe_features(self._open.cluster)

    async def update_features(
        self, levels: Mapping[str, int], **options: Unpack[UpdateFeaturesOptions]
    ) -> None:
        """Change features to levels, all or none. They are raised, unless the options say
        otherwise.
        """
        from headrace.client.admin import features  # noqa: PLC0415

        wanted = {
            name: number_of(level, f"the level of {name}", 0, INT16_MAX)
            for name, level in levels.items()
        }
        await features.update_features(self._open.cluster, wanted, **options)

    async def add_voter(
        self, node: int, directory_id: bytes | str, endpoints: Mapping[str, Address | str]
    ) -> None:
        """Make an observer of the metadata log a voter."""
        await self._open.quorum.add_voter(
            number_of(node, "node", 0, INT32_MAX),
            directory_id_of(directory_id),
            addresses_of(endpoints),
        )

    async def remove_voter(self, node: int, directory_id: bytes | str) -> None:
        """Remove a voter from the quorum of controllers; it may be stopped then."""
        await self._open.quorum.remove_voter(
            number_of(node, "node", 0, INT32_MAX), directory_id_of(directory_id)
        )

    # -- users and delegation tokens

    async def describe_user_scram_credentials(
        self, users: Iterable[str] = ()
    ) -> dict[str, dict[str, int]]:
        """The mechanisms of users and their iterations, by name; of all users if none is named."""
        return await self._open.users.describe(users)

    async def alter_user_scram_credentials(
        self, changes: Iterable[ScramUpsertion | ScramDeletion]
    ) -> None:
        """Set and delete passwords of users."""
        await self._open.users.alter(changes)

    async def create_delegation_token(
        self,
        renewers: Iterable[str] = (),
        *,
        owner: str | None = None,
        max_lifetime_ms: int = -1,
    ) -> DelegationToken:
        """Create a token that logs in as the user of this client, or as `owner`."""
        lifetime_ms = number_of(max_lifetime_ms, "max_lifetime_ms", -1, INT64_MAX)
        return await self._open.tokens.create(renewers, owner, lifetime_ms)

    async def renew_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Renew a token for a time, -1 for the usual one; when it expires now, since the epoch."""
        period_ms = number_of(period_ms, "period_ms", -1, INT64_MAX)
        return await self._open.tokens.renew(hmac, period_ms)

    async def expire_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let a token expire after a time, at once with -1; when it does, since the epoch."""
        period_ms = number_of(period_ms, "period_ms", -1, INT64_MAX)
        return await self._open.tokens.expire(hmac, period_ms)

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None
    ) -> list[DelegationToken]:
        """The tokens of owners, or all, as far as the user of this client may know of them."""
        return await self._open.tokens.describe(owners)


def _cluster(**config: Unpack[AdminConfig]) -> ClusterClient:
    # CLI commands construct the client with `over` and do not need the options.
    from headrace.client.options import admin_options  # noqa: PLC0415

    options = admin_options(**config)
    return ClusterClient(options.bootstrap_servers, **options.cluster_arguments())


def _new_topics(topics: Iterable[NewTopic | str]) -> list[NewTopic]:
    if isinstance(topics, str | NewTopic):
        raise TypeError(f"{topics!r} is one topic, not a list of them; write [{topics!r}]")
    wanted = [topic if isinstance(topic, NewTopic) else NewTopic(topic) for topic in topics]
    seen: set[str] = set()
    for topic in wanted:
        if topic.name in seen:
            raise ValueError(f"topic {topic.name} is given twice; leave one of them out")
        seen.add(topic.name)
    return wanted


def _committed(tp: TopicPartition, given: int | OffsetAndMetadata) -> OffsetAndMetadata:
    committed = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
    number_of(committed.offset, f"offset of {tp}", 0, INT64_MAX)
    return committed


# The name under which `headrace.aio` exports the class.
AsyncAdmin.__name__ = "Admin"
