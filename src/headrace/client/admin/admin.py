"""The blocking admin client: `headrace.Admin`.

Rule: every call is a coroutine of `headrace.client.admin.aio`, run on the client's own thread.
Checks, requests and errors are decided there. The blocking and asyncio classes of producer and
consumer share a module; these do not, because so many calls with an example each make more than
1,000 lines.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headrace.client.admin import aio
from headrace.client.admin.arguments import ConfigValue
from headrace.client.admin.topics import BROKER_DEFAULT, CreatedTopic, NewTopic
from headrace.client.blocking import LoopThread
from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.types import OffsetAndMetadata, OffsetAndTimestamp
from headrace.net.addresses import Address
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.acls import Acl, AclSelection, Role
    from headrace.client.admin.cluster import (
        BrokerHealth,
        ClusterDescription,
        LogDirectory,
        QuorumDescription,
    )
    from headrace.client.admin.configs import ConfigEntry, ConfigOwner
    from headrace.client.admin.features import Features, UpdateFeaturesOptions
    from headrace.client.admin.groups import GroupDescription, GroupListing, GroupProgress
    from headrace.client.admin.quotas import OwnerQuotas, QuotaOwner
    from headrace.client.admin.reassignments import Reassignment
    from headrace.client.admin.topics import EligibleReplicas
    from headrace.client.admin.transactions import (
        FencedProducer,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )
    from headrace.client.admin.users import DelegationToken, ScramDeletion, ScramUpsertion
    from headrace.client.options import AdminConfig

Result = TypeVar("Result")


class Admin:
    """Describes and changes the topics, settings, groups and offsets of a cluster.

    It connects at the first call, may be shared by threads, and is closed with `close` or by
    leaving a `with` block. Every call ends within `request_timeout_ms`: reads, and commands that
    may be repeated, are retried until then. Any other command whose response was lost raises
    `OutcomeUnknown`.

    A call about one subject raises its error. A call about several returns the result of each, or
    raises `SomeFailed`: its `outcomes` have the result or the error of each, its code is that of
    the first error.

    With `admin = headrace.Admin(bootstrap_servers="localhost:9092")`:

    >>> admin.create_topic(f"{topic}-orders", partitions=6).partitions
    6
    >>> [partition.leader for partition in admin.describe_topic(f"{topic}-orders").partitions]
    [1, 1, 1, 1, 1, 1]
    """

    def __init__(self, **config: Unpack[AdminConfig]) -> None:
        self._start(aio.AsyncAdmin(**config))

    @classmethod
    def over(cls, cluster: ClusterClient) -> Self:
        """An admin client over a cluster; closing the admin client closes the cluster too.

        The cluster must be unused so far: from now on the admin client's own thread uses it.
        """
        admin = cls.__new__(cls)
        admin._start(aio.AsyncAdmin.over(cluster))
        return admin

    def _start(self, inner: aio.AsyncAdmin) -> None:
        self._inner = inner
        self._thread = LoopThread("headrace-admin")

    def __repr__(self) -> str:
        return repr(self._inner).replace("headrace.aio.", "headrace.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be called again; any other call raises `Closed` afterwards."""
        if not self._thread.is_closed:
            try:
                self._thread.run(self._inner.close())
            finally:
                self._thread.close()

    @property
    def client_id(self) -> str:
        """The client id, which the broker's log and the metrics show."""
        return self._inner.client_id

    def metrics(self) -> dict[str, float]:
        """The metrics of this admin client, under Kafka's names.

        >>> created = admin.create_topic(f"{topic}-measured")
        >>> admin.metrics()["request-total"] >= 1
        True
        """
        return self._inner.metrics()

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.run(call)

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, ConfigValue] | None = None,
    ) -> CreatedTopic:
        """Create a topic; -1 takes the broker's default for a number.

        >>> from headrace import KafkaError
        >>> name = f"{topic}-clicks"
        >>> admin.create_topic(name, partitions=3, configs={"retention.ms": 60_000}).partitions
        3
        >>> try:
        ...     admin.create_topic(name)
        ... except KafkaError as error:
        ...     print(error.code.name)
        TOPIC_ALREADY_EXISTS
        """
        return self._run(self._inner.create_topic(name, partitions, replication_factor, configs))

    def create_topics(self, topics: Iterable[NewTopic | str]) -> dict[str, CreatedTopic]:
        """Create topics; a plain name takes the broker's defaults for the rest.

        >>> from headrace import NewTopic, SomeFailed
        >>> one, other = f"{topic}-one", f"{topic}-other"
        >>> created = admin.create_topics([one])
        >>> try:
        ...     admin.create_topics([one, NewTopic(other, partitions=2)])
        ... except SomeFailed as failed:
        ...     print(failed.errors[one].code.name, failed.outcomes[other].partitions)
        TOPIC_ALREADY_EXISTS 2
        """
        return self._run(self._inner.create_topics(topics))

    def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """The topics by name; internal topics only with `internal`.

        >>> created = admin.create_topic(f"{topic}-listed")
        >>> f"{topic}-listed" in admin.list_topics()
        True
        """
        return self._run(self._inner.list_topics(internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        """A topic and its partitions; `UnknownTopic` if the topic does not exist.

        >>> created = admin.create_topic(f"{topic}-described", partitions=2)
        >>> [partition.index for partition in admin.describe_topic(f"{topic}-described").partitions]
        [0, 1]
        """
        return self._run(self._inner.describe_topic(name))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Topics and their partitions, in the order of the names.

        >>> created = admin.create_topics([f"{topic}-a", f"{topic}-b"])
        >>> found = admin.describe_topics(list(created))
        >>> [len(topic.partitions) for topic in found.values()]
        [1, 1]
        """
        return self._run(self._inner.describe_topics(names))

    def describe_eligible_replicas(
        self, names: Iterable[str]
    ) -> dict[TopicPartition, EligibleReplicas]:
        """Partitions of topics that have eligible leader replicas, or had them until a restart.

        >>> created = admin.create_topic(f"{topic}-eligible")
        >>> admin.describe_eligible_replicas([f"{topic}-eligible"])
        {}
        """
        return self._run(self._inner.describe_eligible_replicas(names))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; `KafkaError` if the topic does not exist."""
        self._run(self._inner.delete_topic(name))

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records.

        >>> created = admin.create_topics([f"{topic}-old", f"{topic}-older"])
        >>> admin.delete_topics(created)
        >>> f"{topic}-old" in admin.list_topics()
        False
        """
        self._run(self._inner.delete_topics(names))

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Raise the numbers of partitions of topics to `counts`.

        Records stay where they are, so keys that are written later may go to other partitions than
        before.

        >>> created = admin.create_topic(f"{topic}-growing")
        >>> admin.create_partitions({f"{topic}-growing": 4})
        >>> len(admin.describe_topic(f"{topic}-growing").partitions)
        4
        """
        self._run(self._inner.create_partitions(counts))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before offsets, or all with `LATEST`; returns the new log start
        offsets.

        >>> from headrace import LATEST, TopicPartition
        >>> sent = producer.send(f"{topic}-emptied", b"gone soon", partition=0).result()
        >>> admin.delete_records({TopicPartition(f"{topic}-emptied", 0): LATEST}).values()
        dict_values([1])
        """
        return self._run(self._inner.delete_records(before))

    # -- settings

    def describe_configs(self, **owner: Unpack[ConfigOwner]) -> dict[str, ConfigEntry]:
        """The settings, by name, of the resource that a keyword names (`topic=`, `broker=`, ...)

        >>> created = admin.create_topic(f"{topic}-kept", configs={"retention.ms": -1})
        >>> retention = admin.describe_configs(topic=f"{topic}-kept")["retention.ms"]
        >>> retention.value, retention.source, retention.is_default
        ('-1', 'topic_config', False)
        """
        return self._run(self._inner.describe_configs(**owner))

    def alter_configs(
        self, settings: Mapping[str, ConfigValue | None], **owner: Unpack[ConfigOwner]
    ) -> None:
        """Change settings of the resource that a keyword names; None restores the default.

        >>> name = f"{topic}-shortlived"
        >>> created = admin.create_topic(name)
        >>> admin.alter_configs({"retention.ms": 3_600_000}, topic=name)
        >>> admin.describe_configs(topic=name)["retention.ms"].value
        '3600000'
        >>> admin.alter_configs({"retention.ms": None}, topic=name)
        >>> admin.describe_configs(topic=name)["retention.ms"].is_default
        True
        """
        self._run(self._inner.alter_configs(settings, **owner))

    def list_config_resources(self, kinds: Iterable[str] = ()) -> dict[str, list[str]]:
        """The resources that can have settings, by kind: "topic", "broker", "group", ...

        >>> admin.list_config_resources(["broker"])
        {'broker': ['1']}
        """
        return self._run(self._inner.list_config_resources(kinds))

    def describe_client_quotas(
        self, kinds: Iterable[str] = (), *, exact: bool = False, **owner: Unpack[QuotaOwner]
    ) -> list[OwnerQuotas]:
        """The quotas of all, or of those with these names and kinds ("user", "client_id", "ip").

        A name of None is the default of its kind. With `exact` only those that have nothing else.
        """
        return self._run(self._inner.describe_client_quotas(kinds, exact=exact, **owner))

    def alter_client_quotas(
        self,
        quotas: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        **owner: Unpack[QuotaOwner],
    ) -> None:
        """Set quotas of `user=`, `client_id=`, both or `ip=`; a value of None removes one.

        A name of None is the default of its kind.

        >>> admin.alter_client_quotas({"producer_byte_rate": 1_000_000}, client_id="nightly-load")
        >>> [quotas.quotas for quotas in admin.describe_client_quotas(client_id="nightly-load")]
        [{'producer_byte_rate': 1000000.0}]
        """
        self._run(self._inner.alter_client_quotas(quotas, validate_only=validate_only, **owner))

    # -- offsets

    def offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offsets at `EARLIEST`, at `LATEST`, or of the first record not older than a time.

        A time is in milliseconds since 1970; the offset is -1 where no record is that late.

        >>> from headrace import EARLIEST, LATEST, TopicPartition
        >>> name = f"{topic}-dated"
        >>> sent = producer.send(name, b"x", partition=0, timestamp_ms=1_700_000_000_000).result()
        >>> tp = TopicPartition(name, 0)
        >>> admin.offsets({tp: EARLIEST})[tp].offset, admin.offsets({tp: LATEST})[tp].offset
        (0, 1)
        >>> admin.offsets({tp: 1_600_000_000_000})[tp].timestamp
        1700000000000
        """
        return self._run(self._inner.offsets(wanted))

    # -- groups

    def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> dict[str, GroupListing]:
        """The groups by name: all, or those in some states or of some types.

        >>> "nobody" in admin.list_groups(states=["Stable"], types=["classic"])
        False
        """
        return self._run(self._inner.list_groups(states, types))

    def describe_group(self, name: str) -> GroupDescription:
        """A group and its members; `KafkaError` with GROUP_ID_NOT_FOUND if the group does not
        exist.
        """
        return self._run(self._inner.describe_group(name))

    def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        """Groups and their members, in the order of the names.

        >>> from headrace import TopicPartition
        >>> created = admin.create_topic(f"{topic}-watched")
        >>> tp = TopicPartition(f"{topic}-watched", 0)
        >>> admin.alter_group_offsets(f"{topic}-watchers", {tp: 0})
        >>> group = admin.describe_groups([f"{topic}-watchers"])[f"{topic}-watchers"]
        >>> group.state, len(group.members)
        ('Empty', 0)
        """
        return self._run(self._inner.describe_groups(names))

    def group_progress(
        self, groups: Iterable[str | GroupDescription]
    ) -> dict[str, tuple[GroupProgress, ...]]:
        """The progress and lag of groups in the partitions they have committed or are assigned.

        >>> from headrace import TopicPartition
        >>> name, group = f"{topic}-lagging", f"{topic}-laggards"
        >>> sent = [producer.send(name, b"x", partition=0).result() for number in range(3)]
        >>> admin.alter_group_offsets(group, {TopicPartition(name, 0): 1})
        >>> [partition] = admin.group_progress([group])[group]
        >>> partition.committed_offset, partition.lag
        (1, 2)
        """
        return self._run(self._inner.group_progress(groups))

    def delete_groups(self, names: Iterable[str]) -> None:
        """Delete groups without members, with all their committed offsets.

        >>> from headrace import TopicPartition
        >>> created = admin.create_topic(f"{topic}-left")
        >>> admin.alter_group_offsets(f"{topic}-leavers", {TopicPartition(f"{topic}-left", 0): 0})
        >>> admin.delete_groups([f"{topic}-leavers"])
        >>> f"{topic}-leavers" in admin.list_groups()
        False
        """
        self._run(self._inner.delete_groups(names))

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group; empty for a group that does not exist.

        >>> admin.group_offsets(f"{topic}-nobody")
        {}
        """
        return self._run(self._inner.group_offsets(group))

    def offsets_of_groups(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of several groups, in few requests; empty for an unknown group.

        >>> admin.offsets_of_groups([f"{topic}-nobody", f"{topic}-none"])
        {'...-nobody': {}, '...-none': {}}
        """
        return self._run(self._inner.offsets_of_groups(groups))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group that has no members; the group need not exist.

        >>> from headrace import OffsetAndMetadata, TopicPartition
        >>> created = admin.create_topic(f"{topic}-moved")
        >>> tp = TopicPartition(f"{topic}-moved", 0)
        >>> admin.alter_group_offsets(f"{topic}-movers", {tp: OffsetAndMetadata(7, "by hand")})
        >>> admin.group_offsets(f"{topic}-movers")[tp].metadata
        'by hand'
        """
        self._run(self._inner.alter_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group in topics that no member subscribes to.

        >>> from headrace import TopicPartition
        >>> created = admin.create_topic(f"{topic}-forgotten")
        >>> tp = TopicPartition(f"{topic}-forgotten", 0)
        >>> admin.alter_group_offsets(f"{topic}-forgetful", {tp: 7})
        >>> admin.delete_group_offsets(f"{topic}-forgetful", [tp])
        >>> admin.group_offsets(f"{topic}-forgetful")
        {}
        """
        self._run(self._inner.delete_group_offsets(group, partitions))

    # -- transactions

    def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int | None = None,
        pattern: str | None = None,
    ) -> dict[str, TransactionListing]:
        """The transactional ids: all, or those in some states, of some producers, or open for that
        long.

        `pattern` is a regular expression, in the syntax of RE2, for the whole transactional id.

        >>> admin.list_transactions(states=["Ongoing"], duration_ms=60_000)
        {}
        """
        return self._run(self._inner.list_transactions(states, producer_ids, duration_ms, pattern))

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription]:
        """The state, producer and partitions of transactional ids."""
        return self._run(self._inner.describe_transactions(transactional_ids))

    def describe_producers(
        self, partitions: Iterable[TopicPartition], broker_id: int | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers, with their open transactions, that the leaders or one broker's replicas
        know.
        """
        return self._run(self._inner.describe_producers(partitions, broker_id))

    def abort_transaction(
        self,
        partition: TopicPartition,
        *,
        producer_id: int | None = None,
        start_offset: int | None = None,
    ) -> ProducerState:
        """Abort a hanging transaction in one partition: one that no coordinator will end.

        It is found by its producer or by its first offset; `headrace transactions find-hanging`
        finds such transactions. Others are aborted by `fence_producers`.
        """
        call = self._inner.abort_transaction(
            partition, producer_id=producer_id, start_offset=start_offset
        )
        return self._run(call)

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Fence the producers of transactional ids, and abort their open transactions."""
        return self._run(self._inner.fence_producers(transactional_ids))

    # -- the cluster

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """The id, the controller and the brokers of the cluster; fenced brokers only on request.

        >>> cluster = admin.describe_cluster(include_fenced=True)
        >>> [broker.is_fenced for broker in cluster.brokers]
        [False]
        """
        return self._run(self._inner.describe_cluster(include_fenced=include_fenced))

    def unregister_broker(self, broker: int) -> None:
        """Remove the registration of a broker that was stopped for good and holds no replica."""
        self._run(self._inner.unregister_broker(broker))

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, tuple[LogDirectory, ...]]:
        """The data directories of brokers, by default of all, with the size of each replica.

        >>> from headrace import TopicPartition
        >>> sent = producer.send(f"{topic}-sized", b"x" * 1000, partition=0).result()
        >>> [directory] = admin.describe_log_dirs([1])[1]
        >>> directory.replicas[TopicPartition(f"{topic}-sized", 0)] > 1000
        True
        """
        return self._run(self._inner.describe_log_dirs(brokers))

    def describe_health(self, brokers: Iterable[int] | None = None) -> dict[int, BrokerHealth]:
        """The health of replicas and data directories of brokers, by default of all.

        Only headrace's brokers report it: how far they are with reading their segments again, which
        logs they have set aside, and which replicas are stopped, damaged or lost.

        >>> health = admin.describe_health([1])[1]
        >>> health.problems
        ()
        >>> [directory.damaged_segments for directory in health.health.values()]
        [0]
        """
        return self._run(self._inner.describe_health(brokers))

    def alter_replica_log_dirs(self, broker: int, targets: Mapping[TopicPartition, str]) -> None:
        """Start moving replicas of a broker to other directories in its `log.dirs`, by path."""
        self._run(self._inner.alter_replica_log_dirs(broker, targets))

    # -- replicas and leaders

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Move partitions to these brokers, the preferred leader first; None cancels a move.

        Returns when the moves have begun: `list_partition_reassignments` lists those under way.

        >>> from headrace import TopicPartition
        >>> created = admin.create_topic(f"{topic}-placed")
        >>> admin.alter_partition_reassignments({TopicPartition(f"{topic}-placed", 0): [1]})
        """
        self._run(
            self._inner.alter_partition_reassignments(
                targets, allow_replication_factor_change=allow_replication_factor_change
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments under way: all, or those of some partitions.

        >>> admin.list_partition_reassignments()
        {}
        """
        return self._run(self._inner.list_partition_reassignments(partitions))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, bool]:
        """Elect the preferred replicas as leaders; returns whether each partition's leader changed.

        Without `partitions` all are elected, and the result has only those that changed. An unclean
        election takes a replica that is not in sync if no other is left: records may be lost by it.

        >>> from headrace import TopicPartition
        >>> created = admin.create_topic(f"{topic}-led")
        >>> admin.elect_leaders([TopicPartition(f"{topic}-led", 0)]).values()
        dict_values([False])
        """
        return self._run(self._inner.elect_leaders(partitions, unclean=unclean))

    # -- users and delegation tokens

    def describe_user_scram_credentials(
        self, users: Iterable[str] = ()
    ) -> dict[str, dict[str, int]]:
        """The mechanisms of users and their iterations, by name; of all users if none is named.

        >>> admin.describe_user_scram_credentials()
        {}
        """
        return self._run(self._inner.describe_user_scram_credentials(users))

    def alter_user_scram_credentials(
        self, changes: Iterable[ScramUpsertion | ScramDeletion]
    ) -> None:
        """Set and delete passwords of users.

        >>> from headrace import ScramDeletion, ScramUpsertion
        >>> admin.alter_user_scram_credentials(
        ...     [ScramUpsertion("alice", "SCRAM-SHA-512", "alice-secret")]
        ... )
        >>> admin.describe_user_scram_credentials(["alice"])
        {'alice': {'SCRAM-SHA-512': 4096}}
        >>> admin.alter_user_scram_credentials([ScramDeletion("alice", "SCRAM-SHA-512")])
        """
        self._run(self._inner.alter_user_scram_credentials(changes))

    def create_delegation_token(
        self,
        renewers: Iterable[str] = (),
        *,
        owner: str | None = None,
        max_lifetime_ms: int = -1,
    ) -> DelegationToken:
        """Create a token that logs in as the user of this client, or as `owner`.

        Principals are written as `User:alice`. A lifetime of -1 is the longest there is.
        """
        return self._run(
            self._inner.create_delegation_token(
                renewers, owner=owner, max_lifetime_ms=max_lifetime_ms
            )
        )

    def renew_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Renew a token for a time, -1 for the usual one; when it expires now, since the epoch."""
        return self._run(self._inner.renew_delegation_token(hmac, period_ms))

    def expire_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let a token expire after a time, at once with -1; when it does, since the epoch."""
        return self._run(self._inner.expire_delegation_token(hmac, period_ms))

    def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None
    ) -> list[DelegationToken]:
        """The tokens of owners, or all, as far as the user of this client may know of them."""
        return self._run(self._inner.describe_delegation_tokens(owners))

    # -- controllers

    def describe_quorum(self) -> QuorumDescription:
        """The controllers, and how far each has replicated the metadata log.

        >>> quorum = admin.describe_quorum()
        >>> quorum.leader_id in [voter.node_id for voter in quorum.voters]
        True
        """
        return self._run(self._inner.describe_quorum())

    def describe_features(self) -> Features:
        """The features of the cluster: the supported levels and the finalized level of each."""
        return self._run(self._inner.describe_features())

    def update_features(
        self, levels: Mapping[str, int], **options: Unpack[UpdateFeaturesOptions]
    ) -> None:
        """Change features to levels, all or none. They are raised, unless the options say
        otherwise.
        """
        self._run(self._inner.update_features(levels, **options))

    def add_voter(
        self, node: int, directory_id: bytes | str, endpoints: Mapping[str, Address | str]
    ) -> None:
        """Make an observer of the metadata log a voter.

        `describe_quorum` lists its id and directory id among the observers; `endpoints` are its
        addresses by the names of its listeners, as `{"CONTROLLER": "10.0.0.4:9093"}`.
        """
        self._run(self._inner.add_voter(node, directory_id, endpoints))

    def remove_voter(self, node: int, directory_id: bytes | str) -> None:
        """Remove a voter from the quorum of controllers; it may be stopped then."""
        self._run(self._inner.remove_voter(node, directory_id))

    # -- rights

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create access control lists; one that is there already is no error.

        `headrace.Acl("User:alice", "read", "topic", "orders")` allows alice to read a topic.
        """
        self._run(self._inner.create_acls(acls))

    def describe_acls(self, **selection: Unpack[AclSelection]) -> list[Acl]:
        """The ACLs that all given conditions select.

        `resource_type="topic", resource_name="orders", pattern="match"` selects all that count for
        the topic, those with a prefix or for all topics too.
        """
        return self._run(self._inner.describe_acls(**selection))

    def delete_acls(self, **selection: Unpack[AclSelection]) -> list[Acl]:
        """Delete the ACLs that all given conditions select, and return them."""
        return self._run(self._inner.delete_acls(**selection))

    def create_role(self, name: str, description: str = "") -> None:
        """Create a role; ACLs of the principal `Role:<name>` are its rights."""
        self._run(self._inner.create_role(name, description))

    def describe_roles(self, names: Iterable[str] = ()) -> dict[str, Role]:
        """Roles by name, with their members and rights; all if none is named."""
        return self._run(self._inner.describe_roles(names))

    def delete_role(self, name: str) -> None:
        """Delete a role with its bindings and rights."""
        self._run(self._inner.delete_role(name))

    def bind_role(self, name: str, members: Iterable[str]) -> None:
        """Give a role to principals (`User:alice`), or to groups of tokens (`Group:ops`)."""
        self._run(self._inner.bind_role(name, members))

    def unbind_role(self, name: str, members: Iterable[str]) -> None:
        """Take a role from members."""
        self._run(self._inner.unbind_role(name, members))
