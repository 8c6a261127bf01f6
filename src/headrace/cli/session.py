"""A cluster to talk to, from the options every such command has."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client.addresses import Address, parse_addresses
from headrace.client.administration.admin import Admin
from headrace.client.failures import SomeFailed
from headrace.client.transport.cluster import Cluster
from headrace.clock import SystemClock
from headrace.errors import ConfigError, KafkaError

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster as BlockingCluster

CLIENT_ID = "headrace-cli"

Item = TypeVar("Item")
Result = TypeVar("Result")


def open_cluster(bootstrap: str, timeout_s: float) -> "BlockingCluster":
    """A client of the cluster `--bootstrap-server` names. Connects when first asked something."""
    from headrace.client.cluster import Cluster as BlockingCluster  # noqa: PLC0415

    return BlockingCluster(_addresses(bootstrap), client_id=CLIENT_ID, timeout_s=timeout_s)


def open_admin(bootstrap: str, timeout_s: float) -> Admin:
    """An admin client of the cluster `--bootstrap-server` names.

    It connects when first asked something. Who waits at a terminal is told at once that nobody is
    there.
    """
    cluster = Cluster(
        _addresses(bootstrap), client_id=CLIENT_ID, request_timeout_s=timeout_s, patient=False
    )
    return Admin.over(cluster)


def now_ms() -> int:
    """The time that ages in options are counted back from."""
    return SystemClock().now_ms()


def outcomes_of(call: Callable[[], dict[Item, Result]]) -> dict[Item, Result | KafkaError]:
    """What came of each of several things, errors included."""
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
