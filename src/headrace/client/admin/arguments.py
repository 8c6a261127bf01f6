"""Argument checks of the admin client; an error names the argument that is wrong."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from headrace.errors import ConfigError
from headrace.net.addresses import Address, parse_addresses
from headrace.types import TopicPartition, parse_uuid

ConfigValue: TypeAlias = str | int | float | bool

Item = TypeVar("Item")

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def name_of(name: object, what: str) -> str:
    """The name, checked to be a str; TypeError for anything else."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no {what}; give its name as a str")
    return name


def names_of(names: Iterable[str], what: str) -> list[str]:
    """The names without duplicates; TypeError for a lone str, which would be split up."""
    if isinstance(names, str | bytes):
        raise TypeError(f"{names!r} is one {what}, not a list of them; write [{names!r}]")
    return list(dict.fromkeys(name_of(name, what) for name in names))


def number_of(number: object, what: str, least: int, most: int) -> int:
    """The number, checked against its bounds; TypeError or ValueError names the argument."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{what} is {number!r}; give a number")
    if not least <= number <= most:
        raise ValueError(f"{what} is {number}; give a number from {least} to {most}")
    return number


def partition_of(tp: object) -> TopicPartition:
    """The partition as a TopicPartition; a plain pair of topic and number is accepted."""
    if isinstance(tp, tuple) and len(tp) == 2:
        topic, number = tp
        if isinstance(topic, str) and isinstance(number, int):
            return TopicPartition(topic, number_of(number, f"partition of {topic}", 0, INT32_MAX))
    raise TypeError(f"{tp!r} is no partition; write TopicPartition('orders', 0)")


def partitions_of(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions without duplicates; TypeError for a lone TopicPartition."""
    if isinstance(partitions, TopicPartition):
        raise TypeError(f"{partitions!r} is no list of partitions; write [{partitions!r}]")
    return list(dict.fromkeys(partition_of(tp) for tp in partitions))


def by_partition(given: Mapping[TopicPartition, Item], what: str) -> dict[TopicPartition, Item]:
    """The mapping with checked TopicPartition keys; TypeError for anything else."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is {given!r}; give a dict from TopicPartition")
    return {partition_of(tp): value for tp, value in given.items()}


def config_texts(configs: Mapping[str, ConfigValue]) -> dict[str, str]:
    """The values of settings as text, as Kafka's protocol has them."""
    return {name_of(name, "setting"): _config_text(name, value) for name, value in configs.items()}


def _config_text(name: str, value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise TypeError(f"{name} is {value!r}; give text, a number, True or False")


def broker_ids_of(brokers: Iterable[int], what: str) -> list[int]:
    """The broker ids in their order; TypeError or ValueError for anything else."""
    if isinstance(brokers, str | bytes | int):
        raise TypeError(f"{what} is {brokers!r}; give a list of broker ids, as [1, 2, 3]")
    return [number_of(broker, what, 0, INT32_MAX) for broker in brokers]


def directory_id_of(given: bytes | str) -> bytes:
    """The id of a data directory, from its bytes or from the text `headrace quorum` prints."""
    if isinstance(given, bytes) and len(given) == 16:
        return given
    if isinstance(given, str):
        try:
            return parse_uuid(given)
        except ValueError:
            pass
    raise ValueError(f"{given!r} is no directory id; describe_quorum() tells those there are")


def addresses_of(given: Mapping[str, Address | str]) -> dict[str, Address]:
    """Addresses by listener name; a text is parsed as host:port."""
    if not isinstance(given, Mapping) or not given:
        raise TypeError(f"endpoints is {given!r}; give a dict, as {{'CONTROLLER': 'host:9093'}}")
    return {name_of(name, "listener"): _address(address) for name, address in given.items()}


def _address(given: Address | str) -> Address:
    if isinstance(given, Address):
        return given
    try:
        [address] = parse_addresses(given)
    except (ConfigError, ValueError):
        raise ValueError(f"{given!r} is no address; write 'host:9093'") from None
    return address
