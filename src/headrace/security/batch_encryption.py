"""Encrypted batches: record batches whose records are encrypted, as they lie on disks.

Such a batch has in place of its records: a format byte, the check value of a key-encryption key, a
data key wrapped by it, a nonce, and the records under AES-256-GCM. Its header stays readable, and
says that the batch is encrypted.

Rule: a data key is random, is made by one encryptor, and never leaves it but wrapped; its nonces
are a counter. So no nonce comes twice under one key, whatever is truncated and appended again.
"""

from collections.abc import Callable, Sequence
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from headrace.errors import ChangedBatch, CorruptBatch, MissingKey
from headrace.protocol.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    ENCRYPTED_BIT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    BatchHeader,
    byte_view,
    check_batch,
    crc32c,
    read_header,
    renew_checksum,
)
from headrace.security.keyring import KEY_SIZE, Keyring
from headrace.types import ZERO_UUID, Buffer

_FORMAT = 1
# The format, the check value and the wrapped data key.
_PREFIX = Struct(">B8s40s")
_NONCE = Struct(">IQ")
_TAG_SIZE = 16
_RECORDS_AT = HEADER_SIZE + _PREFIX.size + _NONCE.size

# The bytes by which a batch grows when it is encrypted.
OVERHEAD = _PREFIX.size + _NONCE.size + _TAG_SIZE

_LENGTH = Struct(">i")
_ATTRIBUTES = Struct(">h")
_CRC = Struct(">I")
_LABEL = b"headrace sealed batch 1\0"

_DATA_KEY_BYTES_MAX = 1 << 36
_DATA_KEY_BATCHES_MAX = 1 << 31
DATA_KEY_AGE_MS_MAX = 86_400_000
# The data keys that are kept unwrapped, to open batches with.
_KNOWN_KEYS_MAX = 4096


def check_value_of(data: Buffer, header: BatchHeader) -> bytes:
    """The check value of the key-encryption key that an encrypted batch needs."""
    at = header.position + HEADER_SIZE
    check_value: bytes = _PREFIX.unpack(bytes(byte_view(data)[at : at + _PREFIX.size]))[1]
    return check_value


class BatchEncryption:
    """The keys of a node. `decrypt_batch` and `decrypt_batches` may run in any thread.

    The keyring may be replaced at any time; batches under keys that are gone do not open then.
    """

    def __init__(
        self,
        keyring: Keyring,
        random_bytes: Callable[[int], bytes],
        data_key_age_ms_max: int = DATA_KEY_AGE_MS_MAX,
    ) -> None:
        self.random_bytes = random_bytes
        self.data_key_age_ms_max = data_key_age_ms_max
        self.replace_keyring(keyring)

    def replace_keyring(self, keyring: Keyring) -> None:
        """Seal and open with these keys from now on."""
        self.keyring = keyring
        # A new one, not an emptied one: another thread may be about to add a key to the old one.
        self._known: dict[bytes, AESGCM] = {}

    def decrypt_batch(self, data: Buffer, header: BatchHeader, topic_id: bytes | None) -> bytearray:
        """The batch at `header.position` of `data` as it was before it was encrypted.

        MissingKey without its key, ChangedBatch if its key does not open it, CorruptBatch if its
        bytes are not those that were written.
        """
        decrypted = bytearray(max(header.size - OVERHEAD, HEADER_SIZE))
        with memoryview(decrypted) as out:
            self._decrypt_into(out, byte_view(data), header, topic_id)
        return decrypted

    def decrypt_batches(
        self,
        records: Buffer,
        headers: Sequence[BatchHeader],
        topic_id: bytes | None,
        allocate: Callable[[int], bytearray] = bytearray,
    ) -> bytearray:
        """The batches of `headers`, decrypted if encrypted, up to the first that cannot be.

        If that is the first, its error is raised.
        """
        view = byte_view(records)
        sizes = [
            max(header.size - OVERHEAD, HEADER_SIZE) if header.is_encrypted else header.size
            for header in headers
        ]
        decrypted = allocate(sum(sizes))
        at = 0
        out = memoryview(decrypted)
        for header, size in zip(headers, sizes, strict=True):
            if header.is_encrypted:
                try:
                    self._decrypt_into(out[at : at + size], view, header, topic_id)
                except (CorruptBatch, MissingKey):
                    if not at:
                        raise
                    return decrypted[:at]
            else:
                out[at : at + size] = view[header.position : header.position + header.size]
            at += size
        return decrypted

    def _decrypt_into(
        self, out: memoryview, view: memoryview, header: BatchHeader, topic_id: bytes | None
    ) -> None:
        start, end = header.position, header.position + header.size
        if header.size < HEADER_SIZE + OVERHEAD or end > len(view):
            raise ChangedBatch(f"the encrypted batch at offset {header.base_offset} is too short")
        out[:HEADER_SIZE] = view[start : start + HEADER_SIZE]
        _LENGTH.pack_into(out, LENGTH_AT, len(out) - LOG_OVERHEAD)
        _ATTRIBUTES.pack_into(out, ATTRIBUTES_AT, header.attributes & ~ENCRYPTED_BIT)
        prefix = bytes(view[start + HEADER_SIZE : start + HEADER_SIZE + _PREFIX.size])
        try:
            data_key = self._known.get(prefix) or self._unwrap(prefix, header)
            nonce_at = start + HEADER_SIZE + _PREFIX.size
            data_key.decrypt_into(
                view[nonce_at : nonce_at + _NONCE.size],
                view[start + _RECORDS_AT : end],
                _associated(out, topic_id),
                out[HEADER_SIZE:],
            )
        except (ChangedBatch, MissingKey):
            check_batch(view, header, compacted=True)  # A damaged batch is no wrong key.
            raise
        except InvalidTag:
            check_batch(view, header, compacted=True)
            raise ChangedBatch(
                f"the encrypted batch at offset {header.base_offset} does not open under its own"
                " key: its bytes were changed and its checksum made anew, or it was written for"
                " another topic"
            ) from None
        _CRC.pack_into(out, CRC_AT, crc32c(out[ATTRIBUTES_AT:]))

    def rewrap(self, batch: bytearray) -> bool:
        """Wrap the data key of an encrypted batch by the current key; whether it was by another.

        The records stay as they are.
        """
        header = read_header(batch)
        prefix = bytes(batch[HEADER_SIZE : HEADER_SIZE + _PREFIX.size])
        current = self.keyring.current_key()
        check_batch(batch, header, compacted=True)
        if check_value_of(batch, header) == current.check_value:
            return False
        try:
            secret = self._secret(prefix, header)
        except InvalidTag:
            raise ChangedBatch(
                f"the data key of the batch at offset {header.base_offset} does not unwrap"
            ) from None
        batch[HEADER_SIZE : HEADER_SIZE + _PREFIX.size] = _PREFIX.pack(
            _FORMAT, current.check_value, aes_key_wrap(current.secret, secret)
        )
        renew_checksum(batch)
        return True

    def _secret(self, prefix: bytes, header: BatchHeader) -> bytes:
        version, check_value, wrapped = _PREFIX.unpack(prefix)
        if version != _FORMAT:
            raise ChangedBatch(
                f"the batch at offset {header.base_offset} is encrypted in format {version}, which"
                " this version of headrace does not know"
            )
        try:
            return aes_key_unwrap(self.keyring.find(check_value).secret, wrapped)
        except (InvalidUnwrap, ValueError):
            raise InvalidTag from None

    def _unwrap(self, prefix: bytes, header: BatchHeader) -> AESGCM:
        known = self._known
        data_key = AESGCM(self._secret(prefix, header))
        while len(known) >= _KNOWN_KEYS_MAX:
            known.pop(next(iter(known)), None)
        known[prefix] = data_key
        return data_key


class _DataKey:
    """A random key with its counter of nonces."""

    __slots__ = ("_aead", "_count", "bytes_left", "check_value", "made_ms", "prefix")

    def __init__(self, encryption: BatchEncryption, now_ms: int) -> None:
        wrapping = encryption.keyring.current_key()
        secret = encryption.random_bytes(KEY_SIZE)
        self._aead = AESGCM(secret)
        self._count = 0
        self.made_ms = now_ms
        self.bytes_left = _DATA_KEY_BYTES_MAX
        self.check_value = wrapping.check_value
        self.prefix = _PREFIX.pack(_FORMAT, self.check_value, aes_key_wrap(wrapping.secret, secret))

    @property
    def is_used_up(self) -> bool:
        return self.bytes_left <= 0 or self._count >= _DATA_KEY_BATCHES_MAX

    def encrypt_into(self, encrypted: memoryview, records: memoryview, associated: bytes) -> None:
        """Write nonce, encrypted records and tag into the bytes behind the prefix."""
        nonce = _NONCE.pack(0, self._count)
        self._count += 1
        self.bytes_left -= len(records)
        encrypted[: _NONCE.size] = nonce
        self._aead.encrypt_into(nonce, records, associated, encrypted[_NONCE.size :])


class BatchEncryptor:
    """Seals the batches of one log, or of one compaction. For one thread at a time."""

    def __init__(self, encryption: BatchEncryption) -> None:
        self._encryption = encryption
        self._data_key: _DataKey | None = None

    def prepare(self, now_ms: int) -> None:
        """See that there is a data key; MissingKey if there is nothing to wrap a new one with."""
        data_key = self._data_key
        if (
            data_key is None
            or data_key.is_used_up
            or not 0 <= now_ms - data_key.made_ms < self._encryption.data_key_age_ms_max
            or data_key.check_value != self._encryption.keyring.current_key().check_value
        ):
            self._data_key = _DataKey(self._encryption, now_ms)

    def encrypt(
        self, data: Buffer, header: BatchHeader, topic_id: bytes | None, now_ms: int
    ) -> bytearray:
        """The batch at `header.position` of `data`, encrypted; its offset and time are final."""
        self.prepare(now_ms)
        data_key = self._data_key
        assert data_key is not None and not header.is_encrypted and not header.is_control, header
        start, end = header.position, header.position + header.size
        view = byte_view(data)
        encrypted = bytearray(header.size + OVERHEAD)
        with memoryview(encrypted) as out:
            out[:HEADER_SIZE] = view[start : start + HEADER_SIZE]
            associated = _associated(out, topic_id)
            _LENGTH.pack_into(out, LENGTH_AT, len(encrypted) - LOG_OVERHEAD)
            _ATTRIBUTES.pack_into(out, ATTRIBUTES_AT, header.attributes | ENCRYPTED_BIT)
            out[HEADER_SIZE : HEADER_SIZE + _PREFIX.size] = data_key.prefix
            data_key.encrypt_into(
                out[HEADER_SIZE + _PREFIX.size :], view[start + HEADER_SIZE : end], associated
            )
            _CRC.pack_into(out, CRC_AT, crc32c(out[ATTRIBUTES_AT:]))
        return encrypted


def _associated(header: memoryview, topic_id: bytes | None) -> bytes:
    """The fields authenticated with the records: all but length, epoch and checksum.

    Not the wrapped key either, so that it can be wrapped by another key.
    """
    return b"".join(
        (_LABEL, topic_id or ZERO_UUID, header[:LENGTH_AT], header[ATTRIBUTES_AT:HEADER_SIZE])
    )
