"""What a client's option is: its name, its values, and the words for one that is wrong.

Rule: an option is declared once, as a field of an options dataclass made with `option(...)`. The
checks, the error messages and docs/client-options.md all come from that declaration.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, NamedTuple, Protocol

from headrace.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Kind(Protocol):
    """The values an option takes."""

    @property
    def allowed(self) -> str:
        """What a value may be, for error messages and the documentation."""
        ...

    def check(self, value: Any) -> Any:
        """The value in its final form. ValueError gives the reason; without one, `allowed` does."""
        ...

    def parse(self, text: str) -> Any:
        """What the text of a properties file stands for, in a form that `check` takes."""
        ...


class Whole(NamedTuple):
    """Whole numbers between two bounds; `optional` ones may be None."""

    minimum: int
    maximum: int = INT_MAX
    optional: bool = False

    @property
    def allowed(self) -> str:
        most = "" if self.maximum in (INT_MAX, LONG_MAX) else f" to {self.maximum}"
        least = f"from {self.minimum}" if most else f"of at least {self.minimum}"
        return f"a whole number {least}{most}" + (", or None" if self.optional else "")

    def check(self, value: Any) -> int | None:
        if value is None and self.optional:
            return None
        # True and False are ints to Python, and never what was meant.
        if isinstance(value, bool):
            raise ValueError
        try:
            number = index(value)
        except TypeError:
            raise ValueError from None
        if not self.minimum <= number <= self.maximum:
            raise ValueError
        return number

    def parse(self, text: str) -> int:
        return int(text)


class Flag(NamedTuple):
    """True or False. Text is refused, for "false" is true to Python."""

    allowed: str = "True or False"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("it must be true or false")
        return text.lower() == "true"


class Text(NamedTuple):
    """Text; `optional` may be None, and empty text stands for None then."""

    optional: bool = False

    @property
    def allowed(self) -> str:
        return "text, or None" if self.optional else "text"

    def check(self, value: Any) -> str | None:
        if self.optional and (value is None or value == ""):
            return None
        if not isinstance(value, str):
            raise ValueError
        return value

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class Choice:
    """One of a few values, by name. `synonyms` are other clients' names for them."""

    values: Mapping[Any, Any]
    synonyms: Mapping[Any, Any] = field(default_factory=dict)
    otherwise: str = ""
    takes_callable: bool = False

    @property
    def allowed(self) -> str:
        names = ", ".join(repr(name) for name in self.values)
        return f"one of {names}" + (f", or {self.otherwise}" if self.otherwise else "")

    def check(self, value: Any) -> Any:
        if self.takes_callable and (value is None or callable(value)):
            return value
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        known = self.synonyms.get(value, value)
        if known not in self.values:
            raise ValueError(f"it must be {self.allowed}{hint(value, self.values)}")
        return self.values[known]

    def parse(self, text: str) -> str:
        return text


class Custom(NamedTuple):
    """Values with rules of their own, which `convert` knows."""

    allowed: str
    convert: Callable[[Any], Any]

    def check(self, value: Any) -> Any:
        return self.convert(value)

    def parse(self, text: str) -> str:
        return text


class Option(NamedTuple):
    """One option of a client, and the rules for its values.

    `default` is written as a user would give it. `kafka_name` is the property of Kafka's own
    clients, or "" for an option they do not have; `aliases` are other Python names for it.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    kafka_name: str
    aliases: tuple[str, ...] = ()
    default_text: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every keyword argument that means this option."""
        return (self.name, *self.aliases)

    @property
    def properties(self) -> tuple[str, ...]:
        """Every property name that means this option."""
        own = self.kafka_name or self.name.replace("_", ".")
        others = (name.replace("_", ".") for name in self.names)
        return tuple(dict.fromkeys((own, *others)))

    def check(self, value: Any, given_as: str = "") -> Any:
        """The value in its final form; ConfigError if it is not an allowed one."""
        try:
            return self.kind.check(value)
        except ValueError as error:
            raise self.refusal(value, given_as, error) from None

    def parse(self, text: str, given_as: str) -> Any:
        """The keyword argument that a property's text stands for; ConfigError if it is wrong."""
        try:
            value = self.kind.parse(text.strip())
            self.kind.check(value)
        except ValueError as error:
            # int() has words of its own, which say less than what is allowed.
            reason = error if not str(error).startswith("invalid literal") else ValueError()
            raise self.refusal(text, given_as, reason) from None
        return value

    def refusal(
        self, value: Any, given_as: str = "", error: ValueError | None = None
    ) -> ConfigError:
        """The error for a value that is not allowed."""
        reason = str(error or "") or f"it must be {self.kind.allowed}"
        return ConfigError(f"{given_as or self.name} cannot be {value!r}: {reason}")


def option(
    kind: Kind,
    default: Any,
    *,
    doc: str,
    kafka: str,
    aliases: tuple[str, ...] = (),
    default_text: str = "",
) -> Any:
    """Declare a field of an options dataclass; see `Option` for what the arguments mean.

    The field has no default of its own: options are made by the functions that check them.
    """
    declared = {
        "kind": kind,
        "default": default,
        "doc": doc,
        "kafka_name": kafka,
        "aliases": aliases,
        "default_text": default_text,
    }
    return field(metadata={"option": declared})


def options_of(options_class: Any) -> dict[str, Option]:
    """The options a dataclass declares, by name, in order of declaration."""
    return {
        one.name: Option(name=one.name, **one.metadata["option"])
        for one in fields(options_class)
        if "option" in one.metadata
    }


def checked(
    client: str, table: Mapping[str, Option], given: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """The value of every option in its final form, and the names of those that were given."""
    by_name = {name: one for one in table.values() for name in one.names}
    values: dict[str, Any] = {}
    for name, value in given.items():
        known = by_name.get(name)
        if known is None:
            raise ConfigError(unknown_option(client, name, by_name))
        if known.name in values:
            raise ConfigError(f"{known.name} is given twice, once as {name}")
        values[known.name] = known.check(value, name)
    names = set(values)
    for one in table.values():
        if one.name not in values:
            values[one.name] = one.check(one.default)
    return values, names


def parsed(client: str, table: Mapping[str, Option], texts: Mapping[str, str]) -> dict[str, Any]:
    """The keyword arguments that properties stand for."""
    by_property = {name: one for one in table.values() for name in one.properties}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        known = by_property.get(name)
        if known is None:
            raise ConfigError(unknown_option(client, name, by_property))
        if known.name in values:
            raise ConfigError(f"{known.properties[0]} is given twice, once as {name}")
        if not isinstance(text, str):
            raise ConfigError(f"{name} cannot be {text!r}: a property's value is text")
        values[known.name] = known.parse(text, name)
    return values


# What people bring from other clients, and why it is refused.
_NOT_AVAILABLE = {
    "security_protocol": "connections are plain text for now; leave it out",
    "group_protocol": "groups use the classic protocol; leave it out",
    "api_version": "versions are agreed with each broker; leave it out",
}
_NOT_AVAILABLE_PREFIXES = ("sasl_", "ssl_")


def unknown_option(client: str, name: str, known: Collection[str]) -> str:
    """The message for an option nobody declared, with the likeliest intended one."""
    plain = name.replace(".", "_")
    if plain.startswith(_NOT_AVAILABLE_PREFIXES):
        return f"{name} is no option of {client}: {_NOT_AVAILABLE['security_protocol']}"
    if plain in _NOT_AVAILABLE:
        return f"{name} is no option of {client}: {_NOT_AVAILABLE[plain]}"
    where = "docs/client-options.md lists them all"
    return f"unknown option {name!r} for {client}{hint(name, known) or f'; {where}'}"


def hint(given: Any, known: Iterable[Any]) -> str:
    """`; did you mean ...?`, if something known is close to what was given."""
    import difflib  # noqa: PLC0415  # Few mistype a name, and all would wait for it.

    names = [one for one in known if isinstance(one, str)]
    folded = {_folded(one): one for one in reversed(names)}
    close = difflib.get_close_matches(_folded(str(given)), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(".", "")
