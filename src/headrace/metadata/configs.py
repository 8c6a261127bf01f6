"""AlterConfigs and IncrementalAlterConfigs: set, delete, append to and subtract from settings.

Rule: errors are per resource. Either all changes to a resource are made or none.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from headrace.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    find_setting,
    topic_config,
)
from headrace.errors import ConfigError, ErrorCode, KafkaError, unknown_topic
from headrace.metadata.elections import MIN_ISR_SETTING, elr_clearings
from headrace.metadata.image import ConfigKey, ConfigResourceType, Image
from headrace.metadata.records import CommandResult, repeated_names
from headrace.metadata.role_settings import check_role_changes
from headrace.options import ConfigType, Option, Scope
from headrace.protocol.messages import alter_configs as legacy
from headrace.protocol.messages import incremental_alter_configs as incremental
from headrace.protocol.messages.metadata_records import ConfigRecord
from headrace.protocol.schema import Message

Resource = TypeVar("Resource", legacy.AlterConfigsResource, incremental.AlterConfigsResource)
Answer = TypeVar("Answer")


class ConfigOperation(IntEnum):
    """Kafka's codes for the change of a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# No broker needs longer values, and they do not fit into the files that Kafka's tools write.
_VALUE_CHARACTERS_MAX = 2**15 - 1


class _ResourceSettings(NamedTuple):
    """The settings of one resource type, and Kafka's error codes for those that are wrong."""

    scope: Scope
    honoured: Mapping[str, Option]
    unknown: ErrorCode = ErrorCode.INVALID_CONFIG
    refused: ErrorCode = ErrorCode.INVALID_CONFIG


_DEFAULTS = BrokerConfig()

_KINDS = {
    ConfigResourceType.TOPIC: _ResourceSettings(Scope.TOPIC, TOPIC_SETTINGS),
    # Kafka checks a broker's settings before it asks the controller, with another code.
    ConfigResourceType.BROKER: _ResourceSettings(
        Scope.BROKER, BROKER_SETTINGS, refused=ErrorCode.INVALID_REQUEST
    ),
    ConfigResourceType.GROUP: _ResourceSettings(Scope.GROUP, {}),
    ConfigResourceType.CLIENT_METRICS: _ResourceSettings(
        Scope.CLIENT_METRICS,
        {},
        unknown=ErrorCode.INVALID_REQUEST,
        refused=ErrorCode.INVALID_REQUEST,
    ),
}


# Not declared as options: the names of their settings have principals in them.
_ROLES = _ResourceSettings(Scope.GROUP, {})


class _ConfigOutcome(NamedTuple):
    resource: ConfigKey
    records: tuple[Message, ...]
    error: KafkaError | None


def incremental_alter_configs(
    image: Image,
    request: incremental.IncrementalAlterConfigsRequest,
    config: BrokerConfig = _DEFAULTS,
) -> CommandResult[incremental.IncrementalAlterConfigsResponse]:
    """Change the settings that the request names, and leave the others as they are.

    `config` is the controller's own; its bounds hold for groups and topics.
    """
    outcomes = _alter(image, request.resources, _incremental_changes, config)
    answers = _answers(incremental.AlterConfigsResourceResponse, outcomes)
    response = incremental.IncrementalAlterConfigsResponse(responses=answers)
    return CommandResult(() if request.validate_only else _records(image, outcomes), response)


def alter_configs(
    image: Image, request: legacy.AlterConfigsRequest, config: BrokerConfig = _DEFAULTS
) -> CommandResult[legacy.AlterConfigsResponse]:
    """Replace all settings of each resource by those of the request."""
    outcomes = _alter(image, request.resources, _replacing_changes, config)
    answers = _answers(legacy.AlterConfigsResourceResponse, outcomes)
    response = legacy.AlterConfigsResponse(responses=answers)
    return CommandResult(() if request.validate_only else _records(image, outcomes), response)


def _alter(
    image: Image,
    resources: Sequence[Resource],
    changes_of: Callable[[Resource, Mapping[str, str], _ResourceSettings], dict[str, str | None]],
    config: BrokerConfig,
) -> list[_ConfigOutcome]:
    mentions = Counter((given.resource_type, given.resource_name) for given in resources)
    outcomes: dict[ConfigKey, _ConfigOutcome] = {}
    for given in resources:
        resource = ConfigKey(given.resource_type, given.resource_name)
        if resource in outcomes:
            continue
        try:
            if mentions[resource] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "the request names the resource more than once"
                )
            is_role = resource.resource_type == ConfigResourceType.ROLE
            kind = _ROLES if is_role else _kind_of(image, resource)
            twice = repeated_names(config.name for config in given.configs)
            if twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{min(twice)} is given more than once")
            current = image.configs.get(resource, {})
            changes = changes_of(given, current, kind)
            if is_role:
                _check_role(resource, changes, current)
                outcomes[resource] = _ConfigOutcome(
                    resource, _change_records(resource, changes, current), None
                )
                continue
            _check(resource, changes, kind)
            if image.has_elr:
                _check_min_isr(resource, changes, current)
            _check_together(resource, changes, current, kind, config)
            outcomes[resource] = _ConfigOutcome(
                resource, _change_records(resource, changes, current), None
            )
        except KafkaError as error:
            outcomes[resource] = _ConfigOutcome(resource, (), error)
    return list(outcomes.values())


def _check_role(
    resource: ConfigKey, changes: Mapping[str, str | None], current: Mapping[str, str]
) -> None:
    check_role_changes(resource.name, current, changes)
    for name, value in changes.items():
        if max(len(name), len(value or "")) > _VALUE_CHARACTERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"more than {_VALUE_CHARACTERS_MAX} characters in a role"
            )


def _kind_of(image: Image, resource: ConfigKey) -> _ResourceSettings:
    """The settings that a resource can have; KafkaError if the resource does not exist."""
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            if not resource.name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "topics have no cluster-wide default of their own",
                    advice="set the broker's instead",
                )
            if resource.name not in image.topics:
                raise unknown_topic(resource.name)
        case ConfigResourceType.BROKER:
            # Compared as text: settings of "01" would never be found again as those of broker 1.
            if resource.name and resource.name not in map(str, image.brokers):
                raise KafkaError(
                    ErrorCode.BROKER_ID_NOT_REGISTERED
                    if resource.name.isdecimal()
                    else ErrorCode.INVALID_REQUEST,
                    f"no broker has the id {resource.name!r}",
                    advice="use one that is registered, or no name for all brokers",
                )
        case ConfigResourceType.GROUP | ConfigResourceType.CLIENT_METRICS:
            # Neither has to exist: settings may be there before the first member or client is.
            if not resource.name:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "the name of a group or of a subscription to metrics must not be empty",
                )
        case _:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"resources of type {resource.resource_type} have no configs here",
                advice="use a topic (2), a broker (4), client metrics (16) or a group (32)",
            )
    return _KINDS[ConfigResourceType(resource.resource_type)]


def _incremental_changes(
    resource: incremental.AlterConfigsResource, current: Mapping[str, str], kind: _ResourceSettings
) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        if config.config_operation == ConfigOperation.DELETE:
            changes[config.name] = None
        elif config.value is None:
            raise _no_value(config.name)
        elif config.config_operation == ConfigOperation.SET:
            changes[config.name] = config.value
        elif config.config_operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            changes[config.name] = _changed_list(config, config.value, current, kind)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{config.name}: there is no config operation {config.config_operation}",
            )
    return changes


def _changed_list(
    config: incremental.AlterableConfig,
    value: str,
    current: Mapping[str, str],
    kind: _ResourceSettings,
) -> str:
    setting = _setting_named(config.name, kind)
    if setting.type.config_type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{config.name} is not a list that could be appended to or subtracted from",
            advice="set it",
        )
    present = current.get(config.name, setting.format(setting.default)) or ""
    items = [item.strip() for item in present.split(",") if item.strip()]
    named = [item.strip() for item in value.split(",")]
    if config.config_operation == ConfigOperation.APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def _replacing_changes(
    resource: legacy.AlterConfigsResource, current: Mapping[str, str], kind: _ResourceSettings
) -> dict[str, str | None]:
    changes: dict[str, str | None] = dict.fromkeys(current)
    for config in resource.configs:
        if config.value is None:
            raise _no_value(config.name)
        changes[config.name] = config.value
    return changes


def _check(resource: ConfigKey, changes: Mapping[str, str | None], kind: _ResourceSettings) -> None:
    for name, value in changes.items():
        if value is None:
            # Kafka's tools delete every setting they may have set, whatever this version knows.
            continue
        setting = _setting_named(name, kind)
        if kind.scope is Scope.BROKER:
            _check_changeable(setting, for_all=not resource.name)
        if len(value) > _VALUE_CHARACTERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is longer than {_VALUE_CHARACTERS_MAX} characters",
            )
        try:
            setting.parse(value)
        except ConfigError as error:
            raise KafkaError(kind.refused, str(error)) from None


def _check_min_isr(
    resource: ConfigKey, changes: Mapping[str, str | None], current: Mapping[str, str]
) -> None:
    """Refuse changes that let leaders and the controller differ on `min.insync.replicas`."""
    if resource.resource_type != ConfigResourceType.BROKER or MIN_ISR_SETTING not in changes:
        return
    value = changes[MIN_ISR_SETTING]
    if value == current.get(MIN_ISR_SETTING):
        return
    if resource.name:
        reason = "cannot be set for one broker; set it for all of them, or for a topic"
    elif value is None:
        reason = "cannot be removed for all brokers; set it to another value"
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_CONFIG,
        f"{MIN_ISR_SETTING} {reason}, as long as eligible leader replicas are kept",
    )


def _check_changeable(setting: Option, *, for_all: bool) -> None:
    """Refuse a setting that can only be set in a properties file, per broker or per listener."""
    if not setting.dynamic:
        reason = (
            "cannot change while the broker runs; set it in the broker's properties file and"
            " restart"
        )
    elif setting.listener_only:
        reason = "can change for one listener only, as listener.name.NAME." + setting.name
    elif setting.per_broker and for_all:
        reason = "has no default for all brokers; name a broker"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{setting.name} {reason}")


def _check_together(
    resource: ConfigKey,
    changes: Mapping[str, str | None],
    current: Mapping[str, str],
    kind: _ResourceSettings,
    config: BrokerConfig,
) -> None:
    """Refuse values that contradict each other or the broker's settings."""
    if kind.scope is Scope.BROKER:
        return
    # Imported late: few clusters have settings of groups, and all would pay for it at start.
    from headrace.config.resources import check_client_metrics, check_group  # noqa: PLC0415

    after = {**current, **changes}
    given = {
        name: value for name, value in after.items() if value is not None and _is_known(name, kind)
    }
    try:
        match kind.scope:
            case Scope.TOPIC:
                topic_config(config, given)
            case Scope.GROUP:
                check_group(config, given)
            case Scope.CLIENT_METRICS:
                check_client_metrics(given)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _setting_named(name: str, kind: _ResourceSettings) -> Option:
    try:
        return find_setting(name, kind.scope, kind.honoured)
    except ConfigError as error:
        raise KafkaError(kind.unknown, str(error)) from None


def _is_known(name: str, kind: _ResourceSettings) -> bool:
    """Whether this version knows a setting; another version may have stored it."""
    try:
        _setting_named(name, kind)
    except KafkaError:
        return False
    return True


def _no_value(name: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"{name} has no value",
        advice="give one, or delete the setting",
    )


def _change_records(
    resource: ConfigKey, changes: Mapping[str, str | None], current: Mapping[str, str]
) -> tuple[Message, ...]:
    return tuple(
        ConfigRecord(
            resource_type=resource.resource_type,
            resource_name=resource.name,
            name=name,
            value=value,
        )
        for name, value in changes.items()
        if value != current.get(name)
    )


def _records(image: Image, outcomes: Sequence[_ConfigOutcome]) -> tuple[Message, ...]:
    records = [record for outcome in outcomes for record in outcome.records]
    changed = {
        record.resource_name
        for record in records
        if isinstance(record, ConfigRecord) and record.name == MIN_ISR_SETTING
    }
    # A change for all brokers, whose name is empty, concerns every topic.
    topics = [topic for topic in image.topics.values() if "" in changed or topic.name in changed]
    return (*records, *elr_clearings(image, topics))


def _answers(answer: Callable[..., Answer], outcomes: Sequence[_ConfigOutcome]) -> list[Answer]:
    return [
        answer(
            error_code=0 if error is None else error.code,
            error_message=None if error is None else error.detail,
            resource_type=resource.resource_type,
            resource_name=resource.name,
        )
        for resource, _, error in outcomes
    ]
