"""What is to be read: offsets of partitions, as they travel from the planner to the readers."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets from `start` up to but not including `end` of a partition.

    `topic_id` says which topic of that name they are of, in Kafka's text form, where it is known.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What one task reads."""

    range: Range
