"""Partitioners: choice of a record's partition by key, sticky, round robin, or by the application.

By key, sticky and round robin are part of the accumulator, which has the batches. Here a function
of the application is wrapped to check its results.
"""

from collections.abc import Callable
from typing import TypeAlias

from headrace.client.producer_options import PartitionerFunction

Partitioner: TypeAlias = str | PartitionerFunction


def checked(partitioner: Partitioner) -> Partitioner:
    """A partitioner with checked results; the name of a built-in partitioner stays as it is."""
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
