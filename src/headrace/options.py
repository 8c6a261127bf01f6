"""Options: one way to declare, parse, bound, document and refuse a named value.

Rule: an option is declared once, as a field of a dataclass (`option`, `setting`) or as an `Option`
of a table. Parsing, checks, error messages, suggestions and documentation come from there.

A text becomes a value in two steps, `parse` and `check`: `parse` converts properties of a client to
the value a user would write in Python (`acks="all"`), and only the client converts that to its own
value (-1). The allowed values are worded twice, since "true or false" is right for a text and wrong
for Python. An option has the name that its users write: Kafka's for a setting, a keyword for a
client, Spark's for a data source. The first error is raised, not all of them: the reader of a file
adds its line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from operator import index
from sys import float_info
from typing import Any, ClassVar, NamedTuple, Protocol

from headrace.errors import ConfigError, HeadraceError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

# The least similarity of a suggestion, where 1 is equality.
_SIMILARITY_MIN = 0.6

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}\Z")
_NUMBER = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?\Z")
_DURATION = re.compile(r"([0-9]{1,12})\s*([a-z]+)")
_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


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


class Scope(Enum):
    """The resource that a setting belongs to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"


# Value types.


class NotAllowed(ValueError):
    """A value that is not among the allowed ones; `nearest` is the most similar allowed one."""

    def __init__(self, nearest: str | None = None) -> None:
        super().__init__()
        self.nearest = nearest


class ValueType(Protocol):
    """The values of an option.

    `parse` and `check` raise ValueError. Its text is the reason, and without a text the reason is
    that the value is none of the allowed ones.
    """

    @property
    def allowed(self) -> str:
        """The allowed texts in words, for errors and documentation."""
        ...

    @property
    def allowed_value(self) -> str:
        """The allowed Python values in words, for errors and documentation."""
        ...

    @property
    def config_type(self) -> ConfigType:
        """The type that DescribeConfigs announces."""
        ...

    def parse(self, text: str) -> Any:
        """The Python value of a text, in a form that `check` accepts."""
        ...

    def check(self, value: Any) -> Any:
        """The value in its final form."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers between two bounds. `unit` is their unit in texts; `optional` ones may be None.

    A missing bound is that of the type, which is named only if it is exceeded.
    """

    minimum: float | None = None
    maximum: float | None = None
    optional: bool = field(default=False, kw_only=True)
    unit: str = field(default="", kw_only=True)

    config_type: ClassVar[ConfigType]
    noun: ClassVar[str]
    limits: ClassVar[tuple[float, float]]

    @property
    def least(self) -> float:
        return self.limits[0] if self.minimum is None else self.minimum

    @property
    def most(self) -> float:
        return self.limits[1] if self.maximum is None else self.maximum

    @property
    def allowed(self) -> str:
        unit = f"{self.unit}, " if self.unit else ""
        if self.minimum is not None and self.maximum is not None:
            return f"{unit}{self.noun} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{unit}{self.noun} of at least {self.minimum}"
        if self.maximum is not None:
            return f"{unit}{self.noun} of at most {self.maximum}"
        return f"{unit}{self.noun}"

    @property
    def allowed_value(self) -> str:
        return f"{self.allowed}, or None" if self.optional else self.allowed

    def parse(self, text: str) -> float:
        raise NotImplementedError

    def check(self, value: Any) -> float | None:
        if value is None and self.optional:
            return None
        # True and False are ints to Python, but never meant as numbers.
        if isinstance(value, bool):
            raise ValueError
        number = self.typed(value)
        if self.least <= number <= self.most:
            return number
        beyond_type = (self.minimum is None and number < self.least) or (
            self.maximum is None and number > self.most
        )
        if beyond_type:
            raise ValueError(f"it must be {self.noun} from {self.least} to {self.most}")
        raise ValueError

    def typed(self, value: Any) -> float:
        """A Python value as a number; ValueError for a value of another type."""
        raise NotImplementedError


class Int(Number):
    """Whole numbers of 32 bits."""

    __slots__ = ()

    config_type: ClassVar[ConfigType] = ConfigType.INT
    noun: ClassVar[str] = "a whole number"
    limits: ClassVar[tuple[float, float]] = (-(2**31), INT_MAX)

    def parse(self, text: str) -> int:
        if not _WHOLE_NUMBER.match(text):
            raise ValueError
        return int(text)

    def typed(self, value: Any) -> int:
        try:
            return index(value)
        except TypeError:
            raise ValueError from None


class Short(Int):
    """Whole numbers of 16 bits."""

    __slots__ = ()

    config_type: ClassVar[ConfigType] = ConfigType.SHORT
    limits: ClassVar[tuple[float, float]] = (-(2**15), 2**15 - 1)


class Long(Int):
    """Whole numbers of 64 bits."""

    __slots__ = ()

    config_type: ClassVar[ConfigType] = ConfigType.LONG
    limits: ClassVar[tuple[float, float]] = (-(2**63), LONG_MAX)


class Float(Number):
    """Numbers with a fraction."""

    __slots__ = ()

    config_type: ClassVar[ConfigType] = ConfigType.DOUBLE
    noun: ClassVar[str] = "a number"
    limits: ClassVar[tuple[float, float]] = (-float_info.max, float_info.max)

    def parse(self, text: str) -> float:
        if not _NUMBER.match(text):
            raise ValueError
        return float(text)

    def typed(self, value: Any) -> float:
        if not isinstance(value, int | float):
            raise ValueError
        return value


class Bool:
    """True or false. As a Python value a text is refused, because "false" is true to Python."""

    allowed: ClassVar[str] = "true or false"
    allowed_value: ClassVar[str] = "True or False"
    config_type: ClassVar[ConfigType] = ConfigType.BOOLEAN

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise NotAllowed(nearest(text, ("true", "false")))
        return text.lower() == "true"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Text. An `optional` one may be None, and empty text stands for None then."""

    optional: bool = False
    may_be_blank: bool = True

    config_type: ClassVar[ConfigType] = ConfigType.STRING

    @property
    def allowed(self) -> str:
        return "text"

    @property
    def allowed_value(self) -> str:
        return "text, or None" if self.optional else "text"

    def parse(self, text: str) -> str:
        return text

    def check(self, value: Any) -> str | None:
        if self.optional and (value is None or value == ""):
            return None
        if not isinstance(value, str) or not (self.may_be_blank or value.strip()):
            raise ValueError
        return value


class ClassName(Text):
    """The name of a Java class."""

    __slots__ = ()

    config_type: ClassVar[ConfigType] = ConfigType.CLASS


class Password(Text):
    """A secret."""

    __slots__ = ()

    config_type: ClassVar[ConfigType] = ConfigType.PASSWORD


@dataclass(frozen=True, slots=True)
class OneOf:
    """A choice of a few values by name. `synonyms` are names that other clients have for them.

    With `takes_callable` a function or None is allowed too, which `otherwise` says in words.
    """

    values: Mapping[Any, Any]
    synonyms: Mapping[Any, Any] = field(default_factory=dict)
    otherwise: str = ""
    takes_callable: bool = False
    fold_case: bool = False

    config_type: ClassVar[ConfigType] = ConfigType.STRING

    @property
    def allowed(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"

    @property
    def allowed_value(self) -> str:
        names = ", ".join(map(repr, self.values))
        return f"one of {names}" + (f", or {self.otherwise}" if self.otherwise else "")

    def parse(self, text: str) -> str:
        return text

    def check(self, value: Any) -> Any:
        if self.takes_callable and (value is None or callable(value)):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        if self.fold_case and isinstance(value, str):
            value = value.lower()
        name = self.synonyms.get(value, value)
        if name not in self.values:
            names = (name for name in self.values if isinstance(name, str))
            raise NotAllowed(nearest(str(value), names))
        return self.values[name]


def one_of(*names: str, fold_case: bool = False) -> OneOf:
    """A choice of a few words, which are their own values."""
    return OneOf({name: name for name in names}, fold_case=fold_case)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of texts, separated by commas in a single text.

    Items are from `choices`, if there are any, or `synonyms` of those. An empty item is refused,
    unless it is skipped.
    """

    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    may_be_empty: bool = False
    may_repeat: bool = False
    skip_empty_items: bool = False

    config_type: ClassVar[ConfigType] = ConfigType.LIST

    @property
    def allowed(self) -> str:
        if self.choices:
            return f"a comma-separated list of {', '.join(self.choices)}"
        return "a comma-separated list"

    @property
    def allowed_value(self) -> str:
        if self.choices:
            return f"one or more of {', '.join(map(repr, self.choices))}"
        return "a list of texts"

    def parse(self, text: str) -> str:
        return text

    def check(self, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = value.split(",") if value else ()
        if not isinstance(value, Iterable):
            raise ValueError
        given = list(value)
        if not all(isinstance(item, str) for item in given):
            raise ValueError
        items = [self.synonyms.get(item.strip(), item.strip()) for item in given]
        if self.skip_empty_items:
            items = [item for item in items if item]
        if not all(items) or not (items or self.may_be_empty):
            raise ValueError("the list is empty or has an empty item")
        seen = set[str]()
        for item in items:
            if self.choices and item not in self.choices:
                names = ", ".join(self.choices)
                raise ValueError(f"{item!r} is not one of {names}{suggestion(item, self.choices)}")
            if item in seen and not self.may_repeat:
                raise ValueError(f"{item!r} is given twice")
            seen.add(item)
        return tuple(items)


class Duration:
    """A time span such as 30s, which becomes milliseconds."""

    allowed: ClassVar[str] = "a time span such as 30s, 15m or 1h"
    allowed_value: ClassVar[str] = allowed
    config_type: ClassVar[ConfigType] = ConfigType.STRING

    def parse(self, text: str) -> str:
        return text

    def check(self, value: Any) -> int:
        found = _DURATION.fullmatch(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise ValueError("write it as 30s, 15m or 1h")
        unit_ms = _UNITS_MS.get(found[2]) or _UNITS_MS.get(found[2].removesuffix("s"))
        if unit_ms is None:
            raise ValueError("write it as 30s, 15m or 1h")
        return int(found[1]) * unit_ms


@dataclass(frozen=True, slots=True)
class Json:
    """An object written as JSON, of a form that an example shows."""

    form: str

    config_type: ClassVar[ConfigType] = ConfigType.STRING

    @property
    def allowed(self) -> str:
        return f"JSON such as {self.form}"

    @property
    def allowed_value(self) -> str:
        return f"a dict such as {self.form}"

    def parse(self, text: str) -> Any:
        import json  # noqa: PLC0415  # Only data sources of Spark have such options.

        try:
            return json.loads(text)
        except ValueError:
            raise ValueError(f"write it as {self.form}") from None

    def check(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"write it as {self.form}")
        return value


@dataclass(frozen=True, slots=True)
class Custom:
    """Values with their own rules, in `convert`."""

    allowed: str
    convert: Callable[[Any], Any]

    config_type: ClassVar[ConfigType] = ConfigType.STRING

    @property
    def allowed_value(self) -> str:
        return self.allowed

    def parse(self, text: str) -> str:
        return text

    def check(self, value: Any) -> Any:
        return self.convert(value)


# Options.


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option, and the rules for its values.

    Clients: `default` is written as a user would give it, and `default_text` describes one that is
    computed. `kafka_name` is the property of Kafka's own clients, or "" for an option they do not
    have; `aliases` are other keywords for it.

    Settings: `default` is a final value. A setting that is not given takes the value of the broker
    setting it `inherits`, each unit of which counts that setting's `scale`. A `dynamic` setting can
    change while a broker runs; if it is `per_broker` it has no cluster-wide default, and if it is
    `listener_only` it changes under the name of a listener. A `per_listener` setting may be given
    for one listener, as `listener.name.NAME.` and its name. An `internal` setting is described
    only where it is given, and the value of a `sensitive` one never.

    `convert` turns the checked value into the final one, or raises ValueError with the reason.
    """

    name: str
    type: ValueType
    default: Any
    doc: str
    kafka_name: str = ""
    aliases: tuple[str, ...] = ()
    default_text: str = ""
    scope: Scope | None = None
    dynamic: bool = False
    inherits: str = ""
    scale: int = 1
    sensitive: bool = False
    per_broker: bool = False
    listener_only: bool = False
    per_listener: bool = False
    internal: bool = False
    convert: Callable[[Any], Any] | None = None

    @property
    def attribute(self) -> str:
        """The name of the dataclass field that holds the value."""
        return self.name.replace(".", "_")

    @property
    def names(self) -> tuple[str, ...]:
        """Every keyword argument for this option."""
        return (self.name, *self.aliases)

    @property
    def properties(self) -> tuple[str, ...]:
        """Every property name for this option."""
        own = self.kafka_name or self.name.replace("_", ".")
        others = (name.replace("_", ".") for name in self.names)
        return tuple(dict.fromkeys((own, *others)))

    def parse(self, text: str, given_as: str = "") -> Any:
        """The final value of a text; ConfigError if it is not allowed."""
        try:
            return self._checked(self.type.parse(text.strip()))
        except ValueError as error:
            raise self._refusal(text, self.type.allowed, error, given_as) from None

    def argument(self, text: str, given_as: str = "") -> Any:
        """The keyword argument for a text; ConfigError if it is not allowed."""
        self.parse(text, given_as)
        return self.type.parse(text.strip())

    def check(self, value: Any, given_as: str = "") -> Any:
        """The final form of a Python value; ConfigError if it is not allowed."""
        try:
            return self._checked(value)
        except ValueError as error:
            raise self._refusal(value, self.type.allowed_value, error, given_as) from None

    def refusal(self, value: Any) -> ConfigError:
        """The error for a Python value that is not allowed."""
        return self._refusal(value, self.type.allowed_value, ValueError(), "")

    def format(self, value: Any) -> str | None:
        """The text that `parse` converts back to `value`; None for an option without a value."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return str(value)

    def _checked(self, value: Any) -> Any:
        checked = self.type.check(value)
        return checked if self.convert is None else self.convert(checked)

    def _refusal(self, value: Any, allowed: str, error: ValueError, given_as: str) -> ConfigError:
        shown = "(hidden)" if self.sensitive else repr(value)
        near = error.nearest if isinstance(error, NotAllowed) else None
        hint = f"; did you mean {near}?" if near else ""
        reason = str(error) or f"it must be {allowed}{hint}"
        return ConfigError(f"{given_as or self.name} cannot be {shown}: {reason}")


def option(
    type: ValueType,
    default: Any,
    *,
    doc: str,
    kafka: str,
    aliases: tuple[str, ...] = (),
    default_text: str = "",
    sensitive: bool = False,
) -> Any:
    """Declare a field of a client's options; see `Option` for the arguments.

    The field has no default of its own: options are made by the functions that check them.
    """
    declared = {
        "type": type,
        "default": default,
        "doc": doc,
        "kafka_name": kafka,
        "aliases": aliases,
        "default_text": default_text,
        "sensitive": sensitive,
    }
    # The value of a sensitive option is not to be seen where options are printed.
    return field(repr=not sensitive, metadata={"option": declared})


def setting(
    type: ValueType,
    default: Any,
    *,
    doc: str,
    dynamic: bool = False,
    inherits: str = "",
    scale: int = 1,
    sensitive: bool = False,
    per_broker: bool = False,
    listener_only: bool = False,
    per_listener: bool = False,
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a field of a config; see `Option` for the arguments."""
    declared = {
        "type": type,
        "default": default,
        "doc": doc,
        "dynamic": dynamic,
        "inherits": inherits,
        "scale": scale,
        "sensitive": sensitive,
        "per_broker": per_broker,
        "listener_only": listener_only,
        "per_listener": per_listener,
        "convert": convert,
    }
    # The value of a sensitive setting is not to be seen where a config is printed.
    return field(default=default, repr=not sensitive, metadata={"option": declared})


def options_of(options_class: Any, scope: Scope | None = None) -> dict[str, Option]:
    """The options a dataclass declares by name, in order; settings have a scope, and dots."""
    found = {}
    for declared in fields(options_class):
        if "option" in declared.metadata:
            name = declared.name if scope is None else declared.name.replace("_", ".")
            found[name] = Option(name=name, scope=scope, **declared.metadata["option"])
    return found


class Given(NamedTuple):
    """The final value of every option of a table, and the names of the options that were given."""

    values: dict[str, Any]
    names: set[str]


class OptionTable(Mapping[str, Option]):
    """The options of one owner by name, in order of declaration.

    `refused` has reasons for names known from other clients; a name that ends in * stands for all
    with that prefix. `refused_as` is the beginning of the sentence about them. `docs` names the
    page that lists all options. `error` and `label` are those of the owner's error messages.
    """

    def __init__(
        self,
        options: Iterable[Option],
        *,
        owner: str = "",
        refused: Mapping[str, str] | None = None,
        refused_as: str = "",
        docs: str = "",
        error: type[HeadraceError] = ConfigError,
        label: str = "",
    ) -> None:
        self._options = {option.name: option for option in options}
        self._owner = owner
        self._refused = {_folded(name): reason for name, reason in (refused or {}).items()}
        self._refused_as = refused_as or f"is no option of {owner}"
        self._docs = docs
        self._error = error
        self._label = label

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def check(self, values: Mapping[str, Any]) -> Given:
        """The options from Python values."""
        known = {name: option for option in self._options.values() for name in option.names}
        return self._with_defaults(self._read(values, known, Option.check))

    def parse(self, texts: Mapping[str, str], *, fold_case: bool = False) -> Given:
        """The options from texts."""
        known = self._by_property()
        if fold_case:
            texts = self._in_declared_case(texts, known)
        return self._with_defaults(self._read(texts, known, Option.parse))

    def arguments(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The keyword arguments for properties."""
        return self._read(texts, self._by_property(), Option.argument)

    def refuse(self, name: str) -> None:
        """Raise the error for a name that is refused with a reason."""
        folded = _folded(name)
        for refused, reason in self._refused.items():
            if folded == refused or (refused[-1] == "*" and folded.startswith(refused[:-1])):
                raise self._error(f"{self._label}{name} {self._refused_as}: {reason}")

    def refusal(self, name: str, value: Any, reason: str) -> HeadraceError:
        """The error for a value that contradicts other options."""
        return self._error(f"{self._label}{name} cannot be {value!r}: {reason}")

    def _by_property(self) -> dict[str, Option]:
        return {name: option for option in self._options.values() for name in option.properties}

    def _in_declared_case(self, texts: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
        declared = {name.lower(): name for name in known}
        return {declared.get(name.lower(), name): text for name, text in texts.items()}

    def _read(
        self,
        given: Mapping[str, Any],
        known: Mapping[str, Option],
        read: Callable[[Option, Any, str], Any],
    ) -> dict[str, Any]:
        is_text = read is not Option.check
        values: dict[str, Any] = {}
        for name, value in given.items():
            option = known.get(name)
            if option is None:
                self.refuse(name)
                raise self._error(unknown_name("option", name, known, self._owner, self._docs))
            if option.name in values:
                own_name = option.properties[0] if is_text else option.name
                raise self._error(f"{self._label}{own_name} is given twice, once as {name}")
            if is_text and not isinstance(value, str):
                raise self.refusal(name, value, "a property's value is text")
            try:
                values[option.name] = read(option, value, name)
            except ConfigError as error:
                raise self._error(f"{self._label}{error}") from None
        return values

    def _with_defaults(self, values: dict[str, Any]) -> Given:
        names = set(values)
        for option in self._options.values():
            if option.name not in values:
                # None is never a value to check, whatever the type.
                is_none = option.default is None
                values[option.name] = None if is_none else option.check(option.default)
        return Given(values, names)


# Unknown names.


def unknown_name(
    noun: str, name: str, known: Iterable[str], owner: str = "", docs: str = ""
) -> str:
    """The message for an unknown name, with the most similar known one."""
    whose = f" of {owner}" if owner else ""
    hint = suggestion(name, known) or (f"; {docs} lists them all" if docs else "")
    return f"unknown {noun} {name!r}{whose}{hint}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, if a known name is close to the given one."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name nearest to a misspelt one, ignoring case and word separators."""
    import difflib  # noqa: PLC0415  # Few mistype a name, and all would wait for it.

    by_folded = {_folded(candidate): candidate for candidate in reversed(list(known))}
    close = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=_SIMILARITY_MIN)
    return by_folded[close[0]] if close else None


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(".", "")
