"""What tests of encryption share: keys that are no secrets, and batches."""

from random import Random

from headrace.protocol.records import encode_batch
from headrace.security.batch_encryption import BatchEncryption
from headrace.security.keyring import KEY_SIZE, KeyEncryptionKey, Keyring

OLD = KeyEncryptionKey("old", bytes([1]) * KEY_SIZE)
NEW = KeyEncryptionKey("new", bytes([2]) * KEY_SIZE)
OTHER = KeyEncryptionKey("other", bytes([3]) * KEY_SIZE)
TOPIC_ID = bytes(range(16))


def encryption(*keys: KeyEncryptionKey, seed: int = 1, **options: int) -> BatchEncryption:
    """The encryption of a node that has these keys, the last of which seals."""
    return BatchEncryption(Keyring(keys), Random(seed).randbytes, **options)


def plain_batch(value: bytes = b"a secret", *, base_offset: int = 7, count: int = 3) -> bytearray:
    return encode_batch(
        [(1_700_000_000_000 + number, b"key", value, ()) for number in range(count)],
        base_offset=base_offset,
        leader_epoch=4,
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
    )
