"""Scrubbing: reading segments again, to find damage while other replicas are intact.

Rule: a pass over a data directory reads every segment once, in the order of partitions and offsets,
the active ones up to their present size. Its progress is written to a file, so that a restart
continues the pass.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.batch import HEADER_SIZE, check_batch, read_header
from headrace.storage.damage import DamagedLog, find_whole_batch
from headrace.storage.files import ResourceShortage
from headrace.storage.leader_epochs import NO_EPOCH, epoch_at
from headrace.storage.segment import Segment
from headrace.types import TopicPartition

SCRUB_CHECKPOINT = "scrub-checkpoint"
NEVER = -1

_VERSION = "0"
# Small, as the GIL is held while a piece is checked.
_PIECE_BYTES = 1 << 16
_DAMAGE_MAX = 100
_NUMBERS = ("started_ms", "finished_ms", "segment_count", "byte_count")


class SegmentKey(NamedTuple):
    """A segment by its partition and its base offset."""

    partition: TopicPartition
    base_offset: int


class SegmentDamage(NamedTuple):
    """A damaged segment, and its damaged offsets."""

    key: SegmentKey
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of a pass over a data directory: its times, and the segments read so far.

    `last` is the segment that was read last. `damage` has the damage that is not repaired yet, of
    earlier passes too.
    """

    started_ms: int = NEVER
    finished_ms: int = NEVER
    segment_count: int = 0
    byte_count: int = 0
    last: SegmentKey | None = None
    damage: tuple[SegmentDamage, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return self.started_ms != NEVER and self.finished_ms == NEVER

    def begun(self, now_ms: int, interval_ms: int, since_ms: int = NEVER) -> "ScrubProgress":
        """A new pass if one is due: `interval_ms` after the last one began, and when it ended.

        A pass that began before `since_ms` is always due again: disks may have changed meanwhile.
        """
        waited_ms = now_ms - self.started_ms
        # Otherwise a clock that was set back would delay the next pass by as much.
        due = self.started_ms < since_ms or not 0 <= waited_ms < interval_ms
        due = due or self.started_ms == NEVER
        return self if self.is_under_way or not due else ScrubProgress(now_ms, damage=self.damage)

    def ended(self, now_ms: int) -> "ScrubProgress":
        """The pass after its last segment."""
        return replace(self, finished_ms=now_ms, last=None)

    def read(
        self, key: SegmentKey, size: int, damage: SegmentDamage | None = None
    ) -> "ScrubProgress":
        """The pass after another segment, whose earlier damage is replaced."""
        known = tuple(earlier for earlier in self.damage if earlier.key != key)
        return replace(
            self,
            segment_count=self.segment_count + 1,
            byte_count=self.byte_count + size,
            last=key,
            damage=(known if damage is None else (*known, damage))[:_DAMAGE_MAX],
        )

    def found(self, damage: SegmentDamage) -> "ScrubProgress":
        """The pass with damage in a segment read out of order."""
        known = tuple(other for other in self.damage if other.key != damage.key)
        return replace(self, damage=(*known, damage)[:_DAMAGE_MAX])

    def without(self, damage: SegmentDamage) -> "ScrubProgress":
        """The pass without the damage of a segment that does not exist any more."""
        return replace(self, damage=tuple(known for known in self.damage if known != damage))


def next_segment(
    progress: ScrubProgress,
    partitions: Sequence[TopicPartition],
    segments_of: Callable[[TopicPartition], Sequence[int]],
) -> SegmentKey | None:
    """The segment to read after the last segment; None at the end of the pass.

    `partitions` are in order, and so are the base offsets that `segments_of` has of each.
    """
    last = progress.last
    first = 0
    if last is not None:
        first = bisect_right(partitions, last.partition)
        if first and partitions[first - 1] == last.partition:
            offsets = segments_of(last.partition)
            later = offsets[bisect_right(offsets, last.base_offset) :]
            if later:
                return SegmentKey(last.partition, later[0])
    for partition in partitions[first:]:
        offsets = segments_of(partition)
        if offsets:
            return SegmentKey(partition, offsets[0])
    return None


def encode_progress(progress: ScrubProgress) -> bytes:
    """The content of `scrub-checkpoint`."""
    lines = [_VERSION, *(f"{name}={getattr(progress, name)}" for name in _NUMBERS)]
    if progress.last is not None:
        lines.append(f"last={_key_text(progress.last)}")
    lines += [
        f"damage={_key_text(damage.key)} {damage.first_offset} {damage.end_offset}"
        for damage in progress.damage
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def decode_progress(data: bytes | None) -> ScrubProgress:
    """The inverse of `encode_progress`; an empty Progress if the data cannot be read."""
    try:
        version, *lines = (data or b"").decode().splitlines()
        if version != _VERSION:
            return ScrubProgress()
        numbers: dict[str, int] = {}
        last, damage = None, []
        for name, _, value in (line.partition("=") for line in lines):
            words = value.split(" ")
            if name in _NUMBERS:
                numbers[name] = int(value)
            elif name == "last":
                last = _key(words)
            else:
                damage.append(SegmentDamage(_key(words), int(words[3]), int(words[4])))
        return ScrubProgress(**numbers, last=last, damage=tuple(damage))
    except (ValueError, IndexError):
        return ScrubProgress()


def _key_text(key: SegmentKey) -> str:
    return f"{key.partition.topic} {key.partition.partition} {key.base_offset}"


def _key(words: Sequence[str]) -> SegmentKey:
    return SegmentKey(TopicPartition(words[0], int(words[1])), int(words[2]))


def check_segment(
    segment: Segment, end_offset: int, epochs: Sequence[tuple[int, int]] = ()
) -> Iterator[int]:
    """Read a segment up to its present size, yielding the size of each piece.

    `end_offset` is the base offset of the next segment, or the end of the log. `epochs` are the
    leader epochs of the log with their start offsets: a batch's own epoch is not covered by its
    CRC. Raises DamagedLog where a batch is wrong by its CRC, its place in the chain of batches, its
    offsets or its epoch, or cannot be read; and ResourceShortage without a free descriptor to read
    it with.
    """
    return _check_pieces(segment, segment.size, end_offset, epochs)


def _check_pieces(
    segment: Segment, size: int, end_offset: int, epochs: Sequence[tuple[int, int]]
) -> Iterator[int]:
    position, offset, piece = 0, segment.base_offset, _PIECE_BYTES

    def damaged(reason: str, until: int = end_offset, at: int = 0, length: int = 0) -> StorageError:
        where = position + at
        return DamagedLog(
            segment.log_path,
            f"at position {where}, {reason}",
            offset,
            max(until, offset + 1),
            length or size - where,
        )

    def broken(reason: str, at: int) -> StorageError:
        """The error of damage, up to the next whole batch if there is one."""
        where = position + at
        found = find_whole_batch([segment], 0, where, offset)
        if found is None:
            return damaged(reason, at=at)
        segment.sound_from = (found.header.base_offset, found.position)
        return damaged(reason, found.header.base_offset, at, found.position - where)

    while position < size:
        length = min(piece, size - position)
        try:
            data = segment.file().read_without_caching(position, length)
        except ResourceShortage:
            raise
        except StorageError as error:
            raise damaged(str(error)) from error
        if len(data) < length:
            raise damaged(f"the file ends after {position + len(data)} of {size} bytes")
        at = 0
        while at + HEADER_SIZE <= len(data):
            try:
                header = read_header(data, at)
            except CorruptBatch as error:
                raise broken(str(error), at) from error
            if not offset <= header.base_offset < header.next_offset <= end_offset:
                found = f"offsets {header.base_offset} to {header.last_offset}"
                raise broken(f"{found} are not between {offset} and {end_offset}", at)
            epoch = epoch_at(epochs, header.base_offset)
            if header.leader_epoch != epoch != NO_EPOCH:
                found = f"leader epoch {header.leader_epoch}"
                raise damaged(
                    f"{found} is not {epoch}, which wrote offset {header.base_offset}",
                    header.next_offset,
                    at,
                    header.size,
                )
            piece = max(header.size, _PIECE_BYTES)
            if at + header.size > len(data):
                break
            try:
                check_batch(data, header, compacted=True)
            except CorruptBatch as error:
                # Its length may be wrong, too.
                raise broken(str(error), at) from error
            offset = header.next_offset
            at += header.size
        if not at and piece <= length:
            raise broken(f"only {size - position} bytes are left of a batch", 0)
        if not at and piece > size - position:
            raise broken(f"a batch of {piece} bytes is cut short", 0)
        position += at
        yield at
