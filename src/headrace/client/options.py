"""Option tables of all clients, and the functions that check keyword arguments against them.

Rule: keyword arguments become option values in `producer_options`, `consumer_options` and
`admin_options`, and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

from headrace.client.common_options import (
    CommonConfig,
    CommonOptions,
    client_table,
    settle_common,
)
from headrace.client.consumer_options import (
    CONSUMER_OPTIONS,
    ConsumerConfig,
    ConsumerOptions,
    IsolationLevel,
    OffsetReset,
    ResetPolicy,
    settled_consumer_options,
)
from headrace.client.producer_options import (
    PRODUCER_OPTIONS,
    PartitionerFunction,
    ProducerConfig,
    ProducerOptions,
    settled_producer_options,
)
from headrace.options import OptionTable

__all__ = [
    "ADMIN_OPTIONS",
    "CONSUMER_OPTIONS",
    "OPTIONS",
    "PRODUCER_OPTIONS",
    "AdminConfig",
    "AdminOptions",
    "CommonConfig",
    "CommonOptions",
    "ConsumerConfig",
    "ConsumerOptions",
    "IsolationLevel",
    "OffsetReset",
    "PartitionerFunction",
    "ProducerConfig",
    "ProducerOptions",
    "ResetPolicy",
    "admin_options",
    "consumer_options",
    "from_properties",
    "producer_options",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(CommonOptions):
    """The checked options of an admin client, as `admin_options` makes them."""


class AdminConfig(CommonConfig, total=False):
    """The keyword arguments of an admin client."""


ADMIN_OPTIONS = client_table("Admin", AdminOptions)

OPTIONS: Mapping[str, OptionTable] = {
    "producer": PRODUCER_OPTIONS,
    "consumer": CONSUMER_OPTIONS,
    "admin": ADMIN_OPTIONS,
}


def producer_options(**given: Unpack[ProducerConfig]) -> ProducerOptions:
    """The checked options of a producer; ConfigError names the invalid option and the reason.

    >>> producer_options(acks=1, linger_ms=20).enable_idempotence
    False
    >>> producer_options(linger=20)
    Traceback (most recent call last):
    headrace.errors.ConfigError: unknown option 'linger' of Producer; did you mean linger_ms?
    """
    return settled_producer_options(dict(given))


def consumer_options(**given: Unpack[ConsumerConfig]) -> ConsumerOptions:
    """The checked options of a consumer; ConfigError names the invalid option and the reason."""
    return settled_consumer_options(dict(given))


def admin_options(**given: Unpack[AdminConfig]) -> AdminOptions:
    """The checked options of an admin client; ConfigError names the invalid option."""
    values, names = ADMIN_OPTIONS.check(given)
    settle_common(values, names, "admin")
    return AdminOptions(**values)


@overload
def from_properties(
    properties: Mapping[str, str], client: Literal["producer"]
) -> ProducerConfig: ...
@overload
def from_properties(
    properties: Mapping[str, str], client: Literal["consumer"]
) -> ConsumerConfig: ...
@overload
def from_properties(properties: Mapping[str, str], client: Literal["admin"]) -> AdminConfig: ...
def from_properties(properties: Mapping[str, str], client: str) -> Any:
    """The keyword arguments for properties with Kafka's names.

    >>> from_properties({"linger.ms": "5", "acks": "all"}, "producer")
    {'linger_ms': 5, 'acks': 'all'}
    """
    return OPTIONS[client].arguments(properties)
