"""How ranges of offsets are shared out among tasks: one big partition uses every core."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from headrace.pipelines.session import PARALLELISM_VARIABLE
from headrace.pipelines.source.options import ReadOptions
from headrace.pipelines.source.ranges import Range

# A range is not split for its own sake into less: starting a task costs as much as reading it.
SPLIT_OFFSETS_MIN = 50_000


def split(ranges: Sequence[Range], options: ReadOptions, parallelism: int) -> list[Range]:
    """The ranges in pieces, in their order; those with nothing in them are left out.

    Every core gets a piece as long as pieces stay large. `minPartitions` and
    `maxRecordsPerPartition` ask for smaller ones, `splitPartitions` for none at all.
    """
    total = sum(max(0, one.end - one.start) for one in ranges)
    return [
        piece
        for one in ranges
        if one.end > one.start
        for piece in _pieces(one, _count(one.end - one.start, total, options, parallelism))
    ]


def _count(size: int, total: int, options: ReadOptions, parallelism: int) -> int:
    if not options.split_partitions:
        return 1
    count = min(_rounded_up(size * parallelism, total), size // SPLIT_OFFSETS_MIN)
    if options.min_partitions is not None:
        count = max(count, _rounded_up(size * options.min_partitions, total))
    if options.max_records_per_partition is not None:
        count = max(count, _rounded_up(size, options.max_records_per_partition))
    return min(max(count, 1), size)


def _rounded_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _pieces(whole: Range, count: int) -> list[Range]:
    size = whole.end - whole.start
    edges = [whole.start + size * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def parallelism() -> int:
    """How many tasks Spark runs at once: what the session said, else the cores of this machine."""
    told = os.environ.get(PARALLELISM_VARIABLE, "")
    return int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0))
