"""The future log of a replica: a copy in another data directory that replaces the current log.

Rule: the copy has the batches of the current log byte for byte, from its start on, and no others.
State that the batches do not contain (producers without batches, epochs without records, the clean
offset of compaction) is taken over when it becomes the current log.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import CorruptBatch
from headrace.protocol.batch import check_batch, scan_headers
from headrace.storage.checkpoints import MOVE_METADATA, decode_move_metadata, encode_move_metadata
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import Files
from headrace.storage.log import Log

Epochs = Sequence[tuple[int, int]]


class FutureLog:
    """A log that is being filled with the records of the current log.

    Used by the thread that owns the current log; only `copy` and `cut` may run in a worker thread,
    with no other call at the same time.
    """

    __slots__ = ("_truncations", "directory", "log", "prepared")

    def __init__(self, log: Log, directory: DataDirectory) -> None:
        self.log = log
        self.directory = directory
        # Whether `move.metadata` is in the directory of the current log.
        self.prepared = False
        self._truncations = -1

    def divergence(self, current: Log) -> int | None:
        """The offset at which the copy must be `cut` before more is copied; None if it need not be.

        It is the offset where the records of both logs diverge, after a truncation of the current
        log; or the start of the current log, if that is behind the end of the copy.
        """
        log, start_offset = self.log, current.log_start_offset
        if log.log_end_offset < start_offset:
            return start_offset
        if self._truncations == current.truncations:
            return None
        end_offset = common_end(
            log.epochs.entries, log.log_end_offset, current.epochs.entries, current.log_end_offset
        )
        if end_offset < log.log_end_offset:
            return max(end_offset, start_offset)
        self._truncations = current.truncations
        return None

    def cut(self, offset: int) -> None:
        """Remove records that the current log does not have; the copy continues at `offset`."""
        if offset > self.log.log_end_offset:
            self.log.truncate_fully_and_start_at(offset)
        else:
            self.log.truncate_to(offset)

    def copy(self, current: Log, bytes_max: int, now_ms: int) -> int:
        """Append the next batches of the current log; return their size in bytes.

        At most `bytes_max`, but at least one batch. Nothing is flushed. KafkaError if the current
        log was truncated, or its oldest records deleted, meanwhile: then `divergence` returns the
        offset to continue at.
        """
        log = self.log
        if log.config is not current.config:
            log.update_config(current.config)
        offset, end_offset = log.log_end_offset, current.log_end_offset
        bytes_max = min(bytes_max, log.config.segment_bytes)
        data = current.read(offset, bytes_max, end_offset, at_least_one=True).records
        size = 0
        try:
            headers = scan_headers(data)
            for header in headers:
                check_batch(data, header, compacted=True)
        except CorruptBatch:
            current.suspect(offset)
            raise
        if headers:
            size = headers[-1].position + headers[-1].size
            log.append_replicated(memoryview(data)[:size], headers, now_ms)
        elif offset < end_offset:
            log.roll(now_ms, end_offset)
        log.advance_log_start(min(current.log_start_offset, log.log_end_offset))
        return size

    def take_over(self, current: Log) -> None:
        """Copy the state of the current log that is not in its batches, at the same end offset."""
        log = self.log
        assert log.log_end_offset == current.log_end_offset, (log.directory, current.directory)
        log.advance_log_start(current.log_start_offset)
        log.epochs.replace(current.epochs.entries)
        log.snapshots.take(current.producers, log.log_end_offset)
        log.producers = current.producers
        log.clean_offset = current.clean_offset
        log.topic_id = current.topic_id


@dataclass(slots=True)
class ReplacedLog:
    """A log that its future log has replaced. Reads in progress may finish.

    Its files are deleted at `delete_at_ms`, but not before the new log is `durable`.
    """

    log: Log
    directory: DataDirectory
    new_directory: DataDirectory
    delete_at_ms: int
    durable: bool = False


def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int:
    """The offset up to which two logs have the same records, given their epochs; -1 for none.

    A leader writes an offset once in its epoch, so the logs agree up to the earlier of the two ends
    of the newest epoch that both have (KIP-101).
    """
    if not ours:
        return min(our_end, their_end)
    ends = [*(start for _, start in theirs[1:]), their_end]
    their_ends = {epoch: end for (epoch, _), end in zip(theirs, ends, strict=False)}
    end = our_end
    for epoch, start in reversed(ours):
        if epoch in their_ends:
            return min(end, their_ends[epoch])
        end = start
    return -1


def destination_of(files: Files, path: str) -> bytes | None:
    """The id of the directory that the replica in `path` was moving to, or None."""
    data = files.read_bytes(f"{path}/{MOVE_METADATA}")
    try:
        return decode_move_metadata(data) if data else None
    except ValueError:
        return None


def write_destination(files: Files, path: str, directory_id: bytes) -> None:
    """Write `move.metadata`, durably: the replica in `path` is about to move to a directory."""
    files.write_atomically(f"{path}/{MOVE_METADATA}", encode_move_metadata(directory_id))


def remove_destination(files: Files, path: str) -> None:
    """Remove `move.metadata`, durably."""
    files.remove(f"{path}/{MOVE_METADATA}")
    files.sync_directory(path)
