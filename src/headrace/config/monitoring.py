"""Settings of metrics, health and logs, which are broker settings too."""

import re
from dataclasses import dataclass

from headrace.options import Int, ListOf, Text, one_of, setting

LOG_FORMATS = ("auto", "text", "json")
READINESS_CHECKS = ("under-replicated", "under-min-isr", "offline-replicas", "disk-full")

# The name of the admin listener in `listener.name.admin.ssl...`, for TLS settings of its own.
ADMIN_LISTENER = "ADMIN"

# The file in the first data directory that has the URL of the admin listener.
ADDRESS_FILE = "admin.address"

_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://)?(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]*))"
    r":(?P<port>[0-9]{1,5})/?\Z"
)


@dataclass(frozen=True, slots=True)
class AdminListener:
    """Where the admin listener is bound. An empty host is every interface; port 0 any free port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_admin_listener(text: str) -> AdminListener | None:
    """The address in `admin.listener`; None if there is none."""
    if not text:
        return None
    match = _ADDRESS.match(text)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f"{text!r} is not of the form http://HOST:PORT or https://HOST:PORT")
    return AdminListener(
        match["scheme"] or "http", match["v6"] or match["host"], int(match["port"])
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class MonitoringConfig:
    """Settings of metrics, health and logs."""

    admin_listener: AdminListener | None = setting(
        Text(),
        None,
        convert=parse_admin_listener,
        doc="The address of the HTTP listener with `/healthz`, `/readyz` and `/metrics`"
        " ([monitoring](monitoring.md)): `http://HOST:PORT`, or `https://HOST:PORT` with the"
        " certificate of the `ssl.` settings, which `listener.name.admin.ssl.` settings replace."
        " Port 0 takes any free port. Empty turns it off. A setting of headrace's own.",
    )
    admin_readiness_checks: tuple[str, ...] = setting(
        ListOf(choices=READINESS_CHECKS, may_be_empty=True),
        (),
        dynamic=True,
        doc="What else keeps a serving broker from being ready at `/readyz`: `under-replicated`,"
        " `under-min-isr`, `offline-replicas`, `disk-full`. Empty: nothing else, so that a load"
        " balancer does not take away the brokers that are left. A setting of headrace's own.",
    )
    log_format: str = setting(
        one_of(*LOG_FORMATS),
        "auto",
        doc="How this process logs: `text` for people, `json` with one object in a line, or"
        " `auto`, which is text on a terminal and JSON elsewhere. A setting of headrace's own.",
    )
    log_repeated_lines_max: int = setting(
        Int(0),
        100,
        doc="The most lines of one message, whatever its arguments, that are logged in 10 s;"
        " further ones are counted, and their number is logged. 0 is no limit. A setting of"
        " headrace's own.",
    )
    metrics_clients_max: int = setting(
        Int(0),
        100,
        dynamic=True,
        doc="Clients whose pushed metrics (KIP-714) are shown at `/metrics`, the latest ones."
        " 0 shows none. A setting of headrace's own.",
    )
    metrics_groups_max: int = setting(
        Int(0),
        1000,
        dynamic=True,
        doc="Groups with metrics of their own, of those that this broker coordinates. 0 turns the"
        " metrics of groups off. A setting of headrace's own.",
    )
    metrics_partitions_max: int = setting(
        Int(0),
        10_000,
        dynamic=True,
        doc="Partitions with metrics of their own, and partitions of groups whose lag is shown. 0"
        " turns the metrics of partitions off. A setting of headrace's own.",
    )
    metrics_topics_max: int = setting(
        Int(0),
        1000,
        dynamic=True,
        doc="Topics with metrics of their own; the traffic of others is counted under the name"
        " `(other)`. 0 counts all of it there. A setting of headrace's own.",
    )
