"""Clients of a cluster, from the options every such command has.

Rule: who waits at a terminal is told at once that nobody is there.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from headrace.client.admin.admin import Admin
from headrace.client.cluster import ClusterClient
from headrace.client.errors import SomeFailed, TimedOut
from headrace.clock import SystemClock
from headrace.errors import ConfigError, KafkaError
from headrace.net.addresses import Address, parse_addresses

if TYPE_CHECKING:
    from headrace.client.consumer.consumer import Consumer
    from headrace.client.options import ProducerConfig
    from headrace.client.producer.producer import Producer

CLIENT_ID = "headrace-cli"
# A fortnight. Clients take no more than twice that, lingering included.
TIMEOUT_MS_MAX = 14 * 86_400_000
# Brokers that are away, or no controller, are nothing to wait for when a cluster is looked at.
SOON_S = 3.0
# Few enough that the first of them are printed soon.
POLL_RECORDS_MAX = 5000

IsolationLevelName: TypeAlias = Literal["read_uncommitted", "read_committed"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def open_admin(bootstrap: str, timeout_s: float) -> Admin:
    """An admin client of the cluster `--bootstrap-server` names.

    It connects when first asked something.
    """
    cluster = ClusterClient(
        _addresses(bootstrap),
        client_id=CLIENT_ID,
        request_timeout_s=timeout_ms_of(timeout_s) / 1000,
        patient=False,
    )
    return Admin.over(cluster)


@contextmanager
def open_producer(
    bootstrap: str, timeout_s: float, linger_ms: int, config: "ProducerConfig"
) -> "Iterator[Producer]":
    """A producer that delivers each record within the timeout, or tells of it.

    Leaving by an exception gives up what is not delivered by then.
    """
    # Not everybody who asks about topics writes to them, and this takes long to import.
    from headrace.client.producer.producer import Producer  # noqa: PLC0415

    _log_nothing()
    with open_admin(bootstrap, timeout_s) as admin:
        # A producer waits for brokers that are away; a command only for those it has met.
        admin.describe_cluster()
    timeout_ms = timeout_ms_of(timeout_s)
    whole: ProducerConfig = {
        **config,
        "bootstrap_servers": bootstrap,
        "client_id": CLIENT_ID,
        "linger_ms": linger_ms,
        "request_timeout_ms": timeout_ms,
        "delivery_timeout_ms": timeout_ms + linger_ms,
        # There is room again when what is in the buffer is written or given up.
        "max_block_ms": 2 * timeout_ms,
    }
    producer = Producer(**whole)
    try:
        yield producer
    except BaseException:
        with suppress(TimedOut):
            producer.close(timeout_ms=0)
        raise
    producer.close()


def open_consumer(
    bootstrap: str, timeout_s: float, isolation: IsolationLevelName = "read_uncommitted"
) -> "Consumer":
    """A consumer that reads alone, from the offsets it is sent to."""
    from headrace.client.consumer.consumer import Consumer  # noqa: PLC0415

    _log_nothing()
    return Consumer(
        bootstrap_servers=bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=timeout_ms_of(timeout_s),
        auto_offset_reset="none",
        isolation_level=isolation,
        max_poll_records=POLL_RECORDS_MAX,
    )


def _log_nothing() -> None:
    """Keep the clients' warnings off the terminal: what matters, a command says itself."""
    logging.getLogger("headrace").addHandler(logging.NullHandler())


def timeout_ms_of(timeout_s: float) -> int:
    """`--timeout` as clients take it."""
    return max(min(int(timeout_s * 1000), TIMEOUT_MS_MAX), 1)


def now_ms() -> int:
    """The time that ages in options are counted back from."""
    return SystemClock().now_ms()


def controller_of(admin: Admin) -> int | None:
    """The active controller, unless nobody can tell soon.

    Metadata does not: it names any broker that passes commands on.
    """
    try:
        return admin.describe_quorum().leader_id
    except (KafkaError, TimedOut):
        return None


def outcomes_of(call: Callable[[], dict[Item, Result]]) -> dict[Item, Result | KafkaError]:
    """The result of each of several items, errors included."""
    try:
        return {**call()}
    except SomeFailed as failed:
        return failed.outcomes


def errors_of(call: Callable[[], object]) -> dict[Any, KafkaError]:
    """The things a command failed for; none if it was done for all."""
    try:
        call()
    except SomeFailed as failed:
        return failed.errors
    return {}


def _addresses(bootstrap: str) -> tuple[Address, ...]:
    try:
        return parse_addresses(bootstrap)
    except ConfigError as error:
        raise ConfigError(f"--bootstrap-server: {error}") from None
