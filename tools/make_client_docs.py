"""Write docs/client-options.md from the options and metrics the client declares.

    python tools/make_client_docs.py

A test fails when the page is not what this would write.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.client.metrics import ADMIN_METRICS, CONSUMER_METRICS, PRODUCER_METRICS
from headrace.client.options import ADMIN_OPTIONS, CONSUMER_OPTIONS, PRODUCER_OPTIONS
from headrace.options import INT_MAX, LONG_MAX, Option

PAGE = Path(__file__).resolve().parent.parent / "docs" / "client-options.md"

INTRODUCTION = """\
# Options and metrics of the Python client

This page is made from the code by `tools/make_client_docs.py`; change an option's text where the
option is declared, in `src/headrace/client`. How the options work together is told in
[client.md](client.md).

Options are keyword arguments: `headrace.Producer(linger_ms=20)`. Names, meanings and defaults are
Kafka's; where headrace differs, the text says so. A name or value that headrace does not know
raises `ConfigError`, which says what is allowed and, for a misspelt name, which one was likely
meant. Options that must agree are checked against each other; one that was not given follows those
that were.

Every client also takes `client_config`, a properties file under Kafka's names, or `profile`, the
name of one that `headrace profile` keeps; other arguments replace what is in it
([client.md](client.md#quick-start)). Settings under Kafka's names from elsewhere become keyword
arguments with `from_properties`, which is in `headrace.client.options`:
`headrace.Producer(**from_properties({"linger.ms": "20"}, "producer"))`.
"""

METRICS = """\
`client.metrics()` returns them by these names. Rates, averages and maxima are over the last 30
seconds, latencies in milliseconds, totals since the client was made. `headrace.client.prometheus`
exposes them as `headrace_producer_record_send_rate` and so on, and every partition's lag as
`headrace_consumer_records_lag`.
"""

ADMIN_NOTE = """\
In Prometheus their names begin with `headrace_admin_client_`. A request that a broker refuses is
answered: it raises, and counts as a request.
"""

_UNITS = {
    "ms": ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
_SIZES = {"batch_size", "buffer_memory", "max_request_size"}


def render() -> str:
    """The whole page."""
    common = set(ADMIN_OPTIONS)
    return "\n".join(
        [
            INTRODUCTION,
            "## Every client",
            "",
            *_options(ADMIN_OPTIONS.values()),
            "",
            "## Producer",
            "",
            *_options(PRODUCER_OPTIONS[name] for name in PRODUCER_OPTIONS if name not in common),
            "",
            "## Consumer",
            "",
            *_options(CONSUMER_OPTIONS[name] for name in CONSUMER_OPTIONS if name not in common),
            "",
            "## Metrics of a producer",
            "",
            METRICS,
            *_metrics(PRODUCER_METRICS),
            "",
            "## Metrics of a consumer",
            "",
            *_metrics(CONSUMER_METRICS),
            "",
            "## Metrics of an admin client",
            "",
            ADMIN_NOTE,
            *_metrics(ADMIN_METRICS),
            "",
        ]
    )


def _options(options: Iterable[Option]) -> list[str]:
    rows = [
        (
            _names(option),
            _default(option),
            option.type.allowed_value,
            _kafka(option),
            option.doc,
        )
        for option in options
    ]
    return _table(("Option", "Default", "Allowed", "Kafka's property", "Meaning"), rows)


def _metrics(metrics: Mapping[str, str]) -> list[str]:
    return _table(("Metric", "Meaning"), [(f"`{name}`", doc) for name, doc in metrics.items()])


def _names(option: Option) -> str:
    also = "".join(f", also `{name}`" for name in option.aliases)
    return f"`{option.name}`{also}"


def _kafka(option: Option) -> str:
    return f"`{option.kafka_name}`" if option.kafka_name else "none"


def _default(option: Option) -> str:
    if option.default_text:
        return option.default_text
    if option.default is None:
        return "none"
    unit = "bytes" if option.name in _SIZES else option.name.rsplit("_", 1)[-1]
    return _number(option.default, unit)


def _number(default: Any, unit: str) -> str:
    if isinstance(default, bool) or not isinstance(default, int):
        return f"`{default!r}`"
    if default in (INT_MAX, LONG_MAX):
        return f"{default} (no limit)"
    for size, name in _UNITS.get(unit, ()):
        if default >= size and default % size == 0:
            count = default // size
            plural = "s" if count > 1 and not name.endswith("iB") else ""
            return f"{default} ({count} {name}{plural})"
    return str(default)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE}")
