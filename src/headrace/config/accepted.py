"""Settings of Kafka that have no effect here: known, checked and described, but not honoured.

Rule: the rows of Kafka's settings are read for a name that no config dataclass declares, or for a
list of all settings, and never at the start of a broker that is given honoured settings only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from headrace.errors import ConfigError
from headrace.options import (
    Bool,
    ClassName,
    ConfigType,
    Float,
    Int,
    ListOf,
    Long,
    Option,
    Password,
    Scope,
    Short,
    Text,
    ValueType,
    one_of,
    unknown_name,
)

NO_EFFECT = "No effect here:"

_JAVA = "headrace cannot run Java classes, so what this one would refuse would be allowed"
_PROVIDERS = "headrace does not fill in values written as ${provider:key}; write them out"
_TIERED = "headrace has no remote storage"

# Settings that must not be accepted in silence, since somebody relies on their effect: the values
# without any effect, which are accepted, and the reason to refuse the others.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "alter.config.policy.class.name": (("",), _JAVA),
    "client.quota.callback.class": (("",), _JAVA),
    "config.providers": (((),), _PROVIDERS),
    "create.topic.policy.class.name": (("",), _JAVA),
    "remote.log.storage.system.enable": ((False,), _TIERED),
    "remote.storage.enable": ((False,), _TIERED),
}

# Kafka lets these change while it runs, but only under the name of a listener.
_PER_LISTENER = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")

LISTENER_PREFIX = "listener.name."
SASL_MECHANISM_SETTINGS = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)

# Kafka passes settings with these prefixes on to a plugin, which alone knows the rest of the name.
_PLUGIN_PREFIXES = ("config.providers.", "rlmm.config.", "rsm.config.")


@cache
def kafka_settings(scope: Scope) -> dict[str, Option]:
    """Every setting of Kafka 4.3 of topics, brokers, groups or client metrics, by name."""
    # Imported here because most brokers never need them.
    from headrace.config.kafka_settings import (  # noqa: PLC0415
        groups,
        logs,
        nodes,
        resources,
        security,
    )

    rows = {
        Scope.BROKER: groups.ROWS + logs.ROWS + nodes.ROWS + security.ROWS,
        Scope.TOPIC: resources.TOPIC_ROWS,
        Scope.GROUP: resources.GROUP_ROWS,
        Scope.CLIENT_METRICS: resources.CLIENT_METRICS_ROWS,
    }
    found = (_setting(lines, scope) for lines in _by_setting(rows[scope]))
    return {setting.name: setting for setting in sorted(found, key=lambda found: found.name)}


def accepted_settings(scope: Scope, honoured: Mapping[str, Option]) -> dict[str, Option]:
    """The settings of Kafka that `honoured` does not have."""
    return {
        name: setting for name, setting in kafka_settings(scope).items() if name not in honoured
    }


def find_setting(name: str, scope: Scope, honoured: Mapping[str, Option]) -> Option:
    """The setting of that name, honoured or accepted; ConfigError if there is none."""
    setting = honoured.get(name)
    if setting is not None:
        return setting
    known = kafka_settings(scope)
    if name in known:
        return known[name]
    if scope is Scope.BROKER:
        if name.startswith(_PLUGIN_PREFIXES):
            return _text(name, "Passed on to a plugin in Kafka.")
        listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
        if name.startswith(LISTENER_PREFIX) and listener and rest:
            return _of_listener(name, rest, {**known, **honoured}, honoured)
    raise ConfigError(unknown_name("setting", name, {**known, **honoured}))


def parse_values(
    honoured: Mapping[str, Option], scope: Scope, texts: Mapping[str, str]
) -> dict[str, Any]:
    """Dataclass field values for the texts; ConfigError for an unknown key or a bad value.

    Values of accepted settings are checked too, and left out.
    """
    values = {}
    for name, text in texts.items():
        value = find_setting(name, scope, honoured).parse(text)
        if name in honoured:
            values[honoured[name].attribute] = value
    return values


def _by_setting(rows: str) -> Iterable[list[str]]:
    """The lines of each setting: its row, and its meaning if there is one."""
    lines: list[str] = []
    for line in rows.splitlines():
        if not line.startswith(" "):
            if lines:
                yield lines
            lines = []
        lines.append(line.strip())
    yield lines


def _setting(lines: list[str], scope: Scope) -> Option:
    name, type_name, default, *parts = lines[0].split(" ")
    setting = Option(
        name=name,
        type=_type(type_name, parts),
        default=None,
        doc=_meaning(lines, honoured="honoured" in parts),
        scope=scope,
        inherits=next((_after_equals(part) for part in parts if part.startswith("synonym=")), ""),
        sensitive=type_name == ConfigType.PASSWORD.name,
        dynamic=scope is not Scope.BROKER or "cluster-wide" in parts or "per-broker" in parts,
        per_broker="per-broker" in parts,
        listener_only="per-broker" in parts and name.startswith(_PER_LISTENER),
        internal="internal" in parts,
    )
    value = None
    if default not in ("null", "required"):
        value = setting.parse("" if default == "empty" else default)
    return replace(setting, default=value, convert=_refusal(name))


def _meaning(lines: list[str], *, honoured: bool) -> str:
    """The second line of a setting, if there is one; a group's setting may have an effect."""
    if len(lines) < 2:
        return ""
    return lines[1] if honoured else f"{NO_EFFECT} {lines[1]}"


def _type(name: str, parts: list[str]) -> ValueType:
    """The values of a setting whose row names this type and has these parts after the default."""
    choices = next((tuple(part.split("|")) for part in parts if "|" in part), ())
    least, _, most = next((part for part in parts if ":" in part), ":").partition(":")
    match ConfigType[name]:
        case ConfigType.BOOLEAN:
            return Bool()
        case ConfigType.STRING:
            return one_of(*choices) if choices else Text()
        case ConfigType.CLASS:
            return ClassName()
        case ConfigType.PASSWORD:
            return Password()
        case ConfigType.LIST:
            return ListOf(choices, may_be_empty=True)
        case ConfigType.DOUBLE:
            return Float(float(least) if least else None, float(most) if most else None)
    whole_number = {"SHORT": Short, "INT": Int, "LONG": Long}[name]
    return whole_number(int(least) if least else None, int(most) if most else None)


def _after_equals(part: str) -> str:
    return part.partition("=")[2]


def _refusal(name: str) -> Callable[[Any], Any] | None:
    """The check of a setting that is refused but for its harmless values."""
    if name not in REFUSED:
        return None
    harmless, reason = REFUSED[name]

    def check(value: Any) -> Any:
        if value not in harmless:
            raise ValueError(reason)
        return value

    return check


def _of_listener(
    name: str, rest: str, known: Mapping[str, Option], honoured: Mapping[str, Option]
) -> Option:
    """The setting of a single listener, with the rules of the setting for all listeners.

    `rest` is the name after `listener.name.NAME.`; a SASL mechanism may precede the setting's name.
    """
    base = next((name for name in SASL_MECHANISM_SETTINGS if rest.endswith(f".{name}")), rest)
    setting = known.get(base)
    if setting is None:
        unknown = unknown_name("setting", base, known)
        raise ConfigError(f"{unknown} ({name} is that of one listener)")
    has_effect = base in honoured and setting.per_listener
    return replace(
        setting,
        name=name,
        default=None,
        doc=f"`{base}` of one listener."
        if has_effect
        else f"{NO_EFFECT} `{base}` of one listener.",
        per_broker=True,
        listener_only=False,
    )


def _text(name: str, doc: str) -> Option:
    return Option(
        name=name, type=Text(), default=None, doc=f"{NO_EFFECT} {doc}", scope=Scope.BROKER
    )
