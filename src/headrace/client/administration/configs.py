"""The settings of topics and brokers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from headrace.client.administration.arguments import (
    ConfigValue,
    config_texts,
    name_of,
    number_of,
)
from headrace.client.administration.commands import Controller, passes, result, settle
from headrace.client.failures import UnknownTopic
from headrace.client.outcomes import failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_SET, _DELETE = 0, 1

# Kafka's codes for where a value comes from. Not taken from `headrace.config`, which knows all
# settings of a broker and takes a command longer to import than to run.
_SOURCES = {
    1: "topic_config",
    2: "dynamic_broker_config",
    3: "dynamic_default_broker_config",
    4: "static_broker_config",
    5: "default_config",
}


class ResourceType(IntEnum):
    """What settings belong to, by Kafka's codes."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """One topic or broker, as an owner of settings."""

    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.name}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting in effect, and where its value comes from. A sensitive value is None."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    documentation: str | None


def config_resource(topic: str | None, broker: int | None) -> ConfigResource:
    """The one that was named."""
    if (topic is None) == (broker is None):
        raise TypeError("settings belong to a topic or a broker; give one, as topic='orders'")
    if topic is not None:
        return ConfigResource(ResourceType.TOPIC, name_of(topic, "topic"))
    return ConfigResource(ResourceType.BROKER, str(number_of(broker, "broker", 0, 2**31 - 1)))


class Configs:
    """Commands about settings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, topic: str | None, broker: int | None) -> dict[str, ConfigEntry]:
        """Every setting of a topic or broker, by name."""
        resource = config_resource(topic, broker)
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

        async def ask(
            missing: list[ConfigResource], deadline: float
        ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
            node = await self._node_of(resource, deadline)
            (answer,) = (await self._cluster.call(request, deadline, node)).results
            error = _failure(resource, answer.error_code, answer.error_message)
            entries = sorted(answer.configs, key=lambda entry: entry.name)
            return {resource: error or {entry.name: _entry(entry) for entry in entries}}

        return result(await settle(self._cluster, [resource], ask, passes), resource)

    async def alter(
        self,
        topic: str | None,
        broker: int | None,
        settings: Mapping[str, ConfigValue | None],
    ) -> None:
        """Set settings, or take them back to their defaults with None; the rest stay."""
        resource = config_resource(topic, broker)
        deleted = [name for name, value in settings.items() if value is None]
        changed = config_texts({name: v for name, v in settings.items() if v is not None})
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=[
                        *(
                            AlterableConfig(name=name, config_operation=_SET, value=value)
                            for name, value in changed.items()
                        ),
                        *(
                            AlterableConfig(name=name, config_operation=_DELETE, value=None)
                            for name in deleted
                        ),
                    ],
                )
            ]
        )
        target = Controller(self._cluster)

        async def ask(
            missing: list[ConfigResource], deadline: float
        ) -> dict[ConfigResource, KafkaError | None]:
            node = await self._node_of(resource, deadline)
            if node is None:
                response = await target.send(request, deadline)
            else:
                response = await self._cluster.call(request, deadline, node)
            (answer,) = response.responses
            return {resource: failure(answer.error_code, answer.error_message, str(resource))}

        def asked_again(error: KafkaError) -> bool:
            return passes(error) and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        result(await settle(self._cluster, [resource], ask, asked_again), resource)

    async def _node_of(self, resource: ConfigResource, deadline: float) -> int | None:
        """Only a broker itself knows its settings; anyone knows those of a topic."""
        if resource.kind is ResourceType.TOPIC:
            return None
        node_id = int(resource.name)
        known = sorted((await self._cluster.heard_view(deadline)).brokers)
        if node_id not in known:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"there is no broker {node_id}; the cluster has {', '.join(map(str, known))}",
            )
        return node_id


def _failure(resource: ConfigResource, code: int, detail: str | None) -> KafkaError | None:
    # The same text whether a topic is asked for its settings or for its partitions.
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"{resource} does not exist")
    return failure(code, detail, str(resource))


def _entry(described: DescribeConfigsResourceResult) -> ConfigEntry:
    source = _SOURCES.get(described.config_source, f"source_{described.config_source}")
    return ConfigEntry(
        described.name,
        described.value,
        source,
        source == "default_config",
        described.read_only,
        described.is_sensitive,
        described.documentation,
    )
