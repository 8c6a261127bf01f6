"""Write the table of APIs in docs/compatibility.md from the served APIs and from facts about Kafka.

    python tools/make_api_table.py

`kafka_apis.json` has the versions that Kafka 4.3 serves and their listeners; the code has the
versions that headrace serves. Tests fail when the page is out of date, and when a gap has no
sentence in `GAPS`.
"""

import json
from pathlib import Path
from typing import NamedTuple

from headrace.broker.apis import SERVED
from headrace.protocol.apis import announced_versions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"
FACTS = Path(__file__).resolve().parent / "kafka_apis.json"
BEGIN, END = "<!-- apis:begin -->\n", "<!-- apis:end -->\n"

_SHARE = "Share groups (KIP-932) are not here yet; clients see that from ApiVersions."
_SHARE_STATE = "Brokers keep the state of share groups with it, which are not here yet."
_STREAMS = "Streams groups (KIP-1071) are not here yet; Kafka Streams uses the classic protocol."

# The reasons why an API, or a version of an API, is not served. Every gap needs a sentence.
GAPS = {
    "ControllerRegistration": "Controllers are known by the records of the voters and by "
    "`controller.quorum.voters`; they do not register.",
    "AlterShareGroupOffsets": _SHARE,
    "DeleteShareGroupOffsets": _SHARE,
    "DeleteShareGroupState": _SHARE_STATE,
    "DescribeShareGroupOffsets": _SHARE,
    "InitializeShareGroupState": _SHARE_STATE,
    "ReadShareGroupState": _SHARE_STATE,
    "ReadShareGroupStateSummary": _SHARE_STATE,
    "ShareAcknowledge": _SHARE,
    "ShareFetch": _SHARE,
    "ShareGroupDescribe": _SHARE,
    "ShareGroupHeartbeat": _SHARE,
    "StreamsGroupDescribe": _STREAMS,
    "StreamsGroupHeartbeat": _STREAMS,
    "UpdateRaftVoter": "A voter's addresses change by removing it and adding it again.",
    "WriteShareGroupState": _SHARE_STATE,
}

_TELEMETRY = "Always announced: the broker itself receives the metrics, where Kafka needs a plugin."

# APIs served in all versions, but with limitations.
LIMITS = {
    "AlterClientQuotas": "Addresses have to be given as such: host names are not looked up.",
    "GetTelemetrySubscriptions": _TELEMETRY,
    "Metadata": "With automatic creation it answers when the topic is made; see below.",
    "PushTelemetry": _TELEMETRY
    + " The latest push of each client is kept; nothing exports it yet.",
}


class KafkaApi(NamedTuple):
    """An API of Kafka 4.3: its served versions, and its listeners."""

    key: int
    name: str
    versions: tuple[int, int]
    listeners: tuple[str, ...]


def kafka_apis() -> list[KafkaApi]:
    """Every API of Kafka 4.3, by its key."""
    return [
        KafkaApi(load["key"], load["name"], tuple(load["versions"]), tuple(load["listeners"]))
        for load in json.loads(FACTS.read_text())
    ]


def served_versions() -> dict[int, tuple[int, int]]:
    """The versions that headrace announces of each API."""
    announced = announced_versions(row.api for row in SERVED)
    return {api.api_key: (api.min_version, api.max_version) for api in announced}


def gaps() -> set[str]:
    """The APIs that are not served, or not in all of Kafka's versions."""
    served = served_versions()
    return {api.name for api in kafka_apis() if served.get(api.key) != api.versions}


def table() -> str:
    """The rows of all APIs, as Markdown."""
    served = served_versions()
    lines = [
        "| Key | API | Listeners | Kafka 4.3 | headrace | Difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for api in kafka_apis():
        ours = served.get(api.key)
        cells = (
            str(api.key),
            api.name,
            ", ".join(api.listeners),
            _range(api.versions),
            "no" if ours is None else _range(ours),
            " ".join(filter(None, (GAPS.get(api.name), LIMITS.get(api.name)))),
        )
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def _range(versions: tuple[int, int]) -> str:
    first, last = versions
    return str(first) if first == last else f"{first}-{last}"


def with_table(page: str) -> str:
    """The page with the region between its two marks renewed."""
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"the page needs the lines {BEGIN.strip()} and {END.strip()}")
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
    print(f"wrote {PAGE}")
