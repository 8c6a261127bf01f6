"""A scan of the metadata log for damage, which reads every batch and changes nothing.

Rule: the log is flushed before its records are acknowledged. So a bad batch below the offset that
is known to be flushed is damage, and so is a batch that was written completely and has changed
since. Only a write that a crash interrupted is a torn tail: it is too short, or sectors of it are
missing, which read as zeros.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.errors import CorruptBatch
from headrace.protocol.batch import (
    HEADER_SIZE,
    BatchHeader,
    check_batch,
    has_magic,
    has_sound_rest,
    read_header,
)
from headrace.storage.files import Files
from headrace.storage.segment import LOG_SUFFIX
from headrace.types import Buffer

_SECTOR_BYTES = 64  # Real sectors have 512 bytes; a smaller unit finds missing sectors of any size.
_OFFSET_DIGITS = 20


@dataclass(frozen=True, slots=True)
class MetadataDamage:
    """The damaged offsets [first_offset, end_offset) of a metadata log, with the reason.

    `end_offset` is None if no sound batch follows. `position` is -1 if the damage has no position
    in a file, such as a segment that is missing.
    """

    path: str
    position: int
    first_offset: int
    end_offset: int | None
    reason: str

    def __str__(self) -> str:
        where = f" at position {self.position}" if self.position >= 0 else ""
        offsets = f"from offset {self.first_offset} on"
        if self.end_offset is not None:
            offsets = f"offsets {self.first_offset} to {self.end_offset - 1}"
        return f"{self.path}{where}: {self.reason} ({offsets})"


@dataclass(slots=True)
class MetadataScan:
    """The batches and the damage of a metadata log.

    `batches` are sound and follow each other from `start_offset` to `end_offset`. `batches_after`
    are the sound batches after `damage`. From `torn_at` on, a segment's path and a position in it,
    the log has a torn tail.
    """

    start_offset: int = 0
    end_offset: int = 0
    last_epoch: int = 0
    segment_count: int = 0
    torn_bytes: int = 0
    torn_at: tuple[str, int] | None = None
    damage: MetadataDamage | None = None
    batches: list[tuple[Buffer, BatchHeader]] = field(default_factory=list)
    batches_after: list[tuple[Buffer, BatchHeader]] = field(default_factory=list)


def scan_metadata_log(
    files: Files,
    directory: str,
    *,
    flushed_offset: int | None,
    epoch_max: int | None,
    cut_offset: int | None = None,
) -> MetadataScan:
    """Read and check every segment in `directory`; a directory that is missing has none.

    All records below `flushed_offset` were on disk; None if it is unknown. No batch can be of an
    epoch above `epoch_max`, if that is known. The log was truncated to `cut_offset`: batches from
    there on are leftovers.
    """
    scan = MetadataScan()
    segments = segment_paths(files, directory)
    scan.segment_count = len(segments)
    if segments:
        scan.start_offset = scan.end_offset = segments[0][0]
    for index, (base_offset, path) in enumerate(segments):
        data = files.read_bytes(path) or b""
        if base_offset != scan.end_offset:
            reason = f"it begins at offset {base_offset}, where {scan.end_offset} is expected"
            bad = MetadataDamage(path, -1, scan.end_offset, base_offset, reason)
            _stop_at(files, scan, bad, segments[index:], flushed_offset, is_torn=True)
            break
        bad_at = _scan_segment(scan, data, epoch_max, cut_offset)
        if bad_at is not None:
            position, reason, is_stale = bad_at
            is_torn = is_stale or _is_torn(data, position, scan.end_offset)
            bad = MetadataDamage(path, position, scan.end_offset, None, reason)
            _stop_at(files, scan, bad, segments[index:], flushed_offset, is_torn=is_torn)
            break
    if scan.damage is None and flushed_offset is not None and scan.end_offset < flushed_offset:
        reason = f"it ends at offset {scan.end_offset}, and {flushed_offset} was flushed"
        scan.damage = MetadataDamage(directory, -1, scan.end_offset, flushed_offset, reason)
    return scan


def segment_paths(files: Files, directory: str) -> list[tuple[int, str]]:
    """The base offsets and paths of the segments in a directory, in order."""
    if not files.exists(directory):
        return []
    found = []
    for name in files.list_directory(directory):
        stem = name.removesuffix(LOG_SUFFIX)
        if name.endswith(LOG_SUFFIX) and len(stem) == _OFFSET_DIGITS and stem.isdigit():
            found.append((int(stem), f"{directory}/{name}"))
    return found


def _scan_segment(
    scan: MetadataScan, data: Buffer, epoch_max: int | None, cut_offset: int | None
) -> tuple[int, str, bool] | None:
    """Add the sound batches of a segment; return position and reason of the first bad batch.

    The third value is whether it may be a leftover of a truncation that a loss of power undid.
    """
    position = 0
    while position < len(data):
        try:
            header = read_header(data, position)
            check_batch(data, header)
        except CorruptBatch as error:
            return position, str(error), False
        if header.base_offset != scan.end_offset:
            return position, f"offset {header.base_offset} follows {scan.end_offset - 1}", True
        if cut_offset is not None and header.base_offset >= cut_offset:
            return position, f"the log was cut at offset {cut_offset} for a newer epoch", True
        if header.leader_epoch < scan.last_epoch:
            return position, f"epoch {header.leader_epoch} follows epoch {scan.last_epoch}", True
        if epoch_max is not None and header.leader_epoch > epoch_max:
            reason = f"epoch {header.leader_epoch} is above {epoch_max}, the newest so far"
            return position, reason, False
        scan.batches.append((data, header))
        scan.end_offset = header.next_offset
        scan.last_epoch = header.leader_epoch
        position += header.size
    return None


def _stop_at(
    files: Files,
    scan: MetadataScan,
    bad: MetadataDamage,
    segments: Sequence[tuple[int, str]],
    flushed_offset: int | None,
    *,
    is_torn: bool,
) -> None:
    """Decide whether a bad batch is a torn tail or damage, and find sound batches after it."""
    position = bad.position
    for _, path in segments:
        data = files.read_bytes(path) or b""
        scan.torn_bytes += len(data) - max(position, 0)
        scan.batches_after += _batches_from(data, position + 1, bad.first_offset + 1)
        position = -1
    if flushed_offset is None:
        is_torn = is_torn and not scan.batches_after
    elif bad.first_offset < flushed_offset:
        is_torn = False
    if is_torn:
        scan.batches_after.clear()
        scan.torn_at = (bad.path, max(bad.position, 0))
        return
    scan.torn_bytes = 0
    end_offset = scan.batches_after[0][1].base_offset if scan.batches_after else bad.end_offset
    scan.damage = MetadataDamage(bad.path, bad.position, bad.first_offset, end_offset, bad.reason)


def _is_torn(data: Buffer, position: int, expected_offset: int) -> bool:
    """Whether the batch at `position` looks like an interrupted write."""
    end = len(data)
    try:
        header = read_header(data, position)
    except CorruptBatch:
        pass  # Its length is unknown.
    else:
        if header.base_offset == expected_offset:
            end = position + header.size
    if end > len(data):
        # It is too short, unless only its length field is wrong and the checksum fits the rest.
        return not has_sound_rest(data, position)
    return any(
        not any(data[max(start, position) : min(start + _SECTOR_BYTES, end)])
        for start in range(position - position % _SECTOR_BYTES, end, _SECTOR_BYTES)
    ) or (end == len(data) and end - position < HEADER_SIZE)


def _batches_from(
    data: Buffer, position: int, offset_min: int
) -> Iterator[tuple[Buffer, BatchHeader]]:
    """The sound batches of offsets from `offset_min` on, at any position behind `position`."""
    while position + HEADER_SIZE <= len(data):
        header = _sound_batch(data, position, offset_min)
        if header is None:
            position = _next_candidate(data, position + 1, offset_min)
        else:
            yield data, header
            position += header.size
            offset_min = header.next_offset


def _next_candidate(data: Buffer, position: int, offset_min: int) -> int:
    """The next position at which a batch can begin, by the high bytes of the next offsets."""
    found = [
        at
        for high in (offset_min >> 16, (offset_min >> 16) + 1)
        if (at := bytes(data).find(high.to_bytes(6, "big"), position)) >= 0
    ]
    return min(found, default=len(data))


def _sound_batch(data: Buffer, position: int, offset_min: int) -> BatchHeader | None:
    if not has_magic(data, position):
        return None
    try:
        header = read_header(data, position)
        check_batch(data, header)
    except CorruptBatch:
        return None
    return header if header.base_offset >= offset_min else None
