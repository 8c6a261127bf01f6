"""What a setting is: its name, type, bounds, and how its text becomes a value.

Rule: a setting is declared once, as a field of a config dataclass made with `setting(...)`.
Parsing, DescribeConfigs, the documentation and the error messages all come from that declaration.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import field, fields
from enum import Enum, IntEnum
from sys import float_info
from typing import Any, NamedTuple

from headrace.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}\Z")
_NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?\Z")


class ConfigType(IntEnum):
    """The types of Kafka's ConfigDef, with the codes DescribeConfigs sends."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_NUMBER_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
    ConfigType.DOUBLE: (-float_info.max, float_info.max),
}


class Scope(Enum):
    """Where a setting may be given."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"


class Setting(NamedTuple):
    """One setting, and the rules for its values.

    A topic setting names the broker setting that supplies its default in `synonym`. A broker
    setting that was not given takes the value of its `fallback`, each unit of which counts `scale`.
    `convert` turns the typed value into the field's, or raises ValueError with the reason. A
    `per_broker` setting has no cluster-wide default, and a `listener_only` one changes while a
    broker runs under the name of a listener. An `internal` one is described only where it is given.
    The items of a list are different unless they `may_repeat`.
    """

    name: str
    kind: ConfigType
    default: Any
    doc: str
    scope: Scope
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = False
    synonym: str | None = None
    sensitive: bool = False
    fallback: str | None = None
    scale: int = 1
    convert: Callable[[Any], Any] | None = None
    may_be_empty: bool = False
    may_repeat: bool = False
    per_broker: bool = False
    listener_only: bool = False
    internal: bool = False

    @property
    def attribute(self) -> str:
        """The name of the dataclass field that holds the value."""
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        """What a value may be, for error messages and the documentation."""
        match self.kind:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.STRING if self.choices:
                return f"one of {', '.join(self.choices)}"
            case ConfigType.STRING | ConfigType.CLASS | ConfigType.PASSWORD:
                return "text"
            case ConfigType.LIST if self.choices:
                return f"a comma-separated list of {', '.join(self.choices)}"
            case ConfigType.LIST:
                return "a comma-separated list"
            case _:
                least, most = self._bounds()
                kind = "a number" if self.kind is ConfigType.DOUBLE else "a whole number"
                return f"{kind} from {least} to {most}"

    def parse(self, text: str) -> Any:
        """The value `text` stands for; ConfigError if it is not an allowed one."""
        try:
            value = self._typed(text.strip())
            return value if self.convert is None else self.convert(value)
        except ValueError as error:
            shown = "(hidden)" if self.sensitive else repr(text)
            reason = str(error) or f"it must be {self.allowed}"
            raise ConfigError(f"{self.name} cannot be {shown}: {reason}") from None

    def format(self, value: Any) -> str | None:
        """The text `parse` reads back as `value`; None for a setting that has no value."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return str(value)

    def _bounds(self) -> tuple[float, float]:
        least, most = _NUMBER_BOUNDS[self.kind]
        return (
            least if self.minimum is None else self.minimum,
            most if self.maximum is None else self.maximum,
        )

    def _typed(self, text: str) -> Any:
        """The value by type alone. A ValueError without text means `allowed` says it all."""
        match self.kind:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ValueError
                return text.lower() == "true"
            case ConfigType.STRING | ConfigType.CLASS | ConfigType.PASSWORD:
                if self.choices and text not in self.choices:
                    raise ValueError
                return text
            case ConfigType.LIST:
                return self._items(text)
            case _:
                is_double = self.kind is ConfigType.DOUBLE
                if not (_NUMBER if is_double else _WHOLE_NUMBER).match(text):
                    raise ValueError
                number = float(text) if is_double else int(text)
                least, most = self._bounds()
                if not least <= number <= most:
                    raise ValueError
                return number

    def _items(self, text: str) -> tuple[str, ...]:
        if not text and (self.may_be_empty or self.default == ()):
            return ()
        items = tuple(item.strip() for item in text.split(","))
        if not all(items):
            raise ValueError("the list is empty or has an empty item")
        seen = set[str]()
        for item in items:
            if self.choices and item not in self.choices:
                raise ValueError(f"{item!r} is not one of {', '.join(self.choices)}")
            if item in seen and not self.may_repeat:
                raise ValueError(f"{item!r} is given twice")
            seen.add(item)
        return items


def setting(
    kind: ConfigType,
    default: Any,
    *,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
    synonym: str | None = None,
    sensitive: bool = False,
    fallback: str | None = None,
    scale: int = 1,
    convert: Callable[[Any], Any] | None = None,
    may_be_empty: bool = False,
    may_repeat: bool = False,
) -> Any:
    """Declare a config dataclass field; see `Setting` for what the arguments mean."""
    assert kind in (*_NUMBER_BOUNDS, ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.LIST)
    declared = {
        "kind": kind,
        "doc": doc,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "dynamic": dynamic,
        "synonym": synonym,
        "sensitive": sensitive,
        "fallback": fallback,
        "scale": scale,
        "convert": convert,
        "may_be_empty": may_be_empty,
        "may_repeat": may_repeat,
    }
    return field(default=default, metadata={"setting": declared})


def settings_of(config_class: Any, scope: Scope) -> dict[str, Setting]:
    """The settings a config dataclass declares, by Kafka name, in order of declaration."""
    found = {}
    for declared in fields(config_class):
        if "setting" in declared.metadata:
            name = declared.name.replace("_", ".")
            found[name] = Setting(
                name=name, default=declared.default, scope=scope, **declared.metadata["setting"]
            )
    return found


def unknown_setting(name: str, known: Collection[str]) -> str:
    """The message for a key nobody declared, with the likeliest intended one."""
    import difflib  # noqa: PLC0415  # Few mistype a name, and all would wait for it.

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"unknown setting {name!r}{hint}"
