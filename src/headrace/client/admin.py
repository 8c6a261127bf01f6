"""Topics, settings and offsets: questions and commands that go to one broker and come back once.

Rule: what only asks is retried. What changes something is sent once, because an answer that was
lost does not say whether the change was made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.connection import Connection
from headrace.client.failures import ConnectionFailed, UnknownTopic
from headrace.client.metadata import Topic
from headrace.client.outcomes import check, failure
from headrace.config import ConfigSource
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

LATEST = -1
EARLIEST = -2

_SET, _DELETE = 0, 1


class ResourceType(IntEnum):
    """What settings belong to, by Kafka's codes."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class Resource:
    """One topic or broker, as an owner of settings."""

    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.name}"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 leaves a number to the broker's defaults."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What the broker made of a `NewTopic`."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting in effect, and where its value comes from."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The answer to a question for an offset; -1 if no record is that late."""

    offset: int
    timestamp: int


class OutcomeUnknown(HeadraceError):
    """The connection broke after a command was sent, and before it was answered."""


class Admin:
    """Commands to a cluster. Errors that concern one of several topics are returned, not raised."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list_topics(self) -> list[Topic]:
        """Every topic, by name."""
        deadline = self._cluster.deadline()
        view = self._cluster.retrying(lambda: self._cluster.refresh(None, deadline), deadline)
        return [view.topics[name] for name in sorted(view.topics)]

    def describe_topics(self, names: Sequence[str]) -> list[Topic]:
        """The named topics, in that order, as they are now."""
        self._cluster.forget(names)
        found = self._cluster.topics(names)
        return [found[name] for name in names]

    def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics; each has its own outcome."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in topic.configs.items()
                    ],
                )
                for topic in topics
            ],
            timeout_ms=self._timeout_ms(),
        )
        outcomes: dict[str, CreatedTopic | KafkaError] = {}
        for result in self._command(request).topics:
            error = failure(result.error_code, result.error_message, f"topic {result.name}")
            outcomes[result.name] = error or CreatedTopic(
                result.name, result.topic_id, result.num_partitions, result.replication_factor
            )
        return outcomes

    def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Delete topics; each has its own outcome."""
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=self._timeout_ms(),
        )
        response = self._command(request)
        self._cluster.forget(names)
        return {
            result.name: failure(result.error_code, result.error_message, f"topic {result.name}")
            for result in response.responses
        }

    def create_partitions(self, name: str, count: int) -> None:
        """Raise the number of a topic's partitions to `count`."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=self._timeout_ms(),
        )
        for result in self._command(request).results:
            check(result.error_code, result.error_message, f"topic {result.name}")
        self._cluster.forget([name])

    def describe_configs(self, resource: Resource) -> list[ConfigEntry]:
        """Every setting of a topic or broker, by name."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configuration_keys=None,
                )
            ],
            include_documentation=True,
        )
        deadline = self._cluster.deadline()

        def ask() -> list[ConfigEntry]:
            response = self._cluster.call(request, deadline, self._node_of(resource))
            (result,) = response.results
            # The same text whether a topic is asked for its settings or for its partitions.
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"{resource} does not exist")
            check(result.error_code, result.error_message, str(resource))
            return sorted(
                (
                    ConfigEntry(
                        entry.name,
                        entry.value,
                        _source_name(entry.config_source),
                        entry.config_source == ConfigSource.DEFAULT_CONFIG,
                        entry.read_only,
                        entry.is_sensitive,
                        entry.documentation,
                    )
                    for entry in result.configs
                ),
                key=lambda entry: entry.name,
            )

        return self._cluster.retrying(ask, deadline)

    def alter_configs(
        self, resource: Resource, settings: Mapping[str, str], deletions: Iterable[str] = ()
    ) -> None:
        """Set some settings and take others back to their defaults; the rest stay as they are."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(name=name, config_operation=_SET, value=value)
                        for name, value in settings.items()
                    ]
                    + [
                        AlterableConfig(name=name, config_operation=_DELETE, value=None)
                        for name in deletions
                    ],
                )
            ]
        )
        for result in self._command(request, self._node_of(resource)).responses:
            check(result.error_code, result.error_message, str(resource))

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        """For each partition the offset at a timestamp, or at EARLIEST or LATEST."""
        deadline = self._cluster.deadline()
        found: dict[TopicPartition, FoundOffset] = {}

        def ask() -> dict[TopicPartition, FoundOffset]:
            missing = [tp for tp in wanted if tp not in found]
            for leader, partitions in self._cluster.by_leader(missing, deadline).items():
                found.update(self._ask_offsets(leader, partitions, wanted, deadline))
            return found

        return self._cluster.retrying(ask, deadline)

    def _ask_offsets(
        self,
        leader: int,
        partitions: Sequence[TopicPartition],
        wanted: Mapping[TopicPartition, int],
        deadline: float,
    ) -> dict[TopicPartition, FoundOffset]:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(
                ListOffsetsPartition(partition_index=tp.partition, timestamp=wanted[tp])
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()
            ],
            timeout_ms=self._timeout_ms(),
        )
        found = {}
        for topic in self._cluster.call(request, deadline, leader).topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, subject=str(tp))
                found[tp] = FoundOffset(partition.offset, partition.timestamp)
        return found

    def _command(self, request: Message, node_id: int | None = None) -> Any:
        """Send what changes something to the controller, or to a broker, once."""
        deadline = self._cluster.deadline()
        view = self._cluster.view(deadline)
        if node_id is None and view.controller_id in view.brokers:
            node_id = view.controller_id
        if node_id is None:
            connection = self._cluster.any_connection(deadline)
        else:
            connection = self._cluster.connection(node_id, deadline, idle=True)
        return call_once(connection, request, deadline)

    def _node_of(self, resource: Resource) -> int | None:
        """Only a broker itself knows its settings; anyone knows those of a topic."""
        if resource.kind is ResourceType.TOPIC:
            return None
        node_id = int(resource.name)
        known = sorted(self._cluster.view().brokers)
        if node_id not in known:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"there is no broker {node_id}; the cluster has {', '.join(map(str, known))}",
            )
        return node_id

    def _timeout_ms(self) -> int:
        return int(self._cluster.timeout_s * 1000)


def call_once(connection: Connection, request: Message, deadline: float) -> Any:
    """Send what changes something; OutcomeUnknown if no answer says whether it did."""
    try:
        return connection.call(request, deadline)
    except ConnectionFailed as error:
        raise OutcomeUnknown(
            f"{error}; whether the change was made is unknown, so look before repeating it"
        ) from None


def _source_name(code: int) -> str:
    try:
        return ConfigSource(code).name.lower()
    except ValueError:
        return f"source_{code}"
