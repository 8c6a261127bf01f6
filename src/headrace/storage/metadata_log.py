"""The files of the metadata log: its segments, its snapshots, and the vote in `quorum-state`.

Rule: a record is below the log start only if a snapshot has it. Of two snapshots the log begins at
the end of the older, so that a follower which is a little behind still finds records.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.errors import CorruptBatch, StorageError
from headrace.metadata.records import MetadataError, decode_control_batch
from headrace.metadata.snapshot import SnapshotContent
from headrace.protocol.batch import BatchHeader, check_batch, crc32c, scan_headers
from headrace.protocol.messages.quorum_records import VotersRecord
from headrace.raft.messages import HardState, OffsetAndEpoch
from headrace.storage.files import File, Files
from headrace.storage.log import Log
from headrace.types import Buffer

# Snapshots of the metadata log: files `<offset>-<epoch>.checkpoint` beside its segments.
#
# Rule: a file of that name is complete and on stable storage; a snapshot that is being written or
# fetched has another name, and is removed by a restart.


SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"

_NAME = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint\Z")


class SnapshotId(NamedTuple):
    """The id of a snapshot of the log below `end_offset`, whose last record is of `epoch`."""

    end_offset: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.end_offset:020}-{self.epoch:010}"


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The id of the snapshot in a file of that name; None for any other name."""
    match = _NAME.match(name)
    return None if match is None else SnapshotId(int(match["offset"]), int(match["epoch"]))


class MetadataSnapshots:
    """The snapshots in a directory, oldest first. Owned by one thread.

    `read`, `remove` and the methods of a `SnapshotPart` may run in another thread.
    """

    def __init__(self, files: Files, directory: str, *, keep_parts: bool = False) -> None:
        """List the snapshots; incomplete snapshots are removed unless `keep_parts`, for tools."""
        self._files = files
        self._directory = directory
        names = files.list_directory(directory) if files.exists(directory) else []
        for name in names:
            if name.endswith(PART_SUFFIX) and not keep_parts:
                files.remove(f"{directory}/{name}")
        found = (parse_snapshot_name(name) for name in names)
        self.ids = tuple(sorted(snapshot for snapshot in found if snapshot is not None))

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    @property
    def oldest(self) -> SnapshotId | None:
        return self.ids[0] if self.ids else None

    def path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot}{SUFFIX}"

    def begin(self, snapshot: SnapshotId) -> "SnapshotPart":
        """Begin a file to write a snapshot into."""
        return SnapshotPart(self._files, self.path(snapshot))

    def add(self, snapshot: SnapshotId) -> None:
        """Add a snapshot whose file is complete."""
        self.ids = tuple(sorted({*self.ids, snapshot}))

    def read(self, snapshot: SnapshotId) -> bytes:
        """The whole content of a snapshot."""
        data = self._files.read_bytes(self.path(snapshot))
        if data is None:
            raise StorageError(f"{self.path(snapshot)} is gone")
        return data

    def open(self, snapshot: SnapshotId) -> File:
        """Open the file of a snapshot, which can be read even if it is removed meanwhile."""
        return self._files.open(self.path(snapshot))

    def remove(self, snapshot: SnapshotId) -> None:
        """Remove the file of a snapshot, unless it was added."""
        if snapshot not in self.ids:
            self._files.remove(self.path(snapshot))

    def remove_before(self, end_offset: int) -> None:
        """Remove the snapshots that end before `end_offset`."""
        while self.ids and self.ids[0].end_offset < end_offset:
            gone, self.ids = self.ids[0], self.ids[1:]
            self._files.remove(self.path(gone))


class SnapshotPart:
    """A snapshot that is being written or fetched."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._part = path.removesuffix(SUFFIX) + PART_SUFFIX
        files.remove(self._part)
        self._file = files.open(self._part, create=True)
        self.size = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write the next bytes."""
        self._file.write_at(self.size, data)
        self.size += len(data)

    def read(self) -> bytes:
        """All bytes written so far."""
        return self._file.read_at(0, self.size)

    def finish(self) -> None:
        """Give the file the name of a complete snapshot, durably."""
        self._file.sync()
        self._files.rename(self._part, self._path)
        self._files.sync_directory(self._path.rpartition("/")[0])

    def discard(self) -> None:
        """Remove the incomplete file."""
        self._files.remove(self._part)


logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024


class MetadataLog:
    """The metadata log with its snapshots, for the consensus core and the quorum's shell.

    Owned by one thread; only those methods of `log` and `snapshots` may run in another thread that
    say so.
    """

    def __init__(self, log: Log, files: Files) -> None:
        self.log = log
        self.snapshots = MetadataSnapshots(files, log.directory)
        self._repair()

    def _repair(self) -> None:
        """Finish an installation of a snapshot that a crash interrupted."""
        newest, start = self.snapshots.newest, self.log.log_start_offset
        if newest is None or newest.end_offset < start:
            if start > 0:
                raise StorageError(
                    f"{self.log.directory} begins at offset {start} and has no snapshot of what"
                    " came before"
                )
            return
        known = self.log.epochs.epoch_of(newest.end_offset - 1)
        in_log = start < newest.end_offset <= self.log.log_end_offset
        if newest.end_offset > self.log.log_end_offset or (in_log and known != newest.epoch):
            logger.warning("%s begins again at its snapshot %s", self.log.topic_partition, newest)
            self.log.truncate_fully_and_start_at(newest.end_offset)
            self.snapshots.remove_before(newest.end_offset)

    # The protocol `raft.LogView`.

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_epoch(self) -> int:
        latest = self.log.latest_epoch
        if latest >= 0:
            return latest
        newest = self.snapshots.newest
        return 0 if newest is None else newest.epoch

    @property
    def snapshot(self) -> OffsetAndEpoch | None:
        newest = self.snapshots.newest
        return None if newest is None else OffsetAndEpoch(newest.end_offset, newest.epoch)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        latest, start = self.log.latest_epoch, self.start_offset
        if 0 <= latest <= epoch:
            return latest, self.end_offset
        if latest >= 0 and epoch >= self.log.epochs.entries[0][0]:
            return self.log.end_offset_for_epoch(epoch)
        for snapshot in self.snapshots.ids:
            if snapshot.end_offset == start and snapshot.epoch <= epoch:
                return snapshot.epoch, start
        return 0, start

    # For the quorum's shell.

    @property
    def is_blank(self) -> bool:
        """Whether the log has no record and no snapshot."""
        return self.end_offset == 0 and self.snapshots.newest is None

    def epoch_before(self, offset: int) -> int:
        """The epoch of the last record before `offset`."""
        epoch = self.log.epochs.epoch_of(offset - 1)
        for snapshot in self.snapshots.ids:
            if epoch < 0 and snapshot.end_offset == offset:
                epoch = snapshot.epoch
        return max(epoch, 0)

    def read_snapshot(self, snapshot: SnapshotId) -> SnapshotContent:
        """The decoded content of a snapshot; StorageError if it is damaged.

        May run in a worker thread.
        """
        try:
            return SnapshotContent(self.snapshots.read(snapshot))
        except MetadataError as error:
            raise StorageError(
                f"cannot use {self.snapshots.path(snapshot)}: {error}; start the node again, which"
                " then looks for another copy of what is in it"
            ) from error

    def voters_records(self) -> Iterator[tuple[int, VotersRecord]]:
        """The VotersRecords of the newest snapshot and of the log after it, with their offsets."""
        offset, newest = self.start_offset, self.snapshots.newest
        if newest is not None:
            content = self.read_snapshot(newest)
            if content.voters is not None:
                yield newest.end_offset - 1, content.voters
            offset = newest.end_offset
        while offset < self.end_offset:
            data = self.log.read(offset, READ_BYTES, self.end_offset, at_least_one=True).records
            headers = scan_headers(data)
            yield from voters_in_batches(data, headers)
            offset = headers[-1].next_offset

    def checked(self, records: Buffer) -> tuple[Buffer, list[BatchHeader]]:
        """The whole batches of a fetch response; CorruptBatch if they are not sound."""
        headers: list[BatchHeader] = scan_headers(records)
        expected = self.end_offset
        for header in headers:
            check_batch(records, header)
            if header.base_offset != expected:
                raise CorruptBatch(
                    f"a batch of the metadata log begins at offset {header.base_offset}, where"
                    f" {expected} is expected"
                )
            expected = header.next_offset
        whole = headers[-1].position + headers[-1].size if headers else 0
        return memoryview(records)[:whole], headers

    def truncate_to(self, offset: int) -> None:
        """Remove the records at and after `offset`."""
        self.log.truncate_to(offset)

    def begin_at(self, snapshot: SnapshotId) -> None:
        """Replace the log by a snapshot fetched from another node, which is on disk already."""
        self.snapshots.add(snapshot)
        self.log.truncate_fully_and_start_at(snapshot.end_offset)
        self.snapshots.remove_before(snapshot.end_offset)

    def add_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Add a snapshot of this log, and delete the records that the snapshot before it has."""
        previous = self.snapshots.newest
        self.snapshots.add(snapshot)
        if snapshot.end_offset < self.start_offset:
            # The log was replaced by another node's snapshot while this snapshot was written.
            self.snapshots.remove_before(self.start_offset)
            return
        # A new segment, so that the segments before it can be deleted as a whole.
        self.log.roll(now_ms)
        if previous is not None and previous.end_offset > self.start_offset:
            self.log.advance_log_start(previous.end_offset)
        self.log.retire_segments(now_ms, snapshot.end_offset)
        self.snapshots.remove_before(self.start_offset)


def voters_in_batches(
    data: Buffer, headers: list[BatchHeader]
) -> Iterator[tuple[int, VotersRecord]]:
    """The VotersRecords in batches of the log, with their offsets."""
    for header in headers:
        if header.is_control:
            for message in decode_control_batch(data, header):
                if isinstance(message, VotersRecord):
                    yield header.base_offset, message


# `quorum-state`, in Kafka's format: the epoch of a controller and its vote in that epoch.
#
# Rule: a vote or an epoch is on stable storage before a message with it is sent. A damaged file is
# never used: a node that forgets a vote could vote twice in the same epoch. The checksum reveals a
# changed digit, which would still be a valid number.


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
    """The content of `quorum-state`.

    `mayVote`, `recovering` and the checksum are not Kafka's, whose controllers compare directory
    ids instead.
    """
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

    Files of Kafka, and of headrace before it wrote checksums, are accepted without a checksum. An
    unknown field is taken for a damaged name.
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
    # A boolean is an int to Python, but not a number in the file.
    if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
        raise ValueError(f"{name} is {number!r}")
    return number


class QuorumStateFile:
    """The file `quorum-state` in the directory of the metadata log.

    `write` blocks for as long as a flush takes: the node must not proceed before.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self.path = f"{directory}/{QUORUM_STATE}"
        self._files = files
        # Whether the directory itself is known to survive a loss of power.
        self._is_durable = False

    def read(self) -> HardState | None:
        """The stored state, or None if there is no file; StorageError if it is damaged."""
        data = self._files.read_bytes(self.path)
        if data is None:
            return None
        try:
            return decode_quorum_state(data)
        except ValueError as error:
            raise StorageError(f"{self.path} is damaged: {error}") from error

    def load(self) -> HardState | None:
        """Read the stored state for a node that begins with it; durable on return.

        The run that wrote it may have ended before it was.
        """
        state = self.read()
        if state is not None:
            self._files.sync_directory(os.path.dirname(self.path))
            self._sync_parent()
        return state

    def write(self, state: HardState) -> None:
        """Replace the stored state; durable on return."""
        self._files.write_atomically(self.path, encode_quorum_state(state))
        self._sync_parent()

    def _sync_parent(self) -> None:
        if not self._is_durable:
            self._files.sync_directory(os.path.dirname(os.path.dirname(self.path)))
            self._is_durable = True
