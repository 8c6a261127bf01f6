"""The image: the state of the cluster after replaying the metadata log up to an offset.

Rule: an image is immutable. `apply` returns a new image that shares every map that the records do
not change, so readers may keep an image for as long as they like.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.metadata.acl_entries import Acls, add_entry, remove_entry
from headrace.metadata.client_quotas import QuotaEntity, replay_quota
from headrace.metadata.delegation_tokens import (
    DelegationTokens,
    replay_token,
    replay_token_removal,
)
from headrace.metadata.features import (
    ELR_VERSION,
    GROUP_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED,
    Ranges,
    VersionRange,
    check_security_records,
    levels_of,
    unsupported_reason,
)
from headrace.metadata.records import MetadataError
from headrace.metadata.scram_credentials import ScramCredentials, replay_credential, replay_removal
from headrace.metadata.topic_names import collision_key
from headrace.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.protocol.schema import Message
from headrace.types import uuid_text

NO_LEADER = -1
NO_LEADER_CHANGE = -2

# Kafka's reserved directory ids of a replica: directory not known, and directory failed.
UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
LOST_DIRECTORY = bytes(15) + b"\x02"

Key = TypeVar("Key")
Value = TypeVar("Value")


class ConfigResourceType(IntEnum):
    """Kafka's codes for the resources that have configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
    # Of headrace: roles, which Kafka's tools show as resources of an unknown type.
    ROLE = 100


class ConfigKey(NamedTuple):
    """A topic, group or client metrics subscription by name, or a broker by its id as text.

    The broker "" is the cluster-wide default of brokers.
    """

    resource_type: int
    name: str


class EndpointImage(NamedTuple):
    """The address of a broker's listener."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. A leader of -1 means no leader; `leader_epoch` grows with every election.

    `lost_replicas` are replicas whose brokers cannot read them from disk, so they cannot lead.
    `directories` has the data directories of replicas, by broker, as far as brokers reported them:
    they report only replicas in a directory that is, or was, full.

    `elr` are the eligible leader replicas (KIP-966): out of the ISR, and yet sure to have every
    committed record, since nothing is committed while fewer than `min.insync.replicas` are in sync.
    `last_known_elr` were in the ISR or the ELR until their brokers restarted uncleanly: they may
    have lost records, and take part in a recovery election when no replica is eligible any more.
    Invariant: no replica is in two of `isr`, `elr` and `last_known_elr`.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    lost_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    directories: tuple[tuple[int, bytes], ...] = ()

    def directory_of(self, broker_id: int) -> bytes:
        """The data directory of a replica, UNASSIGNED_DIRECTORY if it is not known."""
        for replica, directory in self.directories:
            if replica == broker_id:
                return directory
        return UNASSIGNED_DIRECTORY

    def directories_among(self, replicas: Iterable[int]) -> tuple[tuple[int, bytes], ...]:
        """The known directories of these replicas, in the order of the replicas."""
        known = dict(self.directories)
        return tuple((broker_id, known[broker_id]) for broker_id in replicas if broker_id in known)

    def changed(self, record: PartitionChangeRecord) -> "PartitionImage":
        """The partition after a change. A record with a leader is an election, even of the same."""
        elected = record.leader != NO_LEADER_CHANGE
        recovery = record.leader_recovery_state
        replicas = _new_or_old(record.replicas, self.replicas)
        if record.directories is None:
            lost = tuple(broker_id for broker_id in self.lost_replicas if broker_id in replicas)
            directories = self.directories_among(replicas)
        else:
            lost = _replicas_lost(replicas, record.directories)
            directories = _known_directories(replicas, record.directories)
        return PartitionImage(
            replicas=replicas,
            isr=_new_or_old(record.isr, self.isr),
            leader=record.leader if elected else self.leader,
            leader_epoch=self.leader_epoch + elected,
            partition_epoch=self.partition_epoch + 1,
            leader_recovery_state=self.leader_recovery_state if recovery < 0 else recovery,
            adding_replicas=_new_or_old(record.adding_replicas, self.adding_replicas),
            removing_replicas=_new_or_old(record.removing_replicas, self.removing_replicas),
            lost_replicas=lost,
            elr=_new_or_old(record.eligible_leader_replicas, self.elr),
            last_known_elr=_new_or_old(record.last_known_elr, self.last_known_elr),
            directories=directories,
        )


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; partition n is `partitions[n]`."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. A fenced broker is hidden from clients and leads no partition.

    `features` are the supported levels that it registered with, empty from versions before levels.
    `cordoned_log_dirs` are the directories that accept no records, because they are full.
    """

    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[EndpointImage, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    features: Ranges = field(default_factory=dict)
    cordoned_log_dirs: tuple[bytes, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the broker can be given replicas and leaderships."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_room(self) -> bool:
        """Whether none of its directories is full, so that every replica accepts records."""
        return not self.cordoned_log_dirs

    def lacks_room(self, directory: bytes) -> bool:
        """Whether a replica in a directory, which may be unknown, accepts no records."""
        return directory in self.cordoned_log_dirs or not self.has_room_for_replicas

    @property
    def has_room_for_replicas(self) -> bool:
        """Whether a directory is not full, so that a new replica can be placed there."""
        return self.has_room or not set(self.log_dirs) <= set(self.cordoned_log_dirs)


@dataclass(frozen=True, slots=True)
class Image:
    """The whole cluster at an offset of the metadata log.

    Invariant: `topics` and `topics_by_id` hold the same topics, `partition_count` counts their
    partitions, and `collisions` maps the collision keys of topic names to the names.
    """

    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigKey, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    collisions: Mapping[str, str] = field(default_factory=dict)
    partition_count: int = 0
    next_producer_id: int = 0
    scram_credentials: ScramCredentials = field(default_factory=dict)
    delegation_tokens: DelegationTokens = field(default_factory=dict)
    acls: Acls = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)

    def apply(self, records: Iterable[Message]) -> "Image":
        """The image after `records`; MetadataError if they contradict this image."""
        draft = _ImageDraft(self)
        for record in records:
            draft.replay(record)
        return draft.finish()

    @property
    def metadata_version(self) -> int:
        """The level of `metadata.version`, which decides the versions of new records."""
        return levels_of(self.features)[METADATA_VERSION]

    @property
    def has_elr(self) -> bool:
        """Whether the feature of eligible leader replicas is on."""
        return levels_of(self.features).get(ELR_VERSION, 0) > 0

    @property
    def has_security_records(self) -> bool:
        """Whether there are ACLs, roles, quotas, users or tokens."""
        return bool(
            self.acls or self.client_quotas or self.scram_credentials or self.delegation_tokens
        ) or any(key.resource_type == ConfigResourceType.ROLE for key in self.configs)

    @property
    def has_consumer_groups(self) -> bool:
        """Whether the feature of groups whose coordinator assigns (KIP-848) is on."""
        return levels_of(self.features).get(GROUP_VERSION, 0) > 0

    def require_security_records(self) -> None:
        """Raise KafkaError if a broker stops at records of ACLs, roles, quotas, users, tokens."""
        check_security_records(
            {broker.broker_id: broker.features for broker in self.brokers.values()}
        )

    def config_of(self, resource_type: ConfigResourceType, name: str) -> Mapping[str, str]:
        """The dynamic settings of a topic or broker, empty if there are none."""
        return self.configs.get(ConfigKey(resource_type, name), {})

    def broker_overrides(self, broker_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """A broker's own and the cluster-wide settings, for `BrokerConfig.with_overrides`."""
        own = self.config_of(ConfigResourceType.BROKER, str(broker_id))
        return own, self.config_of(ConfigResourceType.BROKER, "")

    def active_racks(self) -> dict[int, str | None]:
        """The brokers that can be given replicas, with their racks."""
        return {
            broker.broker_id: broker.rack for broker in self.brokers.values() if broker.is_active
        }

    def racks_for_replicas(self) -> dict[int, str | None]:
        """The brokers for new replicas, with their racks: with room, or all if none has room."""
        active = self.active_racks()
        roomy = {
            broker_id: active[broker_id]
            for broker_id in active
            if self.brokers[broker_id].has_room_for_replicas
        }
        return roomy or active

    def brokers_without_room(self) -> frozenset[int]:
        """The active brokers that have a full data directory."""
        return frozenset(
            broker.broker_id
            for broker in self.brokers.values()
            if broker.is_active and not broker.has_room
        )

    def replicas_without_room(self, partition: PartitionImage) -> frozenset[int]:
        """The replicas of a partition that accept no records: their data directory is full."""
        return frozenset(
            broker_id
            for broker_id in partition.replicas
            if (broker := self.brokers.get(broker_id)) is not None
            and not broker.has_room
            and broker.lacks_room(partition.directory_of(broker_id))
        )

    def inactive_brokers(self) -> list[int]:
        """The registered brokers that are fenced or shutting down."""
        return [broker.broker_id for broker in self.brokers.values() if not broker.is_active]


class _CopyOnWrite(Generic[Key, Value]):
    """A map of an image, copied by the first record that changes it."""

    __slots__ = ("_copied", "view")

    def __init__(self, original: Mapping[Key, Value]) -> None:
        self.view = original
        self._copied: dict[Key, Value] | None = None

    def edit(self) -> dict[Key, Value]:
        if self._copied is None:
            self.view = self._copied = dict(self.view)
        return self._copied


class _ImageDraft:
    """The next image while records are replayed into it.

    The partitions of a touched topic are a list until `finish`, because a topic of ten thousand
    partitions comes as ten thousand records.
    """

    def __init__(self, image: Image) -> None:
        self._brokers = _CopyOnWrite(image.brokers)
        self._topics = _CopyOnWrite(image.topics)
        self._topics_by_id = _CopyOnWrite(image.topics_by_id)
        self._configs = _CopyOnWrite(image.configs)
        self._features = _CopyOnWrite(image.features)
        self._collisions = _CopyOnWrite(image.collisions)
        self._acls = _CopyOnWrite(image.acls)
        self._client_quotas = _CopyOnWrite(image.client_quotas)
        self._partition_count = image.partition_count
        self._next_producer_id = image.next_producer_id
        self._scram_credentials = _CopyOnWrite(image.scram_credentials)
        self._delegation_tokens = _CopyOnWrite(image.delegation_tokens)
        self._partitions: dict[bytes, list[PartitionImage]] = {}

    def replay(self, record: Message) -> None:
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise MetadataError(f"no image can hold a {type(record).__name__}")
        handler(self, record)

    def finish(self) -> Image:
        for topic_id, partitions in self._partitions.items():
            name = self._topics_by_id.view[topic_id].name
            topic = TopicImage(name, topic_id, tuple(partitions))
            self._topics_by_id.edit()[topic_id] = self._topics.edit()[name] = topic
        return Image(
            brokers=self._brokers.view,
            topics=self._topics.view,
            topics_by_id=self._topics_by_id.view,
            configs=self._configs.view,
            features=self._features.view,
            collisions=self._collisions.view,
            partition_count=self._partition_count,
            next_producer_id=self._next_producer_id,
            scram_credentials=self._scram_credentials.view,
            delegation_tokens=self._delegation_tokens.view,
            acls=self._acls.view,
            client_quotas=self._client_quotas.view,
        )

    def _topic(self, topic_id: bytes) -> TopicImage:
        topic = self._topics_by_id.view.get(topic_id)
        if topic is None:
            raise MetadataError(f"no topic has the id {uuid_text(topic_id)}")
        return topic

    def _partitions_of(self, topic_id: bytes) -> list[PartitionImage]:
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            partitions = self._partitions[topic_id] = list(self._topic(topic_id).partitions)
        return partitions

    def _topic_record(self, record: TopicRecord) -> None:
        if record.name in self._topics.view or record.topic_id in self._topics_by_id.view:
            raise MetadataError(f"topic {record.name} is created twice")
        topic = TopicImage(record.name, record.topic_id)
        self._topics.edit()[record.name] = topic
        self._topics_by_id.edit()[record.topic_id] = topic
        key = collision_key(record.name)
        if key is not None:
            self._collisions.edit()[key] = record.name

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic(record.topic_id)
        partitions = self._partitions.pop(record.topic_id, topic.partitions)
        self._partition_count -= len(partitions)
        del self._topics.edit()[topic.name]
        del self._topics_by_id.edit()[record.topic_id]
        resource = ConfigKey(ConfigResourceType.TOPIC, topic.name)
        if resource in self._configs.view:
            del self._configs.edit()[resource]
        key = collision_key(topic.name)
        if key is not None and self._collisions.view.get(key) == topic.name:
            del self._collisions.edit()[key]

    def _partition(self, record: PartitionRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        partition = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_recovery_state=record.leader_recovery_state,
            adding_replicas=tuple(record.adding_replicas),
            removing_replicas=tuple(record.removing_replicas),
            lost_replicas=_replicas_lost(record.replicas, record.directories),
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            directories=_known_directories(record.replicas, record.directories),
        )
        if not 0 <= record.partition_id <= len(partitions):
            raise MetadataError(
                f"partition {record.partition_id} of {self._topic(record.topic_id).name} comes when"
                f" {len(partitions)} would be the next"
            )
        if record.partition_id < len(partitions):
            partitions[record.partition_id] = partition
        else:
            partitions.append(partition)
            self._partition_count += 1

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        if not 0 <= record.partition_id < len(partitions):
            name = self._topic(record.topic_id).name
            raise MetadataError(f"{name} has no partition {record.partition_id} to change")
        partitions[record.partition_id] = partitions[record.partition_id].changed(record)

    def _config(self, record: ConfigRecord) -> None:
        configs = self._configs.edit()
        resource = ConfigKey(record.resource_type, record.resource_name)
        settings = dict(configs.get(resource, {}))
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value
        if settings:
            configs[resource] = settings
        else:
            configs.pop(resource, None)

    def _client_quota(self, record: ClientQuotaRecord) -> None:
        replay_quota(self._client_quotas.edit(), record)

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id:
            raise MetadataError(
                f"next producer id {record.next_producer_id} is not after {self._next_producer_id}"
            )
        self._next_producer_id = record.next_producer_id

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        endpoints = (
            EndpointImage(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
            for endpoint in record.end_points
        )
        self._brokers.edit()[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=tuple(endpoints),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            features={
                feature.name: VersionRange(
                    feature.min_supported_version, feature.max_supported_version
                )
                for feature in record.features
            },
            cordoned_log_dirs=tuple(record.cordoned_log_dirs or ()),
        )

    def _broker(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._brokers.view.get(broker_id)
        if broker is None:
            raise MetadataError(f"broker {broker_id} is not registered")
        if broker.epoch != epoch:
            raise MetadataError(f"broker {broker_id} has epoch {broker.epoch}, not {epoch}")
        return broker

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self._brokers.edit()[record.broker_id]

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        broker = self._broker(record.id, record.epoch)
        self._brokers.edit()[record.id] = replace(broker, fenced=True)

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        broker = self._broker(record.id, record.epoch)
        self._brokers.edit()[record.id] = replace(broker, fenced=False)

    def _broker_registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        # 1 fences, -1 unfences, 0 changes nothing; a shutdown is only ever begun.
        self._brokers.edit()[record.broker_id] = replace(
            broker,
            fenced=broker.fenced if record.fenced == 0 else record.fenced == 1,
            in_controlled_shutdown=broker.in_controlled_shutdown
            or record.in_controlled_shutdown == 1,
            log_dirs=tuple(record.log_dirs) or broker.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs
            if record.cordoned_log_dirs is None
            else tuple(record.cordoned_log_dirs),
        )

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if record.name == KRAFT_VERSION:
            return  # The quorum's control records hold its level.
        reason = unsupported_reason(SUPPORTED, record.name, record.feature_level)
        if reason is not None:
            raise MetadataError(
                f"the cluster has {record.name} at level {record.feature_level}: this version"
                f" {reason}; run one that does"
            )
        if record.feature_level == 0:
            self._features.edit().pop(record.name, None)
        else:
            self._features.edit()[record.name] = record.feature_level

    def _scram_credential(self, record: UserScramCredentialRecord) -> None:
        replay_credential(self._scram_credentials.edit(), record)

    def _remove_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        replay_removal(self._scram_credentials.edit(), record)

    def _delegation_token(self, record: DelegationTokenRecord) -> None:
        replay_token(self._delegation_tokens.edit(), record)

    def _remove_delegation_token(self, record: RemoveDelegationTokenRecord) -> None:
        replay_token_removal(self._delegation_tokens.edit(), record)

    def _access_control_entry(self, record: AccessControlEntryRecord) -> None:
        add_entry(self._acls.edit(), record)

    def _remove_access_control_entry(self, record: RemoveAccessControlEntryRecord) -> None:
        remove_entry(self._acls.edit(), record)

    def _no_op(self, record: NoOpRecord) -> None:
        """Do nothing: the record only moves the log's end offset."""


_HANDLERS: dict[type[Message], Callable[[_ImageDraft, Any], None]] = {
    AccessControlEntryRecord: _ImageDraft._access_control_entry,
    BrokerRegistrationChangeRecord: _ImageDraft._broker_registration_change,
    ClientQuotaRecord: _ImageDraft._client_quota,
    ConfigRecord: _ImageDraft._config,
    DelegationTokenRecord: _ImageDraft._delegation_token,
    FeatureLevelRecord: _ImageDraft._feature_level,
    FenceBrokerRecord: _ImageDraft._fence_broker,
    NoOpRecord: _ImageDraft._no_op,
    PartitionChangeRecord: _ImageDraft._partition_change,
    PartitionRecord: _ImageDraft._partition,
    ProducerIdsRecord: _ImageDraft._producer_ids,
    RegisterBrokerRecord: _ImageDraft._register_broker,
    RemoveDelegationTokenRecord: _ImageDraft._remove_delegation_token,
    RemoveAccessControlEntryRecord: _ImageDraft._remove_access_control_entry,
    RemoveTopicRecord: _ImageDraft._remove_topic,
    RemoveUserScramCredentialRecord: _ImageDraft._remove_scram_credential,
    TopicRecord: _ImageDraft._topic_record,
    UnfenceBrokerRecord: _ImageDraft._unfence_broker,
    UnregisterBrokerRecord: _ImageDraft._unregister_broker,
    UserScramCredentialRecord: _ImageDraft._scram_credential,
}


def _new_or_old(changed: list[int] | None, unchanged: tuple[int, ...]) -> tuple[int, ...]:
    """A field of a change record, in which null means that the old value stays."""
    return unchanged if changed is None else tuple(changed)


def _replicas_lost(replicas: Iterable[int], directories: Iterable[bytes]) -> tuple[int, ...]:
    """The replicas whose directory failed; a record may have no directories at all."""
    placed = zip(replicas, directories, strict=False)
    return tuple(broker_id for broker_id, directory in placed if directory == LOST_DIRECTORY)


def _known_directories(
    replicas: Iterable[int], directories: Iterable[bytes]
) -> tuple[tuple[int, bytes], ...]:
    """The replicas whose directory is known from a record, each with its directory."""
    unknown = (LOST_DIRECTORY, UNASSIGNED_DIRECTORY)
    placed = zip(replicas, directories, strict=False)
    return tuple(
        (broker_id, directory) for broker_id, directory in placed if directory not in unknown
    )


def directories_of(partition: PartitionImage) -> list[bytes]:
    """The directories of all replicas in order, as records have them."""
    return [
        LOST_DIRECTORY
        if broker_id in partition.lost_replicas
        else partition.directory_of(broker_id)
        for broker_id in partition.replicas
    ]
