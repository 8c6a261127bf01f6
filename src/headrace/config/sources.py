"""Which value a setting has, and where it comes from.

Precedence as in Kafka: the topic's or group's own, the broker's dynamic one, the cluster's dynamic
default, the broker's properties, the default.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from headrace.config.accepted import (
    accepted_settings,
    find_setting,
    kafka_settings,
    parse_values,
)
from headrace.config.broker import BROKER_SETTINGS, BrokerConfig
from headrace.config.settings import Scope, Setting
from headrace.config.topic import TOPIC_SETTINGS, TopicConfig
from headrace.errors import ConfigError


class ConfigSource(IntEnum):
    """Kafka's codes for where a value comes from."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """One place a value could come from, under the name it has there."""

    name: str
    value: str | None
    source: ConfigSource


class Described(NamedTuple):
    """A setting, the value in effect, and every place that gives one, strongest first."""

    setting: Setting
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


def topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """A topic's config: its overrides, and the broker's values for the rest.

    ConfigError for an unknown key, a bad value, or values that contradict each other.
    """
    values = {
        setting.attribute: broker.value_of(setting.synonym)
        for setting in TOPIC_SETTINGS.values()
        if setting.synonym is not None
    }
    config = TopicConfig(**values | parse_values(TOPIC_SETTINGS, Scope.TOPIC, overrides))
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms {config.min_compaction_lag_ms} is more than"
            f" max.compaction.lag.ms {config.max_compaction_lag_ms}"
        )
    return config


def describe_topic(broker: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Described]:
    """Every topic setting as DescribeConfigs tells it."""
    config = topic_config(broker, overrides)
    described = {}
    for name, setting in TOPIC_SETTINGS.items():
        value = setting.format(getattr(config, setting.attribute))
        described[name] = _described(
            setting, value, _layered(broker, setting, overrides, ConfigSource.TOPIC_CONFIG)
        )
    for name, setting in accepted_settings(Scope.TOPIC, TOPIC_SETTINGS).items():
        if not setting.internal or name in overrides:
            synonyms = _layered(broker, setting, overrides, ConfigSource.TOPIC_CONFIG)
            described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    return described


def describe_broker(broker: BrokerConfig) -> dict[str, Described]:
    """Every broker setting as DescribeConfigs tells it."""
    described = {}
    for name, setting in BROKER_SETTINGS.items():
        value = setting.format(getattr(broker, setting.attribute))
        described[name] = _described(setting, value, _broker_synonyms(broker, name))
    given = {**broker.static, **broker.dynamic_defaults, **broker.dynamic}
    for name, setting in accepted_settings(Scope.BROKER, BROKER_SETTINGS).items():
        if not setting.internal or name in given:
            synonyms = _broker_synonyms(broker, name)
            described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    for name in given:
        if name not in described:  # a listener's or a plugin's
            setting = find_setting(name, Scope.BROKER, BROKER_SETTINGS)
            synonyms = _broker_synonyms(broker, name)
            described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    return described


def describe_broker_defaults(defaults: Mapping[str, str]) -> dict[str, Described]:
    """The cluster's dynamic defaults of broker settings as DescribeConfigs tells them."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return {
        name: Described(
            find_setting(name, Scope.BROKER, BROKER_SETTINGS),
            text,
            source,
            (Synonym(name, text, source),),
        )
        for name, text in defaults.items()
    }


def describe_group(broker: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Described]:
    """Every setting of a group as DescribeConfigs tells it."""
    described = {}
    for name, setting in kafka_settings(Scope.GROUP).items():
        synonyms = _layered(broker, setting, overrides, ConfigSource.GROUP_CONFIG)
        if setting.synonym is None:
            default = setting.format(setting.default)
            synonyms.append(Synonym(name, default, ConfigSource.DEFAULT_CONFIG))
        described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    return described


def describe_client_metrics(overrides: Mapping[str, str]) -> dict[str, Described]:
    """Every setting of a subscription to clients' metrics as DescribeConfigs tells it."""
    source = ConfigSource.CLIENT_METRICS_CONFIG
    described = {}
    for name, setting in kafka_settings(Scope.CLIENT_METRICS).items():
        synonyms = _own(setting, overrides, source)
        described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    return described


def accepted_value(broker: BrokerConfig, name: str) -> Any:
    """The value of a broker setting that no dataclass has a field for."""
    setting = find_setting(name, Scope.BROKER, BROKER_SETTINGS)
    for layer in (broker.dynamic, broker.dynamic_defaults, broker.static):
        if name in layer:
            return setting.parse(layer[name])
    return setting.default


def _described(setting: Setting, value: str | None, synonyms: Iterable[Synonym]) -> Described:
    found = tuple(synonyms)
    source = found[0].source if found else ConfigSource.DEFAULT_CONFIG
    return Described(setting, value, source, found)


def _strongest(setting: Setting, synonyms: list[Synonym]) -> str | None:
    return synonyms[0].value if synonyms else setting.format(setting.default)


def _own(setting: Setting, overrides: Mapping[str, str], source: ConfigSource) -> list[Synonym]:
    if setting.name not in overrides:
        return []
    value = setting.format(setting.parse(overrides[setting.name]))
    return [Synonym(setting.name, value, source)]


def _layered(
    broker: BrokerConfig, setting: Setting, overrides: Mapping[str, str], source: ConfigSource
) -> list[Synonym]:
    """The resource's own value, then the broker's under the setting's name there."""
    below = [] if setting.synonym is None else _broker_synonyms(broker, setting.synonym)
    return [*_own(setting, overrides, source), *below]


def _broker_synonyms(broker: BrokerConfig, name: str) -> list[Synonym]:
    """The places a broker setting's value can come from, as Kafka tells them.

    All names of a value (`log.retention.ms`, `.minutes`, `.hours`) are gone through source by
    source; what comes before the first place with the name that was asked for is left out, and so
    is everything if there is no such place.
    """
    base = broker.base or broker
    names = list(_names(name))
    found: list[Synonym] = []
    for source, layer in (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.dynamic),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.dynamic_defaults),
    ):
        found += (Synonym(one.name, layer[one.name], source) for one in names if one.name in layer)
    for one in names:
        text = base.static.get(one.name)
        if one.name in BROKER_SETTINGS:
            value = getattr(base, one.attribute)
            if text is not None or value != one.default:
                text = one.format(value)
        if text is not None:
            found.append(Synonym(one.name, text, ConfigSource.STATIC_BROKER_CONFIG))
    for one in names:
        text = one.format(one.default)
        if text is not None:
            found.append(Synonym(one.name, text, ConfigSource.DEFAULT_CONFIG))
    while found and found[0].name != name:
        del found[0]
    return found


def _names(name: str) -> Iterable[Setting]:
    """A broker setting, and those that supply its value where it has none."""
    next_name: str | None = name
    while next_name is not None:
        setting = find_setting(next_name, Scope.BROKER, BROKER_SETTINGS)
        yield setting
        next_name = setting.fallback
