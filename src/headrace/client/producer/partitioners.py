"""Partitioners: the partition of a record by key, sticky, in turn, or by the application.

By key, sticky and in turn are part of the accumulator, which knows where the batches are. Here a
function of the application is made safe to use.
"""

from collections.abc import Callable
from typing import TypeAlias

from headrace.client.producer_options import PartitionerFunction

Partitioner: TypeAlias = str | PartitionerFunction


def checked(partitioner: Partitioner) -> Partitioner:
    """A partitioner whose answers are partitions; one by name stays as it is."""
    if isinstance(partitioner, str):
        return partitioner
    return _checked_function(partitioner)


def _checked_function(function: PartitionerFunction) -> Callable[[str, bytes | None, int], int]:
    name = getattr(function, "__qualname__", None) or repr(function)

    def choose(topic: str, key: bytes | None, partition_count: int) -> int:
        chosen = function(topic, key, partition_count)
        if not isinstance(chosen, int) or isinstance(chosen, bool):
            raise TypeError(
                f"the partitioner {name} returned {chosen!r} for topic {topic};"
                " it must return the number of a partition"
            )
        if not 0 <= chosen < partition_count:
            raise ValueError(
                f"the partitioner {name} returned {chosen} for topic {topic}, which has"
                f" partitions 0 to {partition_count - 1}"
            )
        return chosen

    return choose
