"""Write docs/configuration.md from the settings the code declares.

    python tools/make_config_docs.py

A test fails when the page is not what this would write.
"""

from collections.abc import Iterable
from pathlib import Path
from sys import float_info

from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace.options import Number, Option

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

This page is made from the code by `tools/make_config_docs.py`; change a setting's text where the
setting is declared, in `src/headrace/config`.

Names, meanings and defaults are Kafka's; where headrace differs, the text says so. A broker reads
its settings from a properties file (`headrace broker --config server.properties`) and from
`--set NAME=VALUE`. The properties files that come with Kafka can be used as they are. The settings
on this page have an effect; every other setting of Kafka is accepted without one, and named in one
warning at the start ([compatibility](compatibility.md) lists them all). A name or value that Kafka
does not know is refused at the start, never ignored, and so is a setting that asks for what does
not exist here, such as a policy in Java.

A topic has the settings it was created or altered with, and the broker's for the rest. The
strongest source wins: the topic's own setting, then the broker's dynamic one, then the cluster's
dynamic default, then the broker's properties file, then the default.

*Dynamic* broker settings can be changed while the broker runs (`headrace configs`, or any client's
IncrementalAlterConfigs) for one broker or, as a default, for the whole cluster. The change is kept
over a restart. All topic settings can be changed while the broker runs.
"""

_UNITS = {
    "ms": ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
_NO_LIMIT = {str(2**31 - 1), str(2**63 - 1), str(float_info.max)}


def render() -> str:
    """The whole page."""
    topic_rows = [_topic_row(setting) for setting in TOPIC_SETTINGS.values()]
    broker_rows = [_broker_row(setting) for setting in BROKER_SETTINGS.values()]
    return "\n".join(
        [
            INTRODUCTION,
            "## Topic settings",
            "",
            *_table(("Setting", "Default", "Allowed", "Broker setting", "Meaning"), topic_rows),
            "",
            "## Broker settings",
            "",
            *_table(("Setting", "Default", "Allowed", "Dynamic", "Meaning"), broker_rows),
            "",
        ]
    )


def _topic_row(setting: Option) -> tuple[str, ...]:
    inherited = f"`{setting.inherits}`" if setting.inherits else ""
    return f"`{setting.name}`", _default(setting), _allowed(setting), inherited, setting.doc


def _broker_row(setting: Option) -> tuple[str, ...]:
    dynamic = "yes" if setting.dynamic else "no"
    return f"`{setting.name}`", _default(setting), _allowed(setting), dynamic, setting.doc


def _default(setting: Option) -> str:
    text = setting.format(setting.default)
    if text is None:
        return f"that of `{setting.inherits}`" if setting.inherits else "none"
    if text in _NO_LIMIT:
        return f"{text} (no limit)"
    for size, unit in _UNITS.get(setting.name.rsplit(".", 1)[-1], ()):
        if setting.default >= size and setting.default % size == 0:
            count = setting.default // size
            plural = "s" if count > 1 and not unit.endswith("iB") else ""
            return f"{text} ({count} {unit}{plural})"
    return text


def _allowed(setting: Option) -> str:
    values = setting.type
    if not isinstance(values, Number):
        return values.allowed
    least = f"at least {values.minimum}" if values.minimum is not None else "a whole number"
    return least if values.maximum is None else f"{least}, at most {values.maximum}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE}")
