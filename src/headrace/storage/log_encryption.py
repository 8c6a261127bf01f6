"""Encryption of a log: encrypts appends, decrypts reads, wraps the data keys of segments anew.

Rule: whatever fails here says nothing about the log's health. No bytes are cut or fetched again
because a key is missing.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.errors import ChangedBatch, ErrorCode, KafkaError, MissingKey, StorageError
from headrace.protocol.batch import BatchHeader, first_encrypted, read_header, scan_headers
from headrace.protocol.records import Record, decode_rows
from headrace.security.batch_encryption import BatchEncryption, BatchEncryptor, check_value_of
from headrace.security.keyring import NO_KEYS
from headrace.storage.files import Block, Files
from headrace.storage.log_segments import sound_headers
from headrace.storage.segment import CLEANED_SUFFIX, Segment
from headrace.types import Buffer, TopicPartition


def _no_random_bytes(count: int) -> bytes:
    raise AssertionError(f"{count} bytes of a key without a keyring")


# The encryption of a node without keys: encrypted batches cannot be read, and none are written.
WITHOUT_KEYS = BatchEncryption(NO_KEYS, _no_random_bytes)

logger = logging.getLogger(__name__)


class LogEncryption:
    """Encrypts and decrypts the batches of one log; what fails is a KafkaError for clients.

    `decrypt_batch`, `decrypt_batches` and `rows` may run in any thread.
    """

    def __init__(
        self,
        encryption: BatchEncryption,
        topic_partition: TopicPartition,
        topic_id: Callable[[], bytes | None],
    ) -> None:
        self._encryption = encryption
        self._topic_partition = topic_partition
        self._topic_id = topic_id
        self._encryptor = BatchEncryptor(encryption)
        self._reported = ""

    def for_compaction(self) -> "LogEncryption":
        """The encryption of the same log for another thread: with data keys of its own."""
        return LogEncryption(self._encryption, self._topic_partition, self._topic_id)

    def prepare(self, now_ms: int) -> None:
        """Check that a batch can be encrypted now; KafkaError if there is no key for it."""
        try:
            self._encryptor.prepare(now_ms)
        except MissingKey as error:
            raise self._refusal(error) from error

    def encrypt(self, data: Buffer, header: BatchHeader, now_ms: int) -> bytearray:
        """A batch whose header is final, encrypted."""
        try:
            return self._encryptor.encrypt(data, header, self._topic_id(), now_ms)
        except MissingKey as error:
            raise self._refusal(error) from error

    def encrypt_batches(
        self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int
    ) -> tuple[Buffer, Sequence[BatchHeader]]:
        """The batches of a producer, encrypted, with their new headers."""
        encrypted = [self.encrypt(data, header, now_ms) for header in headers]
        joined = encrypted[0] if len(encrypted) == 1 else b"".join(encrypted)
        return joined, scan_headers(joined)

    def decrypt_batch(self, data: Buffer, header: BatchHeader) -> bytearray:
        """The batch at `header.position`, decrypted; CorruptBatch if its bytes are damaged."""
        try:
            decrypted = self._encryption.decrypt_batch(data, header, self._topic_id())
        except (MissingKey, ChangedBatch) as error:
            raise self._refusal(error) from error
        self._reported = ""
        return decrypted

    def decrypt_batches(self, records: Buffer) -> Buffer:
        """Batches as they are for clients, up to the first that cannot be decrypted.

        If that is the first of all it is an error: CorruptBatch if its bytes are damaged.
        """
        if first_encrypted(records) < 0:
            return records
        headers, damage = sound_headers(records)
        if damage is not None and not headers:
            raise damage
        try:
            decrypted = self._encryption.decrypt_batches(records, headers, self._topic_id(), Block)
        except (MissingKey, ChangedBatch) as error:
            raise self._refusal(error) from error
        self._reported = ""
        return decrypted

    def rows(self, data: Buffer, header: BatchHeader) -> list[Record]:
        """The records of a batch, decrypted if it is encrypted."""
        if not header.is_encrypted:
            return decode_rows(data, header)
        decrypted = self.decrypt_batch(data, header)
        return decode_rows(decrypted, read_header(decrypted))

    def _refusal(self, error: MissingKey | ChangedBatch) -> KafkaError:
        """The error for clients; the log has it once, until a batch can be decrypted again."""
        text = f"{self._topic_partition}: records cannot be used: {error}"
        if text != self._reported:
            self._reported = text
            logger.error("%s", text)
        if isinstance(error, MissingKey):
            # Clients try this again, so that none loses its place until the key is there.
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)


# Segments whose data keys are wrapped anew, so that an old key-encryption key can be given up.
#
# Rule: the broker is stopped. A new file takes the place of a segment by a rename, with the same
# batches at the same positions, so that indexes and checkpoints stay right.


class RewrapResult(NamedTuple):
    """The encrypted batches of a segment, and those of them that were wrapped anew."""

    encrypted: int
    changed: int


def rewrap_segment(files: Files, segment: Segment, encryption: BatchEncryption) -> RewrapResult:
    """Wrap the data keys of a segment by the current key.

    CorruptBatch if the segment is damaged, MissingKey if a key is not known: it is left as it is.
    """
    current = encryption.keyring.current_key().check_value
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
