"""Compacting a log: what stays, where it stays, and what readers and producers see of it."""

from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.compression import Compression
from headrace.protocol.records import check_batch
from headrace.storage.log import Log
from tests.unit.storage.compaction.tables import (
    compact,
    compact_all,
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
    before = {one.offset: one for one in records(log)}
    compact_all(log)
    after = records(log)
    assert table_of(after) == written
    assert [one.offset for one in after] == list(range(93, 100))
    assert all(before[one.offset] == one for one in after)
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
        assert piece.records
        from headrace.protocol.records import decode_rows, scan_headers

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
    _ = NOW_MS
