"""Write the part of docs/compatibility.md about settings from what the code declares.

    python tools/make_settings_table.py

A test fails when the page is not what this would write. The part about APIs is another tool's.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    accepted_settings,
    kafka_settings,
)
from headrace.config.accepted import NO_EFFECT, REFUSED
from headrace.options import Option, Scope

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"

INTRODUCTION = """\
## Settings

Every setting of Apache Kafka 4.3 has one of three fates here:

- *honoured*: it does what it does in Kafka. [Configuration](configuration.md) says what that is.
- *accepted*: it is checked like in Kafka, kept, shown by DescribeConfigs, and has no effect. Those
  that a broker's properties give are named in one warning at its start. Settings of single
  listeners (`listener.name.NAME.SETTING`) and of Kafka's plugins (`rsm.config.`, `rlmm.config.`)
  are accepted in the same way.
- *refused*: it asks for something that others may rely on and headrace does not do, such as a
  policy in Java. A broker that is given it does not start, and says why. The values that ask for
  nothing are accepted.

None is unknown. A name that Kafka does not have is refused with the nearest one that there is;
Kafka ignores it in a properties file, and stores it when a broker's settings are altered."""

_REGION = re.compile(r"(?<=<!-- settings:begin -->\n).*(?=<!-- settings:end -->)", re.DOTALL)


def with_settings(page: str) -> str:
    """The page with its part about settings renewed."""
    assert _REGION.search(page), "docs/compatibility.md has no region for settings"
    return _REGION.sub(lambda _: render(), page)


def render() -> str:
    """The part of the page between the marks."""
    sections = [
        ("Topic settings", Scope.TOPIC, TOPIC_SETTINGS),
        ("Broker settings", Scope.BROKER, BROKER_SETTINGS),
        ("Group settings", Scope.GROUP, {}),
        ("Settings of client metrics", Scope.CLIENT_METRICS, kafka_settings(Scope.CLIENT_METRICS)),
    ]
    parts = [INTRODUCTION]
    for title, scope, honoured in sections:
        accepted = accepted_settings(scope, honoured)
        refused = [name for name in accepted if name in REFUSED]
        known = kafka_settings(scope)
        counts = (
            f"Of {len(known)}, {len(known) - len(accepted)} are honoured,"
            f" {len(accepted) - len(refused)} accepted and {len(refused)} refused."
        )
        rows = [_row(setting, honoured) for setting in known.values()]
        parts.append(f"### {title}\n\n{counts}\n\n" + "\n".join(_table(rows)))
        own = sorted(set(honoured) - set(known))
        if own:
            names = ", ".join(f"`{name}`" for name in own)
            parts.append(f"Settings that Kafka does not have: {names}.")
    return "\n\n".join(parts) + "\n"


def _row(kafka: Option, honoured: Mapping[str, Option]) -> tuple[str, str, str, str]:
    ours = honoured.get(kafka.name)
    default = _text(kafka)
    if ours is None:
        meaning = kafka.doc.removeprefix(f"{NO_EFFECT} ")
        return f"`{kafka.name}`", _fate(kafka.name), default, meaning
    differs = []
    # Kafka has no default for settings that its own properties files always set.
    if _text(ours) != default and kafka.format(kafka.default) is not None:
        differs.append(f"Here the default is {_text(ours)}.")
    if kafka.dynamic and not ours.dynamic and kafka.scope is Scope.BROKER:
        differs.append("Here it cannot change while a broker runs.")
    return f"`{kafka.name}`", "honoured", default, " ".join(differs)


def _fate(name: str) -> str:
    if name not in REFUSED:
        return "accepted"
    values, _ = REFUSED[name]
    plain = {(): "", False: "false"}
    allowed = [plain.get(value, value) for value in values]
    return "refused, but for " + ", ".join(
        f"`{entry}`" if entry else "no value" for entry in allowed
    )


def _text(setting: Option) -> str:
    text = setting.format(setting.default)
    return "none" if text is None else f"`{text}`" if text else "empty"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    head = ("Setting", "Here", "Kafka's default", "Meaning, or how it differs")
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    PAGE.write_text(with_settings(PAGE.read_text()))
    print(f"wrote {PAGE}")
