"""Compacting a log: what stays, where it stays, and what readers and producers see of it."""

from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest

from headrace.errors import CorruptBatch, ErrorCode, KafkaError
from headrace.protocol.batch import check_batch, scan_headers
from headrace.protocol.compression import Compression
from headrace.protocol.records import decode_rows
from headrace.storage.compaction.compaction import (
    CompactionLimits,
    CompactionProgress,
    SegmentReplacement,
)
from headrace.storage.compaction.key_table import SLOT_SIZE
from headrace.storage.log import Log
from tests.unit.storage.compaction.tables import (
    begin_compaction,
    compact,
    compact_all,
    end_transaction,
    put,
    records,
    table_of,
)
from tests.unit.storage.logs import NOW_MS, check_indexes, config, open_log

COMPACT = config(cleanup_policy=("compact",), segment_bytes=1000, delete_retention_ms=1000)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path, COMPACT)


def key(number: int) -> bytes:
    return b"key-%d" % number


def fill(log: Log, count: int, keys: int, **options: Any) -> dict[bytes, bytes]:
    written = {}
    for number in range(count):
        pair = (key(number % keys), b"value-%d" % number)
        put(log, pair, **options)
        written[pair[0]] = pair[1]
    return written


@pytest.mark.parametrize("codec", list(Compression))
def test_the_latest_record_of_every_key_stays_where_it_was(log: Log, codec: Compression) -> None:
    written = fill(log, 100, 7, compression=codec)
    assert len(log.segments) > 3
    before = {record.offset: record for record in records(log)}
    compact_all(log)
    after = records(log)
    assert table_of(after) == written
    assert [entry.offset for entry in after] == list(range(93, 100))
    assert all(before[entry.offset] == entry for entry in after)
    check_indexes(log)
    for segment in log.segments:
        for header, buffer, _ in segment.batches(0, segment.size):
            check_batch(buffer, header, compacted=True)
    assert (log.log_start_offset, log.log_end_offset) == (0, 100)


def test_a_second_compaction_takes_what_came_since(log: Log) -> None:
    fill(log, 50, 5)
    compact_all(log)
    written = fill(log, 20, 9)
    compact_all(log)
    assert table_of(records(log)) == written
    assert len(records(log)) == 9
    assert compact(log).work.records_read == 9


def test_readers_go_on_over_gaps(log: Log) -> None:
    fill(log, 60, 3)
    compact_all(log)
    found = []
    offset = 0
    while offset < log.log_end_offset:
        piece = log.read(offset, 200, log.log_end_offset, at_least_one=True)
        for header in scan_headers(piece.records):
            found += [row.offset for row in decode_rows(piece.records, header)]
            offset = header.next_offset
    assert found == [57, 58, 59]


def test_a_log_is_the_same_after_it_is_opened_again(tmp_path: Path, log: Log) -> None:
    written = fill(log, 100, 7)
    compact_all(log)
    for clean in (False, True):
        log.close(clean=clean)
        log = open_log(tmp_path, COMPACT, clean=clean)
        assert table_of(records(log)) == written
        assert log.log_end_offset == 100
        assert log.recovery.truncated_because == ""


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_tombstone_stays_for_delete_retention_ms(log: Log, codec: Compression) -> None:
    put(log, (b"a", b"1"), (b"b", b"2"), compression=codec)
    put(log, (b"a", None), (b"c", b"3"), compression=codec)
    compact_all(log)
    # Its time begins with the compaction that takes away what it is about.
    assert [(record.offset, record.timestamp) for record in records(log)] == [
        (1, NOW_MS + 1),
        (2, NOW_MS),
        (3, NOW_MS + 1),
    ]
    headers = [header for header, _, _ in log.segments[0].batches(0, log.segments[0].size)]
    assert [header.has_delete_horizon for header in headers] == [False, True]
    assert headers[1].base_timestamp == NOW_MS + 1000
    put(log, (b"d", b"4"), compression=codec)
    compact_all(log, NOW_MS + 999)
    assert [record.offset for record in records(log)] == [1, 2, 3, 4]
    put(log, (b"e", b"5"), compression=codec)
    compact_all(log, NOW_MS + 1000)
    assert [record.offset for record in records(log)] == [1, 3, 4, 5]


def test_the_last_batch_of_a_producer_stays_empty(tmp_path: Path, log: Log) -> None:
    put(log, (b"a", b"1"), producer=(5, 3, 0))
    put(log, (b"a", b"2"), (b"a", b"3"), producer=(5, 3, 1))
    put(log, (b"a", b"4"))
    compact_all(log)
    headers = [header for header, _, _ in log.segments[0].batches(0, log.segments[0].size)]
    assert [
        (header.base_offset, header.next_offset, header.record_count) for header in headers
    ] == [
        (1, 3, 0),
        (3, 4, 1),
    ]
    log.close(clean=False)
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    log = open_log(tmp_path, COMPACT)
    with pytest.raises(KafkaError) as refused:
        put(log, (b"a", b"5"), producer=(5, 3, 2))
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The retry of the last batch is one, though its records are gone.
    assert put(log, (b"a", b"2"), (b"a", b"3"), producer=(5, 3, 1)) == 1
    assert put(log, (b"a", b"5"), producer=(5, 3, 3)) == 4


def control_offsets(log: Log) -> list[int]:
    return [
        header.base_offset
        for segment in log.segments
        for header, _, _ in segment.batches(0, segment.size)
        if header.is_control and header.record_count
    ]


def test_a_marker_stays_as_long_as_a_record_of_its_transaction(log: Log) -> None:
    put(log, (b"a", b"1"), producer=(1, 0, 0), transactional=True)
    marker = end_transaction(log, 1, 0, committed=True)
    for number in range(3):
        compact_all(log, NOW_MS + number * 5000)
        put(log, (b"b", b"%d" % number))
        assert control_offsets(log) == [marker]
    put(log, (b"a", b"2"))
    put(log, (b"x", b"y"), producer=(1, 0, 1), transactional=True)  # Or its last batch would stay.
    later = end_transaction(log, 1, 0, committed=True)
    put(log, (b"c", b"3"))
    compact_all(log, NOW_MS + 20_000)  # Takes the record: the marker is not needed any more,
    assert control_offsets(log) == [marker, later]
    put(log, (b"c", b"4"))
    compact_all(log, NOW_MS + 30_000)  # is given a time to go,
    assert control_offsets(log) == [marker, later]
    put(log, (b"c", b"5"))
    compact_all(log, NOW_MS + 31_000)  # and goes.
    assert control_offsets(log) == [later]


def test_aborted_records_go_and_are_in_the_index_until_their_marker_is_alone(log: Log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"no"), (b"b", b"no"), producer=(1, 0, 0), transactional=True)
    end_transaction(log, 1, 0, committed=False)
    put(log, (b"z", b"1"), producer=(1, 0, 2), transactional=True)
    end_transaction(log, 1, 0, committed=True)
    compact_all(log)
    assert [(record.offset, record.key) for record in records(log)] == [(0, b"a"), (4, b"z")]
    assert [transaction.first_offset for transaction in log.aborted_transactions(0, 6)] == [1]
    put(log, (b"c", b"1"))
    compact_all(log)
    assert log.aborted_transactions(0, 6) == []


def test_nothing_at_or_above_the_last_stable_offset_is_touched(log: Log) -> None:
    fill(log, 30, 2)
    put(log, (b"open", b"1"), producer=(1, 0, 0), transactional=True)
    begun = len(log.segments)
    fill(log, 30, 2)
    compact_all(log)
    left = [record.offset for record in records(log)]
    assert log.clean_offset <= 30
    assert left[-31:] == list(range(30, 61))
    assert len(left) < 61
    assert begun


def test_what_the_table_cannot_hold_is_compacted_in_the_next_round(log: Log) -> None:
    written = fill(log, 60, 20)
    small = CompactionLimits(8 * SLOT_SIZE, 0.75, 400)
    log.roll(NOW_MS)
    rounds = 0
    while log.clean_offset < 60:
        before = log.clean_offset
        compact(log, limits=small)
        assert before < log.clean_offset
        assert table_of(records(log)) == written
        rounds += 1
    assert rounds == 10
    assert len(records(log)) == 20


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_batches_larger_than_the_buffers(tmp_path: Path, codec: Compression) -> None:
    log = open_log(tmp_path, config(cleanup_policy=("compact",), segment_bytes=1 << 20))
    rng = Random(3)
    pairs = [(key(number % 70), rng.randbytes(100)) for number in range(100)]
    put(log, *pairs, compression=codec)
    put(log, (key(0), None), *pairs[1:40], compression=codec)
    compact_all(log, limits=CompactionLimits(1 << 16, 0.75, 300))
    expected = dict(pairs) | dict(pairs[1:40])
    del expected[key(0)]
    assert table_of(records(log)) == expected
    assert len(records(log)) == 70  # The tombstone is one of them.


def test_a_step_ends_after_few_bytes_that_are_many_decompressed(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(cleanup_policy=("compact",), segment_bytes=1 << 20))
    for number in range(13):
        put(log, (key(number), bytes(1 << 20)), compression=Compression.ZSTD)
    log.roll(NOW_MS)
    steps = [step for step in begin_compaction(log).steps() if isinstance(step, CompactionProgress)]
    assert [step.bytes_read for step in steps].count(0) >= 4
    assert sum(step.bytes_read for step in steps) == 2 * log.segments[0].size
    assert len(steps) == 2 * 4


def test_the_time_of_arrival_is_kept(tmp_path: Path) -> None:
    settings = config(cleanup_policy=("compact",), message_timestamp_type="LogAppendTime")
    log = open_log(tmp_path, settings)
    put(log, (b"a", b"1"), (b"b", None), now_ms=NOW_MS + 77)
    put(log, (b"a", b"2"), now_ms=NOW_MS + 88)
    compact_all(log)
    assert [(record.offset, record.timestamp) for record in records(log)] == [
        (1, NOW_MS + 77),
        (2, NOW_MS + 88),
    ]


def test_a_damaged_batch_ends_a_compaction_and_leaves_no_files(tmp_path: Path, log: Log) -> None:
    fill(log, 40, 4)
    log.roll(NOW_MS)
    log.flush()
    path = tmp_path / f"{log.segments[1].base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(CorruptBatch, match="CRC"):
        compact(log)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_log_that_was_cut_meanwhile_keeps_its_segments(log: Log) -> None:
    fill(log, 40, 4)
    log.roll(NOW_MS)
    compaction = begin_compaction(log)
    steps = compaction.steps()
    step = next(step for step in steps if isinstance(step, SegmentReplacement))
    log.truncate_to(39)
    fill(log, 1, 1)
    log.roll(NOW_MS)
    before = records(log)
    assert not compaction.replace(step, NOW_MS)
    compaction.finish()
    assert (records(log), log.clean_offset) == (before, 0)


def test_segments_that_retention_took_meanwhile_do_not_come_back(log: Log) -> None:
    fill(log, 40, 4)
    log.roll(NOW_MS)
    compaction = begin_compaction(log)
    steps = compaction.steps()
    step = next(step for step in steps if isinstance(step, SegmentReplacement))
    log.advance_log_start(log.segments[1].base_offset)
    log.retire_segments(NOW_MS, log.log_end_offset)
    assert not compaction.replace(step, NOW_MS)
    steps.close()  # type: ignore[attr-defined]
    assert not list(Path(log.directory).glob("*.cleaned"))


def test_readers_in_other_threads_are_not_disturbed(log: Log) -> None:
    """Old segments are read while new ones take their names, and what is read is right."""
    written = fill(log, 60, 6)
    log.roll(NOW_MS)
    end = log.log_end_offset
    failures: list[BaseException] = []
    done = Event()

    def read() -> None:
        rng = Random(1)
        try:
            while not done.is_set():
                offset = rng.randrange(end)
                piece = log.read(offset, 500, end, at_least_one=True)
                [first, *_] = scan_headers(piece.records)
                assert first.next_offset > offset
                for header in scan_headers(piece.records):
                    for row in decode_rows(piece.records, header):
                        assert row.value == b"value-%d" % row.offset
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        compact(log)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert table_of(records(log)) == written


def test_segments_are_closed_in_time_to_be_compacted(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(cleanup_policy=("compact",), max_compaction_lag_ms=100))
    put(log, (b"a", b"1"), timestamp=NOW_MS)
    put(log, (b"a", b"2"), timestamp=NOW_MS + 100)
    assert len(log.segments) == 1
    put(log, (b"a", b"3"), timestamp=NOW_MS + 101)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
