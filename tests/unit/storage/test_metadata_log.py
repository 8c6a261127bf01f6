"""The metadata log with its snapshots, as the consensus core sees it."""

from pathlib import Path

import pytest

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch, StorageError
from headrace.metadata.records import encode_control_batch
from headrace.metadata.snapshot import encode_snapshot
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.quorum_records import VotersRecord, VotersRecordVoter
from headrace.protocol.records import encode_batch
from headrace.raft.messages import OffsetAndEpoch
from headrace.storage.data_directory import METADATA_LOG
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.metadata_log import MetadataLog, MetadataSnapshots, SnapshotId

CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1, file_delete_delay_ms=0)


def open_log(directory: Path) -> Log:
    return Log.open(Files(), str(directory), METADATA_LOG, CONFIG, 0)


def append(log: Log, count: int, epoch: int) -> None:
    batch = encode_batch([(0, None, b"x", ())] * count)
    log.append(batch, scan_headers(batch), epoch, 0)


def write_snapshot(snapshots: MetadataSnapshots, snapshot_id: SnapshotId, *voter_ids: int) -> None:
    voters = VotersRecord(voters=[VotersRecordVoter(voter_id=n) for n in voter_ids])
    part = snapshots.begin(snapshot_id)
    for batch in encode_snapshot(
        [], voters if voter_ids else None, epoch=snapshot_id.epoch, now_ms=0
    ):
        part.append(batch)
    part.finish()


def test_ends_of_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    view = MetadataLog(log, Files())
    assert view.is_blank
    assert (view.last_epoch, view.end_offset_for_epoch(5), view.snapshot) == (0, (0, 0), None)
    append(log, 3, epoch=1)
    append(log, 2, epoch=4)
    assert not view.is_blank
    assert view.last_epoch == 4
    assert [view.end_offset_for_epoch(epoch) for epoch in (0, 1, 3, 4, 9)] == [
        (0, 0),
        (1, 3),
        (1, 3),
        (4, 5),
        (4, 5),
    ]
    assert [view.epoch_before(offset) for offset in (0, 1, 3, 4, 5)] == [0, 1, 1, 4, 4]


def test_snapshots_let_go_what_the_one_before_has(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    view = MetadataLog(log, Files())
    for epoch in (1, 2, 3):
        append(log, 10, epoch)
        one = SnapshotId(log.log_end_offset, epoch)
        write_snapshot(view.snapshots, one)
        view.add_snapshot(one, now_ms=0)
    assert view.snapshots.ids == (SnapshotId(20, 2), SnapshotId(30, 3))
    assert (view.start_offset, view.end_offset) == (20, 30)
    assert log.segments[0].base_offset == 20
    assert view.snapshot == OffsetAndEpoch(30, 3)
    # The older snapshot says what was before the log's first record.
    assert view.end_offset_for_epoch(2) == (2, 20)
    assert view.end_offset_for_epoch(1) == (0, 20)
    log.close()
    again = MetadataLog(open_log(tmp_path), Files())
    assert again.snapshots.ids == view.snapshots.ids
    assert (again.start_offset, again.end_offset) == (20, 30)


def test_a_snapshot_of_another_node_takes_the_place_of_everything(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    view = MetadataLog(log, Files())
    append(log, 10, epoch=1)
    one = SnapshotId(50, 6)
    write_snapshot(view.snapshots, one, 1, 2)
    view.begin_at(one)
    assert (view.start_offset, view.end_offset, view.last_epoch) == (50, 50, 6)
    assert view.end_offset_for_epoch(6) == (6, 50)
    assert view.end_offset_for_epoch(5) == (0, 50)
    ((offset, voters),) = view.voters_records()
    assert (offset, [voter.voter_id for voter in voters.voters]) == (49, [1, 2])
    log.close()
    again = MetadataLog(open_log(tmp_path), Files())
    assert (again.start_offset, again.end_offset, again.last_epoch) == (50, 50, 6)


@pytest.mark.parametrize("snapshot", [SnapshotId(50, 6), SnapshotId(10, 6)])
def test_an_installation_that_a_crash_interrupted_is_finished(
    tmp_path: Path, snapshot: SnapshotId
) -> None:
    log = open_log(tmp_path)
    append(log, 20, epoch=1)
    write_snapshot(MetadataSnapshots(Files(), str(tmp_path)), snapshot)
    log.close(clean=False)
    view = MetadataLog(open_log(tmp_path), Files())
    assert view.start_offset == view.end_offset == snapshot.end_offset


def test_a_part_of_a_snapshot_is_none_after_a_restart(tmp_path: Path) -> None:
    snapshots = MetadataSnapshots(Files(), str(tmp_path))
    snapshots.begin(SnapshotId(5, 1)).append(b"half")
    assert MetadataSnapshots(Files(), str(tmp_path)).ids == ()
    assert list(tmp_path.iterdir()) == []


def test_a_log_without_the_snapshot_it_begins_after_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.truncate_fully_and_start_at(7)
    with pytest.raises(StorageError, match="no snapshot of what came before"):
        MetadataLog(log, Files())


def test_voters_in_the_log_are_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3, epoch=1)
    batch = encode_control_batch([VotersRecord(voters=[VotersRecordVoter(voter_id=8)])], 0)
    log.append(batch, scan_headers(batch), 1, 0)
    append(log, 3, epoch=1)
    found = list(MetadataLog(log, Files()).voters_records())
    assert [(offset, record.voters[0].voter_id) for offset, record in found] == [(3, 8)]


def test_only_sound_batches_that_follow_are_taken(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    append(leader, 2, epoch=1)
    append(leader, 2, epoch=1)
    data = bytes(leader.read(0, 1000, 4).records)
    view = MetadataLog(open_log(tmp_path / "follower"), Files())
    whole, headers = view.checked(data[:-1])
    assert [header.next_offset for header in headers] == [2]
    assert len(whole) == headers[0].size
    with pytest.raises(CorruptBatch, match="CRC"):
        view.checked(data[:-1] + b"?")
    with pytest.raises(CorruptBatch, match="begins at offset 2, where 0"):
        view.checked(data[headers[0].size :])
