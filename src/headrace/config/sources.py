"""Which value a topic or broker setting has, and where it comes from.

Precedence as in Kafka: the topic's own, the broker's dynamic one, the cluster's dynamic default,
the broker's properties, the default.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.config.broker import BROKER_SETTINGS, BrokerConfig
from headrace.config.settings import Setting, parse_values
from headrace.config.topic import TOPIC_SETTINGS, TopicConfig
from headrace.errors import ConfigError


class ConfigSource(IntEnum):
    """Kafka's codes for where a value comes from, strongest first."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


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
    config = TopicConfig(**values | parse_values(TOPIC_SETTINGS, overrides))
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
        if setting.synonym is None:
            text = setting.format(setting.default)
            synonyms = [Synonym(name, text, ConfigSource.DEFAULT_CONFIG)]
        else:
            synonyms = _broker_synonyms(broker, setting.synonym)
        if name in overrides:
            synonyms.insert(0, Synonym(name, overrides[name], ConfigSource.TOPIC_CONFIG))
        value = setting.format(getattr(config, setting.attribute))
        described[name] = Described(setting, value, synonyms[0].source, tuple(synonyms))
    return described


def describe_broker(broker: BrokerConfig) -> dict[str, Described]:
    """Every broker setting as DescribeConfigs tells it."""
    described = {}
    for name, setting in BROKER_SETTINGS.items():
        value = setting.format(getattr(broker, setting.attribute))
        own = [synonym for synonym in _broker_synonyms(broker, name) if synonym.name == name]
        source = own[0].source if own else ConfigSource.DEFAULT_CONFIG
        described[name] = Described(setting, value, source, tuple(_broker_synonyms(broker, name)))
    return described


def _broker_synonyms(broker: BrokerConfig, name: str) -> list[Synonym]:
    """The places a broker setting's value can come from, its fallbacks' after its own."""
    found: list[Synonym] = []
    base = broker.base or broker
    next_name: str | None = name
    while next_name is not None:
        setting = BROKER_SETTINGS[next_name]
        for source, layer in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.dynamic_defaults),
        ):
            if next_name in layer:
                found.append(Synonym(next_name, layer[next_name], source))
        value = getattr(base, setting.attribute)
        if next_name in base.static or value != setting.default:
            text = setting.format(value)
            found.append(Synonym(next_name, text, ConfigSource.STATIC_BROKER_CONFIG))
        if setting.default is not None:
            text = setting.format(setting.default)
            found.append(Synonym(next_name, text, ConfigSource.DEFAULT_CONFIG))
        next_name = setting.fallback
    return found
