"""What is left of a log after a crash, whatever the crash did to the part that was not flushed."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.storage.log import Log
from tests.unit.storage.logs import (
    NOW_MS,
    SMALL,
    FaultyFiles,
    UnsyncedFiles,
    append,
    batch,
    check_indexes,
    config,
    open_log,
    read_all,
    values,
)

FIRST = "00000000000000000000"
OUTSIDE_CRC = {*range(8), *range(12, 16)}  # The base offset and the leader epoch of a batch.


def write_log(path: Path, batches: int = 12, flushed: int = 0) -> list[tuple[int, bytes]]:
    """A log whose process died: `flushed` batches of two records are durable. What it held."""
    log = open_log(path, files=UnsyncedFiles())
    expected = []
    for index in range(batches):
        if index == flushed and flushed:
            log.flush()
        value = b"%d" % index * (1 + index * 7 % 20)
        producer = (index % 2, 0, index // 2 * 2)
        base = append(log, 2, value=value, producer=producer, leader_epoch=index // 4).base_offset
        expected += [(base, value), (base + 1, value)]
    return expected


def check_usable(log: Log, expected: list[tuple[int, bytes]]) -> None:
    """The log holds `expected`, its indexes fit it, and it goes on from there."""
    assert read_all(log) == expected
    assert log.log_end_offset == log.recovery_point == len(expected)
    check_indexes(log)
    for offset in range(len(expected)):
        assert log.read(offset, 1, len(expected), at_least_one=True).records
    assert append(log, value=b"after").base_offset == len(expected)
    log.roll(NOW_MS)
    assert append(log, value=b"later").base_offset == len(expected) + 1
    assert read_all(log) == [*expected, (len(expected), b"after"), (len(expected) + 1, b"later")]
    check_indexes(log)


def last_segment(path: Path) -> Path:
    return sorted(path.glob("*.log"))[-1]


def test_a_tail_torn_at_any_byte_of_the_last_batch_costs_that_batch_only(tmp_path: Path) -> None:
    written = tmp_path / "written"
    log = open_log(written)
    for index in range(5):
        append(log, 2, value=b"%d" % index, producer=(7, 0, index * 2))
    before = log.active.size
    append(log, 3, value=b"torn", producer=(7, 0, 10))
    size = log.active.size
    expected = [(offset, b"%d" % (offset // 2)) for offset in range(10)]
    for cut in range(before, size):
        torn = tmp_path / f"torn-{cut}"
        shutil.copytree(written, torn)
        with (torn / f"{FIRST}.log").open("r+b") as file:
            file.truncate(cut)
        again = open_log(torn, files=UnsyncedFiles())
        assert again.recovery.truncated_bytes == cut - before
        assert not append(again, 3, value=b"again", producer=(7, 0, 10)).duplicate
        again.truncate_to(10)
        check_usable(again, expected)
        shutil.rmtree(torn)


def test_a_tail_overwritten_at_any_byte_of_the_last_batch_costs_that_batch_only(
    tmp_path: Path,
) -> None:
    written = tmp_path / "written"
    log = open_log(written)
    for index in range(5):
        append(log, 2, value=b"%d" % index)
    before = log.active.size
    append(log, 3, value=b"flipped")
    size = log.active.size
    expected = [(offset, b"%d" % (offset // 2)) for offset in range(10)]
    for position in range(before, size):
        flipped = tmp_path / f"flipped-{position}"
        shutil.copytree(written, flipped)
        path = flipped / f"{FIRST}.log"
        data = bytearray(path.read_bytes())
        data[position] ^= 0xFF
        path.write_bytes(data)
        again = open_log(flipped, files=UnsyncedFiles())
        if position - before in OUTSIDE_CRC:
            assert read_all(again)[:10] == expected
        else:
            check_usable(again, expected)
        shutil.rmtree(flipped)


@given(data=st.data())
def test_damage_behind_the_recovery_point_never_reaches_what_lies_before_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log")
    flushed = data.draw(st.integers(0, 12), label="flushed batches")
    expected = write_log(path, flushed=flushed)
    # Only what was not flushed may be damaged; the index files may be, wherever they are new.
    sound = open_log(path, files=UnsyncedFiles())
    recovery_point = flushed * 2
    segment = next(s for s in reversed(sound.segments) if s.base_offset <= recovery_point)
    start = segment.position_of(recovery_point, segment.size)
    files = [Path(s.log_path) for s in sound.segments if s.base_offset >= segment.base_offset]
    target = data.draw(st.sampled_from(files), label="file")
    content = bytearray(target.read_bytes())
    first = start if target == Path(segment.log_path) else 0
    damaged = next(s for s in sound.segments if s.log_path == str(target))
    unprotected = {
        entry.position + byte for entry in damaged.batches(0, damaged.size) for byte in OUTSIDE_CRC
    }
    if data.draw(st.booleans(), label="flip or cut") and len(content) > first:
        for _ in range(data.draw(st.integers(1, 4), label="flips")):
            places = st.integers(first, len(content) - 1).filter(lambda at: at not in unprotected)
            at = data.draw(places, label="position")
            content[at] ^= data.draw(st.integers(1, 255), label="bits")
    else:
        del content[data.draw(st.integers(first, len(content)), label="length") :]
    content += data.draw(
        st.binary(max_size=80) | st.builds(bytes, st.integers(0, 5000)), label="appended"
    )
    target.write_bytes(content)
    for index in path.glob("*index"):
        if int(index.stem) >= segment.base_offset and data.draw(st.booleans(), label=index.name):
            index.write_bytes(data.draw(st.binary(max_size=50), label="index"))

    log = open_log(path, recovery_point=recovery_point, files=UnsyncedFiles())
    kept = read_all(log)
    assert kept == expected[: len(kept)]
    assert len(kept) >= recovery_point
    check_usable(log, kept)


def test_only_segments_from_the_recovery_point_on_are_scanned(tmp_path: Path) -> None:
    expected = write_log(tmp_path, 60)
    segments = sorted(tmp_path.glob("*.log"))
    assert len(segments) > 3
    sizes = [path.stat().st_size for path in segments]
    for beyond, scanned in ((0, sum(sizes[-2:])), (1, sizes[-1])):
        point = int(segments[-1].stem) + beyond
        log = open_log(tmp_path, recovery_point=point)
        assert log.recovery.scanned_bytes == scanned
    check_usable(log, expected)


def test_segments_behind_one_that_lost_whole_batches_are_removed(tmp_path: Path) -> None:
    expected = write_log(tmp_path, 60)
    log = open_log(tmp_path)
    second = log.segments[1]
    *_, last = second.batches(0, second.size)
    with Path(second.log_path).open("r+b") as file:
        file.truncate(last.position)
    again = open_log(tmp_path)
    assert again.log_end_offset == last.header.base_offset
    check_usable(again, expected[: again.log_end_offset])
    assert again.recovery.truncated_from == last.header.base_offset
    assert again.recovery.truncated_end == log.segments[-1].base_offset


def test_segments_behind_a_torn_one_are_removed(tmp_path: Path) -> None:
    expected = write_log(tmp_path, 60)
    segments = sorted(tmp_path.glob("*.log"))
    with segments[1].open("r+b") as file:
        file.truncate(segments[1].stat().st_size - 1)
    log = open_log(tmp_path)
    assert [segment.base_offset for segment in log.segments] == [0, int(segments[1].stem)]
    assert sorted(tmp_path.glob("*.log")) == segments[:2]
    assert str(segments[1]) in log.recovery.truncated_because
    check_usable(log, expected[: log.log_end_offset])


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("content", [None, b"123", bytes(24), b"\xff" * 48])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_indexes_are_rebuilt(
    tmp_path: Path, suffix: str, content: bytes | None, clean: bool
) -> None:
    settings = config(segment_bytes=3000)
    log = open_log(tmp_path, settings)
    for index in range(120):
        append(log, value=b"x" * 50, timestamp=NOW_MS + index)
    log.close()
    assert len(log.segments) > 2
    sound = {s.path: (s.offset_index.entries(), s.time_index.entries()) for s in log.segments}
    for path in [*tmp_path.glob(f"*.{suffix}")][1:] if clean else tmp_path.glob(f"*.{suffix}"):
        if content is None:
            path.unlink()
        elif not clean or len(content) % 12 or path.stem == last_segment(tmp_path).stem:
            path.write_bytes(content)
    again = open_log(tmp_path, settings, clean=clean, recovery_point=120)
    rebuilt = {s.path: (s.offset_index.entries(), s.time_index.entries()) for s in again.segments}
    assert rebuilt == sound
    assert again.recovery.truncated_bytes == 0
    assert again.log_end_offset == 120


def test_a_wrong_index_costs_time_but_no_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=100_000))
    for index in range(100):
        append(log, value=b"%d" % index)
    log.close()
    path = tmp_path / f"{FIRST}.index"
    content = bytearray(path.read_bytes())
    for at in range(15, len(content) - 8, 16):
        content[at] ^= 1  # Positions that are no batch's; first and last entry look sound.
    path.write_bytes(content)
    again = open_log(tmp_path, config(segment_bytes=100_000), clean=True, recovery_point=100)
    for offset in range(100):
        found = again.read(offset, 1, 100, at_least_one=True)
        assert values(found.records) == [(offset, b"%d" % offset)]


def test_a_damaged_epoch_checkpoint_is_made_again_from_the_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (1, 1, 4, 9):
        append(log, leader_epoch=epoch)
        log.roll(NOW_MS)
    log.close()
    for content in (b"", b"0\n5\n1 0\n", b"garbage", b"0\n2\n4 0\n1 2\n"):
        (tmp_path / "leader-epoch-checkpoint").write_bytes(content)
        again = open_log(tmp_path, clean=True, recovery_point=4)
        assert again.epochs.entries == ((1, 0), (4, 2), (9, 3))


def test_producer_state_survives_damaged_and_missing_snapshots(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(40):
        append(log, producer=(3, 1, sequence))
    log.close()
    snapshots = sorted(tmp_path.glob("*.snapshot"))
    assert len(snapshots) > 2
    for damage in range(len(snapshots) + 1):
        copy = tmp_path.parent / f"damaged-{damage}"
        shutil.copytree(tmp_path, copy)
        for index, snapshot in enumerate(reversed(snapshots[damage:])):
            if index % 2:
                (copy / snapshot.name).unlink()
            else:
                (copy / snapshot.name).write_bytes(snapshot.read_bytes()[:-1])
        again = open_log(copy, clean=True, recovery_point=40)
        assert append(again, producer=(3, 1, 39)).base_offset == 39
        assert append(again, producer=(3, 1, 40)).base_offset == 40


def test_snapshots_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    for _ in range(3):
        log = open_log(tmp_path, clean=True)
        append(log)
        log.close()
    assert [int(path.stem) for path in sorted(tmp_path.glob("*.snapshot"))] == [2, 3]
    log = open_log(tmp_path, clean=True)
    assert log.snapshots.offsets == (3,)


def test_leftovers_of_deletions_and_temporary_files_are_removed(tmp_path: Path) -> None:
    expected = write_log(tmp_path)
    log_files = {path.name for path in tmp_path.iterdir()}
    for name in (
        f"{FIRST}.log.deleted",
        f"{FIRST}.index.deleted",
        f"{FIRST}.log.cleaned",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000777.index",
        "00000000000000000777.timeindex",
    ):
        (tmp_path / name).write_bytes(b"left over")
    check_usable(open_log(tmp_path), expected)
    left = {path.name for path in tmp_path.iterdir()}
    assert log_files <= left
    assert not [name for name in left if name.endswith(("deleted", "cleaned", "tmp"))]
    assert not [name for name in left if name.startswith("00000000000000000777")]


def test_a_finished_rewrite_of_segments_takes_their_place(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for index in range(3):
        append(log, 2, value=b"old-%d" % index)
        log.roll(NOW_MS)
    append(log, value=b"kept")
    log.close()
    rewritten = batch(1, value=b"new-0") + batch(1, value=b"new-2", base_offset=2)
    (tmp_path / f"{FIRST}.log.swap").write_bytes(rewritten)
    again = open_log(tmp_path, clean=True, recovery_point=7)
    assert [segment.base_offset for segment in again.segments] == [0, 4, 6]
    assert read_all(again) == [
        (0, b"new-0"),
        (2, b"new-2"),
        (4, b"old-2"),
        (5, b"old-2"),
        (6, b"kept"),
    ]
    for _ in range(2):  # The second time with what the first has learnt.
        found = again.read_cached(3, 1000, 7)
        assert found is not None
        assert values(found.records) == [(4, b"old-2"), (5, b"old-2")]
    check_indexes(again)


def test_a_log_start_beyond_what_is_left_begins_an_empty_log_there(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    log = open_log(tmp_path, log_start_offset=100, recovery_point=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert append(log).base_offset == 100
    assert read_all(log) == [(100, b"value")]
    assert len(log.producers) == 0


def test_a_log_start_that_nothing_was_ever_flushed_up_to_is_not_believed(tmp_path: Path) -> None:
    expected = write_log(tmp_path, 5)
    log = open_log(tmp_path, log_start_offset=100)
    assert "log start offset 100" in log.recovery.rebuilt[0]
    assert log.log_start_offset == 0
    check_usable(log, expected)


def test_recovery_makes_what_it_found_durable(tmp_path: Path) -> None:
    write_log(tmp_path, 3)
    files = FaultyFiles()
    open_log(tmp_path, files=files)
    synced = [path for operation, path in files.operations if operation.startswith("sync")]
    assert f"{tmp_path}/{FIRST}.log" in synced
    assert str(tmp_path) in synced


def test_an_unreadable_log_cannot_be_opened_and_says_why(tmp_path: Path) -> None:
    write_log(tmp_path, 3)
    files = FaultyFiles()
    files.fail("read", ".log")
    with pytest.raises(StorageError, match=rf"cannot read .*{FIRST}\.log"):
        open_log(tmp_path, files=files)


def test_a_log_without_records_is_recovered_as_such(tmp_path: Path) -> None:
    open_log(tmp_path, SMALL)
    log = open_log(tmp_path, SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    (tmp_path / f"{FIRST}.log").write_bytes(bytes(4096))
    check_usable(open_log(tmp_path), [])
