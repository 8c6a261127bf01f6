"""`quorum-state`, in Kafka's format: the epoch of a controller and whom it voted for in it.

Rule: a vote or an epoch is on stable storage before anybody hears of it. A file that is damaged is
never believed: who forgets a vote could give another in the same epoch. A checksum tells a digit
that has changed, which would be as good a number as before.
"""

import json
import os
from collections.abc import Mapping

from headrace.errors import StorageError
from headrace.protocol.crc import crc32c
from headrace.raft.values import HardState
from headrace.storage.files import Files

QUORUM_STATE = "quorum-state"

_VERSION = 1
_KAFKA_FIELDS = {
    "appliedOffset",
    "clusterId",
    "currentVoters",
    "data_version",
    "leaderEpoch",
    "leaderId",
    "votedDirectoryId",
    "votedId",
}
_OUR_FIELDS = {"mayVote", "recovering"}
_CHECKSUM = "crc"


def encode_quorum_state(state: HardState) -> bytes:
    """The file's content. `mayVote`, `recovering` and the checksum are ours: Kafka's controllers
    compare directory ids instead."""
    fields = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": state.voted_for,
        "mayVote": state.may_vote,
        "recovering": state.recovering,
        "data_version": _VERSION,
    }
    return json.dumps(fields | {_CHECKSUM: _checksum(fields)}).encode()


def _checksum(fields: Mapping[str, object]) -> int:
    return crc32c(json.dumps(fields).encode())


def decode_quorum_state(data: bytes) -> HardState:
    """The inverse of `encode_quorum_state`; ValueError for anything else.

    What Kafka wrote, or headrace before it wrote checksums, is taken without one. A name of a field
    that nobody knows is one that has changed.
    """
    fields = json.loads(data)
    if not isinstance(fields, dict) or fields.get("data_version") not in (0, _VERSION):
        raise ValueError("it is no quorum state of a version that is known")
    checksum = fields.pop(_CHECKSUM, None)
    unknown = fields.keys() - _KAFKA_FIELDS - _OUR_FIELDS
    if unknown or (checksum is None and "recovering" in fields):
        raise ValueError(f"its fields are {', '.join(sorted(fields))}")
    if checksum is not None and checksum != _checksum(fields):
        raise ValueError("its checksum is not that of its content")
    return HardState(
        epoch=_number(fields, "leaderEpoch", minimum=0),
        voted_for=_number(fields, "votedId"),
        leader_id=_number(fields, "leaderId"),
        may_vote=fields.get("mayVote", True) is True,
        recovering=fields.get("recovering", False) is True,
    )


def _number(fields: dict[str, object], name: str, minimum: int = -1) -> int:
    number = fields.get(name)
    # A boolean is an int to Python, but none here.
    if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
        raise ValueError(f"{name} is {number!r}")
    return number


class QuorumStateFile:
    """The file in the directory of the metadata log. It may be blocked on for as long as a flush
    takes, by whoever must not go on before."""

    def __init__(self, files: Files, directory: str) -> None:
        self.path = f"{directory}/{QUORUM_STATE}"
        self._files = files
        # Whether the directory itself is known to survive a loss of power.
        self._is_durable = False

    def read(self) -> HardState | None:
        """What was written last, or None if nothing ever was; StorageError if it is damaged."""
        data = self._files.read_bytes(self.path)
        if data is None:
            return None
        try:
            return decode_quorum_state(data)
        except ValueError as error:
            raise StorageError(f"{self.path} is damaged: {error}") from error

    def write(self, state: HardState) -> None:
        """Replace it; durable on return."""
        self._files.write_atomically(self.path, encode_quorum_state(state))
        if not self._is_durable:
            self._files.sync_directory(os.path.dirname(os.path.dirname(self.path)))
            self._is_durable = True
