"""Appending, reading, rolling, looking up, truncating: a log that nothing goes wrong with."""

from itertools import pairwise
from pathlib import Path

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.batch import check_batch, read_header, scan_headers
from headrace.storage.files import Files
from headrace.storage.log import AppendResult, Log
from tests.unit.storage.logs import (
    NOW_MS,
    SMALL,
    TOPIC_ID,
    FaultyFiles,
    append,
    batch,
    check_indexes,
    config,
    open_log,
    read_all,
    values,
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "orders-0")


def fill(log: Log, batches: int, count: int = 1) -> list[tuple[int, bytes]]:
    """Append batches of different values; what must be read back."""
    expected = []
    for index in range(batches):
        base_offset = append(log, count, value=b"%d" % index).base_offset
        expected += [(base_offset + delta, b"%d" % index) for delta in range(count)]
    return expected


def test_appends_get_consecutive_offsets_and_are_stamped_in_place(log: Log) -> None:
    first, second = batch(3), batch(2)
    assert log.append(first, [read_header(first)], 7, NOW_MS) == AppendResult(0, 2, -1, 0, False)
    assert log.append(second, [read_header(second)], 7, NOW_MS) == AppendResult(3, 4, -1, 0, False)
    stored = log.read(0, 10_000, 5).records
    assert bytes(stored) == bytes(first + second)
    assert [(h.base_offset, h.leader_epoch) for h in scan_headers(stored)] == [(0, 7), (3, 7)]
    assert log.log_end_offset == 5
    assert log.latest_epoch == 7


def test_several_batches_in_one_append_are_each_given_offsets(log: Log) -> None:
    data = batch(2) + batch(3) + batch(1)
    appended = log.append(data, scan_headers(data), 0, NOW_MS)
    assert (appended.base_offset, appended.last_offset) == (0, 5)
    assert [h.base_offset for h in scan_headers(log.read(0, 10_000, 6).records)] == [0, 2, 5]


def test_every_offset_is_read_from_the_batch_that_holds_it(log: Log) -> None:
    expected = fill(log, 60, count=3)
    assert len(log.segments) > 3
    for offset in range(log.log_end_offset):
        records = log.read(offset, 100, log.log_end_offset, at_least_one=True).records
        assert read_header(records).base_offset == offset // 3 * 3
    assert read_all(log) == expected
    check_indexes(log)


def test_a_cached_read_gives_what_a_waiting_read_gives(log: Log) -> None:
    fill(log, 40, count=2)
    for offset in range(log.log_end_offset):
        waiting = log.read(offset, 200, log.log_end_offset, at_least_one=True)
        cached = log.read_cached(offset, 200, log.log_end_offset, at_least_one=True)
        assert cached is not None
        assert bytes(cached.records) == bytes(waiting.records)


def test_a_cached_read_says_so_when_it_would_have_to_wait(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 3)

    def cold(*_arguments: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr("os.preadv", cold)
    assert log.read_cached(0, 1000, 3) is None
    assert len(values(log.read(0, 1000, 3).records)) == 3
    assert log.offline is None


def test_nothing_at_or_past_the_limit_is_read(log: Log) -> None:
    fill(log, 30, count=4)
    for limit in range(log.log_end_offset + 1):
        offset = max(0, limit - 9)
        records = values(log.read(offset, 10_000, limit, at_least_one=True).records)
        assert [o for o, _ in records if o >= limit // 4 * 4] == []
        if limit // 4 * 4 > offset:
            assert records[0][0] <= offset


def test_a_read_stops_at_its_size_but_not_within_the_first_batch(log: Log) -> None:
    size = len(batch(value=b"x" * 200))
    append(log, value=b"x" * 200)
    append(log, value=b"y" * 200)
    assert len(log.read(0, size + 10, 2).records) == size + 10
    assert values(log.read(0, size + 10, 2).records) == [(0, b"x" * 200)]
    for max_bytes in (0, 1, 11, 12, size - 1):
        assert log.read(0, max_bytes, 2).records == b""
        assert len(log.read(0, max_bytes, 2, at_least_one=True).records) == size


def test_reading_at_the_end_finds_nothing_and_outside_is_refused(log: Log) -> None:
    fill(log, 5)
    log.advance_log_start(2)
    assert log.read(5, 100, 5).records == b""
    for offset in (-1, 1, 6):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 100, 5)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_gap_at_the_end_of_a_segment_is_crossed(log: Log) -> None:
    first = batch(base_offset=0, leader_epoch=0)
    log.append_replicated(first, [read_header(first)], NOW_MS)
    log.roll(NOW_MS)
    second = batch(base_offset=50, leader_epoch=0)
    log.append_replicated(second, [read_header(second)], NOW_MS)
    for _ in range(2):  # The second time with what the first has learnt.
        found = log.read_cached(10, 1000, 51)
        assert found is not None
        assert values(found.records) == [(50, b"value")]
    assert values(log.read(0, 1000, 51).records) == [(0, b"value")]


def test_a_replicated_batch_may_not_go_back(log: Log) -> None:
    fill(log, 3)
    data = batch(base_offset=2, leader_epoch=0)
    with pytest.raises(KafkaError) as caught:
        log.append_replicated(data, [read_header(data)], NOW_MS)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.log_end_offset == 3


def test_segments_roll_by_size_without_ever_exceeding_it(log: Log) -> None:
    fill(log, 50)
    assert len(log.segments) > 3
    size = len(batch(value=b"11"))
    for segment in log.segments[:-1]:
        assert SMALL.segment_bytes - size < segment.size <= SMALL.segment_bytes


def test_a_batch_larger_than_a_segment_is_refused(log: Log) -> None:
    with pytest.raises(KafkaError) as caught:
        append(log, value=b"x" * SMALL.segment_bytes)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_segments_roll_by_the_age_of_their_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_ms=1000))
    for age, segments in ((0, 1), (1000, 1), (1001, 2), (1500, 2), (2001, 2), (2002, 3)):
        append(log, timestamp=NOW_MS + age)
        assert len(log.segments) == segments, age


def test_segments_without_timestamps_roll_by_the_clock(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_ms=1000))
    append(log, timestamp=-1, now_ms=NOW_MS)
    append(log, timestamp=-1, now_ms=NOW_MS + 1000)
    assert len(log.segments) == 1
    append(log, timestamp=-1, now_ms=NOW_MS + 1001)
    assert len(log.segments) == 2


def test_jitter_makes_segments_roll_earlier_but_never_later(tmp_path: Path) -> None:
    settings = config(segment_bytes=100_000, segment_ms=1000, segment_jitter_ms=1000)
    log = open_log(tmp_path, settings)
    while len(log.segments) < 8:
        append(log, timestamp=NOW_MS + log.log_end_offset * 10)
    starts = [segment.base_offset for segment in log.segments]
    lengths = {end - start for start, end in pairwise(starts)}
    assert max(lengths) <= 101
    assert len(lengths) > 4


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=100_000, segment_index_bytes=36))
    for index in range(40):
        append(log, value=b"x" * 100, timestamp=NOW_MS + index)
    assert len(log.segments) > 3
    for segment in log.segments:
        assert len(segment.offset_index) <= 36 // 8
        assert len(segment.time_index) <= 36 // 12 + 1  # One more is written when it closes.


def test_segments_roll_before_a_relative_offset_overflows(log: Log) -> None:
    append(log)
    far = batch(base_offset=2**31 - 1, leader_epoch=0)
    log.append_replicated(far, [read_header(far)], NOW_MS)
    assert len(log.segments) == 1
    further = batch(base_offset=2**31, leader_epoch=0)
    log.append_replicated(further, [read_header(further)], NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_rolling_an_empty_segment_does_nothing(log: Log) -> None:
    log.roll(NOW_MS)
    assert len(log.segments) == 1


def test_log_append_time_is_stamped_and_reported(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(message_timestamp_type="LogAppendTime"))
    assert append(log, timestamp=5, now_ms=NOW_MS).log_append_time == NOW_MS
    stored = log.read(0, 1000, 1).records
    header = read_header(stored)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW_MS
    check_batch(stored, header)
    found = log.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert found.timestamp == NOW_MS


def test_a_time_is_found_as_its_first_record(log: Log) -> None:
    for index in range(60):
        append(log, 3, timestamp=1000 + index * 10, leader_epoch=index // 30)
    for timestamp in range(990, 1592):
        found = log.offset_for_timestamp(timestamp)
        expected = next(
            (1000 + i * 10 + d, i * 3 + d, i // 30)
            for i in range(60)
            for d in range(3)
            if 1000 + i * 10 + d >= timestamp
        )
        assert found == expected
    assert log.offset_for_timestamp(1593) is None
    assert log.max_timestamp_offset() == (1592, 179, 1)


def test_times_that_go_back_are_found_all_the_same(log: Log) -> None:
    for timestamp in (100, 500, 200, 300, 700, 50):
        append(log, timestamp=timestamp, value=b"x" * 400)
    assert len(log.segments) > 1
    found = [log.offset_for_timestamp(wanted) for wanted in (1, 150, 501, 701)]
    assert [entry and entry.offset for entry in found] == [0, 1, 4, None]
    assert log.max_timestamp_offset() == (700, 4, 0)


def test_records_below_the_log_start_are_not_found_by_time(log: Log) -> None:
    append(log, 5, timestamp=100)
    log.advance_log_start(3)
    assert log.offset_for_timestamp(0) == (103, 3, 0)
    log.advance_log_start(5)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_an_empty_log_has_no_times(log: Log) -> None:
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_a_new_log_starts_at_the_offset_it_is_given(tmp_path: Path) -> None:
    log = open_log(tmp_path / "new", log_start_offset=42, topic_id=TOPIC_ID)
    assert (log.log_start_offset, log.log_end_offset) == (42, 42)
    assert append(log).base_offset == 42
    assert log.topic_id == TOPIC_ID
    assert open_log(tmp_path / "new").topic_id == TOPIC_ID


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_is_the_same_after_it_was_closed_and_opened(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    expected = fill(log, 60, count=2)
    log.start_epoch(3)
    append(log, producer=(9, 0, 0), leader_epoch=3, timestamp=NOW_MS + 5)
    expected.append((120, b"value"))
    log.close(clean=clean)
    again = open_log(tmp_path, clean=clean, recovery_point=121 if clean else 0)
    assert again.recovery.scanned is not clean
    assert read_all(again) == expected
    assert again.log_end_offset == again.recovery_point == 121
    assert again.max_timestamp_offset() == (NOW_MS + 5, 120, 3)
    assert again.epochs.entries == ((0, 0), (3, 120))
    assert append(again, producer=(9, 0, 0)).duplicate
    check_indexes(again)
    assert fill(again, 40)[0][0] == 121
    check_indexes(again)


def test_a_clean_open_reads_no_more_than_the_tail(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=1_000_000))
    fill(log, 2000)
    log.close()
    read = 0

    class Counting(Files):
        def read_bytes(self, path: str) -> bytes | None:
            nonlocal read
            data = super().read_bytes(path)
            read += len(data or b"")
            return data

    again = open_log(tmp_path, files=Counting(), clean=True, recovery_point=2000)
    segment = again.active
    last = segment.offset_index.last()
    assert last is not None
    assert segment.size - last[1] < 300
    assert again.log_end_offset == 2000
    assert read < 500


def test_an_empty_log_may_begin_in_the_middle_of_a_replicated_batch(log: Log) -> None:
    log.truncate_fully_and_start_at(7)
    early, data = batch(2, base_offset=3), batch(5, base_offset=5, leader_epoch=2)
    with pytest.raises(KafkaError) as caught:
        log.append_replicated(early, [read_header(early)], NOW_MS)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.append_replicated(data, [read_header(data)], NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (7, 10)
    assert bytes(log.read(7, 10_000, 10).records) == bytes(data)
    assert log.epochs.entries == ((2, 7),)
    again = batch(2, base_offset=8)
    with pytest.raises(KafkaError):
        log.append_replicated(again, [read_header(again)], NOW_MS)
    assert log.log_end_offset == 10


def test_an_empty_log_begins_elsewhere_without_a_flush(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path / "orders-0", files=files)
    files.operations.clear()
    log.truncate_fully_and_start_at(70)
    assert not [operation for operation in files.operations if "sync" in operation[0]]
    # At any moment there is one file of batches, so a crash leaves one too.
    assert [name.name for name in (tmp_path / "orders-0").glob("*.log")] == [f"{70:020d}.log"]
    data = batch(2, base_offset=70)
    log.append_replicated(data, [read_header(data)], NOW_MS)
    again = open_log(tmp_path / "orders-0")
    assert (again.log_start_offset, again.log_end_offset) == (70, 72)
    check_indexes(again)


def test_producers_of_replicated_batches_live_from_now_on(log: Log) -> None:
    data = batch(1, timestamp=1000, producer=(9, 0, 0))
    log.append_replicated(data, [read_header(data)], NOW_MS)
    log.expire_producers(NOW_MS + 1000)
    producer = log.producers.get(9)
    assert producer is not None
    assert producer.last_sequence == 0


def test_truncation_forgets_an_epoch_that_wrote_nothing(log: Log) -> None:
    append(log, leader_epoch=1)
    log.start_epoch(2)
    log.truncate_to(5)
    assert log.epochs.entries == ((1, 0),)
    assert log.log_end_offset == 1


def test_truncation_removes_what_reaches_the_offset(log: Log) -> None:
    expected = fill(log, 60, count=3)
    for offset in (180, 179, 100, 99, 42, 3, 1):
        log.truncate_to(offset)
        end = offset // 3 * 3
        assert log.log_end_offset == end
        assert read_all(log) == expected[:end]
        check_indexes(log)
    assert append(log).base_offset == 0


def test_truncation_takes_back_epochs_producers_and_times(log: Log) -> None:
    append(log, 2, producer=(9, 0, 0), timestamp=100, leader_epoch=1)
    log.roll(NOW_MS)
    append(log, 2, producer=(9, 0, 2), timestamp=900, leader_epoch=2)
    append(log, 2, producer=(9, 0, 4), timestamp=800, leader_epoch=3)
    log.truncate_to(4)
    assert log.epochs.entries == ((1, 0), (2, 2))
    assert log.max_timestamp_offset() == (901, 3, 2)
    log.truncate_to(2)
    assert log.max_timestamp_offset() == (101, 1, 1)
    assert append(log, 2, producer=(9, 0, 0)).duplicate
    with pytest.raises(KafkaError):
        append(log, 2, producer=(9, 0, 4))
    assert append(log, 2, producer=(9, 0, 2)).base_offset == 2


def test_truncation_forgets_the_producer_state_of_later_segments(log: Log) -> None:
    for sequence in range(6):
        append(log, producer=(9, 0, sequence))
        log.roll(NOW_MS)
    log.truncate_to(3)
    assert log.snapshots.offsets == (1, 2, 3)
    with pytest.raises(KafkaError):
        append(log, producer=(9, 0, 6))
    assert append(log, producer=(9, 0, 2)).duplicate
    assert append(log, producer=(9, 0, 3)).base_offset == 3


def test_truncation_moves_the_recovery_point_back_and_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    log = open_log(tmp_path, on_truncate=lambda: told.append("moved"))
    fill(log, 10)
    log.flush()
    fill(log, 5)
    log.truncate_to(12)
    assert (log.recovery_point, told) == (10, [])
    log.truncate_to(4)
    assert (log.recovery_point, told) == (4, ["moved"])


def test_a_log_can_be_started_again_at_another_offset(log: Log, tmp_path: Path) -> None:
    fill(log, 60)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (1000, 1000, 1000)
    assert log.recovery_point == log.log_end_offset
    assert log.epochs.entries == ()
    assert append(log).base_offset == 1000
    assert read_all(log) == [(1000, b"value")]
    log.truncate_to(500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)


def test_a_flush_is_due_by_messages_and_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(flush_messages=3, flush_ms=1000))
    assert not log.flush_due(NOW_MS + 10_000)
    append(log, 2)
    assert not log.flush_due(NOW_MS + 999)
    assert log.flush_due(NOW_MS + 1000)
    append(log, now_ms=NOW_MS + 10)
    assert log.flush_due(NOW_MS + 10)
    assert log.flush() == log.recovery_point == 3
    assert log.recovery_point == log.log_end_offset
    assert not log.flush_due(NOW_MS + 10_000)
    append(log, now_ms=NOW_MS + 20_000)
    assert not log.flush_due(NOW_MS + 20_999)
    assert log.flush_due(NOW_MS + 21_000)


def test_a_closed_segment_wants_a_flush(log: Log) -> None:
    append(log)
    assert not log.has_unflushed_segments
    log.roll(NOW_MS)
    assert log.has_unflushed_segments
    log.flush()
    assert not log.has_unflushed_segments


def test_settings_change_from_the_next_append_on(log: Log) -> None:
    append(log)
    log.update_config(config(segment_bytes=100, message_timestamp_type="LogAppendTime"))
    assert append(log, now_ms=NOW_MS + 7).log_append_time == NOW_MS + 7
    assert len(log.segments) == 2


def test_epochs_answer_where_they_ended(log: Log) -> None:
    for epoch in (0, 0, 2, 5):
        append(log, leader_epoch=epoch)
    assert [log.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 4, 5, 6)] == [
        (0, 2),
        (0, 2),
        (2, 3),
        (2, 3),
        (5, 4),
        (-1, -1),
    ]


def test_a_closed_log_refuses_everything(log: Log) -> None:
    append(log)
    log.close()
    log.close()
    for action in (
        lambda: append(log),
        lambda: log.read(0, 100, 1),
        log.flush,
        lambda: log.roll(NOW_MS),
        lambda: log.truncate_to(0),
        lambda: log.offset_for_timestamp(0),
    ):
        with pytest.raises(KafkaError) as caught:
            action()
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
