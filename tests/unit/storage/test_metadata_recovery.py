"""The metadata log at a start: what is done about damage, alone and with other controllers."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.config import TopicConfig
from headrace.metadata.snapshot import encode_snapshot
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.quorum_records import VotersRecord, VotersRecordVoter
from headrace.protocol.records import encode_batch
from headrace.raft.messages import HardState
from headrace.storage.checkpoints import decode_offsets
from headrace.storage.data_directory import METADATA_LOG
from headrace.storage.files import Files
from headrace.storage.log_manager import LogManager
from headrace.storage.metadata_log import MetadataLog, QuorumStateFile, SnapshotId
from headrace.storage.metadata_recovery import (
    DamagedMetadata,
    examine,
    prepare_metadata_log,
    set_aside_names,
)
from headrace.storage.recovery_point import encode_flushed_offset

CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1, file_delete_delay_ms=0)
STATE = HardState(3, voted_for=2, leader_id=2)
NAME = str(METADATA_LOG)


class Node:
    """A node's data directory, opened and closed as a broker does."""

    def __init__(self, path: Path, *, has_peers: bool = True) -> None:
        self.path = path
        self.has_peers = has_peers
        self.directory = path / NAME
        self.state_file = QuorumStateFile(Files(), str(self.directory))

    def prepare(self, paths: list[str] | None = None) -> None:
        prepare_metadata_log(
            Files(),
            paths or [str(self.path)],
            node_id=1,
            has_peers=self.has_peers,
            new_id=lambda: b"12345678",
        )

    def open(self) -> tuple[LogManager, MetadataLog]:
        manager = LogManager.open(
            Files(),
            [str(self.path)],
            node_id=1,
            cluster_id="c",
            config_of=lambda _: CONFIG,
            now_ms=0,
            prepare=self.prepare,
        )
        log = manager.open_metadata_log(CONFIG, 0)
        log.config = CONFIG
        return manager, MetadataLog(log, Files())

    def ends(self) -> tuple[int, int]:
        """Where the log begins and ends after a start."""
        manager, view = self.open()
        found = view.start_offset, view.end_offset
        manager.close()
        return found

    def segment(self) -> Path:
        """The newest segment with batches."""
        return [path for path in sorted(self.directory.glob("*.log")) if path.stat().st_size][-1]

    def flip(self, number: int) -> None:
        """Change a byte of a batch of the newest segment."""
        data = bytearray(self.segment().read_bytes())
        header = scan_headers(data)[number]
        data[header.position + header.size - 2] ^= 1
        self.segment().write_bytes(data)

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and path.name != ".lock"
        }


def append(view: MetadataLog, count: int = 4, epoch: int = 3) -> None:
    for _ in range(count):
        batch = encode_batch([(0, None, b"x" * 50, ())])
        view.log.append(batch, scan_headers(batch), epoch, 0)
    view.log.flush()


def snapshot(view: MetadataLog, *voters: int) -> None:
    one = SnapshotId(view.end_offset, 3)
    record = VotersRecord(voters=[VotersRecordVoter(voter_id=voter) for voter in voters])
    part = view.snapshots.begin(one)
    for batch in encode_snapshot([], record if voters else None, epoch=3, now_ms=0):
        part.append(batch)
    part.finish()
    view.add_snapshot(one, 0)
    view.log.delete_retired(0)


def make(path: Path, *, has_peers: bool, snapshots: int = 0, voters: tuple[int, ...] = ()) -> Node:
    """A log of 4 records, and 4 after each snapshot; it was stopped cleanly."""
    node = Node(path, has_peers=has_peers)
    manager, view = node.open()
    node.state_file.write(STATE)
    append(view)
    for _ in range(snapshots):
        snapshot(view, *voters)
        append(view)
    manager.close()
    return node


@pytest.mark.parametrize("has_peers", [False, True])
@pytest.mark.parametrize("snapshots", [0, 1, 2, 3])
def test_whole_log_is_left_alone(tmp_path: Path, snapshots: int, has_peers: bool) -> None:
    node = make(tmp_path, has_peers=has_peers, snapshots=snapshots)
    before = node.contents()
    node.prepare()
    assert node.contents() == before
    end_offset = 4 + 4 * snapshots
    assert node.ends() == (max(4 * (snapshots - 1), 0), end_offset)
    assert node.state_file.read() == STATE


@pytest.mark.parametrize("snapshots", [0, 2])
def test_lone_node_refuses_and_touches_nothing(tmp_path: Path, snapshots: int) -> None:
    node = make(tmp_path, has_peers=False, snapshots=snapshots)
    node.flip(1)
    before = node.contents()
    with pytest.raises(DamagedMetadata) as caught:
        node.open()
    assert node.contents() == before
    said = str(caught.value)
    first = 1 + 4 * snapshots
    assert f"{node.segment()} at position" in said
    assert f"(offsets {first} to {first})" in said
    assert f"headrace log repair-metadata {tmp_path}" in said
    # The lock is free again.
    with pytest.raises(DamagedMetadata):
        node.open()


@pytest.mark.parametrize("snapshots", [0, 2])
def test_node_with_peers_sets_the_log_aside_and_recovers(
    tmp_path: Path, snapshots: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After snapshots too, when the checkpoint of log starts still names the older one."""
    node = make(tmp_path, has_peers=True, snapshots=snapshots)
    node.flip(1)
    damaged = node.segment().read_bytes()
    manager, view = node.open()
    assert (view.start_offset, view.end_offset, view.is_blank) == (0, 0, True)
    assert node.state_file.read() == STATE._replace(may_vote=False, recovering=True)
    [aside] = set_aside_names(Files(), str(tmp_path))
    assert damaged in [path.read_bytes() for path in (tmp_path / aside).iterdir()]
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert aside in line and "does not vote" in line
    # It fetches some of it again, and dies: nothing is set aside again.
    append(view, 2)
    manager.close(clean=False)
    assert node.ends() == (0, 2)
    assert set_aside_names(Files(), str(tmp_path)) == [aside]
    assert node.state_file.read() == STATE._replace(may_vote=False, recovering=True)


def test_only_voter_by_its_log_is_alone_whatever_is_configured(tmp_path: Path) -> None:
    node = make(tmp_path, has_peers=True, snapshots=1, voters=(1,))
    node.flip(1)
    with pytest.raises(DamagedMetadata):
        node.prepare()


@pytest.mark.parametrize("stop", range(1, 12))
def test_crash_while_a_log_is_set_aside_loses_nothing(tmp_path: Path, stop: int) -> None:
    """However far it came: the next start has the same outcome."""
    node = make(tmp_path, has_peers=True, snapshots=2)
    node.flip(1)
    with suppress(Crash):
        prepare_metadata_log(
            DyingFiles(stop),
            [str(tmp_path)],
            node_id=1,
            has_peers=True,
            new_id=lambda: b"crashing",
        )
    assert node.ends() == (0, 0)
    assert node.state_file.read() == STATE._replace(may_vote=False, recovering=True)
    [aside] = set_aside_names(Files(), str(tmp_path))
    assert len(list((tmp_path / aside).glob("*.log"))) > 0
    assert not list(tmp_path.glob("*-new"))


class Crash(BaseException):
    """The end of a process."""


class DyingFiles(Files):
    """Files of a process that dies before its n-th change."""

    def __init__(self, changes: int) -> None:
        self._left = changes

    def _change(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Crash

    def rename(self, old: str, new: str) -> None:
        self._change()
        super().rename(old, new)

    def make_directory(self, path: str) -> None:
        self._change()
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._change()
        super().sync_directory(path)


@pytest.mark.parametrize("has_peers", [False, True])
def test_what_a_snapshot_has_is_not_lost(
    tmp_path: Path, has_peers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage between two snapshots: the newer one has those records."""
    node = make(tmp_path, has_peers=has_peers, snapshots=2)
    older = sorted(node.directory.glob("*.log"))[-2]
    data = bytearray(older.read_bytes())
    data[70] ^= 1
    older.write_bytes(data)
    assert node.ends() == (8, 12)
    assert node.state_file.read() == STATE
    [line] = [
        record.getMessage() for record in caplog.records if "nothing is lost" in record.getMessage()
    ]
    assert str(older) in line
    [aside] = set_aside_names(Files(), str(tmp_path))
    assert (tmp_path / aside / older.name).read_bytes() == data


@pytest.mark.parametrize("has_peers", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_damaged_snapshot_gives_way_to_the_other_one(
    tmp_path: Path, has_peers: bool, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    node = make(tmp_path, has_peers=has_peers, snapshots=2)
    path = sorted(node.directory.glob("*.checkpoint"))[which]
    path.write_bytes(path.read_bytes()[:-3])
    manager, view = node.open()
    assert [entry.end_offset for entry in view.snapshots.ids] == [8 if which == 0 else 4]
    assert view.end_offset == 12
    manager.close()
    assert path.with_name(path.name + "-damaged").exists()
    assert any(str(path) in record.getMessage() for record in caplog.records)
    assert node.state_file.read() == STATE


def test_first_snapshot_is_not_needed_while_the_log_has_everything(tmp_path: Path) -> None:
    node = make(tmp_path, has_peers=False, snapshots=1)
    [path] = node.directory.glob("*.checkpoint")
    path.write_bytes(b"")
    assert node.ends() == (0, 8)


def test_log_whose_only_snapshots_are_damaged_is_damaged(tmp_path: Path) -> None:
    node = make(tmp_path, has_peers=False, snapshots=2)
    for path in node.directory.glob("*.checkpoint"):
        path.write_bytes(b"no snapshot")
    with pytest.raises(DamagedMetadata, match="move the data directories away as a whole"):
        node.prepare()
    node.has_peers = True
    assert node.ends() == (0, 0)


@pytest.mark.parametrize("change", ["missing", "damaged", "flipped"])
@pytest.mark.parametrize("has_peers", [False, True])
def test_quorum_state_that_is_lost(tmp_path: Path, has_peers: bool, change: str) -> None:
    node = make(tmp_path, has_peers=has_peers)
    path = node.directory / "quorum-state"
    data = path.read_bytes()
    match change:
        case "missing":
            path.unlink()
        case "damaged":
            path.write_bytes(data[:-7])
        case "flipped":
            path.write_bytes(data.replace(b'"leaderEpoch": 3', b'"leaderEpoch": 7'))
    assert node.ends() == (0, 4)
    if change == "missing":
        # What that means is decided by the consensus core, which knows who else votes.
        assert node.state_file.read() is None
        return
    assert (node.directory / "quorum-state-damaged").exists()
    expected = HardState(3, may_vote=not has_peers, recovering=has_peers)
    assert node.state_file.read() == expected


@pytest.mark.parametrize("files", ["log-start", "recovery-point", "both"])
@pytest.mark.parametrize("content", [b"", b"0\n1\n__cluster_metadata 0 11\n", b"\x00" * 20])
def test_checkpoints_are_not_believed(tmp_path: Path, files: str, content: bytes) -> None:
    node = make(tmp_path, has_peers=False, snapshots=2)
    for name in ("log-start", "recovery-point"):
        if files in (name, "both"):
            (tmp_path / f"{name}-offset-checkpoint").write_bytes(content)
    start_offset, end_offset = node.ends()
    assert end_offset == 12
    assert start_offset in (0, 4, 8)
    offsets = decode_offsets((tmp_path / "log-start-offset-checkpoint").read_bytes())
    assert offsets.get(METADATA_LOG, 0) == start_offset


@pytest.mark.parametrize("how", ["directory", "segments", "emptied"])
@pytest.mark.parametrize("snapshots", [0, 2])
def test_lost_log_is_no_new_one(tmp_path: Path, how: str, snapshots: int) -> None:
    """The advice of old was to move the directory away: with others it is fetched again."""
    node = make(tmp_path, has_peers=True, snapshots=snapshots)
    if how == "directory":
        node.directory.rename(tmp_path.with_name(tmp_path.name + "-away"))
    for path in list(node.directory.glob("*.log")):
        if how == "segments":
            path.unlink()
        else:
            path.write_bytes(b"")
    manager, view = node.open()
    assert (view.start_offset, view.end_offset) == (0, 0)
    manager.close(clean=False)
    state = node.state_file.read()
    assert state is not None and state.recovering and not state.may_vote
    assert state.epoch == (0 if how == "directory" else 3)


@pytest.mark.parametrize("has_peers", [False, True])
def test_partition_logs_tell_that_there_was_a_metadata_log(tmp_path: Path, has_peers: bool) -> None:
    """In another data directory too, and when no checkpoint is left."""
    node = Node(tmp_path / "one", has_peers=has_peers)
    node.path.mkdir()
    (tmp_path / "two" / "orders-0").mkdir(parents=True)
    paths = [str(node.path), str(tmp_path / "two")]
    if has_peers:
        node.prepare(paths)
        assert node.state_file.read() == HardState(may_vote=False, recovering=True)
    else:
        with pytest.raises(DamagedMetadata, match="has topics, such as orders-0"):
            node.prepare(paths)


def test_new_node_may_found_a_cluster(tmp_path: Path) -> None:
    """Also one that was started and stopped before there was a cluster, or was killed."""
    node = Node(tmp_path, has_peers=True)
    for clean in (True, False, True):
        manager, view = node.open()
        assert view.is_blank and node.state_file.read() is None
        manager.close(clean=clean)
    node.state_file.write(HardState(1, voted_for=2))
    assert node.ends() == (0, 0)
    assert node.state_file.read() == HardState(1, voted_for=2), "it voted, and has nothing yet"


def test_torn_tail_is_cut_and_counts_as_before(tmp_path: Path) -> None:
    node = make(tmp_path, has_peers=True)
    size = node.segment().stat().st_size
    with node.segment().open("ab") as file:
        file.write(b"\0\0\0\0\0\0\0\4\0\0\0\x80")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    node.prepare()
    assert node.segment().stat().st_size == size, "whatever opens the log next sees no tail"
    assert node.ends() == (0, 4)
    assert node.state_file.read() == STATE


@pytest.mark.parametrize(
    "content", [None, b"", b"0\n1\n9 0\n", b"0\n1\n3 2\n", b"0\n2\n1 0\n3 2\n", b"0\n1\n1 0\n"]
)
def test_epochs_are_those_of_the_batches(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a file that is wrong a node would take its log for newer or older than it is."""
    node = make(tmp_path, has_peers=True)
    path = node.directory / "leader-epoch-checkpoint"
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    manager, view = node.open()
    assert (view.last_epoch, view.end_offset) == (3, 4)
    manager.close()
    assert path.read_bytes() == before
    lines = [record.getMessage() for record in caplog.records]
    # A file that only lacks the newest epoch is what a loss of power leaves.
    assert len(lines) == (content != b"0\n1\n1 0\n")
    assert all(str(path) in line and "made again from the log" in line for line in lines)
    assert node.state_file.read() == STATE


@pytest.mark.parametrize("flushed", [2, 4])
def test_cut_that_a_loss_of_power_undid_is_done_again(tmp_path: Path, flushed: int) -> None:
    """The batches of a newer epoch that followed it are gone too, and were promised to nobody."""
    node = make(tmp_path, has_peers=True)
    node.state_file.write(HardState(5, leader_id=2))
    (node.directory / "leader-epoch-checkpoint").write_bytes(b"0\n2\n3 0\n5 2\n")
    (node.directory / "flushed-offset").write_bytes(encode_flushed_offset(flushed))
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    manager, view = node.open()
    if flushed == 2:
        assert (view.last_epoch, view.end_offset) == (3, 2)
        assert node.state_file.read() == HardState(5, leader_id=2)
    else:
        assert view.is_blank, "what was flushed cannot have been undone: it is damage"
    manager.close()


def test_examination_changes_nothing(tmp_path: Path) -> None:
    node = make(tmp_path, has_peers=True, snapshots=1)
    node.flip(0)
    (node.directory / "00000000000000000099-0000000001.checkpoint.part").write_bytes(b"half")
    before = node.contents()
    assert examine(Files(), str(tmp_path), [str(tmp_path)]).damage is not None
    assert node.contents() == before


def test_zeros_in_place_of_the_newest_records_are_damage_if_those_were_flushed(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    _, view = node.open()
    append(view)
    # A flush by whoever else asks for one, such as the checkpoint.
    batch = encode_batch([(0, None, b"x" * 50, ())])
    view.log.append(batch, scan_headers(batch), 3, 0)
    view.log.flush()
    # The process dies here, and a disk loses a sector that it had written.
    data = bytearray(node.segment().read_bytes())
    last = scan_headers(data)[-1]
    data[last.position :] = bytes(last.size)
    node.segment().write_bytes(data)
    found = examine(Files(), str(tmp_path))
    assert found.flushed_offset == 5
    assert found.damage is not None
    assert found.damage.first_offset == 4


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_node_that_recovers_starts_though_what_it_had_flushed_is_gone_again(
    tmp_path: Path, is_checkpointed: bool
) -> None:
    """It fetches all of it from the others anyway, and votes only when it has."""
    node = make(tmp_path, has_peers=True)
    node.state_file.write(STATE._replace(recovering=True, may_vote=False))
    (node.directory / "flushed-offset").write_bytes(encode_flushed_offset(4))
    if not is_checkpointed:
        (tmp_path / "recovery-point-offset-checkpoint").unlink()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    data = node.segment().read_bytes()
    node.segment().write_bytes(data[: scan_headers(data)[-1].position])
    assert node.ends() == (0, 3)
    assert node.ends() == (0, 3)
