import click
import pytest

from headrace.cli.partitions import (
    AtEdge,
    AtOffset,
    AtTail,
    AtTime,
    PartitionRange,
    Start,
    find_ranges,
    parse_start,
)
from headrace.client.admin.admin import Admin
from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.errors import KafkaError
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import AdminBrokers

NOW_MS = 1_714_564_800_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", AtEdge(EARLIEST)),
        ("end", AtEdge(LATEST)),
        ("0", AtOffset(0)),
        ("9223372036854775807", AtOffset(2**63 - 1)),
        ("-5", AtTail(5)),
        ("-90s", AtTime(NOW_MS - 90_000)),
        ("-15m", AtTime(NOW_MS - 900_000)),
        ("-1h", AtTime(NOW_MS - 3_600_000)),
        ("-7d", AtTime(NOW_MS - 604_800_000)),
        ("-250ms", AtTime(NOW_MS - 250)),
        ("-99999d", AtTime(0)),
        ("@1714564800000", AtTime(1_714_564_800_000)),
        ("2024-05-01T12:00:00Z", AtTime(1_714_564_800_000)),
        ("2024-05-01T12:00:00.5+00:00", AtTime(1_714_564_800_500)),
        ("1969-01-01T00:00:00Z", AtTime(0)),
    ],
)
def test_a_start_is_an_edge_an_offset_a_tail_or_a_time(text: str, expected: Start) -> None:
    assert parse_start(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "start", "-", "@", "1h", "--5", "9223372036854775808", "٣"])
def test_anything_else_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(click.UsageError, match="is none of: beginning, end"):
        parse_start(text, NOW_MS)


def found_ranges(start: Start, *logs: tuple[int, int]) -> list[PartitionRange]:
    """What a start means in partitions that hold these offsets."""
    brokers = AdminBrokers()
    brokers.add_topic("t", len(logs))
    partitions = [TopicPartition("t", number) for number in range(len(logs))]
    for tp, (low, high) in zip(partitions, logs, strict=True):
        brokers.logs[tp].start_offset, brokers.logs[tp].next_offset = low, high
    with Admin.over(brokers.new_cluster()) as admin:
        ranges = find_ranges(admin, partitions, start)
    return [ranges[tp] for tp in partitions]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (AtEdge(EARLIEST), [5, 0]),
        (AtEdge(LATEST), [20, 3]),
        (AtOffset(7), [7, 3]),
        (AtOffset(2), [5, 2]),
        (AtTail(4), [16, 0]),
        (AtTail(100), [5, 0]),
        (AtTime(NOW_MS), [20, 3]),
    ],
)
def test_a_start_is_found_in_each_partition(start: Start, expected: list[int]) -> None:
    ranges = found_ranges(start, (5, 20), (0, 3))
    assert [found.start for found in ranges] == expected
    assert [found.end for found in ranges] == [20, 3]


def test_an_offset_that_no_partition_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(KafkaError, match=r"t-0 has \[5, 20\), t-1 has \[0, 3\)"):
        found_ranges(AtOffset(21), (5, 20), (0, 3))
