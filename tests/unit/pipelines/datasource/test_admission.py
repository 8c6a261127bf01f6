"""How far a micro-batch goes."""

from fractions import Fraction

from headrace.pipelines.datasource.planner import MicroBatchDelay, admitted
from headrace.pipelines.datasource.read_options import MicroBatchLimits
from headrace.types import TopicPartition

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
STARTS = {A0: 10, A1: 0, A2: 5}
ENDS = {A0: 910, A1: 100, A2: 5}


def test_no_limit() -> None:
    assert admitted(STARTS, ENDS, MicroBatchLimits(), {}) == ENDS
    assert admitted(STARTS, ENDS, MicroBatchLimits(max_offsets=1000), {}) == ENDS
    assert admitted({}, {}, MicroBatchLimits(max_offsets=1), {}) == {}


def test_offsets_are_shared_in_proportion() -> None:
    assert admitted(STARTS, ENDS, MicroBatchLimits(max_offsets=100), {}) == {A0: 100, A1: 10, A2: 5}


def test_none_starves() -> None:
    assert admitted(STARTS, ENDS, MicroBatchLimits(max_offsets=1), {}) == {A0: 11, A1: 1, A2: 5}


def test_repeated_batches_arrive_at_the_end() -> None:
    position = dict(STARTS)
    for _ in range(100):
        position = admitted(position, ENDS, MicroBatchLimits(max_offsets=37), {})
    assert position == ENDS


def test_bytes_are_estimated_by_partition() -> None:
    per_offset = {A0: Fraction(10), A1: Fraction(1000)}
    # 900 * 10 + 100 * 1000 bytes in all.
    found = admitted(STARTS, ENDS, MicroBatchLimits(max_bytes=10_900), per_offset)
    assert found == {A0: 100, A1: 10, A2: 5}
    assert admitted(STARTS, ENDS, MicroBatchLimits(max_bytes=109_000), per_offset) == ENDS


def test_the_stricter_limit_counts() -> None:
    per_offset = {A0: Fraction(10), A1: Fraction(10)}
    limits = MicroBatchLimits(max_offsets=500, max_bytes=1000)
    assert admitted(STARTS, ENDS, limits, per_offset) == {A0: 100, A1: 10, A2: 5}
    limits = MicroBatchLimits(max_offsets=100, max_bytes=5000)
    assert admitted(STARTS, ENDS, limits, per_offset) == {A0: 100, A1: 10, A2: 5}


def test_waiting_for_more_ends_with_enough_or_with_time() -> None:
    waiting = MicroBatchDelay()
    limits = MicroBatchLimits(min_offsets=10, max_delay_ms=1000)
    assert not waiting.goes_on(1, limits, 0)
    assert waiting.goes_on(9, limits, 999)
    assert not waiting.goes_on(10, limits, 999)
    assert waiting.goes_on(9, limits, 1998)
    assert not waiting.goes_on(9, limits, 1999)
    assert not waiting.goes_on(1, MicroBatchLimits(), 1999)
