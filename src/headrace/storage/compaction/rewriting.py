"""The files of a compacted segment while they are written, beside those it will replace.

Rule: nothing looks at them before they are complete and flushed; a start removes what is left.
"""

from collections.abc import Sequence
from contextlib import suppress

from headrace.errors import StorageError
from headrace.storage.aborted_index import ABORTED_SUFFIX, AbortedIndex, AbortedTransaction
from headrace.storage.compaction.output import Output
from headrace.storage.descriptors import OpenFiles
from headrace.storage.index import offset_index, time_index
from headrace.storage.segment import (
    ALL_SUFFIXES,
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)

# Flushed as it goes: one flush of everything at the end would make whoever appends wait behind it.
_SYNC_BYTES = 8 << 20


class NewSegment:
    """A segment being written to `.cleaned` files. For one thread at a time."""

    def __init__(
        self, open_files: OpenFiles, directory: str, base_offset: int, index_bytes_max: int
    ) -> None:
        self._open_files = open_files
        self._directory = directory
        self._base_offset = base_offset
        self._index_bytes_max = index_bytes_max
        self._path = f"{directory}/{base_offset:020d}"
        self._indexed_timestamp = -1
        self._synced = 0
        self.size = 0
        self.remove()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            open_files.files.open(self._name(suffix), create=True)
        self._file = open_files.files.open(self._name(LOG_SUFFIX), create=True)
        self._offsets = offset_index(open_files, self._name(INDEX_SUFFIX), 0, index_bytes_max)
        self._times = time_index(open_files, self._name(TIME_INDEX_SUFFIX), 0, index_bytes_max)
        self._aborted = AbortedIndex(open_files, self._name(ABORTED_SUFFIX), 0)

    def _name(self, suffix: str) -> str:
        return self._path + suffix + CLEANED_SUFFIX

    def write(self, output: Output) -> None:
        """Take what was kept since the last call."""
        used = output.used
        if used:
            with memoryview(output.data) as view:
                self._file.write_at(self.size, view[:used])
            self.size += used
            if self.size - self._synced >= _SYNC_BYTES:
                self._file.sync()
                self._synced = self.size
        for last_offset, position, timestamp, timestamp_offset in output.drain():
            self._offsets.append(last_offset - self._base_offset, position)
            self._note_timestamp(timestamp, timestamp_offset)
        for index in (self._offsets, self._times):
            if index.wants_write:
                index.write_pending()

    def _note_timestamp(self, timestamp: int, offset: int) -> None:
        if timestamp > self._indexed_timestamp:
            self._times.append(timestamp, offset - self._base_offset)
            self._indexed_timestamp = timestamp

    def finish(
        self, output: Output, aborted: Sequence[AbortedTransaction], created_ms: int
    ) -> Segment:
        """Write the rest and make it all durable; the segment these files will be."""
        self.write(output)
        self._note_timestamp(output.max_timestamp, output.max_timestamp_offset)
        for entry in aborted:
            self._aborted.append(entry)
        for index in (self._offsets, self._times, self._aborted):
            index.write_pending()
            index.sync()
        self._file.sync()
        return Segment(
            self._open_files,
            self._directory,
            self._base_offset,
            index_bytes_max=self._index_bytes_max,
            created_ms=created_ms,
            sizes=(self.size, self._offsets.size, self._times.size),
            aborted_size=self._aborted.size,
        )

    def remove(self) -> None:
        """Remove whatever there is of the files."""
        for suffix in ALL_SUFFIXES:
            self._open_files.files.remove(self._name(suffix))
            self._open_files.forget(self._name(suffix))

    def abandon(self) -> None:
        """As `remove`, where a failure has been met already."""
        with suppress(StorageError):
            self.remove()
