"""Damage in a log at a start: told apart from a torn tail, named with its extent, never cut off."""

from pathlib import Path
from random import Random

import pytest

from headrace.storage.damage import DamagedLog
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.open_files import OpenFiles
from headrace.storage.recovery_point import encode_flushed_offset, read_flushed_offset
from headrace.testing.simulation.simulated_disk import SimulatedDisk, SimulatedFiles
from tests.unit.storage.logs import (
    NAME,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    FaultyFiles,
    UnsyncedFiles,
    append,
    config,
    open_log,
    read_all,
)

FIRST = "00000000000000000000"
LENGTH_AT, RECORDS_AT = 11, 61


def written(path: Path, batches: int = 12, *, flush: bool = True, clean: bool = False) -> Log:
    """A log of batches of two records in one segment, whose process is gone."""
    log = open_log(path, config(segment_bytes=100_000), files=UnsyncedFiles())
    for index in range(batches):
        append(log, 2, value=b"%d" % index * 10)
    if flush:
        log.flush()
    log.close(clean=clean)
    return log


def flip(path: Path, position: int) -> None:
    """Turn one bit of a file over."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def positions(log: Log) -> list[int]:
    """Where the batches of the first segment lie."""
    first = log.segments[0]
    return [found.position for found in first.batches(0, first.size)]


def content(path: Path) -> dict[str, bytes]:
    """The bytes of all batches of a log."""
    return {found.name: found.read_bytes() for found in path.glob("*.log")}


def reopen(path: Path, **options: object) -> Log:
    return open_log(path, config(segment_bytes=100_000), files=UnsyncedFiles(), **options)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("byte", [LENGTH_AT, RECORDS_AT])
def test_a_bad_batch_below_the_recovery_point_is_damage(
    tmp_path: Path, byte: int, clean: bool
) -> None:
    log = written(tmp_path, clean=clean)
    places = positions(log)
    # After a clean stop only the tail is read.
    number = 11 if clean else 5
    flip(tmp_path / f"{FIRST}.log", places[number] + byte)
    before = content(tmp_path)
    for _ in range(2):
        with pytest.raises(DamagedLog) as raised:
            reopen(tmp_path, clean=clean, recovery_point=24)
        damage = raised.value
        assert damage.path == str(tmp_path / f"{FIRST}.log")
        assert (damage.first_offset, damage.end_offset) == (2 * number, 2 * number + 2)
        ends = [*places, log.segments[0].size]
        assert damage.byte_count == ends[number + 1] - places[number]
        assert content(tmp_path) == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 5, 11])
@pytest.mark.parametrize("byte", range(8))
def test_a_batch_at_a_wrong_offset_is_damage_and_nothing_is_cut_off(
    tmp_path: Path, byte: int, number: int, clean: bool
) -> None:
    """No CRC covers the base offset of a batch."""
    log = written(tmp_path, clean=clean)
    if clean:
        number = 11  # Only the tail is read.
    flip(tmp_path / f"{FIRST}.log", positions(log)[number] + byte)
    before = content(tmp_path)
    for _ in range(2):
        with pytest.raises(DamagedLog) as raised:
            reopen(tmp_path, clean=clean, recovery_point=24, same_boot=True)
        assert raised.value.path == str(tmp_path / f"{FIRST}.log")
        assert abs(raised.value.first_offset - 2 * number) <= 2
        assert raised.value.end_offset <= 24
        assert content(tmp_path) == before


def test_a_damaged_log_leaves_no_file_open(tmp_path: Path) -> None:
    """It is set aside, and another log gets the names of its files."""
    log = written(tmp_path)
    flip(tmp_path / f"{FIRST}.log", positions(log)[5] + RECORDS_AT)
    open_files = OpenFiles(UnsyncedFiles())
    with pytest.raises(DamagedLog):
        reopen(tmp_path, recovery_point=24, open_files=open_files)
    assert len(open_files) == 0


@pytest.mark.parametrize("start", [2, 3, 40])
@pytest.mark.parametrize("clean", [True, False])
def test_an_epoch_that_is_said_to_begin_later_is_found_by_the_batches(
    tmp_path: Path, clean: bool, start: int
) -> None:
    before = written(tmp_path, clean=clean).epochs.entries
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(path.read_bytes().replace(b" 0\n", b" %d\n" % start))
    log = reopen(tmp_path, clean=clean, recovery_point=24)
    assert log.epochs.entries == before
    log.close()


def test_a_flush_protects_what_no_checkpoint_knows_yet(tmp_path: Path) -> None:
    log = written(tmp_path)
    flip(tmp_path / f"{FIRST}.log", positions(log)[-1] + RECORDS_AT)
    with pytest.raises(DamagedLog, match="offsets 22 to 23") as raised:
        reopen(tmp_path, recovery_point=0)
    assert raised.value.end_offset == 24


def test_a_torn_tail_behind_the_recovery_point_is_cut_off(tmp_path: Path) -> None:
    log = written(tmp_path, flush=False)
    places = positions(log)
    flip(tmp_path / f"{FIRST}.log", places[5] + RECORDS_AT)
    again = reopen(tmp_path, recovery_point=10)
    assert again.log_end_offset == 10
    report = again.recovery
    assert report.truncated_bytes == log.segments[0].size - places[5]
    assert (report.truncated_from, report.truncated_end) == (10, 14)
    assert "CRC" in report.truncated_because


def test_a_dead_process_leaves_no_whole_batch_behind_a_bad_one(tmp_path: Path) -> None:
    log = written(tmp_path, flush=False)
    places = positions(log)
    flip(tmp_path / f"{FIRST}.log", places[5] + LENGTH_AT)
    with pytest.raises(DamagedLog) as raised:
        reopen(tmp_path, same_boot=True)
    assert (raised.value.first_offset, raised.value.end_offset) == (10, 12)
    # But half a batch, at the end.
    (tmp_path / f"{FIRST}.log").write_bytes(content(tmp_path)[f"{FIRST}.log"][: places[5] + 70])
    assert reopen(tmp_path, same_boot=True).log_end_offset == 10


def test_a_file_that_was_cut_below_the_recovery_point_is_damage(tmp_path: Path) -> None:
    log = written(tmp_path, clean=True)
    (tmp_path / f"{FIRST}.log").write_bytes(content(tmp_path)[f"{FIRST}.log"][: positions(log)[9]])
    for clean in (True, False):
        with pytest.raises(DamagedLog) as raised:
            reopen(tmp_path, clean=clean, recovery_point=24)
        assert (raised.value.first_offset, raised.value.end_offset) == (18, 24)


def test_a_recovery_point_that_a_closed_log_contradicts_is_not_believed(tmp_path: Path) -> None:
    written(tmp_path, clean=True)
    for recovery_point in (0, 7, 25, 9000):
        log = reopen(tmp_path, clean=True, recovery_point=recovery_point)
        assert log.log_end_offset == 24
        assert not log.recovery.scanned
        assert len(log.recovery.rebuilt) == (recovery_point > 24)


def segments_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def several(path: Path, *, clean: bool) -> Log:
    log = open_log(path, files=UnsyncedFiles())
    for index in range(40):
        append(log, 2, value=b"%d" % index * 10)
    log.flush()
    log.close(clean=clean)
    assert len(log.segments) > 3
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [1, -2])
def test_a_missing_middle_segment_is_damage(tmp_path: Path, number: int, clean: bool) -> None:
    several(tmp_path, clean=clean)
    bases = [int(path.stem) for path in segments_of(tmp_path)]
    segments_of(tmp_path)[number].unlink()
    before = content(tmp_path)
    with pytest.raises(DamagedLog) as raised:
        open_log(tmp_path, clean=clean, recovery_point=80)
    following = [*bases, 80][bases.index(bases[number]) + 1]
    assert (raised.value.first_offset, raised.value.end_offset) == (bases[number], following)
    assert content(tmp_path) == before


def test_a_log_without_any_of_its_segments_is_damage(tmp_path: Path) -> None:
    several(tmp_path, clean=True)
    for path in segments_of(tmp_path):
        path.unlink()
    with pytest.raises(DamagedLog, match="it has no segment"):
        open_log(tmp_path, clean=True, recovery_point=80)


def test_the_flushed_offset_is_taken_back_before_bytes_are(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=UnsyncedFiles())
    for _ in range(5):
        append(log, 2)
    log.flush()
    assert read_flushed_offset(Files(), str(tmp_path)) == 10
    log.truncate_to(6)
    assert (read_flushed_offset(Files(), str(tmp_path)) or 0) <= 6
    append(log, 4)
    log.flush()
    log.truncate_fully_and_start_at(50)
    assert (read_flushed_offset(Files(), str(tmp_path)) or 0) <= 50
    assert open_log(tmp_path).log_end_offset == 50


@pytest.mark.parametrize("noted", [b"", b"garbage", b"long" * 9, bytes(12), b"\xff" * 12])
def test_a_damaged_flushed_offset_is_not_believed(tmp_path: Path, noted: bytes) -> None:
    written(tmp_path, clean=True)
    (tmp_path / "flushed-offset").write_bytes(noted)
    log = reopen(tmp_path, recovery_point=24)
    assert log.log_end_offset == 24
    assert log.recovery.rebuilt == [f"{tmp_path}/flushed-offset cannot be read"]
    assert not reopen(tmp_path, recovery_point=24).recovery.rebuilt


@pytest.mark.parametrize("name", ["log-start-offset", "flushed-offset", "segment-checkpoint"])
def test_what_a_damaged_small_file_said_is_found_again_with_a_line(
    tmp_path: Path, name: str
) -> None:
    written(tmp_path, clean=True)
    (tmp_path / name).write_bytes(b"garbage")
    log = reopen(tmp_path, clean=True)
    assert log.log_end_offset == 24
    [line] = log.recovery.rebuilt
    assert line.startswith(f"{tmp_path}/{name} cannot be read")
    log.close()
    assert not reopen(tmp_path, clean=True).recovery.rebuilt


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_indexes_of_the_active_segment_are_made_again_with_a_line(
    tmp_path: Path, suffix: str
) -> None:
    written(tmp_path, clean=True)
    path = max(tmp_path.glob(f"*{suffix}"))
    path.unlink()
    log = reopen(tmp_path, clean=True)
    assert log.log_end_offset == 24
    assert log.recovery.rebuilt == [
        f"the indexes of {path.with_suffix('.log')} were wrong or missing"
    ]


# Epochs.


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_epoch_file_does_not_make_flushed_records_a_torn_tail(
    tmp_path: Path, clean: bool
) -> None:
    log = written(tmp_path, clean=True)
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n")
    again = reopen(tmp_path, clean=clean, recovery_point=24)
    assert again.epochs.entries == ((0, 0),)
    assert again.log_end_offset == 24
    assert "leader-epoch-checkpoint" in again.recovery.rebuilt[0]
    again.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"garbage")
    flip(tmp_path / f"{FIRST}.log", positions(log)[3] + LENGTH_AT)
    with pytest.raises(DamagedLog) as raised:
        reopen(tmp_path, clean=clean, recovery_point=24)
    assert (raised.value.first_offset, raised.value.end_offset) == (6, 8)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "wrong", [b"1 0\n3 4\n", b"1 0\n2 3\n", b"1 0\n2 7\n", b"1 0\n2 5\n", b"1 0\n", b"2 0\n"]
)
def test_an_epoch_file_that_the_batches_contradict_is_made_again(
    tmp_path: Path, wrong: bytes, clean: bool
) -> None:
    log = open_log(tmp_path, files=UnsyncedFiles())
    for epoch in (1, 1, 2, 2, 2):
        append(log, 2, leader_epoch=epoch)
        log.roll(NOW_MS)
    log.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n%d\n" % wrong.count(b"\n") + wrong)
    again = open_log(tmp_path, clean=clean, recovery_point=10)
    assert again.epochs.entries == ((1, 0), (2, 4))
    assert again.log_end_offset == 10
    assert again.recovery.truncated_bytes == 0


def test_batches_of_an_epoch_that_was_over_are_cut_off_unless_they_were_flushed(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, files=UnsyncedFiles())
    for _ in range(6):
        append(log, leader_epoch=5)
    log.close(clean=False)
    # The cut at offset 4 and all appends behind it are undone; the epoch of those is not.
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n2\n5 0\n6 4\n")
    before = content(tmp_path)
    with pytest.raises(DamagedLog, match="leader epoch 5") as raised:
        open_log(tmp_path, recovery_point=5)
    assert raised.value.first_offset == 4
    assert content(tmp_path) == before
    again = open_log(tmp_path, recovery_point=4)
    assert (again.log_end_offset, again.latest_epoch) == (4, 5)
    assert again.recovery.truncated_from == 4


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_that_was_followed_by_an_append_is_not_undone(seed: int) -> None:
    disk = SimulatedDisk(Random(seed), lambda *_: None, "disk")
    SimulatedFiles(disk).make_directory("/data")
    SimulatedFiles(disk).sync_directory("/")

    def start(recovery_point: int) -> Log:
        files = SimulatedFiles(disk)
        return Log.open(files, "/data/orders-0", NAME, SMALL, NOW_MS, recovery_point=recovery_point)

    log = start(0)
    for _ in range(8):
        append(log, value=b"old" * 40, leader_epoch=5)
    if seed % 2:
        log.flush()
    log.truncate_to(4)
    append(log, 2, value=b"new", leader_epoch=6)
    disk.crash(power_loss=True)
    again = start(log.recovery_point if seed % 2 else 0)
    assert all(value != b"old" * 40 for offset, value in read_all(again) if offset >= 4)
    assert again.log_end_offset <= 6


# Names.


def test_the_first_flush_after_a_kill_makes_the_names_durable(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    open_log(path, topic_id=TOPIC_ID, files=UnsyncedFiles())  # Killed before it flushed anything.
    files = FaultyFiles()
    log = open_log(path, files=files)
    append(log)
    log.flush()
    synced = [name for operation, name in files.operations if operation.startswith("sync")]
    assert {str(tmp_path), str(path)} < set(synced)
    assert f"{path}/partition.metadata" in synced
    del files.operations[:]
    append(log)
    log.flush()
    assert str(tmp_path) not in [name for _, name in files.operations]


@pytest.mark.parametrize("seed", range(10))
def test_a_flushed_record_survives_a_kill_before_and_a_loss_of_power_after(seed: int) -> None:
    disk = SimulatedDisk(Random(seed), lambda *_: None, "disk")
    SimulatedFiles(disk).make_directory("/data")
    SimulatedFiles(disk).sync_directory("/")

    def start() -> Log:
        files = SimulatedFiles(disk)
        return Log.open(files, "/data/orders-0", NAME, SMALL, NOW_MS, topic_id=TOPIC_ID)

    log = start()
    if seed % 2:
        append(log)
    disk.crash(power_loss=False)
    log = start()
    if seed % 2 == 0:
        append(log)
        log.flush()
    assert log.recovery_point == 1
    disk.crash(power_loss=True)
    log = start()
    assert (log.log_end_offset, log.topic_id) == (1, TOPIC_ID)


# The logs of a broker.


def manage(path: Path) -> LogManager:
    return LogManager.open(
        UnsyncedFiles(),
        [str(path)],
        node_id=1,
        cluster_id="cluster",
        config_of=lambda _: SMALL,
        now_ms=NOW_MS,
    )


def test_a_damaged_log_stays_damaged_and_keeps_its_checkpoints(tmp_path: Path) -> None:
    manager = manage(tmp_path)
    log = manager.create(NAME, TOPIC_ID, SMALL, NOW_MS)
    for _ in range(5):
        append(log, 2)
    log.advance_log_start(2)
    manager.close(high_watermarks={NAME: 8})
    flip(tmp_path / "orders-0" / f"{FIRST}.log", log.active.size - 1)
    for _ in range(3):
        manager = manage(tmp_path)
        damage = manager.failed[NAME]
        assert isinstance(damage, DamagedLog)
        assert (damage.first_offset, damage.end_offset) == (8, 10)
        assert manager.high_watermark(NAME) == 8
        manager.checkpoint({})
        manager.close()


def test_a_log_that_nothing_was_flushed_of_is_judged_by_the_boot_of_the_machine(
    tmp_path: Path,
) -> None:
    manager = manage(tmp_path)
    log = manager.create(NAME, TOPIC_ID, SMALL, NOW_MS)
    for _ in range(5):
        append(log, 2)
    manager.close(clean=False)
    flip(tmp_path / "orders-0" / f"{FIRST}.log", RECORDS_AT)
    manager = manage(tmp_path)
    assert isinstance(manager.failed[NAME], DamagedLog)
    manager.close(clean=False)
    (tmp_path / "boot-id").write_text("another")
    manager = manage(tmp_path)
    assert manager.logs[NAME].recovery.truncated_from == 0
    manager.close(clean=False)


def test_no_flipped_bit_of_a_flushed_offset_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "flushed-offset"
    assert read_flushed_offset(Files(), str(tmp_path)) is None
    data = encode_flushed_offset(123_456)
    path.write_bytes(data)
    assert read_flushed_offset(Files(), str(tmp_path)) == 123_456
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert read_flushed_offset(Files(), str(tmp_path)) is None
