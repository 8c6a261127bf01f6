"""What a log may forget: by age, by size, by log start offset, and never above the watermark."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import TopicConfig
from headrace.storage.log import Log
from headrace.storage.log_segments import Expiry, expired
from tests.unit.storage.logs import NOW_MS, append, check_indexes, config, open_log, read_all


@dataclass
class Kept:
    base_offset: int
    size: int
    max_timestamp: int
    modified: int = 0

    def modified_ms(self) -> int:
        return self.modified


SEGMENTS = [Kept(0, 100, 1000), Kept(10, 100, 2000), Kept(20, 100, 3000), Kept(30, 50, 4000)]


def count(
    *, now_ms: int = 0, start: int = 0, end: int = 35, watermark: int = 35, **changes: object
) -> int:
    settings = config(**{"retention_ms": -1, "retention_bytes": -1, **changes})
    return len(
        expired(
            SEGMENTS,
            settings,
            now_ms,
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=watermark,
        )
    )


def test_nothing_goes_without_a_limit() -> None:
    assert count(now_ms=10**15) == 0


@pytest.mark.parametrize(
    ("now_ms", "gone"), [(2000, 0), (2001, 1), (3000, 1), (3001, 2), (4001, 3), (5001, 4)]
)
def test_segments_go_when_their_newest_record_is_too_old(now_ms: int, gone: int) -> None:
    assert count(now_ms=now_ms, retention_ms=1000) == gone


@pytest.mark.parametrize(
    ("limit", "gone"), [(350, 0), (251, 0), (250, 1), (150, 2), (51, 2), (50, 3), (1, 3), (0, 4)]
)
def test_segments_go_while_what_is_left_is_at_least_the_limit(limit: int, gone: int) -> None:
    assert count(retention_bytes=limit) == gone


@pytest.mark.parametrize(("start", "gone"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (35, 3)])
def test_segments_below_the_log_start_go_but_never_the_active_one(start: int, gone: int) -> None:
    assert count(start=start) == gone
    assert count(start=start, cleanup_policy=("compact",)) == gone


@pytest.mark.parametrize(("watermark", "gone"), [(0, 0), (9, 0), (10, 1), (34, 3), (35, 4)])
def test_nothing_above_the_high_watermark_goes(watermark: int, gone: int) -> None:
    assert count(now_ms=10**6, retention_ms=0, watermark=watermark) == gone


@pytest.mark.parametrize("policy", [("compact",), ()])
def test_a_topic_that_does_not_delete_keeps_what_is_old_and_large(policy: tuple[str, ...]) -> None:
    limits: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 0, "cleanup_policy": policy}
    assert count(now_ms=10**6, **limits) == 0


def test_a_segment_that_must_stay_keeps_those_behind_it() -> None:
    young_first = [Kept(0, 100, 9000), Kept(10, 100, 1000), Kept(20, 0, -1)]
    settings = config(retention_ms=1000)
    arguments = {"log_start_offset": 0, "log_end_offset": 20, "high_watermark": 20}
    assert len(expired(young_first, settings, 9500, **arguments)) == 0
    assert len(expired(young_first, settings, 10_001, **arguments)) == 2


DAY_MS = 86_400_000


def why(segment: Kept, **changes: Any) -> Expiry:
    """Why the older of two segments is deleted, now being NOW_MS."""
    start = changes.pop("start", 0)
    found = expired(
        [segment, Kept(10, 0, -1)],
        config(**{"retention_ms": -1, **changes}),
        NOW_MS,
        log_start_offset=start,
        log_end_offset=10,
        high_watermark=10,
    )
    assert len(found) == 1
    return found[0]


def test_an_expired_segment_names_its_limit_and_the_timestamp_that_was_compared() -> None:
    old = Kept(0, 100, NOW_MS - 8 * DAY_MS, modified=NOW_MS - 8 * DAY_MS)
    expiry = why(old, retention_ms=7 * DAY_MS)
    assert expiry.reason == (
        "its largest record timestamp, 2023-11-06T22:13:20Z, is 8.0 days old, and retention.ms is"
        " 604800000 (7.0 days)"
    )
    assert not expiry.advice


def test_records_that_were_too_old_when_appended_come_with_advice() -> None:
    # Appended a minute ago with the timestamps of a year ago.
    backfilled = Kept(0, 100, NOW_MS - 365 * DAY_MS, modified=NOW_MS - 60_000)
    expiry = why(backfilled, retention_ms=7 * DAY_MS)
    assert expiry.reason.startswith("its largest record timestamp, 2022-11-14T22:13:20Z, is 365.0")
    assert "appended 1.0 minutes ago" in expiry.advice
    assert "message.timestamp.type=LogAppendTime" in expiry.advice
    assert "retention.ms" in expiry.advice


def test_the_other_limits_are_named_too() -> None:
    assert why(Kept(0, 100, 5), retention_bytes=0).reason == (
        "the log has 100 bytes, and without this segment at least the 0 bytes of retention.bytes"
    )
    assert why(Kept(0, 100, 5), start=10).reason == (
        "it ends at offset 10, and the log start offset is 10"
    )
    no_timestamps = Kept(0, 100, -1, modified=NOW_MS - 2000)
    assert why(no_timestamps, retention_ms=1000).reason == (
        "its records have no timestamp, its file was last written at 2023-11-14T22:13:18Z, 2.0"
        " seconds ago, and retention.ms is 1000 (1.0 seconds)"
    )


def filled(path: Path, settings: TopicConfig) -> Log:
    log = open_log(path, settings)
    for index in range(30):
        append(log, value=b"x" * 200, timestamp=NOW_MS + index * 1000)
    return log


def test_retired_segments_are_renamed_then_removed_after_the_delay(tmp_path: Path) -> None:
    log = filled(tmp_path, config(retention_ms=10_000, file_delete_delay_ms=5000))
    now_ms = NOW_MS + 20_500
    bases = [segment.base_offset for segment in log.segments]
    retired = log.retire_segments(now_ms, high_watermark=30)
    assert 0 < len(retired) < len(bases)
    assert [batch.base_offset for batch in retired] == bases[: len(retired)]
    assert log.log_start_offset == bases[len(retired)] == log.segments[0].base_offset
    assert [entry[0] for entry in read_all(log)] == list(range(log.log_start_offset, 30))
    for batch in retired:
        assert all(os.path.exists(path) for path in batch.paths)
        assert not (tmp_path / f"{batch.base_offset:020d}.log").exists()
        assert not (tmp_path / f"{batch.base_offset:020d}.snapshot").exists()
    assert log.delete_retired(now_ms + 4999) == 0
    assert log.delete_retired(now_ms + 5000) == len(retired)
    assert not list(tmp_path.glob("*.deleted"))
    assert log.retire_segments(now_ms, high_watermark=30) == []


def test_a_wholly_expired_log_is_emptied_and_goes_on(tmp_path: Path) -> None:
    log = filled(tmp_path, config(retention_ms=1000))
    before = log.latest_epoch
    retired = log.retire_segments(NOW_MS + 10**6, high_watermark=30)
    assert sum(entry.size for entry in retired) > 6000
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (30, 30, 0)
    assert log.latest_epoch == before
    assert append(log).base_offset == 30
    assert log.retire_segments(NOW_MS + 10**6, high_watermark=30) == []
    log.close()
    again = open_log(tmp_path, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (30, 31)


def test_deleted_records_are_hidden_at_once_and_their_segments_retired(tmp_path: Path) -> None:
    log = filled(tmp_path, config(retention_ms=-1))
    log.advance_log_start(17)
    assert [entry[0] for entry in read_all(log)] == list(range(17, 30))
    retired = log.retire_segments(NOW_MS, high_watermark=30)
    assert log.log_start_offset == 17
    assert log.segments[0].base_offset <= 17 < log.segments[1].base_offset
    assert len(retired) > 1
    log.advance_log_start(5)
    assert log.log_start_offset == 17
    check_indexes(log)


def test_records_without_a_timestamp_age_with_their_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(retention_ms=10_000))
    append(log, timestamp=-1)
    modified_ms = int((tmp_path / f"{0:020d}.log").stat().st_mtime * 1000)
    assert log.retire_segments(modified_ms + 9_000, high_watermark=1) == []
    retired = log.retire_segments(modified_ms + 11_000, high_watermark=1)
    assert [entry.expiry.reason.partition(",")[0] for entry in retired if entry.expiry] == [
        "its records have no timestamp"
    ]


@given(
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=8),
    limit=st.integers(0, 500),
    watermark=st.integers(0, 8),
)
def test_retention_by_size_never_leaves_less_than_the_limit(
    sizes: list[int], limit: int, watermark: int
) -> None:
    segments = [Kept(index, size, 0) for index, size in enumerate(sizes)]
    gone = len(
        expired(
            segments,
            config(retention_bytes=limit),
            0,
            log_start_offset=0,
            log_end_offset=len(sizes),
            high_watermark=watermark,
        )
    )
    left = sum(sizes[gone:])
    assert gone <= watermark
    assert gone == 0 or left >= limit
    if gone < min(watermark, len(sizes)):
        assert left - sizes[gone] < limit
