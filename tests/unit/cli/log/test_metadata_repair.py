"""`headrace log repair-metadata`."""

from pathlib import Path

from click.testing import CliRunner

from headrace.cli.log import log as log_command
from headrace.cli.log.repair import RepairRefused
from headrace.config import TopicConfig
from headrace.metadata.records import encode_record
from headrace.metadata.snapshot import encode_snapshot
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.metadata_records import TopicRecord
from headrace.protocol.records import encode_batch
from headrace.raft.messages import HardState
from headrace.storage.data_directory import METADATA_LOG
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.metadata_log import MetadataSnapshots, QuorumStateFile, SnapshotId
from headrace.storage.metadata_recovery import examine, set_aside_names

CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1)
STATE = HardState(4, voted_for=1, leader_id=1)
TOPICS = ("aaaa", "bbbb", "cccc", "dddd")


def topic_record(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=name.encode() * 4)


def make(path: Path, *, state: HardState = STATE) -> Path:
    """A data directory whose metadata log has a topic in each batch; the log's one segment."""
    directory = path / str(METADATA_LOG)
    log = Log.open(Files(), str(directory), METADATA_LOG, CONFIG, 0)
    for name in TOPICS:
        batch = encode_batch([(0, None, encode_record(topic_record(name)), ())])
        log.append(batch, scan_headers(batch), 4, 0)
        (path / f"{name}-0").mkdir()
    log.flush()
    log.close()
    QuorumStateFile(Files(), str(directory)).write(state)
    return directory / f"{0:020}.log"


def flip(segment: Path, name: str) -> None:
    data = segment.read_bytes()
    segment.write_bytes(data.replace(name.encode(), name.replace(name[0], "X", 1).encode(), 1))


def run(path: Path, *arguments: str) -> str:
    result = CliRunner().invoke(log_command, ["repair-metadata", str(path), *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def state_of(path: Path) -> HardState | None:
    return QuorumStateFile(Files(), str(path / str(METADATA_LOG))).read()


def refusal(path: Path, *arguments: str) -> str:
    try:
        run(path, *arguments)
    except RepairRefused as error:
        return str(error)
    raise AssertionError("it was not refused")


def test_whole_log_needs_no_repair(tmp_path: Path) -> None:
    make(tmp_path)
    assert run(tmp_path, "--apply").endswith("the log is whole, offsets 0 to 4.\n")
    assert set_aside_names(Files(), str(tmp_path)) == []


def test_log_is_cut_before_the_damage_and_the_old_one_is_kept(tmp_path: Path) -> None:
    segment = make(tmp_path)
    flip(segment, "bbbb")
    damaged = segment.read_bytes()
    shown = run(tmp_path)
    assert "(offsets 1 to 1)" in shown and "would end at offset 1." in shown
    assert "2  TopicRecord(name='cccc'" in shown and "3  TopicRecord(name='dddd'" in shown
    assert "Topics that remain: aaaa\n" in shown
    assert "bbbb-0, cccc-0, dddd-0" in shown
    assert segment.read_bytes() == damaged, "without --apply nothing changes"
    applied = run(tmp_path, "--apply")
    assert "ends at offset 1 now" in applied
    [aside] = set_aside_names(Files(), str(tmp_path))
    assert (tmp_path / aside / segment.name).read_bytes() == damaged
    assert aside in applied
    found = examine(Files(), str(tmp_path), [str(tmp_path)])
    assert (found.damage, found.scan.end_offset) == (None, 1)
    assert state_of(tmp_path) == STATE
    assert all((tmp_path / f"{name}-0").is_dir() for name in TOPICS)


def test_snapshot_behind_the_damage_is_where_the_log_begins(tmp_path: Path) -> None:
    segment = make(tmp_path)
    snapshots = MetadataSnapshots(Files(), str(segment.parent))
    part = snapshots.begin(SnapshotId(2, 4))
    for batch in encode_snapshot(
        [topic_record(name) for name in TOPICS[:2]], None, epoch=4, now_ms=0
    ):
        part.append(batch)
    part.finish()
    flip(segment, "aaaa")
    flip(segment, "dddd")
    shown = run(tmp_path, "--apply")
    assert "Topics that remain: aaaa, bbbb, cccc\n" in shown
    found = examine(Files(), str(tmp_path), [str(tmp_path)])
    assert (found.damage, found.scan.start_offset, found.scan.end_offset) == (None, 2, 3)


def test_log_without_a_beginning_cannot_be_repaired(tmp_path: Path) -> None:
    segment = make(tmp_path)
    flip(segment, "aaaa")
    assert "there is nothing left to go on with" in refusal(tmp_path, "--apply")


def test_running_broker_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path)
    lock = Files().lock(f"{tmp_path}/.lock")
    assert lock is not None
    assert "stop its broker first" in refusal(tmp_path)
    lock.release()


def test_voter_that_lost_its_log_votes_again_only_if_that_is_asked_for(tmp_path: Path) -> None:
    lost = STATE._replace(may_vote=False, recovering=True)
    make(tmp_path, state=lost)
    assert "does not vote" in run(tmp_path, "--apply")
    assert "would vote again" in run(tmp_path, "--vote")
    assert state_of(tmp_path) == lost
    assert "votes again with what it has" in run(tmp_path, "--vote", "--apply")
    assert state_of(tmp_path) == STATE


def test_log_that_was_set_aside_comes_back(tmp_path: Path) -> None:
    """A majority lost their logs: the best one that was set aside is as good as it gets."""
    segment = make(tmp_path)
    flip(segment, "cccc")
    name = f"{METADATA_LOG}.0102-damaged"
    segment.parent.rename(tmp_path / name)
    lost = STATE._replace(may_vote=False, recovering=True)
    segment.parent.mkdir()
    QuorumStateFile(Files(), str(segment.parent)).write(lost)
    assert f"set aside are: {name}" in refusal(tmp_path, "--from", "nothing")
    assert "Topics that remain: aaaa, bbbb\n" in run(tmp_path, "--from", name)
    assert state_of(tmp_path) == lost
    run(tmp_path, "--from", name, "--apply")
    assert state_of(tmp_path) == STATE
    found = examine(Files(), str(tmp_path), [str(tmp_path)])
    assert (found.damage, found.scan.end_offset) == (None, 2)
    assert (tmp_path / name).is_dir()
    assert len(set_aside_names(Files(), str(tmp_path))) == 2
