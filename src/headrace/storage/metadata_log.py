"""The metadata log together with its snapshots, as the consensus core sees it: a `raft.LogView`.

Rule: a record is below the log start only if a snapshot has it. Of two snapshots the older one is
where the log begins, so that a follower which is a little behind still finds records.
"""

import logging
from collections.abc import Iterator

from headrace.errors import CorruptBatch, StorageError
from headrace.metadata.control_records import decode_control_batch
from headrace.metadata.records import MetadataError
from headrace.metadata.snapshot_batches import SnapshotContent
from headrace.protocol.messages.quorum_records import VotersRecord
from headrace.protocol.records import BatchHeader, check_batch, scan_headers
from headrace.raft.values import OffsetAndEpoch
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.metadata_snapshots import MetadataSnapshots, SnapshotId
from headrace.types import Buffer

logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024


class MetadataLog:
    """One thread owns it, but the methods of `log` and `snapshots` that may run in another."""

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

    # What `raft.LogView` asks for.

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
        for one in self.snapshots.ids:
            if one.end_offset == start and one.epoch <= epoch:
                return one.epoch, start
        return 0, start

    # What the shell does with it.

    @property
    def is_blank(self) -> bool:
        """Whether nothing was ever written here."""
        return self.end_offset == 0 and self.snapshots.newest is None

    def epoch_before(self, offset: int) -> int:
        """The epoch of the last record before `offset`."""
        epoch = self.log.epochs.epoch_of(offset - 1)
        for one in self.snapshots.ids:
            if epoch < 0 and one.end_offset == offset:
                epoch = one.epoch
        return max(epoch, 0)

    def read_snapshot(self, snapshot: SnapshotId) -> SnapshotContent:
        """What a snapshot says; StorageError if it is damaged. May run in a worker thread."""
        try:
            return SnapshotContent(self.snapshots.read(snapshot))
        except MetadataError as error:
            raise StorageError(
                f"cannot use {self.snapshots.path(snapshot)}: {error}; start the node again, which"
                " then looks for another copy of what is in it"
            ) from error

    def voters_records(self) -> Iterator[tuple[int, VotersRecord]]:
        """The voters that the newest snapshot names, and every later change, with their offsets."""
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
        """The whole batches a leader sent; CorruptBatch or MetadataError if they are not sound."""
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
        """Drop everything for a snapshot of another node that is on disk already."""
        self.snapshots.add(snapshot)
        self.log.truncate_fully_and_start_at(snapshot.end_offset)
        self.snapshots.remove_before(snapshot.end_offset)

    def add_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Take note of a snapshot of this log, and let go what an older one has too."""
        previous = self.snapshots.newest
        self.snapshots.add(snapshot)
        if snapshot.end_offset < self.start_offset:
            # Another node's snapshot took the place of all this while it was written.
            self.snapshots.remove_before(self.start_offset)
            return
        # A segment of its own from here on, so that what is before can go in one piece.
        self.log.roll(now_ms)
        if previous is not None and previous.end_offset > self.start_offset:
            self.log.advance_log_start(previous.end_offset)
        self.log.retire_segments(now_ms, snapshot.end_offset)
        self.snapshots.remove_before(self.start_offset)


def voters_in_batches(
    data: Buffer, headers: list[BatchHeader]
) -> Iterator[tuple[int, VotersRecord]]:
    """The voters records in batches of the log, with their offsets."""
    for header in headers:
        if header.is_control:
            for message in decode_control_batch(data, header):
                if isinstance(message, VotersRecord):
                    yield header.base_offset, message
