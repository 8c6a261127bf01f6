"""Commands on topics: create, delete, add partitions.

Rule: errors are per topic. An error becomes a code and a text in the response, and the other topics
of the request are handled all the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

from headrace.config import (
    BrokerConfig,
    ConfigSource,
    describe_topic,
    topic_config,
)
from headrace.errors import ConfigError, ErrorCode, KafkaError, unknown_topic
from headrace.metadata.image import ConfigResourceType, Image, TopicImage
from headrace.metadata.placement import ReplicaLoad, place
from headrace.metadata.reassignments import target_of
from headrace.metadata.records import CommandResult, repeated_names
from headrace.metadata.topic_names import check_topic_name, collision_key
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.messages.metadata_records import (
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace.protocol.schema import Message
from headrace.types import ZERO_UUID, uuid_text

# One request must not make more records than a broker can hold in memory and append in one batch.
PARTITIONS_PER_REQUEST_MAX = 10_000
PARTITIONS_MAX = 200_000

DEFAULT = -1


def _charge_nobody(partition_count: int) -> None:
    """The charge of a request that no quota limits."""


class _PartitionBudget:
    """The numbers of partitions that may still be added by the request and to the cluster."""

    def __init__(self, image: Image) -> None:
        self._request = PARTITIONS_PER_REQUEST_MAX
        self._cluster = PARTITIONS_MAX - image.partition_count

    def check(self, partition_count: int) -> None:
        """Refuse a partition count that is too large, before records are made."""
        if partition_count > self._request:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"one request may create {PARTITIONS_PER_REQUEST_MAX} partitions;"
                " ask for fewer, or split the request",
            )
        if partition_count > self._cluster:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"a cluster may have {PARTITIONS_MAX} partitions, and this would be more;"
                " delete topics that are not needed",
            )

    def spend(self, partition_count: int) -> None:
        self._request -= partition_count
        self._cluster -= partition_count


class _TopicCreation:
    """The topics created so far by one CreateTopics request."""

    def __init__(
        self, image: Image, config: BrokerConfig, random: Random, charge: Callable[[int], None]
    ) -> None:
        self.records: list[Message] = []
        self._charge = charge
        self._image = image
        self._config = config
        self._random = random
        self._budget = _PartitionBudget(image)
        self._racks = image.active_racks()
        self._roomy = image.racks_for_replicas()
        self._load = ReplicaLoad.of(image)
        self._collisions = dict[str, str]()
        # Most topics set few settings or none, so the defaults are described once per request.
        self._described = {
            name: _described(name, described.value, described.source)
            for name, described in describe_topic(config, {}).items()
        }

    def create(self, topic: CreatableTopic) -> CreatableTopicResult:
        self._check_name(topic.name)
        overrides = self._overrides(topic)
        if topic.assignments:
            assignment = self._manual_assignment(topic)
        else:
            assignment = self._placed_assignment(topic)
        self._charge(len(assignment))
        self._budget.spend(len(assignment))
        topic_id = new_topic_id(self._random)
        self.records.append(TopicRecord(name=topic.name, topic_id=topic_id))
        self.records += [
            ConfigRecord(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=topic.name,
                name=name,
                value=value,
            )
            for name, value in overrides.items()
        ]
        self.records += _partition_records(self._image, topic_id, assignment, 0)
        key = collision_key(topic.name)
        if key is not None:
            self._collisions[key] = topic.name
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=len(assignment),
            replication_factor=len(assignment[0]),
            configs=self._effective(overrides),
        )

    def _check_name(self, name: str) -> None:
        check_topic_name(name)
        if name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        key = collision_key(name)
        if key is not None:
            other = self._image.collisions.get(key) or self._collisions.get(key)
            if other is not None:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"{name!r} collides with the topic {other!r}: metrics cannot tell '.' from '_';"
                    " use another name",
                )

    def _overrides(self, topic: CreatableTopic) -> dict[str, str]:
        overrides = {}
        for setting in topic.configs:
            if setting.value is None:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{setting.name} has no value",
                    advice="give one or leave it out",
                )
            overrides[setting.name] = setting.value
        try:
            topic_config(self._config, overrides)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        return overrides

    def _placed_assignment(self, topic: CreatableTopic) -> list[tuple[int, ...]]:
        if topic.num_partitions == 0 or topic.num_partitions < DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"a topic cannot have {topic.num_partitions} partitions;"
                " use at least 1, or -1 for the broker's default",
            )
        if topic.replication_factor == 0 or topic.replication_factor < DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"a replication factor of {topic.replication_factor} is not possible;"
                " use at least 1, or -1 for the broker's default",
            )
        partition_count = topic.num_partitions
        if partition_count == DEFAULT:
            partition_count = self._config.num_partitions
        replication_factor = topic.replication_factor
        if replication_factor == DEFAULT:
            replication_factor = self._config.default_replication_factor
        self._budget.check(partition_count)
        first = self._random.randrange(max(len(self._roomy), 1))
        return place(
            partition_count,
            replication_factor,
            self._roomy,
            self._load,
            down=[broker_id for broker_id in self._image.brokers if broker_id not in self._roomy],
            first=first,
        )

    def _manual_assignment(self, topic: CreatableTopic) -> list[tuple[int, ...]]:
        if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "with a manual assignment, the partition count and the replication factor must"
                " both be -1",
            )
        by_partition = {
            assigned.partition_index: tuple(assigned.broker_ids) for assigned in topic.assignments
        }
        if len(by_partition) != len(topic.assignments):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned more than once"
            )
        if set(by_partition) != set(range(len(by_partition))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the assigned partitions must be 0 to {len(by_partition) - 1}, without a gap",
            )
        self._budget.check(len(by_partition))
        assignment = [by_partition[partition] for partition in range(len(by_partition))]
        _check_assignment(self._image, self._racks, assignment, len(assignment[0]), 0)
        for replicas in assignment:
            self._load.add(replicas)
        return assignment

    def _effective(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        own = {
            name: _described(name, value, ConfigSource.TOPIC_CONFIG)
            for name, value in overrides.items()
        }
        return list((self._described | own).values())


def create_topics(
    image: Image,
    request: CreateTopicsRequest,
    *,
    config: BrokerConfig,
    random: Random,
    charge: Callable[[int], None] = _charge_nobody,
) -> CommandResult[CreateTopicsResponse]:
    """Create topics; `config` supplies the defaults. Each topic has its own result.

    `charge` takes the number of partitions of each topic, and may refuse them by a KafkaError.
    """
    duplicates = repeated_names(topic.name for topic in request.topics)
    if request.validate_only:
        charge = _charge_nobody
    creation = _TopicCreation(image, config, random, charge)
    results: dict[str, CreatableTopicResult] = {}
    for topic in request.topics:
        if topic.name in results:
            continue
        try:
            if topic.name in duplicates:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the request names the topic more than once"
                )
            results[topic.name] = creation.create(topic)
        except KafkaError as error:
            results[topic.name] = CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.detail
            )
    response = CreateTopicsResponse(topics=list(results.values()))
    if request.validate_only:
        for result in response.topics:
            result.topic_id = ZERO_UUID
        return CommandResult((), response)
    return CommandResult(tuple(creation.records), response)


def delete_topics(
    image: Image,
    request: DeleteTopicsRequest,
    *,
    config: BrokerConfig,
    charge: Callable[[int], None] = _charge_nobody,
) -> CommandResult[DeleteTopicsResponse]:
    """Delete topics, by name or by id, and their configs; `charge` as for `create_topics`."""
    states = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    mentions = Counter(_topic_identity(image, wanted) for wanted in states)
    records: list[Message] = []
    responses: dict[tuple[str | None, bytes], DeletableTopicResult] = {}
    for wanted in states:
        key = (wanted.name, wanted.topic_id)
        if key in responses:
            continue
        try:
            if mentions[_topic_identity(image, wanted)] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the request names the topic more than once"
                )
            topic = _topic_to_delete(image, wanted, config)
            charge(len(topic.partitions))
        except KafkaError as error:
            responses[key] = DeletableTopicResult(
                name=wanted.name,
                topic_id=wanted.topic_id,
                error_code=error.code,
                error_message=error.detail,
            )
        else:
            records.append(RemoveTopicRecord(topic_id=topic.topic_id))
            responses[key] = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
    return CommandResult(tuple(records), DeleteTopicsResponse(responses=list(responses.values())))


def _topic_identity(image: Image, wanted: DeleteTopicState) -> str | bytes:
    """The id of an existing topic, else its name or id as given: equal if the topic is the same."""
    if wanted.name is not None:
        topic = image.topics.get(wanted.name)
        return wanted.name if topic is None else topic.topic_id
    return wanted.topic_id


def _topic_to_delete(image: Image, wanted: DeleteTopicState, config: BrokerConfig) -> TopicImage:
    if not config.delete_topic_enable:
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED,
            "this cluster does not delete topics: delete.topic.enable is false",
        )
    if wanted.name is not None and wanted.topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "name the topic or give its id, not both")
    if wanted.name is not None:
        return _topic_named(image, wanted.name)
    if wanted.topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give the topic's name or its id")
    topic = image.topics_by_id.get(wanted.topic_id)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(wanted.topic_id)}"
        )
    return topic


def create_partitions(
    image: Image,
    request: CreatePartitionsRequest,
    *,
    charge: Callable[[int], None] = _charge_nobody,
) -> CommandResult[CreatePartitionsResponse]:
    """Add partitions to topics, up to the requested counts; a topic never shrinks.

    `charge` is as for `create_topics`.
    """
    if request.validate_only:
        charge = _charge_nobody
    duplicates = repeated_names(topic.name for topic in request.topics)
    budget = _PartitionBudget(image)
    load = ReplicaLoad.of(image)
    records: list[Message] = []
    results: dict[str, CreatePartitionsTopicResult] = {}
    for topic in request.topics:
        if topic.name in results:
            continue
        result = results[topic.name] = CreatePartitionsTopicResult(name=topic.name)
        try:
            if topic.name in duplicates:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the request names the topic more than once"
                )
            added = _added_partitions(image, topic, budget, load)
            charge(len(added))
            records += added
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.detail
    response = CreatePartitionsResponse(results=list(results.values()))
    return CommandResult(() if request.validate_only else tuple(records), response)


def _added_partitions(
    image: Image, wanted: CreatePartitionsTopic, budget: _PartitionBudget, load: ReplicaLoad
) -> list[PartitionRecord]:
    topic = _topic_named(image, wanted.name)
    present = len(topic.partitions)
    if wanted.count <= present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {present} partitions, and {wanted.count} would not be more",
        )
    budget.check(wanted.count - present)
    racks, roomy = image.active_racks(), image.racks_for_replicas()
    replication_factor = len(target_of(topic.partitions[0]))
    if wanted.assignments is None:
        assignment = place(
            wanted.count - present,
            replication_factor,
            roomy,
            load,
            down=[broker_id for broker_id in image.brokers if broker_id not in roomy],
            present=[partition.replicas for partition in topic.partitions],
        )
    else:
        if len(wanted.assignments) != wanted.count - present:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{wanted.count - present} partitions are to be added, but the request assigns"
                f" {len(wanted.assignments)}",
            )
        assignment = [tuple(assigned.broker_ids) for assigned in wanted.assignments]
        _check_assignment(image, racks, assignment, replication_factor, present)
        for replicas in assignment:
            load.add(replicas)
    budget.spend(len(assignment))
    return _partition_records(image, topic.topic_id, assignment, present)


def new_topic_id(random: Random) -> bytes:
    """A random (version 4) UUID whose text does not begin with '-', like an option of a command."""
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = bytes(raw)
        if not uuid_text(topic_id).startswith("-"):
            return topic_id


def _described(name: str, value: str | None, source: ConfigSource) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=name,
        value=value,
        config_source=source,
        is_sensitive=False,  # Topics have no sensitive settings.
    )


def _topic_named(image: Image, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    return topic


def _check_assignment(
    image: Image,
    active: Mapping[int, str | None],
    assignment: Sequence[tuple[int, ...]],
    replication_factor: int,
    first_partition: int,
) -> None:
    """Refuse a manual assignment with brokers that cannot hold the replicas."""
    for partition, replicas in enumerate(assignment, first_partition):
        unknown = [broker_id for broker_id in replicas if broker_id not in image.brokers]
        if not replicas:
            reason = "has no replicas"
        elif len(set(replicas)) != len(replicas):
            reason = "names a broker more than once"
        elif unknown:
            reason = f"names broker {unknown[0]}, which is not registered"
        elif len(replicas) != replication_factor:
            reason = f"has {len(replicas)} replicas, and other partitions have {replication_factor}"
        elif not any(broker_id in active for broker_id in replicas):
            reason = "names only brokers that are down or shutting down"
        else:
            continue
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the assignment of partition {partition} {reason}",
        )


def _partition_records(
    image: Image,
    topic_id: bytes,
    assignment: Sequence[tuple[int, ...]],
    first_partition: int,
) -> list[PartitionRecord]:
    active, roomy = image.active_racks(), image.racks_for_replicas()
    records = []
    for partition, replicas in enumerate(assignment, first_partition):
        isr = [broker_id for broker_id in replicas if broker_id in active]
        # A replica on a full disk in the ISR would block commits.
        isr = [broker_id for broker_id in isr if broker_id in roomy] or isr
        records.append(
            PartitionRecord(
                partition_id=partition,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return records
