"""Write the tables of options in docs/spark.md from the options the data source declares.

    python tools/make_spark_docs.py

A test fails when the page is not what this would write.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from headrace.options import Option
from headrace.pipelines.datasource.read_options import READ_OPTIONS
from headrace.pipelines.datasource.write_options import TRANSACTION_TIMEOUT_MS, WRITE_OPTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"

# Options of the clients behind the data source, which are declared in `headrace.client`.
_SERVERS = (
    "`kafka.bootstrap.servers`",
    "`HEADRACE_BOOTSTRAP_SERVERS` in the environment, or `localhost:9092`",
    "Brokers to ask first.",
)
_CONSUMER = (
    "`kafka.*`",
    "",
    "Any [option of a consumer](client-options.md#consumer) under Kafka's name."
    " `kafka.isolation.level` is `read_committed` unless you say otherwise.",
)
_PRODUCER = (
    "`kafka.*`",
    "",
    "[Options of the producer](client-options.md#producer) under Kafka's names, such as"
    " `kafka.compression.type`.",
)
_TIMEOUT = (
    "`kafka.transaction.timeout.ms`",
    str(TRANSACTION_TIMEOUT_MS),
    "How long a task may write.",
)


def with_options(page: str) -> str:
    """The page with its tables of options renewed."""
    read_rows = [_SERVERS, *map(_row, READ_OPTIONS.values()), _CONSUMER]
    write_rows = [*map(_row, WRITE_OPTIONS.values()), _PRODUCER, _TIMEOUT]
    for mark, rows in (("read-options", read_rows), ("write-options", write_rows)):
        region = re.compile(rf"(?<=<!-- {mark}:begin -->\n).*(?=<!-- {mark}:end -->)", re.DOTALL)
        assert region.search(page), f"docs/spark.md has no region for {mark}"
        page = _replaced(page, region, _table(rows))
    return page


def _replaced(page: str, region: re.Pattern[str], table: str) -> str:
    return region.sub(lambda _: table, page)


def _row(option: Option) -> tuple[str, str, str]:
    default = option.default_text
    if not default and option.default is not None:
        default = f"`{option.format(option.default)}`"
    return f"`{option.name}`", default, option.doc


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| Option | Default | |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "".join(f"{line}\n" for line in lines).replace("|  |", "| |")


if __name__ == "__main__":
    PAGE.write_text(with_options(PAGE.read_text()))
    print(f"wrote {PAGE}")
