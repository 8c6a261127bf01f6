"""The file that keeps an epoch and a vote."""

from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.raft.messages import HardState
from headrace.storage.files import Files
from headrace.storage.metadata_log import (
    QuorumStateFile,
    decode_quorum_state,
    encode_quorum_state,
)


@pytest.mark.parametrize(
    "state",
    [
        HardState(),
        HardState(7, voted_for=3),
        HardState(9, -1, 2, may_vote=False),
        HardState(9, 2, 2, may_vote=False, recovering=True),
    ],
)
def test_a_state_comes_back(tmp_path: Path, state: HardState) -> None:
    file = QuorumStateFile(Files(), str(tmp_path))
    assert file.read() is None
    file.write(HardState(epoch=1))
    file.write(state)
    assert QuorumStateFile(Files(), str(tmp_path)).read() == state


def test_what_kafka_wrote_can_be_read() -> None:
    data = (
        b'{"leaderId":-1,"leaderEpoch":5,"votedId":2,'
        b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    assert decode_quorum_state(data) == HardState(5, voted_for=2)


def test_a_file_from_before_there_were_checksums_can_be_read() -> None:
    data = b'{"leaderId": 2, "leaderEpoch": 5, "votedId": 2, "mayVote": false, "data_version": 1}'
    assert decode_quorum_state(data) == HardState(5, 2, 2, may_vote=False)


def test_no_flipped_bit_is_believed() -> None:
    state = HardState(12, voted_for=3, leader_id=3)
    data = encode_quorum_state(state)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = decode_quorum_state(bytes(flipped))
        except ValueError:
            continue
        assert decoded == state, bytes(flipped)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"data_version": 9}',
        encode_quorum_state(HardState(3)).replace(b'"leaderEpoch": 3', b'"leaderEpoch": "3"'),
        encode_quorum_state(HardState(3)).replace(b'"leaderEpoch": 3', b'"leaderEpoch": -3'),
        encode_quorum_state(HardState(3))[:-4],
    ],
)
def test_a_damaged_file_is_an_error_and_no_blank_state(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "quorum-state").write_bytes(data)
    with pytest.raises(StorageError, match="is damaged"):
        QuorumStateFile(Files(), str(tmp_path)).read()
