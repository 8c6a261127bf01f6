"""Option tables of all clients, and the functions that check keyword arguments against them.

Rule: keyword arguments become option values in `producer_options`, `consumer_options` and
`admin_options`, and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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
from headrace.client.property_files import existing_profile, read_client_config
from headrace.errors import ConfigError
from headrace.options import OptionTable, unknown_name

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
    "check_properties",
    "consumer_options",
    "from_properties",
    "is_sensitive",
    "producer_options",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(CommonOptions):
    """The checked options of an admin client, as `admin_options` makes them."""


class AdminConfig(CommonConfig, total=False):
    """The keyword arguments of an admin client."""


ADMIN_OPTIONS = client_table("Admin", AdminOptions)

# Arguments that name properties, beside the options themselves.
_FILE, _PROFILE = "client_config", "profile"

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
    return settled_producer_options(_with_file(given, "producer"))


def consumer_options(**given: Unpack[ConsumerConfig]) -> ConsumerOptions:
    """The checked options of a consumer; ConfigError names the invalid option and the reason."""
    return settled_consumer_options(_with_file(given, "consumer"))


def admin_options(**given: Unpack[AdminConfig]) -> AdminOptions:
    """The checked options of an admin client; ConfigError names the invalid option."""
    values, names = ADMIN_OPTIONS.check(_with_file(given, "admin"))
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


def check_properties(names: Mapping[str, object], place: str) -> None:
    """Refuse a name that no client has; programs share such files, so any client's is allowed."""
    known = {
        name
        for table in OPTIONS.values()
        for option in table.values()
        for name in option.properties
    }
    for name in names:
        if name not in known:
            ADMIN_OPTIONS.refuse(name)
            raise ConfigError(f"{place}: {unknown_name('property', name, known)}")


def is_sensitive(name: str) -> bool:
    """Whether the value of a client's property is a secret."""
    return any(
        option.sensitive and name in option.properties
        for table in OPTIONS.values()
        for option in table.values()
    )


def _with_file(given: Mapping[str, Any], client: str) -> dict[str, Any]:
    """The arguments of a client, with those of the properties file or profile that they name.

    An argument replaces the file's, under whichever of its names.
    """
    own = dict(given)
    file, profile = own.pop(_FILE, None), own.pop(_PROFILE, None)
    if file is None and profile is None:
        return own
    if file is not None and profile is not None:
        raise ConfigError(f"{_FILE} and {_PROFILE} are both given; take one of them away")
    path = existing_profile(profile) if file is None else Path(file)
    properties = read_client_config(path)
    check_properties(properties, str(path))
    table = OPTIONS[client]
    mine = {name for option in table.values() for name in option.properties}
    try:
        found = table.arguments({name: text for name, text in properties.items() if name in mine})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for name in own:
        option = next((option for option in table.values() if name in option.names), None)
        if option is not None:
            found.pop(option.name, None)
    return found | own
