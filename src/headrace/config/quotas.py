"""Settings of client quotas and of limits on connections, which are broker settings too."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from headrace.options import INT_MAX, LONG_MAX, Int, Long, Text, setting


@cache
def limits_by_address(text: str) -> Mapping[str, int]:
    """The limits in `max.connections.per.ip.overrides`; ValueError names the wrong one."""
    found: dict[str, int] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        host, _, count = item.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip().strip("[]")))
        except ValueError:
            raise ValueError(f"{item!r} is not an ip address, a colon and a number") from None
        if not count.strip().isdecimal() or int(count) > INT_MAX:
            raise ValueError(f"{item!r} has no number from 0 to {INT_MAX} after the address")
        found[address] = int(count)
    return found


def _check_overrides(text: str) -> str:
    limits_by_address(text)
    return text


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class QuotaConfig:
    """Settings of quotas: the rates that a broker grants a client or an address."""

    connections_first_request_timeout_ms: int = setting(
        Long(1),
        300_000,
        doc="How long a connection may be open before its first request has arrived; then it is"
        " closed. A setting of headrace's own.",
    )
    controller_quota_window_num: int = setting(
        Int(1),
        11,
        doc="How many windows of `controller_mutation_rate` a client that changed no topics may"
        " use at once.",
    )
    controller_quota_window_size_seconds: int = setting(
        Int(1),
        1,
        doc="Seconds of a window of `controller_mutation_rate`.",
    )
    max_connection_creation_rate: int = setting(
        Int(1),
        INT_MAX,
        dynamic=True,
        per_listener=True,
        doc="Connections the broker takes a second; further ones wait. Also as"
        " `listener.name.NAME.max.connection.creation.rate`.",
    )
    max_connections_per_ip_overrides: str = setting(
        Text(),
        "",
        convert=_check_overrides,
        dynamic=True,
        doc="`max.connections.per.ip` for some addresses, as `address:count,address:count`.",
    )
    queued_max_response_bytes: int = setting(
        Long(1024 * 1024),
        512 * 1024 * 1024,
        doc="Bytes of answers that clients do not read, over all connections. Past it the client"
        " that has not read for longest loses its connection. A setting of headrace's own.",
    )
    quota_consumer_default: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Bytes a second that each client id may fetch from this broker, if it has no quota of"
        " its own and its user has none. A setting that Kafka had before 3.0.",
    )
    quota_producer_default: int = setting(
        Long(1),
        LONG_MAX,
        dynamic=True,
        doc="Bytes a second that each client id may produce to this broker, if it has no quota of"
        " its own and its user has none. A setting that Kafka had before 3.0.",
    )
    quota_window_num: int = setting(
        Int(1),
        11,
        doc="How many windows of its quota a client that was idle may use at once. A client that"
        " is new to the broker may use one.",
    )
    quota_window_size_seconds: int = setting(
        Int(1),
        1,
        doc="Seconds of a window of the quotas on bytes and on time.",
    )
    request_receive_timeout_ms: int = setting(
        Long(1),
        60_000,
        doc="How long a request may take to arrive once its first byte has, plus a second for each"
        " 64 KiB that came; then its connection is closed. The time in which the broker itself"
        " does not read does not count. A setting of headrace's own.",
    )
