"""The settings of topics, brokers, groups and clients' metrics, and the levels of loggers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypedDict, Unpack

from headrace.client.admin.admin_requests import (
    ControllerRequests,
    passes,
    result,
    retry_until_answered,
)
from headrace.client.admin.arguments import (
    ConfigValue,
    config_texts,
    name_of,
    names_of,
    number_of,
)
from headrace.client.cluster import ClusterClient
from headrace.client.errors import failure
from headrace.errors import ErrorCode, KafkaError, Subject, unknown_topic
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
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest

_SET, _DELETE = 0, 1

# Kafka's codes for the source of a value. Not taken from `headrace.config`, which has all settings
# of a broker and takes longer to import than a command takes to run.
_SOURCES = {
    1: "topic_config",
    2: "dynamic_broker_config",
    3: "dynamic_default_broker_config",
    4: "static_broker_config",
    5: "default_config",
    6: "dynamic_broker_logger_config",
    7: "client_metrics_config",
    8: "group_config",
}

# The start of the documentation of an accepted setting, which has no effect in headrace.
NO_EFFECT = "No effect here:"


class ResourceType(IntEnum):
    """The types of resources that have settings, with Kafka's codes."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
    # Of headrace, which keeps the members of roles there.
    ROLE = 100


class ConfigOwner(TypedDict, total=False):
    """The resource whose settings are read or changed, as exactly one keyword argument.

    `broker_logger` is a broker id too: its settings are loggers, their values log levels.
    """

    topic: str | None
    broker: int | None
    group: str | None
    client_metrics: str | None
    broker_logger: int | None
    role: str | None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource that has settings: its type and its name."""

    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return str(self.subject)

    @property
    def subject(self) -> Subject:
        return Subject(self.kind.name.lower().replace("_", " "), self.name)

    @property
    def node_id(self) -> int | None:
        """The only broker that knows the settings of this resource; None if every broker does."""
        of_a_broker = self.kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        return int(self.name) if of_a_broker else None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The effective value of a setting and its source. A sensitive value is None."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    documentation: str | None

    @property
    def has_effect(self) -> bool:
        """Whether the broker uses the setting, and does not only accept it for compatibility."""
        return not (self.documentation or "").startswith(NO_EFFECT)


def config_resource(**owner: Unpack[ConfigOwner]) -> ConfigResource:
    """The resource that the keyword argument names; TypeError unless there is exactly one."""
    given = {key: value for key, value in owner.items() if value is not None}
    if len(given) != 1 or not given.keys() <= ConfigOwner.__annotations__.keys():
        raise TypeError(
            "settings belong to a topic, a broker, a group, clients' metrics or the loggers of a"
            " broker; give one, as topic='orders'"
        )
    [(key, value)] = given.items()
    kind = ResourceType[key.upper()]
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return ConfigResource(kind, str(number_of(value, key, 0, 2**31 - 1)))
    return ConfigResource(kind, name_of(value, key))


def _kind_of(name: str) -> ResourceType:
    if name.upper() not in ResourceType.__members__:
        kinds = ", ".join(kind.name.lower() for kind in ResourceType)
        raise ValueError(f"{name!r} is no kind of config resource; give one of {kinds}")
    return ResourceType[name.upper()]


class ConfigAdmin:
    """Commands about the settings of resources."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def describe(self, **owner: Unpack[ConfigOwner]) -> dict[str, ConfigEntry]:
        """Every setting of a resource, by name."""
        resource = config_resource(**owner)
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

        async def attempt(
            missing: list[ConfigResource], deadline: float
        ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
            node = await self._node_of(resource, deadline)
            (answer,) = (await self._cluster.call(request, deadline, node)).results
            error = _failure(resource, answer.error_code, answer.error_message)
            entries = sorted(answer.configs, key=lambda entry: entry.name)
            return {resource: error or {entry.name: _entry(entry) for entry in entries}}

        return result(
            await retry_until_answered(self._cluster, [resource], attempt, passes), resource
        )

    async def owners(self, kinds: Iterable[str]) -> dict[str, list[str]]:
        """The names of the resources that can have settings, by kind: all kinds, or those given."""
        wanted = [_kind_of(kind) for kind in names_of(kinds, "kind")] or [
            kind for kind in ResourceType if kind is not ResourceType.ROLE
        ]
        request = ListConfigResourcesRequest(resource_types=list(wanted))

        async def attempt(
            missing: list[str], deadline: float
        ) -> dict[str, dict[str, list[str]] | KafkaError]:
            answer = await self._cluster.call(request, deadline, None)
            found: dict[int, list[str]] = {kind: [] for kind in wanted}
            for resource in answer.config_resources:
                found[resource.resource_type].append(resource.resource_name)
            error = failure(answer.error_code, None, Subject("list of config resources"))
            return {"": error or {kind.name.lower(): sorted(found[kind]) for kind in wanted}}

        return result(await retry_until_answered(self._cluster, [""], attempt, passes), "")

    async def alter(
        self, settings: Mapping[str, ConfigValue | None], **owner: Unpack[ConfigOwner]
    ) -> None:
        """Set the values of settings, or delete them with None; other settings stay as they are."""
        resource = config_resource(**owner)
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
        target = ControllerRequests(self._cluster)

        async def attempt(
            missing: list[ConfigResource], deadline: float
        ) -> dict[ConfigResource, KafkaError | None]:
            node = await self._node_of(resource, deadline)
            if node is None:
                response = await target.send(request, deadline)
            else:
                response = await self._cluster.call(request, deadline, node)
            (answer,) = response.responses
            return {resource: failure(answer.error_code, answer.error_message, resource.subject)}

        def is_retried(error: KafkaError) -> bool:
            return passes(error) and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        result(await retry_until_answered(self._cluster, [resource], attempt, is_retried), resource)

    async def _node_of(self, resource: ConfigResource, deadline: float) -> int | None:
        """The broker to ask about a resource: itself for a broker and its loggers, else None."""
        node_id = resource.node_id
        if node_id is None:
            return None
        known = sorted((await self._cluster.heard_view(deadline)).brokers)
        if node_id not in known:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"there is no broker {node_id}",
                advice=f"the cluster has {', '.join(map(str, known))}",
            )
        return node_id


def _failure(resource: ConfigResource, code: int, detail: str | None) -> KafkaError | None:
    # The same text as when the partitions of an unknown topic are asked for.
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return unknown_topic(resource.name)
    return failure(code, detail, resource.subject)


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
