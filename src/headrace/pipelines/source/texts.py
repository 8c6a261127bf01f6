"""Options as Spark hands them over: texts, under names whose case does not matter."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from headrace.client.options_table import hint
from headrace.pipelines.source.errors import OptionError

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


class Texts(Mapping[str, str]):
    """The texts that were given, under the names a table has; OptionError for other names."""

    def __init__(self, given: Mapping[str, str], names: Iterable[str]) -> None:
        known = {name.lower(): name for name in names}
        self._texts: dict[str, str] = {}
        for name, text in given.items():
            if name.lower() not in known:
                near = hint(name, known.values()) or "; docs/spark.md lists them all"
                raise OptionError(f'unknown option {name!r} of format "headrace"{near}')
            self._texts[known[name.lower()]] = text.strip()

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def refusal(self, name: str, allowed: str) -> OptionError:
        """The error for a text that is not what is allowed."""
        return OptionError(f"option {name} cannot be {self[name]!r}: {allowed}")

    def choice(self, name: str, allowed: Collection[str], default: str) -> str:
        """One of a few words."""
        word = self.get(name, default).lower()
        if word not in allowed:
            raise self.refusal(name, f"it is {' or '.join(allowed)}{hint(word, allowed)}")
        return word

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, what: str = "a whole number", least: int = 1) -> int | None:
        """A whole number, if it is given."""
        if name not in self:
            return None
        text = self[name]
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
            raise self.refusal(name, f"it is {what}, at least {least}")
        return int(text)

    def names(self, name: str) -> list[str]:
        """The parts of a list with commas."""
        return [part.strip() for part in self[name].split(",") if part.strip()]

    def duration_ms(self, name: str, default: str) -> int:
        """A time span such as 30s, in milliseconds."""
        found = re.fullmatch(r"(\d{1,12})\s*([a-z]+)", self.get(name, default).lower())
        unit = found and (_UNITS_MS.get(found[2]) or _UNITS_MS.get(found[2].removesuffix("s")))
        if not found or not unit:
            raise self.refusal(name, "write it as 30s, 15m or 1h")
        return int(found[1]) * unit

    def json(self, name: str, form: str) -> dict[str, Any]:
        """An object written as JSON."""
        try:
            value = json.loads(self[name])
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.refusal(name, f"write it as {form}")
        return value
