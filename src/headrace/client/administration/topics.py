"""Topics: created, listed, described, given more partitions, deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.administration.arguments import (
    INT16_MAX,
    INT32_MAX,
    ConfigValue,
    config_texts,
    name_of,
    number_of,
)
from headrace.client.administration.commands import (
    Controller,
    is_refused_for_now,
    passes,
    settle,
    timeout_ms,
)
from headrace.client.failures import UnknownTopic
from headrace.client.metadata import Topic
from headrace.client.outcomes import failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError
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

BROKER_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 leaves a number to the broker's defaults."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, ConfigValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_of(self.name, "topic")
        number_of(self.partitions, f"partitions of {self.name}", -1, INT32_MAX)
        number_of(self.replication_factor, f"replication_factor of {self.name}", -1, INT16_MAX)
        config_texts(self.configs)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What the broker made of a `NewTopic`."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


class Topics:
    """Commands about topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def listed(self, *, internal: bool) -> dict[str, Topic]:
        """Every topic, by name."""
        found = await self._cluster.all_topics()
        return {
            name: found[name] for name in sorted(found) if internal or not found[name].is_internal
        }

    async def describe(self, names: Sequence[str]) -> dict[str, Topic | KafkaError]:
        """The named topics as they are now."""

        async def ask(missing: list[str], deadline: float) -> dict[str, Topic | KafkaError]:
            view = await self._cluster.refresh(missing, deadline)
            return {
                name: view.topics.get(name)
                or _not_described(name, view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                for name in missing
            }

        return await settle(self._cluster, names, ask, passes)

    async def create(self, topics: Sequence[NewTopic]) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics; each has its own outcome."""
        wanted = {topic.name: topic for topic in topics}
        target = Controller(self._cluster)

        async def ask(missing: list[str], deadline: float) -> dict[str, CreatedTopic | KafkaError]:
            request = CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in missing],
                timeout_ms=timeout_ms(self._cluster),
            )
            response = await target.send_once(request, deadline)
            return {
                one.name: failure(one.error_code, one.error_message, f"topic {one.name}")
                or CreatedTopic(one.name, one.topic_id, one.num_partitions, one.replication_factor)
                for one in response.topics
            }

        return await settle(self._cluster, list(wanted), ask, is_refused_for_now)

    async def delete(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Delete topics; each has its own outcome."""
        target = Controller(self._cluster)

        async def ask(missing: list[str], deadline: float) -> dict[str, KafkaError | None]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in missing],
                topic_names=list(missing),
                timeout_ms=timeout_ms(self._cluster),
            )
            response = await target.send_once(request, deadline)
            self._cluster.forget(missing)
            return {
                one.name: failure(one.error_code, one.error_message, f"topic {one.name}")
                for one in response.responses
            }

        return await settle(self._cluster, names, ask, is_refused_for_now)

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, KafkaError | None]:
        """Raise the numbers of topics' partitions; each has its own outcome."""
        target = Controller(self._cluster)

        async def ask(missing: list[str], deadline: float) -> dict[str, KafkaError | None]:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                    for name in missing
                ],
                timeout_ms=timeout_ms(self._cluster),
            )
            response = await target.send_once(request, deadline)
            self._cluster.forget(missing)
            return {
                one.name: failure(one.error_code, one.error_message, f"topic {one.name}")
                for one in response.results
            }

        return await settle(self._cluster, list(counts), ask, is_refused_for_now)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value)
            for name, value in config_texts(topic.configs).items()
        ],
    )


def _not_described(name: str, code: ErrorCode) -> KafkaError:
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"topic {name} does not exist")
    error = failure(code, subject=f"topic {name}")
    assert error is not None, "a topic without an error is described"
    return error
