"""Damage in a log, as opposed to a torn tail, which a crash can leave.

Rule: if flushed bytes are missing or wrong, the log is damaged. Only bytes that were never flushed
can be torn, and only those are cut off; a damaged log is left unchanged and not opened.
"""

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.batch import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    check_batch,
    read_header,
)
from headrace.storage.segment import LOG_SUFFIX, RELATIVE_OFFSET_MAX, Segment

_MAGIC = bytes((MAGIC,))
_PREFIX_BYTES = 4
_SEARCH_BYTES = 1 << 20


class DamagedLog(StorageError):
    """A log whose flushed bytes are missing or wrong.

    [first_offset, end_offset) is the damaged extent as far as it is known, `byte_count` its size in
    the files, 0 if its records are not there; `path` is the file in which it begins.
    """

    def __init__(
        self, path: str, reason: str, first_offset: int, end_offset: int, byte_count: int
    ) -> None:
        size = f" ({byte_count} bytes)" if byte_count else ""
        verb = "cannot be read" if byte_count else "are missing"
        super().__init__(
            f"{path} is damaged: {reason}; offsets {first_offset} to {end_offset - 1}{size} {verb}"
            if end_offset > first_offset
            else f"{path} is damaged from offset {first_offset} on{size}: {reason}"
        )
        self.path = path
        self.reason = reason
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.byte_count = byte_count

    @property
    def repair_advice(self) -> str:
        """Advice for an operator who has no other replica."""
        directory = os.path.dirname(self.path) if self.path.endswith(LOG_SUFFIX) else self.path
        return (
            f"stop the broker; `headrace log repair {shlex.quote(directory)}` shows what is left"
            " and can be kept"
        )

    def copy(self) -> "DamagedLog":
        """A copy without a traceback, which would keep buffers and files alive."""
        return DamagedLog(
            self.path, self.reason, self.first_offset, self.end_offset, self.byte_count
        )


def without_traceback(error: StorageError) -> StorageError:
    """A copy of an error without its traceback; a DamagedLog stays a DamagedLog."""
    return error.copy() if isinstance(error, DamagedLog) else StorageError(str(error))


def check_follows(header: BatchHeader, offset: int, flushed: int, limit: int | None = None) -> None:
    """CorruptBatch if a batch cannot be the next batch of a log that continues at `offset`.

    No CRC covers its offsets. They do not go back, nor beyond `limit`, the base offset of the next
    segment. The `flushed` part ended with a batch: none reaches beyond that and leaves a gap below.
    """
    base_offset, next_offset = header.base_offset, header.next_offset
    if base_offset < offset:
        raise CorruptBatch(f"offset {base_offset} follows {offset - 1}")
    is_beyond = limit is not None and next_offset > limit
    if is_beyond or (offset < flushed < next_offset and offset < base_offset != flushed):
        raise CorruptBatch(f"offset {base_offset} follows {offset - 1}, and {offset} is missing")


class SoundBatch(NamedTuple):
    """The place of a whole batch: the index of its segment, its position and its header."""

    segment: int
    position: int
    header: BatchHeader


def find_whole_batch(
    segments: Sequence[Segment], index: int, position: int, offset: int
) -> SoundBatch | None:
    """The first whole batch behind `position` with offsets from `offset` on.

    `position` is where segment `index` has no sound batch. Bytes of a record's value that look like
    a batch are recognised by their offset and their CRC.
    """
    for later in range(index, len(segments)):
        start = position if later == index else 0
        limit = segments[later + 1].base_offset if later + 1 < len(segments) else None
        found = _find_in_segment(segments[later], start, offset, limit, skip=later == index)
        if found is not None:
            return SoundBatch(later, *found)
    return None


def _find_in_segment(
    segment: Segment, position: int, offset: int, offset_limit: int | None, *, skip: bool
) -> tuple[int, BatchHeader] | None:
    offset = max(offset, segment.base_offset)
    if offset_limit is None:
        offset_limit = segment.base_offset + RELATIVE_OFFSET_MAX
    if skip:
        # The next batch by the length field of the bad batch: usually only its records are wrong.
        try:
            header = read_header(segment.file().read_at(position, HEADER_SIZE))
        except CorruptBatch:
            pass
        else:
            behind = position + header.size
            if (after := _whole_batch(segment, behind, offset, offset_limit)) is not None:
                return behind, after
        position += 1
    prefixes = {(known >> 32).to_bytes(_PREFIX_BYTES, "big") for known in (offset, offset_limit)}
    while position + HEADER_SIZE <= segment.size:
        chunk = segment.file().read_at(position, _SEARCH_BYTES + HEADER_SIZE)
        at = chunk.find(_MAGIC, MAGIC_AT)
        while at >= 0:
            start = at - MAGIC_AT
            if chunk[start : start + _PREFIX_BYTES] in prefixes:
                header_found = _whole_batch(segment, position + start, offset, offset_limit)
                if header_found is not None:
                    return position + start, header_found
            at = chunk.find(_MAGIC, at + 1)
        position += _SEARCH_BYTES
    return None


def _whole_batch(
    segment: Segment, position: int, offset: int, offset_limit: int
) -> BatchHeader | None:
    """The header of the batch at `position`; None unless it is whole and of these offsets."""
    file = segment.file()
    try:
        header = read_header(file.read_at(position, HEADER_SIZE))
        if (
            not offset <= header.base_offset <= header.last_offset < offset_limit
            or position + header.size > segment.size
        ):
            return None
        data = file.read_at(position, header.size)
        header = read_header(data)
        check_batch(data, header, compacted=True)
    except CorruptBatch:
        return None
    return header
