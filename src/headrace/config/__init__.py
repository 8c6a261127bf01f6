"""Settings of brokers, topics, groups and client metrics under Kafka's names.

Rule: text from users becomes values in `broker_config`, `topic_config` and `with_overrides`, and
nowhere else; the configs they return are checked and frozen.
"""

from headrace.config.accepted import (
    accepted_settings,
    find_setting,
    kafka_settings,
)
from headrace.config.broker import BROKER_SETTINGS, BrokerConfig, broker_config
from headrace.config.listeners import Listener
from headrace.config.properties import Properties, read_properties
from headrace.config.sources import (
    ConfigSource,
    DescribedSetting,
    Synonym,
    accepted_value,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_topic,
    topic_config,
)
from headrace.config.topic import TOPIC_SETTINGS, TopicConfig

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "ConfigSource",
    "DescribedSetting",
    "Listener",
    "Properties",
    "Synonym",
    "TopicConfig",
    "accepted_settings",
    "accepted_value",
    "broker_config",
    "describe_broker",
    "describe_broker_defaults",
    "describe_client_metrics",
    "describe_group",
    "describe_topic",
    "find_setting",
    "kafka_settings",
    "read_properties",
    "topic_config",
]
