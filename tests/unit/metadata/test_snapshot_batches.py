"""What a snapshot file holds, and control records."""

import pytest

from headrace.metadata.records import MetadataError, decode_control_batch, encode_control_batch
from headrace.metadata.snapshot import SnapshotContent, encode_snapshot
from headrace.protocol.batch import check_batch, scan_headers
from headrace.protocol.messages.metadata_records import FeatureLevelRecord
from headrace.protocol.messages.quorum_records import (
    LeaderChangeMessage,
    Voter,
    VotersRecord,
    VotersRecordVoter,
)
from headrace.protocol.records import encode_batch

RECORDS = [FeatureLevelRecord(name=f"f{n}", feature_level=n + 1) for n in range(2500)]
VOTERS = VotersRecord(voters=[VotersRecordVoter(voter_id=3)])


def snapshot(voters: VotersRecord | None = VOTERS) -> bytes:
    return b"".join(encode_snapshot(RECORDS, voters, epoch=7, now_ms=1000))


def test_a_snapshot_comes_back() -> None:
    content = SnapshotContent(snapshot())
    assert content.voters == VOTERS
    assert list(content.records()) == RECORDS
    assert SnapshotContent(snapshot(None)).voters is None


def test_the_batches_of_a_snapshot_follow_each_other() -> None:
    headers = scan_headers(snapshot())
    assert [header.is_control for header in headers] == [True, False, False, False, True]
    assert [header.base_offset for header in headers[1:]] == [
        header.next_offset for header in headers[:-1]
    ]
    assert {header.leader_epoch for header in headers} == {7}


@pytest.mark.parametrize("size", [0, 60, 200, -1, -75])
def test_a_snapshot_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(MetadataError, match="cut short"):
        SnapshotContent(snapshot()[:size])


def test_a_damaged_snapshot_is_refused() -> None:
    data = bytearray(snapshot())
    data[200] ^= 1
    with pytest.raises(MetadataError, match="damaged"):
        SnapshotContent(bytes(data))


def test_control_records_come_back_and_are_told_from_others() -> None:
    change = LeaderChangeMessage(version=1, leader_id=3, voters=[Voter(voter_id=3)])
    batch = encode_control_batch([change, VOTERS], 1000)
    (header,) = scan_headers(batch)
    check_batch(batch, header)
    assert header.is_control
    assert decode_control_batch(batch, header) == [change, VOTERS]


def test_control_records_of_the_future_are_left_out() -> None:
    batch = encode_batch([(0, b"\0\0\0\x63", b"?", ())])
    (header,) = scan_headers(batch)
    assert decode_control_batch(batch, header) == []
    with pytest.raises(MetadataError, match="has no type"):
        decode_control_batch(batch2 := encode_batch([(0, b"", b"?", ())]), scan_headers(batch2)[0])
