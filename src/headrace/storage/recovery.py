"""Opening a log: what its directory holds, and what is left of it after a crash.

Rule: segments that end before the last record below the recovery point are trusted: what made that
record durable did so with their indexes. From its segment on every batch is walked, those past the
recovery point with their CRC, and the log ends before the first that is torn or corrupt. After a
clean shutdown only the tail behind the last index entry is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.records import check_batch
from headrace.storage.aborted_index import ABORTED_SUFFIX, aborted_size_fits
from headrace.storage.checkpoints import (
    PARTITION_METADATA,
    decode_partition_metadata,
    encode_partition_metadata,
)
from headrace.storage.descriptors import OpenFiles
from headrace.storage.epochs import LeaderEpochs
from headrace.storage.files import Files
from headrace.storage.flushing import Flusher
from headrace.storage.index import DamagedIndex
from headrace.storage.producers import Producers
from headrace.storage.reading import segment_index
from headrace.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    index_sizes_fit,
)
from headrace.storage.segments import Segments
from headrace.storage.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from headrace.storage.snapshots import Snapshots

TEMPORARY_SUFFIX = ".tmp"


@dataclass(slots=True)
class Report:
    """What opening a log took and cost, for whoever writes it to the broker's log."""

    scanned: bool = False
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_because: str = ""
    rebuilt_indexes: int = 0


class Loaded(NamedTuple):
    """Everything a log is made of."""

    open_files: OpenFiles
    segments: Segments
    epochs: LeaderEpochs
    producers: Producers
    snapshots: Snapshots
    flusher: Flusher
    topic_id: bytes | None
    log_start_offset: int
    log_end_offset: int
    report: Report


def load(
    open_files: OpenFiles,
    directory: str,
    config: TopicConfig,
    now_ms: int,
    *,
    topic_id: bytes | None,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
) -> Loaded:
    """Open the log in `directory`, or begin one there. A new log gets `topic_id` written down."""
    loader = _Loader(open_files, directory, config, now_ms)
    try:
        is_new = loader.find(log_start_offset)
        try:
            loader.epochs.load()
        except ValueError:
            # Every batch names its epoch, so a scan of the whole log finds them again.
            clean, recovery_point = False, 0
        if is_new:
            end_offset = log_start_offset
            if topic_id is not None:
                write_topic_id(open_files.files, directory, topic_id)
        else:
            end_offset = loader.load(recovery_point, clean=clean)
            topic_id = read_topic_id(open_files.files, directory) or topic_id
    except CorruptBatch as error:
        raise StorageError(f"cannot open {directory}: {error}") from error
    if end_offset < log_start_offset:
        # What was deleted on request must not come back, nor its offsets be given out again.
        loader.restart(log_start_offset)
        end_offset = log_start_offset
    loader.snapshots.keep_only({segment.base_offset for segment in loader.segments})
    start_offset = max(log_start_offset, loader.segments[0].base_offset)
    loader.epochs.truncate_from_end(end_offset)
    loader.epochs.truncate_from_start(start_offset)
    flusher = Flusher(
        open_files.files,
        directory,
        loader.epochs,
        loader.snapshots,
        recovery_point=end_offset,
        now_ms=now_ms,
        is_new=is_new,
    )
    return Loaded(
        open_files,
        Segments(open_files, directory, loader.segments),
        loader.epochs,
        loader.producers,
        loader.snapshots,
        flusher,
        topic_id,
        start_offset,
        end_offset,
        loader.report,
    )


def load_producers(
    producers: Producers,
    snapshots: Snapshots,
    segments: Sequence[Segment],
    end_offset: int,
    heard_ms: int,
) -> None:
    """Bring producer state to what it was at `end_offset`: a snapshot, and the batches since.

    The producers of those batches count as heard of at `heard_ms`.
    """
    offset = snapshots.load_newest(producers, end_offset) or 0
    _replay(producers, segments, offset, end_offset, heard_ms)


def _replay(
    producers: Producers,
    segments: Sequence[Segment],
    offset: int,
    end_offset: int,
    heard_ms: int,
) -> None:
    if offset >= end_offset or not segments:
        return
    for segment in segments[max(segment_index(segments, offset), 0) :]:
        start = segment.position_of(offset, segment.size)
        for header, buffer, _ in segment.batches(start, segment.size):
            if header.next_offset > end_offset:
                return
            producers.replay(header, buffer, heard_ms)


def read_topic_id(files: Files, directory: str) -> bytes | None:
    """The topic id in `partition.metadata`; None if a crash has left nothing usable of it."""
    data = files.read_bytes(f"{directory}/{PARTITION_METADATA}")
    try:
        return decode_partition_metadata(data) if data else None
    except ValueError:
        return None


def write_topic_id(files: Files, directory: str, topic_id: bytes) -> None:
    """Write `partition.metadata`. It is not flushed: the cluster's metadata has the id as well."""
    path = f"{directory}/{PARTITION_METADATA}"
    files.write_atomically(path, encode_partition_metadata(topic_id), sync=False)


class _Loader:
    """A log while it is being opened."""

    def __init__(
        self, open_files: OpenFiles, directory: str, config: TopicConfig, now_ms: int
    ) -> None:
        self.report = Report()
        self.segments: list[Segment] = []
        self.epochs = LeaderEpochs(open_files.files, directory)
        self.producers = Producers()
        self.snapshots = Snapshots(open_files.files, directory, [])
        self._open_files = open_files
        self._files = open_files.files
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._damaged: set[int] = set()
        self._damaged_aborted: set[int] = set()

    def find(self, log_start_offset: int) -> bool:
        """Look at the directory; whether there is no log in it yet, and so one is begun."""
        if not self._files.exists(self._directory):
            self._files.make_directory(self._directory)
            sizes = {}
        else:
            sizes = self._without_leftovers(self._files.file_sizes(self._directory))
        offsets = [_offset(name) for name in sizes if name.endswith(SNAPSHOT_SUFFIX)]
        self.snapshots = Snapshots(
            self._files, self._directory, [offset for offset in offsets if offset is not None]
        )
        for name, size in sizes.items():
            if name.endswith(LOG_SUFFIX) and (offset := _offset(name)) is not None:
                stem = name.removesuffix(LOG_SUFFIX)
                index_sizes = tuple(sizes.get(stem + suffix, -1) for suffix in SUFFIXES[1:])
                aborted_size = sizes.get(stem + ABORTED_SUFFIX, 0)
                self._add(offset, size, index_sizes[0], index_sizes[1], aborted_size)
        if self.segments:
            return False
        self.restart(log_start_offset)
        return True

    def _add(
        self, base_offset: int, size: int, index_size: int, time_index_size: int, aborted_size: int
    ) -> None:
        if min(index_size, time_index_size) < 0 or not index_sizes_fit(index_size, time_index_size):
            self._damaged.add(base_offset)
        if not aborted_size_fits(aborted_size):
            self._damaged_aborted.add(base_offset)
        sizes = (size, max(index_size, 0), max(time_index_size, 0))
        self.segments.append(self._segment(base_offset, sizes, aborted_size))

    def _segment(
        self, base_offset: int, sizes: tuple[int, int, int] = (0, 0, 0), aborted_size: int = 0
    ) -> Segment:
        return Segment(
            self._open_files,
            self._directory,
            base_offset,
            index_bytes_max=self._config.segment_index_bytes,
            created_ms=self._now_ms,
            sizes=sizes,
            aborted_size=aborted_size,
        )

    def _without_leftovers(self, sizes: dict[str, int]) -> dict[str, int]:
        """Finish or undo what a crash interrupted; the files that are left."""
        gone = [n for n in sizes if n.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX))]
        stems = {n.removesuffix(LOG_SUFFIX) for n in sizes if n.endswith(LOG_SUFFIX)}
        indexes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)
        gone += [n for n in sizes if n.endswith(indexes) and n.rpartition(".")[0] not in stems]
        for name in gone:
            self._files.remove(f"{self._directory}/{name}")
        swaps = [name for name in sizes if name.endswith(SWAP_SUFFIX)]
        if not swaps:
            return {name: size for name, size in sizes.items() if name not in gone}
        for name in swaps:
            self._finish_swap(name, sizes)
        return self._files.file_sizes(self._directory)

    def _finish_swap(self, name: str, sizes: dict[str, int]) -> None:
        """A rewritten segment was complete when it got this name: put it in place of the old ones.

        Its indexes are dropped, since they may be older than it; they are rebuilt. It takes its
        name last, so that a crash here does not leave the others beside it.
        """
        path = f"{self._directory}/{name}"
        final = path.removesuffix(SWAP_SUFFIX)
        base_offset = _offset(name.removesuffix(SWAP_SUFFIX))
        if not final.endswith(LOG_SUFFIX) or base_offset is None:
            self._files.remove(path)
            return
        swapped = self._segment(base_offset, (sizes[name], 0, 0))
        swapped.read_from(self._files.open(path))
        end_offset = base_offset
        for header, _, _ in swapped.batches(0, swapped.size):
            end_offset = header.next_offset
        for other in sizes:
            offset = _offset(other) if other.endswith(LOG_SUFFIX) else None
            if offset is not None and base_offset < offset < end_offset:
                self._segment(offset).remove()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX):
            self._files.remove(final.removesuffix(LOG_SUFFIX) + suffix)
        self._files.rename(path, final)
        self._damaged_aborted.add(base_offset)

    def restart(self, base_offset: int) -> None:
        """Remove everything and begin an empty log at `base_offset`."""
        for segment in self.segments:
            segment.remove()
        self.producers.clear()
        self.snapshots.remove_after(-1)
        self.segments = [self._segment(base_offset)]
        self.segments[0].create()

    def load(self, recovery_point: int, *, clean: bool) -> int:
        """Make the log usable, scanning as little as is safe; the end offset."""
        end_offset = self._load_clean_tail() if clean else None
        if end_offset is None:
            return self._recover(recovery_point)
        load_producers(self.producers, self.snapshots, self.segments, end_offset, self._now_ms)
        return end_offset

    def _load_clean_tail(self) -> int | None:
        """The end offset of a log that was closed properly; None if it turns out it was not."""
        for index, segment in enumerate(self.segments[:-1]):
            if segment.base_offset in self._damaged:
                self._rebuild(segment)
            if segment.base_offset in self._damaged_aborted:
                self._rebuild_aborted(index)
        active = self.segments[-1]
        if active.base_offset in self._damaged | self._damaged_aborted:
            return None
        try:
            active.check_indexes()
            active.check_aborted()
            return active.load_tail()
        except (CorruptBatch, DamagedIndex):
            return None

    def _recover(self, recovery_point: int) -> int:
        """Walk what may be torn, cut the log at the first damage; the end offset."""
        first = max(segment_index(self.segments, recovery_point - 1), 0)
        for index in range(first):
            self._check_trusted(index)
        start_offset = self.segments[first].base_offset
        load_producers(
            self.producers, self.snapshots, self.segments[:first], start_offset, self._now_ms
        )
        if first and start_offset not in self.snapshots.offsets:
            # It was damaged. When the segments before are gone nothing else can tell.
            self.snapshots.take(self.producers, start_offset)
        end_offset = start_offset
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            if index > first:
                if (
                    segment.base_offset != end_offset
                    and "compact" not in self._config.cleanup_policy
                ):
                    # A segment begins where the one before it ended, so some of that was lost.
                    self.report.truncated_because = (
                        f"{segment.log_path} does not follow on offset {end_offset}"
                    )
                    self._remove_from(index)
                    break
                self.snapshots.take(self.producers, segment.base_offset)
            end_offset = self._scan(segment, end_offset, recovery_point)
            if self.report.truncated_because:
                self._remove_from(index + 1)
                break
        self.epochs.save()
        if end_offset != recovery_point or self.report.truncated_because:
            # What the dead process wrote may be nowhere but in memory yet.
            for segment in self.segments[first:]:
                segment.sync(indexes=True)
            self.snapshots.sync()
            self._files.sync_file(self.epochs.path)
            self._files.sync_directory(self._directory)
        self.report.scanned = True
        return end_offset

    def _remove_from(self, index: int) -> None:
        for segment in self.segments[index:]:
            self.report.truncated_bytes += segment.size
            segment.remove()
        del self.segments[index:]

    def _check_trusted(self, index: int) -> None:
        segment = self.segments[index]
        try:
            if segment.base_offset in self._damaged:
                raise DamagedIndex(segment.path)
            segment.check_indexes()
        except DamagedIndex:
            self._rebuild(segment)
        try:
            if segment.base_offset in self._damaged_aborted:
                raise DamagedIndex(segment.aborted.path)
            segment.check_aborted()
        except DamagedIndex:
            self._rebuild_aborted(index)

    def _rebuild(self, segment: Segment) -> None:
        """Make the indexes of a trusted segment again from its batch headers."""
        self.report.rebuilt_indexes += 1
        segment.reset_indexes()
        for header, _, position in segment.batches(0, segment.size):
            segment.note_batch(header, position, self._config.index_interval_bytes)
            segment.write_indexes()
        segment.finish_indexes()
        segment.sync(indexes=True)

    def _rebuild_aborted(self, index: int) -> None:
        """Find the aborted transactions of a trusted segment again, and those it began in."""
        self.report.rebuilt_indexes += 1
        segment = self.segments[index]
        segment.aborted.reset()
        producers = Producers()
        offset = self.snapshots.load_as_of(producers, segment.base_offset) or 0
        _replay(producers, self.segments[:index], offset, segment.base_offset, self._now_ms)
        for header, buffer, _ in segment.batches(0, segment.size):
            aborted = producers.replay(header, buffer)
            if aborted is not None:
                segment.aborted.append(aborted)
        segment.aborted.write_pending()
        segment.aborted.sync()
        self._files.sync_directory(self._directory)

    def _scan(self, segment: Segment, end_offset: int, recovery_point: int) -> int:
        """Check a segment's batches, making its indexes again; the end offset after it."""
        size, valid = segment.size, 0
        self.report.scanned_bytes += size
        segment.reset_indexes()
        segment.aborted.reset()
        expected = max(end_offset, segment.base_offset)
        try:
            for header, buffer, position in segment.batches(0, size):
                if header.base_offset < expected:
                    raise CorruptBatch(
                        f"{segment.log_path} at position {position}: offset {header.base_offset}"
                        f" follows {expected - 1}"
                    )
                # Below the recovery point a wrong CRC is no torn write: the batch is left for its
                # readers to refuse, rather than cut off with everything that follows.
                if header.next_offset > recovery_point:
                    check_batch(buffer, header, compacted=True)
                segment.note_batch(header, position, self._config.index_interval_bytes)
                segment.write_indexes()
                self.epochs.replay(header.leader_epoch, header.base_offset)
                aborted = self.producers.replay(header, buffer, self._now_ms)
                if aborted is not None:
                    segment.aborted.append(aborted)
                valid = position + header.size
                expected = header.next_offset
        except CorruptBatch as error:
            self.report.truncated_because = str(error)
            self.report.truncated_bytes += size - valid
            segment.file().truncate(valid)
            segment.size = valid
        segment.finish_indexes()
        return expected


def _offset(name: str) -> int | None:
    """The offset in a file's name, or None if it is not one of ours."""
    stem = name.partition(".")[0]
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else None
