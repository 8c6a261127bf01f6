"""A call of every method of Kafka's Java Admin client, in an order that works.

Each is a function of a `Calls`, and returns a value that two brokers can be compared by.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

from tests.compat.brokers import Node

TOPIC = "admin-calls"
COMPACTED = "admin-calls-compacted"
GROUP = "admin-calls-readers"
TRANSACTION = "admin-calls-transaction"
_TIMEOUT_MS = 60_000

Call = Callable[["Calls"], Any]
CALLS: dict[str, Call] = {}


def call(function: Call) -> Call:
    """Register the call of the method that has the function's name, in Java's spelling."""
    first, *rest = function.__name__.split("_")
    CALLS[first + "".join(word.capitalize() for word in rest)] = function
    return function


class Calls:
    """An admin client of a broker, and short ways to Java's values."""

    def __init__(self, jvm: Any, node: Node) -> None:
        self.jvm = jvm
        self.node = node
        config = {
            "bootstrap.servers": node.server,
            "default.api.timeout.ms": "30000",
            "enable.metrics.push": "true",
        }
        self.admin = self.jvm.org.apache.kafka.clients.admin.Admin.create(self.map(config))

    # -- values

    @property
    def types(self) -> Any:
        return self.jvm.org.apache.kafka.clients.admin

    @property
    def common(self) -> Any:
        return self.jvm.org.apache.kafka.common

    def map(self, items: Mapping[Any, Any]) -> JavaObject:
        made = self.jvm.java.util.HashMap()
        for key, value in items.items():
            made.put(key, value)
        return made

    def list(self, *items: Any) -> JavaObject:
        made = self.jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made

    def set(self, *items: Any) -> JavaObject:
        return self.jvm.java.util.LinkedHashSet(self.list(*items))

    def partition(self, number: int = 0, topic: str = TOPIC) -> JavaObject:
        return self.common.TopicPartition(topic, number)

    def resource(self, kind: str, name: str) -> JavaObject:
        config = self.common.config.ConfigResource
        return config(getattr(config.Type, kind), name)

    def records_before(self, offset: int) -> JavaObject:
        """The value of RecordsToDelete.beforeOffset, which hides behind a getter of its name."""
        lang = self.jvm.java.lang
        kind = lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        parameters = self._array(lang.Class.forName("java.lang.Class"), lang.Long.TYPE)
        arguments = self._array(lang.Class.forName("java.lang.Object"), lang.Long.valueOf(offset))
        return kind.getMethod("beforeOffset", parameters).invoke(None, arguments)

    def hmac(self) -> JavaObject:
        return self.jvm.java.lang.reflect.Array.newInstance(self.jvm.java.lang.Byte.TYPE, 4)

    def _array(self, kind: JavaObject, item: Any) -> JavaObject:
        made = self.jvm.java.lang.reflect.Array.newInstance(kind, 1)
        made[0] = item
        return made

    # -- results

    def get(self, future: JavaObject) -> Any:
        """The value of a future; the exception it failed with is raised."""
        return future.get(_TIMEOUT_MS, self.jvm.java.util.concurrent.TimeUnit.MILLISECONDS)

    def settings(self, resource: JavaObject, names: Iterable[str]) -> dict[str, str]:
        """Values, sources and synonyms of settings."""
        options = self.types.DescribeConfigsOptions().includeSynonyms(True)
        config = self.get(self.admin.describeConfigs(self.list(resource), options).all()).get(
            resource
        )
        found = {}
        for name in names:
            entry = config.get(name)
            if entry is None:
                found[name] = "unknown"
                continue
            synonyms = [f"{each.name()} {each.source()}" for each in entry.synonyms()]
            found[name] = f"{entry.value()} {entry.source()} {entry.isReadOnly()} {synonyms}"
        return found


# -- topics


@call
def create_topics(calls: Calls) -> Any:
    topic = calls.types.NewTopic(TOPIC, 2, 1)
    compacted = calls.types.NewTopic(COMPACTED, 1, 1).configs(
        calls.map({"cleanup.policy": "compact", "compression.zstd.level": "5"})
    )
    result = calls.admin.createTopics(calls.list(topic, compacted))
    calls.get(result.all())
    return [calls.get(result.numPartitions(TOPIC)), calls.get(result.replicationFactor(TOPIC))]


@call
def list_topics(calls: Calls) -> Any:
    names = calls.get(calls.admin.listTopics().names())
    return sorted(name for name in names if name.startswith("admin-calls"))


@call
def describe_topics(calls: Calls) -> Any:
    return calls.get(calls.admin.describeTopics(calls.list(TOPIC)).allTopicNames())


@call
def create_partitions(calls: Calls) -> Any:
    more = calls.types.NewPartitions.increaseTo(3)
    return calls.get(calls.admin.createPartitions(calls.map({TOPIC: more})).all())


@call
def describe_configs(calls: Calls) -> Any:
    topic = calls.settings(
        calls.resource("TOPIC", COMPACTED),
        [
            "cleanup.policy",
            "compression.zstd.level",
            "retention.ms",
            "segment.bytes",
            "min.insync.replicas",
            "local.retention.ms",
            "preallocate",
            "remote.storage.enable",
        ],
    )
    broker = calls.settings(
        calls.resource("BROKER", "1"),
        [
            "num.io.threads",
            "num.network.threads",
            "background.threads",
            "log.cleaner.threads",
            "log.retention.ms",
            "log.segment.bytes",
            "node.id",
            "auto.create.topics.enable",
        ],
    )
    return topic | broker


@call
def incremental_alter_configs(calls: Calls) -> Any:
    kinds = calls.types.AlterConfigOp.OpType
    entry, operation = calls.types.ConfigEntry, calls.types.AlterConfigOp
    topic = calls.resource("TOPIC", TOPIC)
    changes = [
        operation(entry("retention.ms", "123456"), kinds.SET),
        operation(entry("leader.replication.throttled.replicas", ""), kinds.DELETE),
        operation(entry("cleanup.policy", "compact"), kinds.APPEND),
    ]
    calls.get(calls.admin.incrementalAlterConfigs(calls.map({topic: calls.list(*changes)})).all())
    unset = [
        operation(entry("cleanup.policy", "compact"), kinds.SUBTRACT),
        operation(entry("retention.ms", ""), kinds.DELETE),
    ]
    calls.get(calls.admin.incrementalAlterConfigs(calls.map({topic: calls.list(*unset)})).all())
    return calls.settings(topic, ["retention.ms", "cleanup.policy"])


@call
def list_config_resources(calls: Calls) -> Any:
    return calls.get(calls.admin.listConfigResources().all())


@call
def list_client_metrics_resources(calls: Calls) -> Any:
    return calls.get(calls.admin.listClientMetricsResources().all())


@call
def list_offsets(calls: Calls) -> Any:
    latest = calls.types.OffsetSpec.latest()
    found = calls.get(calls.admin.listOffsets(calls.map({calls.partition(): latest})).all())
    return [found[tp].offset() for tp in found]


@call
def delete_records(calls: Calls) -> Any:
    before = calls.records_before(2)
    result = calls.admin.deleteRecords(calls.map({calls.partition(): before}))
    return [calls.get(future).lowWatermark() for future in result.lowWatermarks().values()]


@call
def elect_leaders(calls: Calls) -> Any:
    preferred = calls.common.ElectionType.PREFERRED
    return calls.get(calls.admin.electLeaders(preferred, calls.set(calls.partition())).all())


@call
def alter_partition_reassignments(calls: Calls) -> Any:
    optional = calls.jvm.java.util.Optional
    target = optional.of(calls.types.NewPartitionReassignment(calls.list(1)))
    return calls.get(
        calls.admin.alterPartitionReassignments(calls.map({calls.partition(): target})).all()
    )


@call
def list_partition_reassignments(calls: Calls) -> Any:
    return calls.get(calls.admin.listPartitionReassignments().reassignments())


@call
def describe_log_dirs(calls: Calls) -> Any:
    found = calls.get(calls.admin.describeLogDirs(calls.list(1)).allDescriptions())
    return [
        sorted(
            str(tp)
            for directory in directories.values()
            for tp in directory.replicaInfos()
            if tp.topic() == TOPIC
        )
        for directories in found.values()
    ]


@call
def describe_replica_log_dirs(calls: Calls) -> Any:
    replica = calls.common.TopicPartitionReplica(TOPIC, 0, 1)
    return calls.get(calls.admin.describeReplicaLogDirs(calls.list(replica)).all())


@call
def alter_replica_log_dirs(calls: Calls) -> Any:
    replica = calls.common.TopicPartitionReplica(TOPIC, 0, 1)
    first, second = calls.node.directories
    target = second if (first / f"{TOPIC}-0").exists() else first
    return calls.get(calls.admin.alterReplicaLogDirs(calls.map({replica: str(target)})).all())


# -- the cluster


@call
def describe_cluster(calls: Calls) -> Any:
    found = calls.admin.describeCluster()
    return [calls.get(found.nodes()), calls.get(found.controller()).id()]


@call
def describe_features(calls: Calls) -> Any:
    found = calls.get(calls.admin.describeFeatures().featureMetadata())
    levels, ranges = found.finalizedFeatures(), found.supportedFeatures()
    return {f"finalized {name}": levels[name] for name in levels} | {
        f"supported {name}": ranges[name] for name in ranges
    }


@call
def update_features(calls: Calls) -> Any:
    kinds = calls.types.FeatureUpdate.UpgradeType
    update = calls.types.FeatureUpdate(1, kinds.SAFE_DOWNGRADE)
    options = calls.types.UpdateFeaturesOptions().validateOnly(True)
    return calls.get(
        calls.admin.updateFeatures(calls.map({"transaction.version": update}), options).all()
    )


@call
def describe_metadata_quorum(calls: Calls) -> Any:
    found = calls.get(calls.admin.describeMetadataQuorum().quorumInfo())
    return [found.leaderId(), [voter.replicaId() for voter in found.voters()], found.nodes()]


@call
def add_raft_voter(calls: Calls) -> Any:
    endpoint = calls.types.RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 1)
    result = calls.admin.addRaftVoter(9, calls.common.Uuid(1, 2), calls.set(endpoint))
    return calls.get(result.all())


@call
def remove_raft_voter(calls: Calls) -> Any:
    return calls.get(calls.admin.removeRaftVoter(9, calls.common.Uuid(1, 2)).all())


@call
def unregister_broker(calls: Calls) -> Any:
    return calls.get(calls.admin.unregisterBroker(77).all())


@call
def client_instance_id(calls: Calls) -> Any:
    return calls.admin.clientInstanceId(calls.jvm.java.time.Duration.ofSeconds(5))


# -- groups


@call
def alter_consumer_group_offsets(calls: Calls) -> Any:
    offset = calls.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(3)
    offsets = calls.map({calls.partition(): offset})
    return calls.get(calls.admin.alterConsumerGroupOffsets(GROUP, offsets).all())


@call
def list_consumer_group_offsets(calls: Calls) -> Any:
    found = calls.get(calls.admin.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata())
    return {str(tp): found[tp].offset() for tp in found}


@call
def list_consumer_groups(calls: Calls) -> Any:
    found = calls.get(calls.admin.listConsumerGroups().all())
    return [str(each) for each in found if each.groupId() == GROUP]


@call
def list_groups(calls: Calls) -> Any:
    found = calls.get(calls.admin.listGroups().all())
    return [str(each) for each in found if each.groupId() == GROUP]


@call
def describe_consumer_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.describeConsumerGroups(calls.list(GROUP)).all())


@call
def describe_classic_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.describeClassicGroups(calls.list(GROUP)).all())


@call
def remove_members_from_consumer_group(calls: Calls) -> Any:
    options = calls.types.RemoveMembersFromConsumerGroupOptions(
        calls.set(calls.types.MemberToRemove("nobody"))
    )
    return calls.get(calls.admin.removeMembersFromConsumerGroup(GROUP, options).all())


@call
def delete_consumer_group_offsets(calls: Calls) -> Any:
    return calls.get(
        calls.admin.deleteConsumerGroupOffsets(GROUP, calls.set(calls.partition())).all()
    )


@call
def delete_consumer_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.deleteConsumerGroups(calls.list(GROUP)).all())


@call
def describe_share_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.describeShareGroups(calls.list("nobody")).all())


@call
def alter_share_group_offsets(calls: Calls) -> Any:
    # A number that py4j passes on as a long.
    offsets = calls.map({calls.partition(): 2**40})
    return calls.get(calls.admin.alterShareGroupOffsets("nobody", offsets).all())


@call
def list_share_group_offsets(calls: Calls) -> Any:
    spec = calls.types.ListShareGroupOffsetsSpec()
    return calls.get(calls.admin.listShareGroupOffsets(calls.map({"nobody": spec})).all())


@call
def delete_share_group_offsets(calls: Calls) -> Any:
    return calls.get(calls.admin.deleteShareGroupOffsets("nobody", calls.set(TOPIC)).all())


@call
def delete_share_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.deleteShareGroups(calls.list("nobody")).all())


@call
def describe_streams_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.describeStreamsGroups(calls.list("nobody")).all())


@call
def list_streams_group_offsets(calls: Calls) -> Any:
    spec = calls.types.ListStreamsGroupOffsetsSpec()
    return calls.get(calls.admin.listStreamsGroupOffsets(calls.map({"nobody": spec})).all())


@call
def alter_streams_group_offsets(calls: Calls) -> Any:
    offset = calls.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(3)
    offsets = calls.map({calls.partition(): offset})
    return calls.get(calls.admin.alterStreamsGroupOffsets("nobody-streams", offsets).all())


@call
def delete_streams_group_offsets(calls: Calls) -> Any:
    return calls.get(
        calls.admin.deleteStreamsGroupOffsets("nobody", calls.set(calls.partition())).all()
    )


@call
def delete_streams_groups(calls: Calls) -> Any:
    return calls.get(calls.admin.deleteStreamsGroups(calls.list("nobody")).all())


# -- transactions


@call
def fence_producers(calls: Calls) -> Any:
    return calls.get(calls.admin.fenceProducers(calls.list(TRANSACTION)).all())


@call
def list_transactions(calls: Calls) -> Any:
    found = calls.get(calls.admin.listTransactions().all())
    return sorted(f"{each.transactionalId()} {each.state()}" for each in found)


@call
def describe_transactions(calls: Calls) -> Any:
    found = calls.get(calls.admin.describeTransactions(calls.list(TRANSACTION)).all())
    return [f"{each.state()} {each.producerEpoch()}" for each in found.values()]


@call
def describe_producers(calls: Calls) -> Any:
    return calls.get(calls.admin.describeProducers(calls.list(calls.partition())).all())


@call
def abort_transaction(calls: Calls) -> Any:
    spec = calls.types.AbortTransactionSpec(calls.partition(), 1_000_000, 0, 0)
    return calls.get(calls.admin.abortTransaction(spec).all())


@call
def force_terminate_transaction(calls: Calls) -> Any:
    return calls.get(calls.admin.forceTerminateTransaction(TRANSACTION).result())


# -- security and quotas


def _acl_filter(calls: Calls) -> JavaObject:
    return calls.common.acl.AclBindingFilter.ANY


@call
def describe_acls(calls: Calls) -> Any:
    return calls.get(calls.admin.describeAcls(_acl_filter(calls)).values())


@call
def create_acls(calls: Calls) -> Any:
    resource = calls.common.resource
    pattern = resource.ResourcePattern(
        resource.ResourceType.TOPIC, TOPIC, resource.PatternType.LITERAL
    )
    acl = calls.common.acl
    entry = acl.AccessControlEntry(
        "User:a", "*", acl.AclOperation.READ, acl.AclPermissionType.ALLOW
    )
    return calls.get(calls.admin.createAcls(calls.list(acl.AclBinding(pattern, entry))).all())


@call
def delete_acls(calls: Calls) -> Any:
    return calls.get(calls.admin.deleteAcls(calls.list(_acl_filter(calls))).all())


@call
def create_delegation_token(calls: Calls) -> Any:
    return calls.get(calls.admin.createDelegationToken().delegationToken())


@call
def renew_delegation_token(calls: Calls) -> Any:
    return calls.get(calls.admin.renewDelegationToken(calls.hmac()).expiryTimestamp())


@call
def expire_delegation_token(calls: Calls) -> Any:
    return calls.get(calls.admin.expireDelegationToken(calls.hmac()).expiryTimestamp())


@call
def describe_delegation_token(calls: Calls) -> Any:
    return calls.get(calls.admin.describeDelegationToken().delegationTokens())


@call
def describe_user_scram_credentials(calls: Calls) -> Any:
    return calls.get(calls.admin.describeUserScramCredentials().all())


@call
def alter_user_scram_credentials(calls: Calls) -> Any:
    mechanism = calls.types.ScramMechanism.SCRAM_SHA_256
    deletion = calls.types.UserScramCredentialDeletion("nobody", mechanism)
    return calls.get(calls.admin.alterUserScramCredentials(calls.list(deletion)).all())


@call
def describe_client_quotas(calls: Calls) -> Any:
    everything = calls.common.quota.ClientQuotaFilter.all()
    return calls.get(calls.admin.describeClientQuotas(everything).entities())


@call
def alter_client_quotas(calls: Calls) -> Any:
    quota = calls.common.quota
    entity = quota.ClientQuotaEntity(calls.map({"client-id": "admin-calls"}))
    operation = quota.ClientQuotaAlteration.Op("consumer_byte_rate", None)
    alteration = quota.ClientQuotaAlteration(entity, calls.list(operation))
    return calls.get(calls.admin.alterClientQuotas(calls.list(alteration)).all())


# -- the client itself, and the end


@call
def metrics(calls: Calls) -> Any:
    return calls.admin.metrics().size() > 0


@call
def register_metric_for_subscription(calls: Calls) -> Any:
    return calls.admin.registerMetricForSubscription(next(iter(calls.admin.metrics().values())))


@call
def unregister_metric_from_subscription(calls: Calls) -> Any:
    return calls.admin.unregisterMetricFromSubscription(next(iter(calls.admin.metrics().values())))


@call
def delete_topics(calls: Calls) -> Any:
    return calls.get(calls.admin.deleteTopics(calls.list(TOPIC, COMPACTED)).all())


@call
def close(calls: Calls) -> Any:
    return calls.admin.close()
