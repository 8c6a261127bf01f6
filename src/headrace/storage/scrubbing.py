"""Reading closed segments again, to find damage while other replicas are intact.

Rule: a pass over a data directory reads every closed segment once, in the order of partitions and
offsets. How far it has come is written down, so that a restart goes on with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.records import HEADER_SIZE, check_batch, read_header
from headrace.storage.damage import DamagedLog
from headrace.storage.files import Shortage
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
    """A segment by its partition and its first offset."""

    partition: TopicPartition
    base_offset: int


class Damage(NamedTuple):
    """A segment that was found damaged, and which of its offsets are."""

    key: SegmentKey
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A pass over a data directory: when it began and ended, and what it has read so far.

    `last` is the segment that was read last. `damage` is what was found and is still there, of
    earlier passes too.
    """

    started_ms: int = NEVER
    finished_ms: int = NEVER
    segment_count: int = 0
    byte_count: int = 0
    last: SegmentKey | None = None
    damage: tuple[Damage, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return self.started_ms != NEVER and self.finished_ms == NEVER

    def begun(self, now_ms: int, interval_ms: int) -> "Progress":
        """A new pass if one is due: `interval_ms` after the last one began, and when it ended."""
        waited_ms = now_ms - self.started_ms
        # A clock that was set back would else hold up the next pass for as long.
        due = self.started_ms == NEVER or not 0 <= waited_ms < interval_ms
        return self if self.is_under_way or not due else Progress(now_ms, damage=self.damage)

    def ended(self, now_ms: int) -> "Progress":
        """The pass after its last segment."""
        return replace(self, finished_ms=now_ms, last=None)

    def read(self, key: SegmentKey, size: int, damage: Damage | None = None) -> "Progress":
        """The pass after one more segment; what was known of it before is superseded."""
        known = tuple(one for one in self.damage if one.key != key)
        return replace(
            self,
            segment_count=self.segment_count + 1,
            byte_count=self.byte_count + size,
            last=key,
            damage=(known if damage is None else (*known, damage))[:_DAMAGE_MAX],
        )

    def without(self, damage: Damage) -> "Progress":
        """The pass without a finding that is gone with its segment."""
        return replace(self, damage=tuple(one for one in self.damage if one != damage))


def next_segment(
    progress: Progress,
    partitions: Sequence[TopicPartition],
    closed_segments: Callable[[TopicPartition], Sequence[int]],
) -> SegmentKey | None:
    """The segment to read after the last one; None at the end of the pass.

    `partitions` are in order, and so are the base offsets that `closed_segments` has of each.
    """
    last = progress.last
    first = 0
    if last is not None:
        first = bisect_right(partitions, last.partition)
        if first and partitions[first - 1] == last.partition:
            offsets = closed_segments(last.partition)
            later = offsets[bisect_right(offsets, last.base_offset) :]
            if later:
                return SegmentKey(last.partition, later[0])
    for partition in partitions[first:]:
        offsets = closed_segments(partition)
        if offsets:
            return SegmentKey(partition, offsets[0])
    return None


def encode_progress(progress: Progress) -> bytes:
    """The text of `scrub-checkpoint`."""
    lines = [_VERSION, *(f"{name}={getattr(progress, name)}" for name in _NUMBERS)]
    if progress.last is not None:
        lines.append(f"last={_key_text(progress.last)}")
    lines += [f"damage={_key_text(one.key)} {one[1]} {one[2]}" for one in progress.damage]
    return "".join(f"{line}\n" for line in lines).encode()


def decode_progress(data: bytes | None) -> Progress:
    """The inverse of `encode_progress`; a pass that never began if it cannot be read."""
    try:
        version, *lines = (data or b"").decode().splitlines()
        if version != _VERSION:
            return Progress()
        numbers: dict[str, int] = {}
        last, damage = None, []
        for name, _, value in (line.partition("=") for line in lines):
            words = value.split(" ")
            if name in _NUMBERS:
                numbers[name] = int(value)
            elif name == "last":
                last = _key(words)
            else:
                damage.append(Damage(_key(words), int(words[3]), int(words[4])))
        return Progress(**numbers, last=last, damage=tuple(damage))
    except (ValueError, IndexError):
        return Progress()


def _key_text(key: SegmentKey) -> str:
    return f"{key.partition.topic} {key.partition.partition} {key.base_offset}"


def _key(words: Sequence[str]) -> SegmentKey:
    return SegmentKey(TopicPartition(words[0], int(words[1])), int(words[2]))


def check_segment(
    segment: Segment, end_offset: int, epochs: Sequence[tuple[int, int]] = ()
) -> Iterator[int]:
    """Read a segment that nobody appends to, a piece at a time, each with its size.

    `end_offset` is where the next one begins, `epochs` are the leader epochs of the log with their
    start offsets: a batch's own epoch is not covered by its CRC. Raises DamagedLog where a batch is
    not what was written, by its CRC, its place in the chain of batches, its offsets or its epoch,
    or cannot be read; and Shortage if there is no descriptor left to read it with.
    """
    size, position, offset, piece = segment.size, 0, segment.base_offset, _PIECE_BYTES

    def damaged(reason: str, until: int = end_offset, at: int = 0, length: int = 0) -> StorageError:
        where = position + at
        return DamagedLog(
            segment.log_path,
            f"at position {where}, {reason}",
            offset,
            max(until, offset + 1),
            length or size - where,
        )

    while position < size:
        length = min(piece, size - position)
        try:
            data = segment.file().read_unkept(position, length)
        except Shortage:
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
                raise damaged(str(error), at=at) from error
            if not offset <= header.base_offset < header.next_offset <= end_offset:
                found = f"offsets {header.base_offset} to {header.last_offset}"
                raise damaged(f"{found} are not between {offset} and {end_offset}", at=at)
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
                raise damaged(str(error), header.next_offset, at, header.size) from error
            offset = header.next_offset
            at += header.size
        if not at and piece <= length:
            raise damaged(f"only {size - position} bytes are left of a batch")
        if not at and piece > size - position:
            raise damaged(f"a batch of {piece} bytes is cut short")
        position += at
        yield at
