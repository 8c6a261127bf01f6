"""Effective values of settings and their sources, as DescribeConfigs answers them.

Precedence as in Kafka: the topic's or group's own value, the broker's dynamic value, the cluster's
dynamic default, the broker's properties, the default.
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
from headrace.config.topic import TOPIC_SETTINGS, TopicConfig
from headrace.errors import ConfigError
from headrace.options import Option, Scope


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
    """A source of a setting's value, and the setting's name in that source."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedSetting(NamedTuple):
    """A setting, its effective value, and all sources of a value, strongest first."""

    setting: Option
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
        setting.attribute: broker.value_of(setting.inherits)
        for setting in TOPIC_SETTINGS.values()
        if setting.inherits
    }
    config = TopicConfig(**values | parse_values(TOPIC_SETTINGS, Scope.TOPIC, overrides))
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms {config.min_compaction_lag_ms} is more than"
            f" max.compaction.lag.ms {config.max_compaction_lag_ms}"
        )
    return config


def describe_topic(
    broker: BrokerConfig, overrides: Mapping[str, str]
) -> dict[str, DescribedSetting]:
    """Every topic setting as DescribeConfigs answers it."""
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


def describe_broker(broker: BrokerConfig) -> dict[str, DescribedSetting]:
    """Every broker setting as DescribeConfigs answers it."""
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


def describe_broker_defaults(defaults: Mapping[str, str]) -> dict[str, DescribedSetting]:
    """The cluster's dynamic defaults of broker settings as DescribeConfigs answers them."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return {
        name: DescribedSetting(
            find_setting(name, Scope.BROKER, BROKER_SETTINGS),
            text,
            source,
            (Synonym(name, text, source),),
        )
        for name, text in defaults.items()
    }


def describe_group(
    broker: BrokerConfig, overrides: Mapping[str, str]
) -> dict[str, DescribedSetting]:
    """Every setting of a group as DescribeConfigs answers it."""
    described = {}
    for name, setting in kafka_settings(Scope.GROUP).items():
        synonyms = _layered(broker, setting, overrides, ConfigSource.GROUP_CONFIG)
        if not setting.inherits:
            default = setting.format(setting.default)
            synonyms.append(Synonym(name, default, ConfigSource.DEFAULT_CONFIG))
        described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    return described


def describe_client_metrics(overrides: Mapping[str, str]) -> dict[str, DescribedSetting]:
    """Every setting of a subscription to clients' metrics as DescribeConfigs answers it."""
    source = ConfigSource.CLIENT_METRICS_CONFIG
    described = {}
    for name, setting in kafka_settings(Scope.CLIENT_METRICS).items():
        synonyms = _own(setting, overrides, source)
        described[name] = _described(setting, _strongest(setting, synonyms), synonyms)
    return described


def accepted_value(broker: BrokerConfig, name: str) -> Any:
    """The value of a broker setting, which may be accepted and have no field in a config."""
    if name in BROKER_SETTINGS:
        return broker.value_of(name)
    setting = find_setting(name, Scope.BROKER, BROKER_SETTINGS)
    for layer in (broker.dynamic, broker.dynamic_defaults, broker.static):
        if name in layer:
            return setting.parse(layer[name])
    return setting.default


def _described(setting: Option, value: str | None, synonyms: Iterable[Synonym]) -> DescribedSetting:
    found = tuple(synonyms)
    source = found[0].source if found else ConfigSource.DEFAULT_CONFIG
    return DescribedSetting(setting, value, source, found)


def _strongest(setting: Option, synonyms: list[Synonym]) -> str | None:
    return synonyms[0].value if synonyms else setting.format(setting.default)


def _own(setting: Option, overrides: Mapping[str, str], source: ConfigSource) -> list[Synonym]:
    if setting.name not in overrides:
        return []
    value = setting.format(setting.parse(overrides[setting.name]))
    return [Synonym(setting.name, value, source)]


def _layered(
    broker: BrokerConfig, setting: Option, overrides: Mapping[str, str], source: ConfigSource
) -> list[Synonym]:
    """The resource's own value, then those of the broker setting it inherits."""
    below = _broker_synonyms(broker, setting.inherits) if setting.inherits else []
    return [*_own(setting, overrides, source), *below]


def _broker_synonyms(broker: BrokerConfig, name: str) -> list[Synonym]:
    """The sources of a broker setting's value, in Kafka's order.

    Settings that inherit from each other (`log.retention.ms`, `.minutes`, `.hours`) are listed
    source by source. Sources before the first that gives the setting of this very name are left
    out, and all of them if no source gives it.
    """
    base = broker.base or broker
    settings = list(_with_inherited(name))
    found: list[Synonym] = []
    for source, layer in (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.dynamic),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.dynamic_defaults),
    ):
        for setting in settings:
            if setting.name in layer:
                found.append(Synonym(setting.name, layer[setting.name], source))
    for setting in settings:
        text = base.static.get(setting.name)
        if setting.name in BROKER_SETTINGS:
            value = getattr(base, setting.attribute)
            if text is not None or value != setting.default:
                text = setting.format(value)
        if text is not None:
            found.append(Synonym(setting.name, text, ConfigSource.STATIC_BROKER_CONFIG))
    for setting in settings:
        text = setting.format(setting.default)
        if text is not None:
            found.append(Synonym(setting.name, text, ConfigSource.DEFAULT_CONFIG))
    while found and found[0].name != name:
        del found[0]
    return found


def _with_inherited(name: str) -> Iterable[Option]:
    """A broker setting, and those that supply its value where it has none."""
    while name:
        setting = find_setting(name, Scope.BROKER, BROKER_SETTINGS)
        yield setting
        name = setting.inherits
