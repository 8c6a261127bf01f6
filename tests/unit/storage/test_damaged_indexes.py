"""Small files of a log that are wrong, indexes above all: made again, never believed."""

import logging
import shutil
from pathlib import Path

import pytest

from headrace.storage.damage import DamagedLog
from headrace.storage.log import Log
from tests.unit.storage.logs import (
    NOW_MS,
    UnsyncedFiles,
    append,
    check_indexes,
    config,
    open_log,
    read_all,
)
from tests.unit.storage.test_damage import content, flip, segments_of
from tests.unit.storage.transacting import abort, aborted, commit, write

SETTINGS = config(segment_bytes=2000)


def written(path: Path) -> Log:
    """A log of several segments, closed cleanly; its timestamps rise."""
    log = open_log(path, SETTINGS, files=UnsyncedFiles())
    for index in range(60):
        append(log, value=b"%d" % index * 20, timestamp=NOW_MS + index)
    log.close()
    assert len(log.segments) > 2
    return log


def reopen(path: Path, clean: bool = True) -> Log:
    return open_log(path, SETTINGS, files=UnsyncedFiles(), clean=clean, recovery_point=60)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_a_bit_flipped_anywhere_in_an_index_costs_no_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, clean: bool
) -> None:
    sound = tmp_path / "sound"
    written(sound)
    expected = read_all(reopen(sound))
    times = [reopen(sound).offset_for_timestamp(NOW_MS + index) for index in range(60)]
    closed = f"{segments_of(sound)[1].stem}.{suffix}"
    size = (sound / closed).stat().st_size
    assert size > 20
    for bit in range(7, size * 8, 31 if clean else 67):
        path = tmp_path / "flipped"
        shutil.copytree(sound, path)
        data = bytearray((path / closed).read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        (path / closed).write_bytes(data)
        log = reopen(path, clean)
        assert log.segments[1].max_timestamp == NOW_MS + log.segments[2].base_offset - 1
        for offset in range(60):
            found = log.read(offset, 1, 60, at_least_one=True)
            assert found.records[:8] == offset.to_bytes(8, "big")
            assert log.offset_for_timestamp(NOW_MS + offset) == times[offset]
        assert read_all(log) == expected
        assert log.offline is None
        shutil.rmtree(path)
    assert "is made again from its segment" in caplog.text or not clean


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_out_of_order_is_made_again_and_misleads_no_reader(
    tmp_path: Path, suffix: str, clean: bool
) -> None:
    written(tmp_path)
    (tmp_path / "segment-checkpoint").unlink()
    second = segments_of(tmp_path)[1].with_suffix(suffix)
    size = 8 if suffix == ".index" else 12
    data = second.read_bytes()
    entries = [data[at : at + size] for at in range(0, len(data), size)]
    assert len(entries) > 2
    times = [reopen(tmp_path).offset_for_timestamp(NOW_MS + index) for index in range(60)]
    second.write_bytes(b"".join(reversed(entries)))
    log = reopen(tmp_path, clean)
    if not clean:
        name = second.with_suffix(".log")
        assert log.recovery.rebuilt == [f"the indexes of {name} were wrong or missing"]
        assert second.read_bytes() == data
    # After a clean stop the first reader finds it.
    assert log.segments[1].max_timestamp == NOW_MS + log.segments[2].base_offset - 1
    for offset in range(60):
        found = log.read(offset, 1, 60, at_least_one=True)
        assert found.records[:8] == offset.to_bytes(8, "big")
        assert log.offset_for_timestamp(NOW_MS + offset) == times[offset]


def test_an_index_that_was_found_wrong_is_right_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    second = segments_of(tmp_path)[1].with_suffix(".index")
    entries = second.stat().st_size // 8
    for entry in range(entries):
        flip(second, entry * 8 + 7)  # Positions that no batch is at.
    log = reopen(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert log.read(int(second.stem) + 12, 1, 60, at_least_one=True).records
        assert log.read(int(second.stem) + 12, 1, 60, at_least_one=True).records
    assert caplog.text.count("is made again") == 1
    check_indexes(reopen(tmp_path))


def test_a_cached_read_leaves_a_wrong_index_to_one_that_may_wait(tmp_path: Path) -> None:
    written(tmp_path)
    second = segments_of(tmp_path)[1].with_suffix(".index")
    data = bytearray(second.read_bytes())
    for at in range(4, len(data), 8):
        data[at] ^= 0x80  # Positions below zero.
    second.write_bytes(data)
    log = reopen(tmp_path)
    offset = int(second.stem) + 12
    assert log.read_cached(offset, 1, 60, at_least_one=True) is None
    assert log.read(offset, 1, 60, at_least_one=True).records
    assert log.read_cached(offset, 1, 60, at_least_one=True) is not None


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_that_was_cut_short_is_made_again(tmp_path: Path, suffix: str) -> None:
    log = written(tmp_path)
    check = [
        (segment.offset_index.entries(), segment.time_index.entries()) for segment in log.segments
    ]
    for path in tmp_path.glob(f"*.{suffix}"):
        path.write_bytes(path.read_bytes()[: -12 if suffix == "timeindex" else -8])
    again = reopen(tmp_path)
    found = [
        (segment.offset_index.entries(), segment.time_index.entries()) for segment in again.segments
    ]
    assert found == check
    assert again.recovery.rebuilt


# Aborted transactions.


def transactions(path: Path, *, clean: bool) -> list[tuple[int, int]]:
    """A log with aborted transactions in most segments; all that were aborted."""
    log = open_log(path, files=UnsyncedFiles())
    for number in range(18):
        write(log, (number, 0, 0), 2)
        append(log)
        abort(log, number) if number % 3 else commit(log, number)
    log.flush()
    log.close(clean=clean)
    return aborted(open_log(path, files=UnsyncedFiles(), recovery_point=72, clean=clean), 0, 72)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "shorter", "flipped"])
def test_a_wrong_index_of_aborted_transactions_hides_none(
    tmp_path: Path, damage: str, clean: bool
) -> None:
    expected = transactions(tmp_path, clean=clean)
    assert len(expected) == 12
    indexes = sorted(tmp_path.glob("*.txnindex"))
    assert len(indexes) > 3
    for path in indexes:
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "flipped":
            flip(path, 9)  # The producer of the first.
        else:
            path.write_bytes(b"" if damage == "empty" else data[:-34])
    log = open_log(tmp_path, recovery_point=72, clean=clean)
    assert aborted(log, 0, 72) == expected
    assert any("txnindex" in text for text in log.recovery.rebuilt)


def test_a_sound_log_is_not_read_at_a_clean_start(tmp_path: Path) -> None:
    expected = transactions(tmp_path, clean=True)
    for path in segments_of(tmp_path)[1:-1]:
        path.write_bytes(bytes(path.stat().st_size))  # Nobody looks.
    log = open_log(tmp_path, recovery_point=72, clean=True)
    assert aborted(log, 0, 72) == expected
    assert (log.recovery.rebuilt, log.recovery.scanned) == ([], False)


# What a closed log consisted of.


def test_a_compacted_log_misses_a_segment_too(tmp_path: Path) -> None:
    settings = config(cleanup_policy=("compact",))
    log = open_log(tmp_path, settings, files=UnsyncedFiles())
    for _ in range(40):
        append(log)
    log.close()
    for number in (0, 1):
        path = tmp_path.parent / f"copy-{number}"
        shutil.copytree(tmp_path, path)
        lost = segments_of(path)[number]
        lost.unlink()
        with pytest.raises(DamagedLog, match="it is missing") as raised:
            open_log(path, settings, clean=True, recovery_point=40)
        assert raised.value.first_offset == int(lost.stem)
        assert raised.value.end_offset == int(segments_of(tmp_path)[number + 1].stem)


def test_a_closed_segment_that_was_cut_is_damage(tmp_path: Path) -> None:
    log = written(tmp_path)
    *_, last = log.segments[0].batches(0, log.segments[0].size)
    first = segments_of(tmp_path)[0]
    first.write_bytes(first.read_bytes()[: last.position])
    before = content(tmp_path)
    for clean in (True, False):
        with pytest.raises(DamagedLog) as raised:
            reopen(tmp_path, clean)
        assert raised.value.first_offset == last.header.base_offset
        assert raised.value.end_offset == last.header.next_offset
    assert content(tmp_path) == before


@pytest.mark.parametrize("noted", [None, b"", b"garbage", b"0\n1\n0 1\n1\n", b"0\n0\n"])
def test_without_its_segment_checkpoint_a_log_opens_all_the_same(
    tmp_path: Path, noted: bytes | None
) -> None:
    written(tmp_path)
    path = tmp_path / "segment-checkpoint"
    if noted is None:
        path.unlink()
    else:
        path.write_bytes(noted)
    log = reopen(tmp_path)
    assert log.log_end_offset == 60
    assert len(log.recovery.rebuilt) == (noted is not None)
    log.close()
    assert not reopen(tmp_path).recovery.rebuilt


def test_retention_leaves_a_segment_checkpoint_that_is_right(tmp_path: Path) -> None:
    written(tmp_path)
    log = reopen(tmp_path)
    log.advance_log_start(log.segments[1].base_offset)
    assert log.retire_segments(NOW_MS, 60)
    log.close()
    again = open_log(
        tmp_path, SETTINGS, clean=True, recovery_point=60, log_start_offset=log.log_start_offset
    )
    assert again.log_start_offset == log.log_start_offset > 0


def test_a_snapshot_of_producers_from_the_future_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(40):
        append(log, producer=(3, 1, sequence))
    log.close()
    first, *_, last = sorted(tmp_path.glob("*.snapshot"))
    first.write_bytes(last.read_bytes())
    again = open_log(tmp_path, recovery_point=0)
    assert append(again, producer=(3, 1, 39)).duplicate
    log = open_log(tmp_path)
    log.truncate_to(int(first.stem))
    assert not append(log, producer=(3, 1, int(first.stem))).duplicate
