"""Settings of Kafka that have no effect here: known, checked and described, but not honoured.

Rule: the rows are read when somebody gives a name that no config dataclass declares or asks for
all settings, never at the start of a broker that was given only what it honours.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from headrace.config.settings import ConfigType, Scope, Setting, unknown_setting
from headrace.errors import ConfigError

NO_EFFECT = "No effect here:"

NO_SECURITY = (
    "headrace has no security yet (no TLS, no SASL, no authorizer); anybody who reaches a listener"
    " may do anything. Keep listeners where only trusted clients reach them, and take this away"
)
_JAVA = "headrace cannot run Java classes, so what this one would refuse would be allowed"
_PROVIDERS = "headrace does not fill in values written as ${provider:key}; write them out"
_TIERED = "headrace has no remote storage"

# What must not be accepted in silence, because somebody relies on it, with the harmless values.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "alter.config.policy.class.name": (("",), _JAVA),
    "authorizer.class.name": (("",), NO_SECURITY),
    "client.quota.callback.class": (("",), _JAVA),
    "config.providers": (((),), _PROVIDERS),
    "create.topic.policy.class.name": (("",), _JAVA),
    "delegation.token.secret.key": (("",), NO_SECURITY),
    "remote.log.storage.system.enable": ((False,), _TIERED),
    "remote.storage.enable": ((False,), _TIERED),
    "sasl.enabled.mechanisms": (((),), NO_SECURITY),
    "sasl.jaas.config": (("",), NO_SECURITY),
    "sasl.mechanism.controller.protocol": (("",), NO_SECURITY),
    "sasl.mechanism.inter.broker.protocol": (("",), NO_SECURITY),
    "security.inter.broker.protocol": (("PLAINTEXT",), NO_SECURITY),
    "ssl.client.auth": (("none",), NO_SECURITY),
    "super.users": (("",), NO_SECURITY),
}

# Kafka lets these change while it runs, but only under the name of a listener.
_PER_LISTENER = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")

_LISTENER_PREFIX = "listener.name."
_OF_A_MECHANISM = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)

# Whatever begins so is passed on to a plugin of Kafka's, which alone knows the rest of the name.
_PLUGIN_PREFIXES = ("config.providers.", "rlmm.config.", "rsm.config.")


@cache
def kafka_settings(scope: Scope) -> dict[str, Setting]:
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
    return {setting.name: setting for setting in sorted(found, key=lambda one: one.name)}


def accepted_settings(scope: Scope, honoured: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of Kafka that `honoured` does not have."""
    return {
        name: setting for name, setting in kafka_settings(scope).items() if name not in honoured
    }


def find_setting(name: str, scope: Scope, honoured: Mapping[str, Setting]) -> Setting:
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
        listener, _, rest = name.removeprefix(_LISTENER_PREFIX).partition(".")
        if name.startswith(_LISTENER_PREFIX) and listener and rest:
            return _of_listener(name, rest, {**known, **honoured})
    raise ConfigError(unknown_setting(name, {**known, **honoured}))


def parse_values(
    honoured: Mapping[str, Setting], scope: Scope, texts: Mapping[str, str]
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
    """The lines of each setting: its row, and what it means if that is told."""
    lines: list[str] = []
    for line in rows.splitlines():
        if not line.startswith(" "):
            if lines:
                yield lines
            lines = []
        lines.append(line.strip())
    yield lines


def _setting(lines: list[str], scope: Scope) -> Setting:
    name, kind_name, default, *rest = lines[0].split(" ")
    kind = ConfigType[kind_name]
    setting = Setting(
        name=name,
        kind=kind,
        default=None,
        doc=f"{NO_EFFECT} {lines[1]}" if len(lines) > 1 else "",
        scope=scope,
        sensitive=kind is ConfigType.PASSWORD,
        may_be_empty=True,
        dynamic=scope is not Scope.BROKER,
    )
    for part in rest:
        setting = _with_part(setting, part)
    if default not in ("null", "required"):
        setting = setting._replace(default=setting.parse("" if default == "empty" else default))
    return setting._replace(convert=_refusal(name))


def _with_part(setting: Setting, part: str) -> Setting:
    match part:
        case "internal":
            return setting._replace(internal=True)
        case "cluster-wide":
            return setting._replace(dynamic=True)
        case "per-broker":
            listener_only = setting.name.startswith(_PER_LISTENER)
            return setting._replace(dynamic=True, per_broker=True, listener_only=listener_only)
    if part.startswith("synonym="):
        return setting._replace(synonym=part.removeprefix("synonym="))
    if "|" in part:
        return setting._replace(choices=tuple(part.split("|")))
    least, most = part.split(":")
    number = float if setting.kind is ConfigType.DOUBLE else int
    return setting._replace(
        minimum=number(least) if least else None, maximum=number(most) if most else None
    )


def _refusal(name: str) -> Callable[[Any], Any] | None:
    """The check of a setting that is only accepted while it asks for nothing."""
    if name not in REFUSED:
        return None
    harmless, reason = REFUSED[name]

    def check(value: Any) -> Any:
        if value not in harmless:
            raise ValueError(reason)
        return value

    return check


def _of_listener(name: str, rest: str, known: Mapping[str, Setting]) -> Setting:
    """A setting of one listener, with the rules of the setting of all.

    `rest` is what follows `listener.name.NAME.`; a mechanism may come before the setting's name.
    """
    base = next((one for one in _OF_A_MECHANISM if rest.endswith(f".{one}")), rest)
    setting = known.get(base)
    if setting is None:
        raise ConfigError(f"{unknown_setting(base, known)} ({name} is that of one listener)")
    return setting._replace(
        name=name,
        default=None,
        doc=f"{NO_EFFECT} `{base}` of one listener.",
        per_broker=True,
        listener_only=False,
    )


def _text(name: str, doc: str) -> Setting:
    return Setting(
        name=name,
        kind=ConfigType.STRING,
        default=None,
        doc=f"{NO_EFFECT} {doc}",
        scope=Scope.BROKER,
        may_be_empty=True,
    )
