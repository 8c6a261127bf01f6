"""Sealed batches: what stays readable, what is protected, and which keys and nonces are used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ChangedBatch, CorruptBatch, EncryptedRecords, MissingKey
from headrace.protocol.batch import (
    BatchHeader,
    check_batch,
    first_encrypted,
    read_header,
    renew_checksum,
    scan_headers,
)
from headrace.protocol.records import decode_rows
from headrace.security.batch_encryption import OVERHEAD, BatchEncryptor, check_value_of
from headrace.security.keyring import Keyring
from tests.unit.security.encrypting import NEW, OLD, OTHER, TOPIC_ID, encryption, plain_batch

NOW_MS = 1_700_000_000_000
PLAIN_FIELDS = (
    "base_offset",
    "leader_epoch",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "compression",
)


def sealed(value: bytes = b"a secret", **options: int) -> bytearray:
    data = plain_batch(value, **options)
    return BatchEncryptor(encryption(OLD)).encrypt(data, read_header(data), TOPIC_ID, NOW_MS)


@given(st.binary(max_size=5000), st.integers(1, 20))
def test_a_sealed_batch_opens_as_it_was(value: bytes, count: int) -> None:
    plain = plain_batch(value, count=count)
    batch = sealed(value, count=count)
    assert encryption(OLD).decrypt_batch(batch, read_header(batch), TOPIC_ID) == plain


def test_the_header_stays_readable_and_the_checksum_is_of_the_sealed_bytes() -> None:
    plain, batch = plain_batch(), sealed()
    before, header = read_header(plain), read_header(batch)
    for name in PLAIN_FIELDS:
        assert getattr(header, name) == getattr(before, name), name
    assert header.is_encrypted and not before.is_encrypted
    assert header.size == len(batch) == len(plain) + OVERHEAD
    check_batch(batch, header)
    assert b"a secret" not in batch
    assert check_value_of(batch, header) == OLD.check_value
    with pytest.raises(EncryptedRecords):
        decode_rows(batch, header)


def test_every_byte_of_a_sealed_batch_is_protected() -> None:
    batch = sealed()
    opener = encryption(OLD)
    for position in range(len(batch)):
        if 8 <= position < 16:
            continue  # The length says where the batch ends; the leader epoch may be stamped.
        changed = bytearray(batch)
        changed[position] ^= 0x04
        try:
            header = read_header(changed)
        except CorruptBatch:
            continue
        if position >= 21:
            renew_checksum(changed)
            header = read_header(changed)
        if not header.is_encrypted:
            continue
        if 17 <= position < 21:
            # A wrong checksum alone: recovery and scrubbing see it.
            with pytest.raises(CorruptBatch):
                check_batch(changed, header)
            continue
        with pytest.raises((CorruptBatch, MissingKey)):
            opener.decrypt_batch(changed, header, TOPIC_ID)


def test_a_batch_opens_at_its_place_in_its_topic_only() -> None:
    batch = sealed()
    with pytest.raises(ChangedBatch, match="another topic"):
        encryption(OLD).decrypt_batch(batch, read_header(batch), bytes(16))
    moved = bytearray(batch)
    moved[7] += 1
    with pytest.raises(ChangedBatch):
        encryption(OLD).decrypt_batch(moved, read_header(moved), TOPIC_ID)


def test_damage_a_missing_key_and_a_changed_batch_are_told_apart() -> None:
    batch = sealed()
    with pytest.raises(MissingKey, match=OLD.check_value.hex()):
        encryption(OTHER).decrypt_batch(batch, read_header(batch), TOPIC_ID)
    for position in (65, len(batch) - 1):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        with pytest.raises(CorruptBatch, match="CRC") as caught:
            encryption(OLD).decrypt_batch(damaged, read_header(damaged), TOPIC_ID)
        assert not isinstance(caught.value, ChangedBatch)


def test_a_batch_that_is_too_short_to_be_sealed_is_refused() -> None:
    short = plain_batch(count=1)
    short[21] |= 0x40
    renew_checksum(short)
    with pytest.raises(ChangedBatch):
        encryption(OLD).decrypt_batch(short, read_header(short), TOPIC_ID)


def nonce_of(batch: bytearray) -> bytes:
    return bytes(batch[110:122])


def wrapped_key_of(batch: bytearray) -> bytes:
    return bytes(batch[70:110])


def test_no_nonce_comes_twice_under_one_key() -> None:
    encryptor = BatchEncryptor(encryption(OLD))
    data = plain_batch()
    # The same batch at the same offset again and again, as after truncations.
    batches = [encryptor.encrypt(data, read_header(data), TOPIC_ID, NOW_MS) for _ in range(500)]
    assert len({wrapped_key_of(batch) for batch in batches}) == 1
    assert len({nonce_of(batch) for batch in batches}) == 500


def test_every_encryptor_has_a_data_key_of_its_own() -> None:
    node = encryption(OLD)
    data = plain_batch()
    batches = [
        BatchEncryptor(node).encrypt(data, read_header(data), TOPIC_ID, NOW_MS) for _ in range(3)
    ]
    assert len({wrapped_key_of(batch) for batch in batches}) == 3


def test_data_keys_are_replaced_by_age_and_with_the_current_key() -> None:
    node = encryption(OLD, data_key_age_ms_max=1000)
    encryptor = BatchEncryptor(node)
    data = plain_batch()

    def seal(now_ms: int) -> bytes:
        return wrapped_key_of(encryptor.encrypt(data, read_header(data), TOPIC_ID, now_ms))

    first = seal(NOW_MS)
    assert seal(NOW_MS + 999) == first
    second = seal(NOW_MS + 1000)
    assert second != first
    # A clock that was set back must not keep a key for ever.
    third = seal(NOW_MS)
    assert third != second
    node.replace_keyring(Keyring([OLD, NEW]))
    batch = encryptor.encrypt(data, read_header(data), TOPIC_ID, NOW_MS)
    assert check_value_of(batch, read_header(batch)) == NEW.check_value
    assert node.decrypt_batch(batch, read_header(batch), TOPIC_ID) == data


def test_data_keys_are_replaced_by_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.security.batch_encryption._DATA_KEY_BYTES_MAX", 200)
    encryptor = BatchEncryptor(encryption(OLD))
    data = plain_batch(b"v" * 60)
    batches = [encryptor.encrypt(data, read_header(data), TOPIC_ID, NOW_MS) for _ in range(4)]
    assert len({wrapped_key_of(batch) for batch in batches}) == 4


def test_batches_under_keys_that_were_taken_away_do_not_open() -> None:
    node = encryption(OLD)
    batch = sealed()
    node.decrypt_batch(batch, read_header(batch), TOPIC_ID)
    node.replace_keyring(Keyring([NEW]))
    with pytest.raises(MissingKey):
        node.decrypt_batch(batch, read_header(batch), TOPIC_ID)


def test_mixed_batches_open_up_to_one_that_does_not() -> None:
    plain = plain_batch(base_offset=0)
    first, second = sealed(base_offset=3), sealed(base_offset=6)
    node = encryption(NEW)
    data = BatchEncryptor(node).encrypt(plain, read_header(plain), TOPIC_ID, NOW_MS)
    node.replace_keyring(Keyring([OLD]))
    # Under a key that is gone comes the third.
    records = bytes(plain_batch(base_offset=0) + first + data)
    headers = scan_headers(records)
    opened = node.decrypt_batches(records, headers, TOPIC_ID)
    assert opened == plain_batch(base_offset=0) + plain_batch(base_offset=3)
    with pytest.raises(MissingKey):
        node.decrypt_batches(records[len(plain) + len(first) :], [read_header(data)], TOPIC_ID)
    whole = bytes(first + second)
    found = scan_headers(node.decrypt_batches(whole, scan_headers(whole), TOPIC_ID))
    assert [header.base_offset for header in found] == [3, 6]


def test_a_data_key_is_wrapped_anew_without_the_records() -> None:
    batch = sealed()
    before = bytes(batch[122:])
    node = encryption(OLD, NEW)
    assert node.rewrap(batch)
    assert not node.rewrap(batch)
    header: BatchHeader = read_header(batch)
    check_batch(batch, header)
    assert bytes(batch[122:]) == before
    assert encryption(NEW).decrypt_batch(batch, header, TOPIC_ID) == plain_batch()
    with pytest.raises(MissingKey):
        encryption(OLD).decrypt_batch(batch, header, TOPIC_ID)


def test_the_first_sealed_batch_is_found() -> None:
    plain, batch = plain_batch(), sealed()
    assert first_encrypted(bytes(plain + plain)) == -1
    assert first_encrypted(bytes(plain + batch)) == len(plain)
    assert first_encrypted(bytes(plain + batch[:-1])) == -1
    assert first_encrypted(b"") == -1
