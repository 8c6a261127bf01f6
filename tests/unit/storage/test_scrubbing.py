"""Reading closed segments again: which is next, what damage looks like, what is written down."""

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.damage import DamagedLog
from headrace.storage.log import Log
from headrace.storage.scrubbing import (
    ScrubProgress,
    SegmentDamage,
    SegmentKey,
    check_segment,
    decode_progress,
    encode_progress,
    next_segment,
)
from headrace.types import TopicPartition
from tests.unit.storage.logs import append, config, open_log

WEEK_MS = 604_800_000
A, B, C = (TopicPartition("orders", number) for number in range(3))

partitions = st.sampled_from([A, B, C, TopicPartition("audit", 7)])
keys = st.builds(SegmentKey, partitions, st.integers(0, 2**40))
numbers = st.integers(0, 2**50)
progresses = st.builds(
    ScrubProgress,
    started_ms=numbers,
    finished_ms=st.just(-1) | numbers,
    segment_count=numbers,
    byte_count=numbers,
    last=st.none() | keys,
    damage=st.lists(st.builds(SegmentDamage, keys, numbers, numbers), max_size=3).map(tuple),
)


@given(progresses)
def test_progress_outlives_a_restart(progress: ScrubProgress) -> None:
    assert decode_progress(encode_progress(progress)) == progress


@pytest.mark.parametrize("data", [None, b"", b"1\n", b"0\nlast=x\n", b"0\nstarted_ms=x\n", b"\xff"])
def test_what_cannot_be_read_begins_anew(data: bytes | None) -> None:
    assert decode_progress(data) == ScrubProgress()


def test_a_pass_reads_every_segment_once_in_order_and_the_next_waits_for_its_time() -> None:
    held = {A: [0, 10, 20], B: [], C: [5]}
    progress = ScrubProgress().begun(1000, WEEK_MS)
    seen = []
    while (key := next_segment(progress, sorted(held), lambda name: held[name])) is not None:
        seen.append(key)
        progress = progress.read(key, 100)
        if key == (A, 10):
            # A new segment is in time; what retention takes is not missed.
            held[A] = [20, 30]
    assert seen == [(A, 0), (A, 10), (A, 20), (A, 30), (C, 5)]
    progress = progress.ended(2000)
    assert (progress.segment_count, progress.byte_count) == (5, 500)
    assert not progress.begun(1000 + WEEK_MS - 1, WEEK_MS).is_under_way
    again = progress.begun(1000 + WEEK_MS, WEEK_MS)
    assert (again.is_under_way, again.segment_count, again.last) == (True, 0, None)
    # A clock that was set back does not put off the next pass.
    assert progress.begun(500, WEEK_MS).is_under_way


def test_a_partition_that_is_gone_is_passed_over() -> None:
    progress = ScrubProgress(1, last=SegmentKey(B, 7))
    assert next_segment(progress, [A, C], lambda _: [3]) == (C, 3)


def test_damage_is_known_until_it_is_gone() -> None:
    damage = SegmentDamage(SegmentKey(A, 0), 3, 5)
    progress = ScrubProgress(1).read(damage.key, 10, damage)
    later = progress.ended(5).begun(10, 0)
    assert later.damage == (damage,)
    assert later.read(damage.key, 10).damage == ()
    assert later.without(damage).damage == ()


def log_with_closed_segments(directory: Path) -> Log:
    log = open_log(directory, config(segment_bytes=1500))
    for number in count():
        append(log, 3, value=b"%d" % number * 40)
        if len(log.segments) == 3:
            break
    return log


def scrub(log: Log, index: int = 0) -> int:
    following = log.segments[index + 1]
    return sum(check_segment(log.segments[index], following.base_offset, log.epochs.entries))


def flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_an_intact_segment_is_read_whole(tmp_path: Path) -> None:
    log = log_with_closed_segments(tmp_path)
    assert [scrub(log, index) for index in (0, 1)] == [segment.size for segment in log.segments[:2]]


def test_a_flipped_byte_is_found_with_the_offsets_of_its_batch(tmp_path: Path) -> None:
    log = log_with_closed_segments(tmp_path)
    segment = log.segments[0]
    second = list(segment.batches(0, segment.size))[1]
    flip(segment.log_path, second.position + 70)
    with pytest.raises(DamagedLog, match=segment.log_path) as caught:
        scrub(log)
    found = caught.value
    assert (found.first_offset, found.end_offset) == (3, 6)
    assert found.byte_count == second.header.size
    assert f"at position {second.position}" in found.reason


@pytest.mark.parametrize("field", [0, 7, 8, 11, 12, 15, 16])
def test_what_the_checksum_does_not_cover_is_checked_too(tmp_path: Path, field: int) -> None:
    """Base offset, length, leader epoch and magic of a batch lie before its CRC."""
    log = log_with_closed_segments(tmp_path)
    segment = log.segments[0]
    second = list(segment.batches(0, segment.size))[1]
    flip(segment.log_path, second.position + field)
    with pytest.raises(DamagedLog) as caught:
        scrub(log)
    assert caught.value.first_offset == 3


@given(st.data())
def test_every_flipped_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = log_with_closed_segments(tmp_path_factory.mktemp("log"))
    segment = log.segments[0]
    position = data.draw(st.integers(0, segment.size - 1))
    flip(segment.log_path, position)
    with pytest.raises(DamagedLog):
        scrub(log)


def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path) -> None:
    log = log_with_closed_segments(tmp_path)
    with open(log.segments[0].log_path, "r+b") as file:
        file.truncate(log.segments[0].size - 10)
    with pytest.raises(DamagedLog, match="the file ends after"):
        scrub(log)


def test_batches_larger_than_a_piece_are_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=2_000_000))
    for _ in range(3):
        append(log, value=bytes(900_000))
    assert len(log.segments) > 1
    assert scrub(log) == log.segments[0].size
    flip(log.segments[0].log_path, 600_000)
    with pytest.raises(DamagedLog):
        scrub(log)
