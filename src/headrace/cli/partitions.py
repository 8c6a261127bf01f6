"""Partitions of topics as text: `orders` is all of them, `orders:0-3,7` is five."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from headrace.client.administration.admin import Admin
from headrace.client.administration.commands import by_topic
from headrace.client.failures import UnknownTopic
from headrace.types import TopicPartition

_PARTITIONS_MAX = 100_000


class Chosen(NamedTuple):
    """A topic and numbers of its partitions; none of them means all."""

    topic: str
    numbers: tuple[int, ...]


def parse_partitions(text: str) -> Chosen:
    """The meaning of `TOPIC[:PARTITIONS]`; a usage error for anything else."""
    topic, colon, rest = text.partition(":")
    numbers: list[int] = []
    try:
        for part in rest.split(",") if colon else ():
            first, dash, last = part.partition("-")
            found = range(_number(first), _number(last if dash else first) + 1)
            if not found:
                raise ValueError
            numbers += found
    except ValueError:
        numbers, topic = [], ""
    if not topic:
        raise click.BadParameter(f"{text!r} is not of the form TOPIC[:0,2-5].")
    return Chosen(topic, tuple(sorted(set(numbers))))


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= _PARTITIONS_MAX:
        raise ValueError
    return int(text)


def chosen_partitions(admin: Admin, chosen: Iterable[Chosen]) -> list[TopicPartition]:
    """The partitions that were chosen, in order; KafkaError for one that does not exist."""
    wanted = list(chosen)
    topics = admin.describe_topics(sorted({one.topic for one in wanted}))
    found: set[TopicPartition] = set()
    for one in wanted:
        existing = [partition.index for partition in topics[one.topic].partitions]
        check_numbers(one.topic, one.numbers, existing)
        found.update(TopicPartition(one.topic, number) for number in one.numbers or existing)
    return sorted(found)


def check_numbers(topic: str, numbers: Iterable[int], existing: Sequence[int]) -> None:
    """Raise UnknownTopic if one of the numbers is of no partition."""
    for number in numbers:
        if number not in existing:
            raise UnknownTopic(
                f"topic {topic} has no partition {number};"
                f" it has {len(existing)}, numbered from 0 to {len(existing) - 1}"
            )


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Partitions in the form they are given in: `orders:0-3,7 payments:0`."""
    return " ".join(
        f"{topic}:{_numbers_text(numbers)}" for topic, numbers in by_topic(partitions).items()
    )


def _numbers_text(numbers: Sequence[int]) -> str:
    """Numbers in rising order, with three or more in a row as first and last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )
