"""Segments whose data keys are wrapped anew, so that an old key-encryption key can be given up.

Rule: the broker is stopped. A new file takes the place of a segment by a rename, with the same
batches at the same positions, so that indexes and checkpoints stay right.
"""

from contextlib import suppress
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.protocol.records import BatchHeader
from headrace.security.batch_encryption import BatchEncryption, check_value_of
from headrace.storage.files import Files
from headrace.storage.segment import CLEANED_SUFFIX, Segment
from headrace.types import Buffer


class RewrapResult(NamedTuple):
    """The encrypted batches of a segment, and those of them that were wrapped anew."""

    encrypted: int
    changed: int


def rewrap_segment(files: Files, segment: Segment, encryption: BatchEncryption) -> RewrapResult:
    """Wrap the data keys of a segment by the current key.

    CorruptBatch if the segment is damaged, MissingKey if a key is not known: it is left as it is.
    """
    current = encryption.keyring.to_seal().check_value
    encrypted = stale = 0
    for header, buffer, _ in segment.batches(0, segment.size):
        if header.is_encrypted:
            encrypted += 1
            stale += check_value_of(buffer, header) != current
    if stale:
        # A start removes the file if a crash leaves it behind.
        path = segment.log_path + CLEANED_SUFFIX
        try:
            _write(files, path, segment, encryption)
            files.rename(path, segment.log_path)
        except BaseException:
            with suppress(StorageError):
                files.remove(path)
            raise
    return RewrapResult(encrypted, stale)


def _write(files: Files, path: str, segment: Segment, encryption: BatchEncryption) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    for header, buffer, position in segment.batches(0, segment.size):
        batch = _batch(buffer, header)
        if header.is_encrypted:
            encryption.rewrap(batch)
        file.write_at(position, batch)
    file.sync()


def _batch(buffer: Buffer, header: BatchHeader) -> bytearray:
    return bytearray(buffer[header.position : header.position + header.size])
