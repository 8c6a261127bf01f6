"""Repair of a damaged log: what is damaged, what each repair keeps, and where the rest goes."""

import re
import shlex
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.storage.damage import DamagedLog
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.repair import RepairMethod, apply_repair, plan_repair
from tests.unit.cli.invoking import document, invoke
from tests.unit.storage.logs import (
    NAME,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    UnsyncedFiles,
    append,
    check_indexes,
    read_all,
)
from tests.unit.storage.test_damage import RECORDS_AT, content, flip, segments_of


def manage(path: Path) -> LogManager:
    return LogManager.open(
        UnsyncedFiles(),
        [str(path)],
        node_id=1,
        cluster_id="cluster",
        config_of=lambda _: SMALL,
        now_ms=NOW_MS,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a log of 40 batches of two records in several segments."""
    manager = manage(tmp_path)
    log = manager.create(NAME, TOPIC_ID, SMALL, NOW_MS)
    for index in range(40):
        append(log, 2, value=b"%d" % index, producer=(7, 0, index * 2), leader_epoch=index // 15)
    manager.close()
    return tmp_path


def batch_positions(path: Path) -> list[tuple[int, int]]:
    """Position and first offset of each batch of a segment's file."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append((at, int.from_bytes(data[at : at + 8], "big")))
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    return found


def damage_log(data: Path, number: int = -1, batch: int = 1) -> int:
    """Turn over a bit in the records of a batch; its first offset."""
    path = segments_of(data / "orders-0")[number]
    position, offset = batch_positions(path)[batch]
    flip(path, position + RECORDS_AT)
    return offset


def expected(*lost: range) -> list[tuple[int, bytes]]:
    """The records of all offsets but these."""
    gone = {offset for some in lost for offset in some}
    return [(offset, b"%d" % (offset // 2)) for offset in range(80) if offset not in gone]


def check(data: Path, wanted: list[tuple[int, bytes]], end_offset: int = 80) -> None:
    """A broker finds these records, now and after a clean stop, and goes on behind them."""
    for _ in range(2):
        manager = manage(data)
        log = manager.logs[NAME]
        assert isinstance(log, Log), manager.failed
        assert [row for row in read_all(log) if row[0] < end_offset] == wanted
        check_indexes(log)
        assert append(log, leader_epoch=3).base_offset >= end_offset
        manager.close()


def test_a_sound_log_has_nothing_to_repair(data: Path) -> None:
    before = content(data / "orders-0")
    plan = plan_repair(str(data / "orders-0"))
    assert (plan.start_offset, plan.end_offset, plan.damaged) == (0, 80, ())
    assert (plan.partition, plan.flushed_offset) == (NAME, 80)
    for repair in RepairMethod:
        assert apply_repair(Files(), plan, repair) == []
    assert content(data / "orders-0") == before
    check(data, expected())


def test_skipping_takes_out_only_what_is_damaged(data: Path) -> None:
    directory = data / "orders-0"
    first, last = damage_log(data, 1), damage_log(data)
    sizes = sum(map(len, content(directory).values()))
    plan = plan_repair(str(directory))
    assert [(entry.first_offset, entry.end_offset) for entry in plan.damaged] == [
        (first, first + 2),
        (last, last + 2),
    ]
    assert plan.lost_by(RepairMethod.SKIP) == 4
    removed = apply_repair(Files(), plan, RepairMethod.SKIP)
    assert len(removed) == 2
    kept = sum(map(len, content(directory).values()))
    assert kept + sum(Path(name).stat().st_size for name in removed) == sizes
    assert plan_repair(str(directory)).damaged == ()
    check(data, expected(range(first, first + 2), range(last, last + 2)))


def test_cutting_ends_the_log_before_the_damage(data: Path) -> None:
    directory = data / "orders-0"
    offset = damage_log(data, 1)
    before = content(directory)
    plan = plan_repair(str(directory))
    assert plan.lost_by(RepairMethod.CUT) == 80 - offset
    removed = apply_repair(Files(), plan, RepairMethod.CUT)
    kept = b"".join(content(directory).values())
    taken = b"".join(Path(name).read_bytes() for name in reversed(removed))
    assert sorted(kept + taken) == sorted(b"".join(before.values()))
    check(data, expected(range(offset, 80)), offset)


@pytest.mark.parametrize("number", [0, 1, -2])
def test_a_missing_segment_is_skipped_or_ends_the_log(data: Path, number: int) -> None:
    directory = data / "orders-0"
    paths = segments_of(directory)
    lost = range(int(paths[number].stem), int(paths[number % len(paths) + 1].stem))
    paths[number].unlink()
    plan = plan_repair(str(directory))
    assert [(entry.first_offset, entry.end_offset) for entry in plan.damaged] == [
        (lost[0], lost[-1] + 1)
    ]
    apply_repair(Files(), plan, RepairMethod.SKIP)
    check(data, expected(lost))


def test_a_missing_segment_ends_a_log_that_is_cut(data: Path) -> None:
    for number in (1, 0):
        paths = segments_of(data / "orders-0")
        offset = int(paths[number].stem)
        paths[number].unlink()
        apply_repair(Files(), plan_repair(str(data / "orders-0")), RepairMethod.CUT)
        check(data, expected(range(offset, 80)), offset)


def test_a_log_that_lost_its_end_goes_on_there(data: Path) -> None:
    path = segments_of(data / "orders-0")[-1]
    position, offset = batch_positions(path)[2]
    path.write_bytes(path.read_bytes()[:position])
    plan = plan_repair(str(data / "orders-0"))
    [lost] = plan.damaged
    assert (lost.first_offset, lost.end_offset) == (offset, 80)
    assert apply_repair(Files(), plan, RepairMethod.CUT) == []
    check(data, expected(range(offset, 80)), offset)


def test_a_segment_of_nothing_but_damage_is_skipped(data: Path) -> None:
    for path in (segments_of(data / "orders-0")[1], segments_of(data / "orders-0")[-1]):
        path.write_bytes(bytes(path.stat().st_size))
    plan = plan_repair(str(data / "orders-0"))
    assert len(plan.damaged) == 2
    apply_repair(Files(), plan, RepairMethod.SKIP)
    lost = [range(entry.first_offset, entry.end_offset) for entry in plan.damaged]
    check(data, expected(*lost), lost[-1][0])


@pytest.mark.parametrize("repair", list(RepairMethod))
def test_batches_of_an_epoch_that_was_over_are_taken_out(data: Path, repair: RepairMethod) -> None:
    directory = data / "orders-0"
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n4\n0 0\n1 30\n2 60\n3 70\n")
    manager = manage(data)
    assert isinstance(manager.failed[NAME], DamagedLog)
    manager.close()
    plan = plan_repair(str(directory))
    assert (plan.damaged[0].first_offset, plan.damaged[-1].end_offset) == (70, 80)
    apply_repair(Files(), plan, repair)
    check(data, expected(range(70, 80)), 70)


def test_a_log_in_use_is_not_repaired(data: Path) -> None:
    damage_log(data)
    manager = manage(data)
    before = content(data / "orders-0")
    with pytest.raises(StorageError, match="stop its broker"):
        apply_repair(Files(), plan_repair(str(data / "orders-0")), RepairMethod.CUT)
    assert content(data / "orders-0") == before
    manager.close()


def test_a_log_without_a_whole_batch_is_shown_without_offsets(tmp_path: Path) -> None:
    manager = manage(tmp_path)
    append(manager.create(NAME, TOPIC_ID, SMALL, NOW_MS), 2)
    manager.close()
    damage_log(tmp_path, batch=0)
    shown = invoke("log", "repair", str(tmp_path / "orders-0"))
    assert "orders-0: no batch that can be read, " in shown.stdout
    assert re.search(r"offsets 0 to 1 \(\d+ bytes\): CRC ", shown.stdout), shown.stdout


def test_offsets_of_a_missing_segment_are_said_to_be_missing(data: Path) -> None:
    _, lost, following, *_ = segments_of(data / "orders-0")
    lost.unlink()
    (data / ".kafka_cleanshutdown").unlink()
    missing = f"offsets {int(lost.stem)} to {int(following.stem) - 1} are missing"
    manager = manage(data)
    assert missing in str(manager.failed[NAME])
    manager.close()
    shown = invoke("log", "repair", str(data / "orders-0")).stdout
    assert f"{following.name} at position 0: {missing}: the segment before it" in shown


@pytest.mark.parametrize("choice", ["--skip", "--cut"])
def test_the_printed_advice_works(data: Path, choice: str) -> None:
    offset = damage_log(data)
    (data / ".kafka_cleanshutdown").unlink()
    manager = manage(data)
    # What the broker says is offline and what to do about it.
    damage = manager.failed[NAME]
    assert isinstance(damage, DamagedLog)
    manager.close()
    [advised] = [part for part in damage.repair_advice.split("`") if part.startswith("headrace ")]
    shown = invoke(*shlex.split(advised)[1:])
    assert shown.exit_code == 1
    assert f"offsets {offset} to {offset + 1}" in shown.stdout
    [line] = [line for line in shown.stdout.splitlines() if f"repair {choice}" in line]
    result = invoke(*shlex.split(line.partition("#")[0])[1:])
    assert result.exit_code == 0
    assert ".removed" in result.stdout
    if choice == "--skip":
        check(data, expected(range(offset, offset + 2)))
    else:
        check(data, expected(range(offset, 80)), offset)
    assert "There is no damage" in invoke("log", "repair", str(data / "orders-0")).stdout


def test_the_plan_as_a_document(data: Path) -> None:
    offset = damage_log(data)
    shown = invoke("log", "repair", "--json", str(data / "orders-0"))
    assert shown.exit_code == 1
    assert f'"first_offset": {offset}' in shown.stdout
    found = document(invoke("log", "repair", "--json", "--skip", str(data / "orders-0")))
    assert (found["repaired"], found["topic"], len(found["removed"])) == (True, "orders", 1)
    assert invoke("log", "repair", "--cut", "--skip", str(data)).exit_code == 2
    assert "not the directory of a partition" in invoke("log", "repair", str(data)).stderr
