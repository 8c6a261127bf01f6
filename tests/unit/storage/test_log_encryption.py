"""Logs of encrypted topics: what is on disk, who can read it, and what works without the key."""

from pathlib import Path
from random import Random

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.batch import read_header, scan_headers
from headrace.protocol.compression import Compression
from headrace.protocol.markers import Marker, encode_marker
from headrace.protocol.records import decode_rows
from headrace.security.batch_encryption import OVERHEAD, BatchEncryption
from headrace.security.keyring import NO_KEYS, KeyEncryptionKey, Keyring
from headrace.storage.damage import DamagedLog
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_encryption import WITHOUT_KEYS, rewrap_segment
from headrace.storage.recovery import read_topic_id
from headrace.storage.stored_logs import stored_segments
from headrace.types import TopicPartition
from tests.unit.security.encrypting import NEW, OLD
from tests.unit.storage.compaction.tables import Found, compact_all, put, table_of
from tests.unit.storage.logs import NOW_MS, TOPIC_ID, append, config, open_log

SEALED = config(encryption_enable=True)
COMPACT = config(encryption_enable=True, cleanup_policy=("compact",), delete_retention_ms=1000)
SECRET = b"nobody may read this"
END = 1 << 30


def keys(*known: KeyEncryptionKey, seed: int = 1) -> BatchEncryption:
    return BatchEncryption(Keyring(known), Random(seed).randbytes)


def sealed_log(path: Path, encryption: BatchEncryption, settings=SEALED, **options: object) -> Log:
    return open_log(path, settings, topic_id=TOPIC_ID, encryption=encryption, **options)


def stored(log: Log) -> bytes:
    return b"".join(Path(segment.log_path).read_bytes() for segment in log.segments)


def records(log: Log) -> list[Found]:
    """All records, as a consumer is given them."""
    found: list[Found] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.decrypted(log.read(offset, 1 << 16, END, at_least_one=True).records, offset)
        for header in scan_headers(data):
            found += [
                Found(row.offset, row.key, row.value, row.timestamp)
                for row in decode_rows(data, header)
            ]
            offset = header.next_offset
    return found


def values(log: Log) -> list[bytes | None]:
    return [found.value for found in records(log)]


def test_records_are_sealed_on_disk_and_open_for_readers(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    for _ in range(20):
        append(log, 2, value=SECRET)
    assert len(log.segments) > 2
    assert SECRET not in stored(log)
    assert values(log) == [SECRET] * 40
    assert log.log_end_offset == 40


def test_a_log_opens_after_a_crash_without_the_key_and_reads_with_it(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    for number in range(12):
        append(log, value=SECRET, producer=(7, 0, number))
    before = stored(log)
    # A torn tail is cut, and whole batches are kept, though nobody can read their records.
    with open(log.active.log_path, "ab") as file:
        file.write(before[:70])
    reopened = sealed_log(tmp_path, WITHOUT_KEYS)
    assert stored(reopened) == before
    assert reopened.log_end_offset == 12
    assert append_of(reopened, producer=(7, 0, 11)).duplicate
    reopened.close()
    assert values(sealed_log(tmp_path, keys(OLD, NEW, seed=2), clean=True)) == [SECRET] * 12


def append_of(log: Log, *, producer: tuple[int, int, int]):
    log.update_config(config(encryption_enable=False))
    return append(log, value=SECRET, producer=producer)


def test_without_the_key_clients_get_an_error_they_retry_and_nothing_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    append(log, value=SECRET)
    log.close()
    before = stored(log)
    log = sealed_log(tmp_path, keys(NEW), clean=True)
    for _ in range(3):
        with pytest.raises(KafkaError) as caught:
            values(log)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert caplog.text.count(OLD.check_value.hex()) == 1
    with pytest.raises(KafkaError) as caught:
        log.offset_for_timestamp(NOW_MS)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline is None and log.suspected_offset is None
    assert log.read(0, 1000, END).records == before


def test_without_a_key_nothing_is_appended(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, BatchEncryption(NO_KEYS, Random(1).randbytes))
    with pytest.raises(KafkaError, match=r"encryption\.key\.source is not set") as caught:
        append(log, value=SECRET, producer=(7, 0, 0))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    assert log.offline is None


def test_a_follower_copies_sealed_batches_without_a_key(tmp_path: Path) -> None:
    leader = sealed_log(tmp_path / "leader", keys(OLD))
    follower = sealed_log(tmp_path / "follower", WITHOUT_KEYS)
    for number in range(10):
        append(leader, 2, value=SECRET, producer=(7, 0, 2 * number))
    data = leader.read(0, 1 << 20, END).records
    while follower.log_end_offset < leader.log_end_offset:
        data = leader.read(follower.log_end_offset, 1 << 20, END).records
        follower.append_replicated(data, scan_headers(data), NOW_MS)
    assert stored(follower) == stored(leader)
    # It leads with the key that it then has, and goes on behind what its predecessor sealed.
    follower.close()
    leads = sealed_log(tmp_path / "follower", keys(OLD, seed=2), clean=True)
    assert append(leads, 2, value=SECRET, producer=(7, 0, 18)).duplicate
    append(leads, 2, value=SECRET, producer=(7, 0, 20), leader_epoch=1)
    assert values(leads) == [SECRET] * 22


def test_what_is_appended_again_after_a_truncation_has_another_nonce(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    nonces = set()
    for _ in range(5):
        append(log, value=SECRET)
        nonces.add(stored(log)[70:122])
        log.truncate_to(0)
    assert len(nonces) == 5


def test_turning_encryption_on_and_off_leaves_a_mixed_log(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD), config())
    for settings in (config(), SEALED, config(), SEALED, config()):
        log.update_config(settings)
        append(log, 2, value=b"value")
    kinds = [header.is_encrypted for header in scan_headers(stored(log))]
    assert kinds == [False, True, False, True, False]
    assert values(log) == [b"value"] * 10
    # Without the key, a reader gets as far as the first encrypted batch.
    log.close()
    log = sealed_log(tmp_path, WITHOUT_KEYS, config(), clean=True)
    data = log.decrypted(log.read(0, 1 << 16, END).records, 0)
    assert [header.next_offset for header in scan_headers(data)] == [2]


def test_records_are_found_by_their_time(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    for number in range(20):
        append(log, 3, timestamp=NOW_MS + 10 * number)
    found = log.offset_for_timestamp(NOW_MS + 51)
    assert found is not None and (found.offset, found.timestamp) == (16, NOW_MS + 51)
    largest = log.max_timestamp_offset()
    assert largest is not None and largest.offset == 59


def test_the_time_of_the_append_is_sealed_with_the_batch(tmp_path: Path) -> None:
    settings = config(encryption_enable=True, message_timestamp_type="LogAppendTime")
    log = sealed_log(tmp_path, keys(OLD), settings)
    append(log, 2, value=SECRET, now_ms=NOW_MS + 77)
    assert [found.timestamp for found in records(log)] == [NOW_MS + 77] * 2


def test_the_limit_of_a_segment_counts_what_a_sealed_batch_has_more(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    # 900 bytes of value are 974 in a batch: they fit plain, and not with 77 more.
    with pytest.raises(KafkaError) as caught:
        append(log, value=b"v" * 900)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    append(log, value=b"v" * (900 - OVERHEAD))
    log.update_config(config())
    append(log, value=b"v" * 900)


def test_markers_and_internal_topics_stay_plain(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "orders", keys(OLD))
    data = encode_marker(Marker(7, 0, 0, True), NOW_MS)
    log.append(data, [read_header(data)], 0, NOW_MS)
    offsets = Log.open(
        Files(),
        str(tmp_path / "offsets"),
        TopicPartition("__consumer_offsets", 0),
        SEALED,
        NOW_MS,
        encryption=keys(OLD),
    )
    append(offsets)
    for plain in (log, offsets):
        assert not any(header.is_encrypted for header in scan_headers(stored(plain)))


def test_a_damaged_sealed_batch_is_damage_with_and_without_the_key(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    for _ in range(3):
        append(log, value=SECRET)
    second = scan_headers(stored(log))[1]
    with open(log.active.log_path, "r+b") as file:
        file.seek(second.position + second.size - 5)
        file.write(b"\0\0\0")
    with pytest.raises(KafkaError) as caught:
        values(log)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.suspected_offset == 1
    log.close()
    for encryption in (keys(OLD), WITHOUT_KEYS):
        with pytest.raises(DamagedLog):
            sealed_log(tmp_path, encryption, recovery_point=3)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_compaction_reads_and_writes_sealed_batches(tmp_path: Path, codec: Compression) -> None:
    log = sealed_log(tmp_path, keys(OLD), COMPACT)
    written: dict[bytes, bytes | None] = {}
    for number in range(60):
        pairs = [(b"key-%d" % (number % 5), b"%d" % number + SECRET), (b"last", b"%d" % number)]
        put(log, *pairs, compression=codec)
        written.update(pairs)
    put(log, (b"key-0", None))
    del written[b"key-0"]
    before = log.size_bytes
    compact_all(log)
    assert log.size_bytes < before / 3
    assert table_of(records(log)) == written
    for header in scan_headers(stored(log)):
        assert header.is_encrypted == (header.record_count > 0)
    assert SECRET not in stored(log)
    # The second pass drops the tombstone by its horizon.
    put(log, (b"more", b"1"))
    compact_all(log, NOW_MS + 5000)
    assert table_of(records(log)) == {**written, b"more": b"1"}
    assert None not in values(log)


def test_compaction_without_the_key_changes_nothing(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD), COMPACT)
    for number in range(60):
        put(log, (b"key", b"%d" % number))
    log.close()
    log = sealed_log(tmp_path, keys(NEW), COMPACT, clean=True)
    log.roll(NOW_MS)
    before = stored(log)
    with pytest.raises(KafkaError) as caught:
        compact_all(log)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert stored(log) == before
    assert not list(tmp_path.glob("*.cleaned"))


def test_a_key_is_given_up_after_its_data_keys_were_wrapped_anew(tmp_path: Path) -> None:
    log = sealed_log(tmp_path, keys(OLD))
    for number in range(30):
        append(log, value=SECRET, producer=(7, 0, number))
    log.close()
    sizes = [segment.size for segment in log.segments]
    both = keys(OLD, NEW, seed=3)
    for segment in stored_segments(str(tmp_path)):
        result = rewrap_segment(Files(), segment, both)
        assert result.encrypted == result.changed > 0
    for segment in stored_segments(str(tmp_path)):
        assert rewrap_segment(Files(), segment, both).changed == 0
    log = sealed_log(tmp_path, keys(NEW), clean=True)
    assert [segment.size for segment in log.segments] == sizes
    assert values(log) == [SECRET] * 30
    assert read_topic_id(Files(), str(tmp_path)) == TOPIC_ID
    log.close()
    assert values(sealed_log(tmp_path, keys(NEW))) == [SECRET] * 30
