"""Options common to all clients: bootstrap servers, client id, timeouts and backoff."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypedDict

from headrace.client.backoff import Backoff
from headrace.client.security_options import SecurityKeywords, SecurityOptions
from headrace.errors import ConfigError
from headrace.net.addresses import Address, parse_addresses
from headrace.net.client_connection import ClientSecurity
from headrace.options import Custom, Int, OptionTable, Text, option, options_of

# The second is the name the commands read.
BOOTSTRAP_VARIABLES = ("HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_BOOTSTRAP_SERVER")
DEFAULT_BOOTSTRAP = "localhost:9092"

# Not thread-safe to the letter: two clients made at once may share a number, which hurts nobody.
_numbers: Counter[str] = Counter()


def _bootstrap(value: Any) -> tuple[Address, ...]:
    if value is None:
        return _bootstrap(_bootstrap_default())
    if isinstance(value, Iterable) and not isinstance(value, str):
        parts = list(value)
        if not all(isinstance(part, str) for part in parts):
            raise ValueError
        value = ",".join(parts)
    if not isinstance(value, str):
        raise ValueError
    try:
        return parse_addresses(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _bootstrap_default() -> str:
    given = (os.environ.get(name) for name in BOOTSTRAP_VARIABLES)
    return next((text for text in given if text), DEFAULT_BOOTSTRAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(SecurityOptions):
    """Options common to all clients: the brokers to ask first, timeouts and backoff."""

    bootstrap_servers: tuple[Address, ...] = option(
        Custom('text such as "host:9092,other:9092", or a list of such texts', _bootstrap),
        None,
        kafka="bootstrap.servers",
        default_text=f"`HEADRACE_BOOTSTRAP_SERVERS`, or {DEFAULT_BOOTSTRAP}",
        doc="Brokers to ask first; one that answers is enough, for it names the others.",
    )
    client_id: str = option(
        Text(optional=True),
        None,
        kafka="client.id",
        default_text="made up, such as producer-1",
        doc="What the broker's log and the metrics call this client.",
    )
    request_timeout_ms: int = option(
        Int(1),
        30_000,
        kafka="request.timeout.ms",
        doc="How long one request may take. After that its connection is given up, and the request"
        " is sent again if that is safe and time is left.",
    )
    metadata_max_age_ms: int = option(
        Int(0),
        300_000,
        kafka="metadata.max.age.ms",
        doc="How long the client believes what it heard about brokers and partitions. New"
        " partitions, and new topics that match a pattern, are noticed after so long at most.",
    )
    retry_backoff_ms: int = option(
        Int(0),
        100,
        kafka="retry.backoff.ms",
        doc="The pause before the first retry. It doubles with every further one, varied at random"
        " by a fifth.",
    )
    retry_backoff_max_ms: int = option(
        Int(0),
        1000,
        kafka="retry.backoff.max.ms",
        doc="The longest pause between two retries.",
    )

    def cluster_arguments(self) -> "ClusterArguments":
        """The arguments of a client's `Cluster`, beside the brokers to ask first."""
        return {
            "client_id": self.client_id,
            "security": self.client_security(),
            "request_timeout_s": self.request_timeout_ms / 1000,
            "metadata_max_age_s": self.metadata_max_age_ms / 1000,
            "backoff": Backoff(self.retry_backoff_ms / 1000, self.retry_backoff_max_ms / 1000),
        }


_COMMON = options_of(CommonOptions)


class ClusterArguments(TypedDict):
    """The timeouts and backoff of a cluster, in the units of the transport."""

    client_id: str
    security: ClientSecurity
    request_timeout_s: float
    metadata_max_age_s: float
    backoff: Backoff


class CommonConfig(SecurityKeywords, total=False):
    """The keyword arguments that every client takes.

    `client_config` is a properties file under Kafka's names, and `profile` the name of such a file
    that `headrace profile` keeps. Other arguments replace what is in it.
    """

    client_config: str | PathLike[str] | None
    profile: str | None
    bootstrap_servers: str | Sequence[str]
    client_id: str | None
    request_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


# Options that people bring from other clients, and why they are refused.
_REFUSED = {
    "sasl_kerberos_*": "there is no Kerberos; use another mechanism",
    "sasl_*": "it has no effect on the logins of this client; leave it out",
    "ssl_context": "give the files of certificates, such as ssl_truststore_location",
    "ssl_*": "it has no effect on the TLS of this client; leave it out",
    "group_protocol": "groups use the classic protocol; leave it out",
    "api_version": "versions are agreed with each broker; leave it out",
}


def client_table(client: str, options_class: type[CommonOptions]) -> OptionTable:
    """The options that a client's dataclass declares."""
    return OptionTable(
        options_of(options_class).values(),
        owner=client,
        refused=_REFUSED,
        docs="docs/client-options.md",
    )


def settle_common(values: dict[str, Any], given: set[str], client: str) -> None:
    """Make the common options agree: an option that was not given follows those that were."""
    if values["bootstrap_servers"] is None:
        values["bootstrap_servers"] = _COMMON["bootstrap_servers"].check(None)
    if values["client_id"] is None:
        _numbers[client] += 1
        values["client_id"] = f"{client}-{_numbers[client]}"
    least, most = values["retry_backoff_ms"], values["retry_backoff_max_ms"]
    if least > most:
        if {"retry_backoff_ms", "retry_backoff_max_ms"} <= given:
            raise ConfigError(
                f"retry_backoff_max_ms ({most}) must be at least retry_backoff_ms ({least})"
            )
        changed = {"retry_backoff_ms", "retry_backoff_max_ms"} - given
        values[changed.pop()] = most if "retry_backoff_max_ms" in given else least
