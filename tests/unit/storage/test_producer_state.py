"""Idempotent producers: duplicates are recognised, gaps and old epochs refused, state is kept."""

from pathlib import Path
from struct import iter_unpack, pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.protocol.batch import BatchHeader, crc32c, read_header, scan_headers
from headrace.storage.log import PRODUCER_EXPIRATION_MS, AppendResult
from headrace.storage.producer_state import REFUSED_MAX, ProducerStates
from tests.unit.storage.logs import NOW_MS, FaultyFiles, append, batch, open_log, set_modified

SEQUENCES = 2**31
DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS


def header(producer_id: int, epoch: int, sequence: int, count: int = 1) -> BatchHeader:
    return read_header(batch(count, producer=(producer_id, epoch, sequence)))


def refusal(producers: ProducerStates, header: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check([header])
    return caught.value.code


def test_any_of_the_last_five_batches_is_recognised(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = [append(log, 2, producer=(1, 0, sequence)) for sequence in range(0, 14, 2)]
    assert log.log_end_offset == 14
    for index in range(2, 7):
        again = append(log, 2, producer=(1, 0, index * 2))
        assert again == AppendResult(
            first[index].base_offset, first[index].last_offset, -1, 0, True
        )
    for index in range(2):
        with pytest.raises(KafkaError) as caught:
            append(log, 2, producer=(1, 0, index * 2))
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 14


def test_a_batch_that_only_starts_like_an_earlier_one_is_no_duplicate(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3, producer=(1, 0, 0))
    for count in (1, 2, 4):
        with pytest.raises(KafkaError):
            append(log, count, producer=(1, 0, 0))


def test_gaps_are_refused_and_write_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 2, producer=(1, 0, 0))
    size = log.size_bytes
    with pytest.raises(KafkaError, match="expected sequence 2, got 3") as caught:
        append(log, producer=(1, 0, 3))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (log.log_end_offset, log.size_bytes) == (2, size)
    assert append(log, producer=(1, 0, 2)).base_offset == 2


def test_producers_do_not_see_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, producer=(1, 0, 0))
    assert not append(log, producer=(2, 0, 0)).duplicate
    assert append(log, producer=(1, 0, 1)).base_offset == 2


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerStates().check([header(1, 4, 1000)]) is None


def test_epochs_only_rise_and_begin_at_sequence_zero() -> None:
    producers = ProducerStates()
    producers.record(header(1, 3, 7), 0, NOW_MS)
    assert refusal(producers, header(1, 2, 8)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, header(1, 4, 8)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check([header(1, 4, 0)]) is None
    producers.record(header(1, 4, 0), 1, NOW_MS)
    assert refusal(producers, header(1, 3, 8)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check([header(1, 4, 1)]) is None


@given(last=st.integers(0, SEQUENCES - 1), count=st.integers(1, 5))
def test_sequences_wrap_to_zero(last: int, count: int) -> None:
    producers = ProducerStates()
    first = (last - count + 1) % SEQUENCES
    producers.record(header(1, 0, first, count), 100, NOW_MS)
    following = (last + 1) % SEQUENCES
    assert producers.check([header(1, 0, following)]) is None
    duplicate = producers.check([header(1, 0, first, count)])
    assert duplicate is not None
    assert duplicate.base_offset == 100
    loaded = ProducerStates()
    loaded.load_snapshot(producers.encode_snapshot())
    assert loaded.check([header(1, 0, first, count)]) == duplicate
    beyond = (following + 1) % SEQUENCES
    assert refusal(loaded, header(1, 0, beyond)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_of_one_append_follow_on_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data = batch(2, producer=(1, 0, 0)) + batch(1) + batch(2, producer=(1, 0, 2))
    assert not log.append(data, scan_headers(data), 0, NOW_MS).duplicate
    gap = batch(2, producer=(1, 0, 4)) + batch(2, producer=(1, 0, 7))
    with pytest.raises(KafkaError) as caught:
        log.append(gap, scan_headers(gap), 0, NOW_MS)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    mixed = batch(2, producer=(1, 0, 2)) + batch(2, producer=(1, 0, 4))
    with pytest.raises(KafkaError) as caught:
        log.append(mixed, scan_headers(mixed), 0, NOW_MS)
    assert caught.value.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert log.log_end_offset == 5
    again = batch(2, producer=(1, 0, 0)) + batch(2, producer=(1, 0, 2))
    assert log.append(again, scan_headers(again), 0, NOW_MS).duplicate


def test_a_failed_write_leaves_the_producer_free_to_try_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    append(log, producer=(1, 0, 0))
    files.fails = lambda operation, path: 28 * (operation == "write" and path.endswith(".log"))
    with pytest.raises(KafkaError) as caught:
        append(log, producer=(1, 0, 1))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    files.heal()
    assert append(log, producer=(1, 0, 1)) == AppendResult(1, 1, -1, 0, False)


def test_producers_that_fell_silent_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_expiration_ms=1000)
    # Its records may be of any time; what counts is when the producer was heard of.
    append(log, producer=(1, 0, 0), timestamp=5, now_ms=NOW_MS)
    append(log, producer=(2, 0, 0), timestamp=5, now_ms=NOW_MS + 600)
    assert log.expire_producers(NOW_MS + 1000) == 0
    assert log.expire_producers(NOW_MS + 1001) == 1
    assert [producer_id for producer_id, _ in log.producers] == [2]
    assert append(log, producer=(1, 0, 9), now_ms=NOW_MS + 1001).base_offset == 2


@pytest.mark.parametrize("timestamp", [5, NOW_MS])
def test_producers_found_while_the_clock_was_behind_are_not_forgotten_when_it_is_set_right(
    tmp_path: Path, timestamp: int
) -> None:
    """By the time of the records, or if those are old by that of the file."""
    log = open_log(tmp_path)
    append(log, producer=(1, 0, 0), timestamp=timestamp)
    log.close(clean=False)
    set_modified(tmp_path)
    behind = open_log(tmp_path, now_ms=NOW_MS - 10 * DAY_MS)
    assert behind.expire_producers(NOW_MS) == 0
    assert append(behind, producer=(1, 0, 0)).duplicate


def test_a_producer_heard_of_while_the_clock_was_behind_is_not_forgotten_when_it_is_set_right(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    append(log, producer=(1, 0, 0), now_ms=NOW_MS - 10 * DAY_MS)
    assert log.expire_producers(NOW_MS) == 0


def test_expired_producers_do_not_come_back_with_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, producer=(1, 0, 0))
    log.close()
    again = open_log(tmp_path, clean=True, now_ms=NOW_MS + DAY_MS)
    assert len(again.producers) == 1
    again.close()
    assert len(open_log(tmp_path, clean=True, now_ms=NOW_MS + DAY_MS + 1).producers) == 0


def test_a_snapshot_has_kafkas_bytes() -> None:
    producers = ProducerStates()
    producers.record(header(4000, 3, 10, 5), 100, NOW_MS + 10)
    data = producers.encode_snapshot()
    entry = pack(">qhiqiqiq", 4000, 3, 14, 104, 4, NOW_MS + 10, -1, -1)
    body = pack(">i", 1) + entry
    assert data == pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_keeps_every_batch_that_may_come_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    appended = [append(log, 2, producer=(1, 0, sequence)) for sequence in range(0, 14, 2)]
    append(log, producer=(2, 0, 0))
    log.close()
    again = open_log(tmp_path, clean=True)
    assert not again.recovery.scanned
    for index in range(2, 7):
        assert append(again, 2, producer=(1, 0, index * 2)).base_offset == (
            appended[index].base_offset
        )
    with pytest.raises(KafkaError):
        append(again, 2, producer=(1, 0, 2))
    data = again.producers.encode_snapshot()
    assert data == log.producers.encode_snapshot()
    # What Kafka takes: the last entry of each producer.
    entries = {entry[0]: entry for entry in iter_unpack(">qhiqiqiq", data[10:])}
    assert [entry[:4] for entry in entries.values()] == [(1, 0, 13, 13), (2, 0, 0, 14)]


def test_a_snapshot_damaged_at_any_byte_is_refused() -> None:
    producers = ProducerStates()
    for producer_id in range(3):
        producers.record(header(producer_id, 0, 0), producer_id, NOW_MS)
    data = producers.encode_snapshot()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        with pytest.raises(ValueError):
            ProducerStates().load_snapshot(bytes(damaged))
        with pytest.raises(ValueError):
            ProducerStates().load_snapshot(data[:position])


def test_a_snapshot_whose_count_lies_is_refused() -> None:
    for count in (-1, 5, 2**31 - 1):
        body = pack(">i", count)
        with pytest.raises(ValueError):
            ProducerStates().load_snapshot(pack(">hI", 1, crc32c(body)) + body)


def test_every_segment_begins_with_a_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(40):
        append(log, producer=(1, 0, sequence))
    bases = [segment.base_offset for segment in log.segments]
    assert list(log.snapshots.offsets) == bases[1:]
    for base in bases[1:]:
        data = (tmp_path / f"{base:020d}.snapshot").read_bytes()
        assert unpack_from(">i", data, len(data) - 36) == (base - 1,)  # The last sequence of then.


def test_a_snapshot_that_cannot_be_removed_is_still_known(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    log.snapshots.take(log.producers, 5)
    files.fail("remove", ".snapshot")
    with pytest.raises(StorageError):
        log.snapshots.remove_after(0)
    assert log.snapshots.offsets == (5,)


def test_a_refused_first_batch_holds_back_the_later_ones() -> None:
    producers = ProducerStates()
    # Five batches are in flight, and the second is refused before the first.
    producers.note_refused(header(1, 0, 1), NOW_MS)
    producers.note_refused(header(1, 0, 0), NOW_MS)
    for sequence in (1, 2, 3, 4):
        code = refusal(producers, header(1, 0, sequence))
        assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(5):
        assert producers.check([header(1, 0, sequence)]) is None
        producers.record(header(1, 0, sequence), sequence, NOW_MS)


def test_a_refused_batch_holds_back_its_own_epoch_and_producer_only() -> None:
    producers = ProducerStates()
    producers.note_refused(header(1, 0, 7), NOW_MS)
    assert producers.check([header(1, 0, 7)]) is None, "any sequence is a beginning"
    assert producers.check([header(2, 0, 9)]) is None
    assert producers.check([header(1, 1, 9)]) is None
    producers.note_refused(header(1, 1, 8), NOW_MS)
    producers.note_refused(header(1, 0, 3), NOW_MS)
    assert refusal(producers, header(1, 1, 9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check([header(1, 1, 8)]) is None


def test_the_last_sequence_of_a_known_producer_decides_alone() -> None:
    producers = ProducerStates()
    producers.record(header(1, 0, SEQUENCES - 1), 0, NOW_MS)
    producers.note_refused(header(1, 0, 0), NOW_MS)
    producers.record(header(1, 0, 0), 1, NOW_MS)
    assert producers.check([header(1, 0, 1)]) is None


def test_refused_batches_are_forgotten_like_producers_and_bounded_in_number() -> None:
    producers = ProducerStates()
    producers.note_refused(header(1, 0, 0), NOW_MS)
    producers.expire(NOW_MS + 1)
    assert producers.check([header(1, 0, 1)]) is None
    for producer_id in range(REFUSED_MAX + 1):
        producers.note_refused(header(producer_id, 0, 0), NOW_MS)
    assert producers.check([header(0, 0, 1)]) is None
    assert refusal(producers, header(1, 0, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_of_old_records_survive_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = [
        append(log, 2, producer=(1, 0, sequence), timestamp=NOW_MS - MONTH_MS)
        for sequence in (0, 2, 4)
    ]
    later_ms = NOW_MS + 3_600_000
    set_modified(tmp_path)
    crashed = open_log(tmp_path, now_ms=later_ms)
    for index, appended in enumerate(first):
        again = append(crashed, 2, producer=(1, 0, 2 * index), timestamp=NOW_MS - MONTH_MS)
        assert (again.duplicate, again.base_offset) == (True, appended.base_offset)
    # They age from the time of the recovery on.
    assert not crashed.expire_producers(later_ms + PRODUCER_EXPIRATION_MS)
    assert crashed.expire_producers(later_ms + PRODUCER_EXPIRATION_MS + 1)


def test_producers_of_old_records_survive_a_truncation(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(3):
        append(log, producer=(1, 0, sequence), timestamp=NOW_MS - MONTH_MS)
    log.truncate_to(2)
    assert not log.expire_producers(NOW_MS + PRODUCER_EXPIRATION_MS)
    assert append(log, producer=(1, 0, 1)).duplicate
    assert log.expire_producers(NOW_MS + PRODUCER_EXPIRATION_MS + 1)


def test_a_duplicate_after_a_crash_has_the_time_of_the_first_append(tmp_path: Path) -> None:
    stamping = TopicConfig(message_timestamp_type="LogAppendTime")
    first = append(open_log(tmp_path, stamping), producer=(1, 0, 0))
    crashed = open_log(tmp_path, stamping, now_ms=NOW_MS + 5000)
    again = append(crashed, producer=(1, 0, 0), now_ms=NOW_MS + 6000)
    assert again == first._replace(duplicate=True)
