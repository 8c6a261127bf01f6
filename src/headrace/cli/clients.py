"""Clients of a cluster, made from the options common to all commands.

Rule: a user at a terminal is told at once if no broker is reachable.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from headrace.cli.connection_settings import client_properties, connection_security
from headrace.client.admin.admin import Admin
from headrace.client.cluster import ClusterClient
from headrace.client.errors import SomeFailed, TimedOut
from headrace.client.options import from_properties
from headrace.clock import SystemClock
from headrace.errors import ConfigError, KafkaError
from headrace.net.addresses import Address, parse_addresses

if TYPE_CHECKING:
    from headrace.client.consumer.consumer import Consumer
    from headrace.client.options import ConsumerConfig, ProducerConfig
    from headrace.client.producer.producer import Producer

CLIENT_ID = "headrace-cli"
# A fortnight. Clients accept no more than twice that, lingering included.
TIMEOUT_MS_MAX = 14 * 86_400_000
# The timeout of looking at a cluster, which must not wait for absent brokers or controllers.
SOON_S = 3.0
# Small enough that the first records are printed soon.
POLL_RECORDS_MAX = 5000

IsolationLevelName: TypeAlias = Literal["read_uncommitted", "read_committed"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def open_admin(bootstrap: str, timeout_s: float) -> Admin:
    """An admin client of the cluster that `--bootstrap-server` names.

    It connects at its first request.
    """
    return Admin.over(open_cluster(bootstrap, timeout_s))


def open_cluster(bootstrap: str, timeout_s: float) -> ClusterClient:
    """The cluster that `--bootstrap-server` names, for the asyncio clients."""
    return ClusterClient(
        _addresses(bootstrap),
        client_id=CLIENT_ID,
        request_timeout_s=timeout_ms_of(timeout_s) / 1000,
        patient=False,
        security=connection_security(),
    )


@contextmanager
def open_producer(
    bootstrap: str, timeout_s: float, linger_ms: int, config: "ProducerConfig"
) -> "Iterator[Producer]":
    """A producer that delivers each record within the timeout, or reports it.

    Leaving by an exception gives up all records that are undelivered by then.
    """
    # Imported here because it takes long, and commands that only read do not need it.
    from headrace.client.producer.producer import Producer  # noqa: PLC0415

    _log_nothing()
    with open_admin(bootstrap, timeout_s) as admin:
        # A producer waits for absent brokers; a command only for brokers it has reached before.
        admin.describe_cluster()
    timeout_ms = timeout_ms_of(timeout_s)
    whole: ProducerConfig = {
        **from_properties(client_properties("producer"), "producer"),
        **config,
        "bootstrap_servers": bootstrap,
        "client_id": CLIENT_ID,
        "linger_ms": linger_ms,
        "request_timeout_ms": timeout_ms,
        "delivery_timeout_ms": timeout_ms + linger_ms,
        # There is room again when the buffered records are written or given up.
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
    """A consumer without a group, which reads from given offsets."""
    from headrace.client.consumer.consumer import Consumer  # noqa: PLC0415

    return Consumer(**consumer_config(bootstrap, timeout_s, isolation))


def consumer_config(
    bootstrap: str, timeout_s: float, isolation: IsolationLevelName
) -> "ConsumerConfig":
    """The options of `open_consumer`."""
    _log_nothing()
    config: ConsumerConfig = {
        **from_properties(client_properties("consumer"), "consumer"),
        "bootstrap_servers": bootstrap,
        "client_id": CLIENT_ID,
        "request_timeout_ms": timeout_ms_of(timeout_s),
        "auto_offset_reset": "none",
        "isolation_level": isolation,
        "max_poll_records": POLL_RECORDS_MAX,
    }
    # A command reads alone: the group of an application's file is not its own.
    config.pop("group_id", None)
    return config


def _log_nothing() -> None:
    """Keep the clients' warnings off the terminal: commands report failures themselves."""
    logging.getLogger("headrace").addHandler(logging.NullHandler())


def timeout_ms_of(timeout_s: float) -> int:
    """`--timeout` in milliseconds, within the bounds of clients."""
    return max(min(int(timeout_s * 1000), TIMEOUT_MS_MAX), 1)


def now_ms() -> int:
    """The present time, from which ages in options are subtracted."""
    return SystemClock().now_ms()


def controller_of(admin: Admin) -> int | None:
    """The active controller, or None if no controller answers soon.

    Metadata cannot tell: it names any broker that forwards commands.
    """
    try:
        return admin.describe_quorum().leader_id
    except (KafkaError, TimedOut):
        return None


def outcomes_of(call: Callable[[], dict[Item, Result]]) -> dict[Item, Result | KafkaError]:
    """The results of a call about several items, errors included."""
    try:
        return {**call()}
    except SomeFailed as failed:
        return failed.outcomes


def errors_of(call: Callable[[], object]) -> dict[Any, KafkaError]:
    """The errors of a command about several items; empty if all succeeded."""
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
