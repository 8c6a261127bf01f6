"""The first segments of a log: missed after any kind of end, unless they were deleted."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from headrace.protocol.batch import read_header
from headrace.storage.damage import DamagedLog
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.log_start_offsets import read_log_start
from headrace.storage.repair import RepairMethod, apply_repair, plan_repair
from headrace.testing.simulation.simulated_disk import SimulatedDisk, SimulatedFiles
from headrace.types import TopicPartition
from tests.unit.cli.invoking import invoke
from tests.unit.storage.logs import (
    NAME,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    UnsyncedFiles,
    append,
    batch,
    config,
    open_log,
    read_all,
)

BATCHES = 6


def filled(log: Log) -> Log:
    """The log after six batches of two records, each in a segment of its own."""
    for _ in range(BATCHES):
        append(log, 2)
        log.roll(NOW_MS)
    return log


def lose_first(directory: Path, count: int = 1) -> None:
    for path in sorted(directory.glob("*.log"))[:count]:
        for suffix in (".log", ".index", ".timeindex"):
            path.with_suffix(suffix).unlink()


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_first_segment_that_is_gone_is_damage(
    tmp_path: Path, clean: bool, flush: bool, count: int, policy: str
) -> None:
    settings = config(cleanup_policy=policy)
    log = filled(open_log(tmp_path, settings, files=UnsyncedFiles()))
    if flush:
        log.flush()
    log.close(clean=clean)
    lose_first(tmp_path, count)
    for _ in range(2):
        with pytest.raises(DamagedLog, match="it is missing") as raised:
            open_log(tmp_path, settings, clean=clean, recovery_point=12 if flush or clean else 0)
        damage = raised.value
        assert damage.path == str(tmp_path / f"{0:020d}.log")
        assert (damage.first_offset, damage.end_offset) == (0, 2 * count)


def by_retention(log: Log) -> None:
    log.update_config(config(retention_bytes=sum(segment.size for segment in log.segments[3:])))
    assert len(log.retire_segments(NOW_MS, log.log_end_offset)) == 3


def on_request(log: Log) -> None:
    log.advance_log_start(6)
    assert len(log.retire_segments(NOW_MS, log.log_end_offset)) == 3


def by_a_leader_that_begins_later(log: Log) -> None:
    log.truncate_fully_and_start_at(6)
    for _ in range(3):
        append(log, 2)
        log.roll(NOW_MS)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("delete", [by_retention, on_request, by_a_leader_that_begins_later])
def test_segments_that_were_deleted_are_not_missed(
    tmp_path: Path, delete: Callable[[Log], None], clean: bool
) -> None:
    """No checkpoint knows of it yet, as after `kill -9`."""
    log = filled(open_log(tmp_path, files=UnsyncedFiles()))
    delete(log)
    assert read_log_start(Files(), str(tmp_path)) == 6
    log.flush()
    log.close(clean=clean)
    again = open_log(tmp_path, files=UnsyncedFiles(), clean=clean, recovery_point=12)
    assert (again.log_start_offset, again.log_end_offset) == (6, 12)
    assert [offset for offset, _ in read_all(again)] == list(range(6, 12))
    again.close(clean=clean)
    lose_first(tmp_path)
    with pytest.raises(DamagedLog) as raised:
        open_log(tmp_path, clean=clean, recovery_point=12)
    assert (raised.value.first_offset, raised.value.end_offset) == (6, 8)


def test_a_log_that_begins_within_a_batch_begins_with_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=UnsyncedFiles())
    log.truncate_fully_and_start_at(5)
    data = batch(4, base_offset=3, leader_epoch=0)
    log.append_replicated(data, [read_header(data)], NOW_MS)
    assert (log.log_start_offset, log.segments[0].base_offset) == (5, 3)
    log.close(clean=False)
    again = open_log(tmp_path, log_start_offset=5)
    assert (again.log_start_offset, again.log_end_offset) == (5, 7)


@pytest.mark.parametrize("what", [None, b"", bytes(12)])
def test_without_a_sound_note_the_first_segment_is_believed_and_noted(
    tmp_path: Path, what: bytes | None
) -> None:
    """As in a log of Kafka, or of an older version."""
    log = filled(open_log(tmp_path, files=UnsyncedFiles()))
    by_retention(log)
    log.close(clean=False)
    note = tmp_path / "log-start-offset"
    note.unlink()
    if what is not None:
        note.write_bytes(what)
    log = open_log(tmp_path, files=UnsyncedFiles())
    assert log.log_start_offset == 6
    assert read_log_start(Files(), str(tmp_path)) == 6
    log.close(clean=False)
    lose_first(tmp_path)
    with pytest.raises(DamagedLog):
        open_log(tmp_path)


@pytest.mark.parametrize("seed", range(60))
def test_no_loss_of_power_makes_deleted_segments_look_lost(seed: int) -> None:
    rng = Random(seed)
    disk = SimulatedDisk(rng, lambda *_: None, "disk")
    SimulatedFiles(disk).make_directory("/data")
    SimulatedFiles(disk).sync_directory("/")

    def start() -> Log:
        return Log.open(SimulatedFiles(disk), "/data/orders-0", NAME, SMALL, NOW_MS)

    log = start()
    for _ in range(3):
        filled(log)
        if rng.random() < 0.7:
            log.flush()
        if rng.random() < 0.3:
            log.truncate_fully_and_start_at(log.log_end_offset + rng.randrange(5))
            append(log, 2)
        log.advance_log_start(rng.randrange(log.log_start_offset, log.log_end_offset + 1))
        log.retire_segments(NOW_MS, log.log_end_offset)
        log.delete_retired(NOW_MS + 10**9)
        if rng.random() < 0.8:
            disk.crash(power_loss=rng.random() < 0.7)
            log = start()


@pytest.mark.parametrize("compacted", [True, False])
def test_a_repair_names_the_missing_start_and_goes_on_without_it(
    tmp_path: Path, compacted: bool
) -> None:
    settings = config(cleanup_policy="compact") if compacted else SMALL

    def manage() -> LogManager:
        return LogManager.open(
            UnsyncedFiles(),
            [str(tmp_path)],
            node_id=1,
            cluster_id="cluster",
            config_of=lambda _: settings,
            now_ms=NOW_MS,
        )

    manager = manage()
    log = filled(manager.create(TopicPartition("orders", 0), TOPIC_ID, settings, NOW_MS))
    log.clean_offset = 4 if compacted else 0
    manager.checkpoint()
    manager.close(clean=False)
    directory = tmp_path / "orders-0"
    lose_first(directory, 2)
    manager = manage()
    assert isinstance(manager.failed[NAME], DamagedLog)
    manager.close()
    scrubbed = invoke("log", "scrub", str(tmp_path))
    assert scrubbed.exit_code == 1
    assert "are missing, with offsets 0 to 3" in scrubbed.stderr
    plan = plan_repair(str(directory))
    assert [(entry.first_offset, entry.end_offset) for entry in plan.damaged] == [(0, 4)]
    apply_repair(Files(), plan, RepairMethod.SKIP)
    manager = manage()
    assert (manager.logs[NAME].log_start_offset, manager.logs[NAME].log_end_offset) == (4, 12)
    manager.close()
