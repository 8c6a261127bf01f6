"""Checks between the settings of a group, and of a subscription to clients' metrics.

Values and rules are those of Kafka's `GroupConfig` and `ClientMetricsConfigs`.
"""

import re
from collections.abc import Mapping

from headrace.config.accepted import kafka_settings
from headrace.config.broker import BrokerConfig
from headrace.config.sources import accepted_value, describe_group
from headrace.errors import ConfigError
from headrace.options import Scope

# Group settings that the broker bounds with `group.TYPE.min.NAME` and `group.TYPE.max.NAME`.
_BOUNDED = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "share.assignment.interval.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
    "streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
)

_START = re.compile(
    r"earliest|latest"
    r"|by_duration:P(?=.)(?:[0-9]+D)?(?:T(?=.)(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9.]+S)?)?",
    re.IGNORECASE,
)

_MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def group_int(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> int:
    """A number of a group's settings: its own, or else the broker's."""
    text = overrides.get(name)
    if text is None:
        return int(broker.value_of(f"group.{name}"))
    return int(kafka_settings(Scope.GROUP)[name].parse(text))


def check_group(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Refuse settings of a group that are out of the broker's bounds or contradict each other."""
    described = describe_group(broker, overrides)
    for name in _BOUNDED:
        if name in overrides:
            _check_bound(broker, name, int(described[name].value or 0))
    if "streams.num.standby.replicas" in overrides:
        most = accepted_value(broker, "group.streams.max.standby.replicas")
        if int(overrides["streams.num.standby.replicas"]) > most:
            raise ConfigError(
                f"streams.num.standby.replicas must be at most group.streams.max.standby.replicas,"
                f" which is {most}"
            )
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if int(described[session].value or 0) <= int(described[heartbeat].value or 0):
            raise ConfigError(f"{session} must be greater than {heartbeat}")
    start = described["share.auto.offset.reset"].value or ""
    if not _START.fullmatch(start):
        raise ConfigError(
            f"share.auto.offset.reset cannot be {start!r}: it must be earliest, latest or"
            " by_duration: with an ISO 8601 duration, as by_duration:PT1H"
        )


def _check_bound(broker: BrokerConfig, name: str, value: int) -> None:
    kind, _, rest = name.partition(".")
    least_name, most_name = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
    least, most = accepted_value(broker, least_name), accepted_value(broker, most_name)
    if value < least:
        raise ConfigError(f"{name} must be at least {least_name}, which is {least}")
    if value > most:
        raise ConfigError(f"{name} must be at most {most_name}, which is {most}")


def check_client_metrics(overrides: Mapping[str, str]) -> None:
    """Refuse patterns that match no attribute of a client."""
    text = overrides.get("match", "")
    for item in kafka_settings(Scope.CLIENT_METRICS)["match"].parse(text):
        name, separator, pattern = (part.strip() for part in item.partition("="))
        try:
            if not separator or "=" in pattern or name not in _MATCHED:
                raise ValueError(f"it must be NAME=PATTERN with one of {', '.join(_MATCHED)}")
            re.compile(pattern)
        except (ValueError, re.error) as error:
            raise ConfigError(f"match cannot have {item!r}: {error}") from None
