"""Transactions in a log: what is stable, what was aborted, who may end them."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatch, ErrorCode, KafkaError
from headrace.protocol.batch import HEADER_SIZE, LOG_OVERHEAD, crc32c, scan_headers
from headrace.protocol.markers import Marker, encode_marker
from headrace.protocol.records import encode_batch
from headrace.storage.log import Log
from headrace.storage.producer_state import OpenTransactions, ProducerStates
from tests.unit.storage.logs import NOW_MS, append, config, open_log
from tests.unit.storage.transacting import (
    abort,
    aborted,
    commit,
    end,
    read_committed,
    transactional,
    write,
)


def refused(log: Log, *arguments: object, **options: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        end(log, *arguments, **options)  # type: ignore[arg-type]
    return caught.value.code


def test_an_open_transaction_keeps_the_last_stable_offset_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3)
    assert log.last_stable_offset(3) == 3
    write(log, (1, 0, 0), 2)
    append(log)
    assert [log.last_stable_offset(offset) for offset in (2, 3, 4, 6)] == [2, 3, 3, 3]
    assert commit(log, 1) == 6
    # Decided, but who reads up to here must not see the decision lost with its leader.
    assert [log.last_stable_offset(offset) for offset in (5, 6)] == [3, 3]
    assert log.last_stable_offset(7) == 7


def test_interleaved_transactions_are_stable_when_all_before_them_are(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for producer_id in (1, 2, 3):
        write(log, (producer_id, 0, 0))
    abort(log, 2)
    assert log.last_stable_offset(4) == 0
    commit(log, 1)
    assert log.last_stable_offset(5) == 2
    write(log, (2, 0, 1))
    commit(log, 3)
    assert log.last_stable_offset(7) == 5
    assert aborted(log, 0, 5) == [(2, 1)]
    abort(log, 2)
    assert log.last_stable_offset(8) == 8
    assert aborted(log, 0, 8) == [(2, 1), (2, 5)]
    assert aborted(log, 4, 6) == [(2, 5)]
    assert aborted(log, 4, 5) == []
    assert aborted(log, 3, 4) == [(2, 1)]
    assert read_committed(log, 8) == [0, 2]


def test_an_aborted_transaction_is_found_where_its_marker_is_segments_later(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    for sequence in range(1, 40):
        write(log, (2, 0, sequence - 1))
        append(log)
    marker = abort(log, 1)
    commit(log, 2)
    assert len(log.segments) > 3
    assert [len(segment.aborted) for segment in log.segments[:-1]] == [0] * (len(log.segments) - 1)
    assert aborted(log, 0, 1) == [(1, 0)]
    assert aborted(log, marker, marker + 1) == [(1, 0)]
    assert aborted(log, marker + 1, marker + 2) == []
    assert 0 not in read_committed(log, log.log_end_offset)
    assert [path.name for path in tmp_path.glob("*.txnindex")] == [
        f"{log.active.base_offset:020d}.txnindex"
    ]


def test_the_search_ends_where_everything_before_the_range_was_decided(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(30):
        write(log, (number, 0, 0), 2)
        abort(log, number)
    assert len(log.segments) > 3
    first = log.segments[0].aborted.entries()[0]
    assert first == (0, 0, 2, 3)
    found, is_last = log.segments[0].aborted.overlapping(0, 3)
    assert (found, is_last) == ([first], True)
    for start in range(0, 90, 7):
        for end_offset in range(start + 1, 90, 5):
            wanted = [(n, n * 3) for n in range(30) if n * 3 < end_offset and n * 3 + 2 >= start]
            assert aborted(log, start, end_offset) == wanted


def test_the_index_has_kafkas_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 4)
    write(log, (7, 3, 0), 2)
    write(log, (8, 0, 0))
    abort(log, 7, 4)
    data = (tmp_path / f"{0:020d}.txnindex").read_bytes()
    assert data == bytes(2) + b"".join(number.to_bytes(8, "big") for number in (7, 4, 7, 6))


def test_a_marker_bumps_the_epoch_and_sequences_begin_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, (1, 5, 0), 3)
    commit(log, 1, 6)
    with pytest.raises(KafkaError) as caught:
        write(log, (1, 5, 3))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as caught:
        write(log, (1, 6, 3))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(log, (1, 6, 0))


def test_under_the_same_epoch_sequences_go_on_and_retries_are_known(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = write(log, (1, 5, 0), 3)
    commit(log, 1, 5)
    assert write(log, (1, 5, 0), 3) == first._replace(duplicate=True)
    assert not log.producers.has_open_transaction(1, 5)
    assert write(log, (1, 5, 3)).base_offset == 4


def test_markers_of_the_past_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end(log, 1, 5, committed=True, coordinator_epoch=9)
    write(log, (1, 5, 0))
    at = log.log_end_offset
    assert refused(log, 1, 4, committed=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refused(log, 1, 5, committed=False, coordinator_epoch=8) is fenced
    assert (log.log_end_offset, log.last_stable_offset(at)) == (at, 1)
    end(log, 1, 5, committed=False, coordinator_epoch=9)
    assert log.last_stable_offset(at + 1) == at + 1


def test_a_late_marker_does_not_end_the_next_transaction_of_version_2() -> None:
    producers = ProducerStates()
    data = transactional((1, 0, 0))
    producers.record(scan_headers(data)[0], 0, NOW_MS)
    marker = Marker(1, 1, 0, committed=True)
    producers.check_marker(marker, 2)
    producers.end_transaction(marker, 1, NOW_MS)
    producers.check_marker(marker, 2)  # The answer was lost, and nothing began since.
    data = transactional((1, 1, 0))
    producers.record(scan_headers(data)[0], 2, NOW_MS)
    with pytest.raises(KafkaError) as caught:
        producers.check_marker(marker, 2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    producers.check_marker(marker, 1)  # It cannot be told apart: all have the same epoch.


def test_a_marker_without_a_transaction_is_written_and_fences(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    abort(log, 1, 7)
    assert (log.log_end_offset, log.last_stable_offset(1)) == (1, 1)
    assert aborted(log, 0, 1) == []
    with pytest.raises(KafkaError) as caught:
        write(log, (1, 6, 0))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_is_not_of_the_open_transaction_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    with pytest.raises(KafkaError) as caught:
        append(log, producer=(1, 0, 1))
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert append(log, producer=(2, 0, 0)).base_offset == 1
    commit(log, 1)
    assert append(log, producer=(1, 0, 1)).base_offset == 3


def test_batches_of_a_coordinator_have_no_sequences(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        assert not write(log, (1, 4, -1)).duplicate
    producer = log.producers.get(1)
    assert producer is not None
    assert (producer.batches, producer.transaction_first_offset) == ([], 0)
    with pytest.raises(KafkaError) as caught:
        write(log, (1, 3, -1))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    abort(log, 1, 5)
    assert aborted(log, 0, 4) == [(1, 0)]


def test_whoever_verified_a_transaction_can_tell_that_it_ended_since(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    producers = log.producers
    before = producers.marker_count(1)
    assert not producers.has_open_transaction(1, 0)
    write(log, (2, 0, 0))
    assert producers.marker_count(1) == before
    commit(log, 1)
    after = producers.marker_count(1)
    assert after != before
    write(log, (1, 0, 0))
    assert producers.marker_count(1) == after
    assert producers.has_open_transaction(1, 0)
    assert not producers.has_open_transaction(1, 1)
    abort(log, 1)
    assert producers.marker_count(1) not in (before, after)


def test_who_has_an_open_transaction_is_never_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_expiration_ms=1000)
    write(log, (1, 0, 0), now_ms=NOW_MS)
    write(log, (2, 0, 0), now_ms=NOW_MS)
    end(log, 2, 0, committed=True, now_ms=NOW_MS + 5000)
    assert log.expire_producers(NOW_MS + 6000) == 0
    assert log.expire_producers(NOW_MS + 6001) == 1
    assert [producer_id for producer_id, _ in log.producers] == [1]
    end(log, 1, 0, committed=False, now_ms=NOW_MS + 7000)
    assert log.expire_producers(NOW_MS + 8001) == 1
    assert aborted(log, 0, 4) == [(1, 0)]


def test_a_transaction_that_began_below_the_log_start_is_unstable_from_there(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    append(log)
    write(log, (1, 0, 0), 4)
    log.advance_log_start(3)
    assert log.last_stable_offset(5) == 3
    log.advance_log_start(5)
    assert log.last_stable_offset(5) == 5


def test_who_asks_for_what_retention_took_is_told_so(tmp_path: Path) -> None:
    """Or records that were read before would pass for committed ones."""
    log = open_log(tmp_path, config(file_delete_delay_ms=0))
    for number in range(20):
        write(log, (number, 0, 0), 2)
        abort(log, number)
    with_index = len(list(tmp_path.glob("*.txnindex")))
    log.advance_log_start(40)
    retired = log.retire_segments(NOW_MS, 60)
    assert retired
    with pytest.raises(KafkaError) as caught:
        log.aborted_transactions(0, 10)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_retired(NOW_MS)
    assert len(list(tmp_path.glob("*.txnindex*"))) == with_index - len(retired)
    assert aborted(log, 40, 41) == [(13, 39)]


def test_a_follower_learns_the_same(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    follower = open_log(tmp_path / "follower")
    random = Random(7)
    sequences = dict.fromkeys(range(4), 0)
    for _ in range(60):
        producer_id = random.randrange(4)
        if random.random() < 0.6:
            write(leader, (producer_id, 0, sequences[producer_id]))
            sequences[producer_id] += 1
        else:
            end(leader, producer_id, 0, committed=random.random() < 0.5)
    while follower.log_end_offset < leader.log_end_offset:
        start = follower.log_end_offset
        data = leader.read(start, 700, leader.log_end_offset).records
        headers = scan_headers(data)
        whole = memoryview(data)[: headers[-1].position + headers[-1].size]
        follower.append_replicated(whole, headers, NOW_MS)
    high_watermark = leader.log_end_offset
    assert follower.last_stable_offset(high_watermark) == leader.last_stable_offset(high_watermark)
    assert aborted(follower, 0, high_watermark) == aborted(leader, 0, high_watermark)
    assert follower.producers.encode_snapshot() == leader.producers.encode_snapshot()


def test_a_marker_that_cannot_be_read_is_not_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data = encode_batch(
        [(NOW_MS, b"?", b"", ())],
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
        leader_epoch=0,
    )
    with pytest.raises(CorruptBatch):
        log.append_replicated(data, scan_headers(data), NOW_MS)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


def test_a_batch_that_compaction_emptied_begins_nothing() -> None:
    data = transactional((1, 0, 3))[:HEADER_SIZE]
    data[-4:] = bytes(4)  # The number of records.
    data[8:12] = (HEADER_SIZE - LOG_OVERHEAD).to_bytes(4, "big")
    producers = ProducerStates()
    producers.replay(scan_headers(data)[0], data)
    producer = producers.get(1)
    assert producer is not None
    assert producer.transaction_first_offset == -1
    assert producers.transactions.first_unstable(0) is None


def test_a_marker_that_compaction_emptied_aborts_what_is_open(tmp_path: Path) -> None:
    """Its transaction has no record left on the leader: a follower that still has some lags."""
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    data = encode_marker(Marker(1, 0, 0, committed=True), NOW_MS)[:HEADER_SIZE]
    data[:8] = log.log_end_offset.to_bytes(8, "big")
    data[-4:] = bytes(4)  # The number of records.
    data[8:12] = (HEADER_SIZE - LOG_OVERHEAD).to_bytes(4, "big")
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    assert log.last_stable_offset(1) == 0
    log.append_replicated(data, scan_headers(data), NOW_MS)
    assert log.last_stable_offset(2) == 2
    assert aborted(log, 0, 2) == [(1, 0)]
    producers = ProducerStates()
    producers.replay(scan_headers(data)[0], data)
    assert producers.get(1) is None


def test_a_marker_has_the_logs_time_where_the_log_sets_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(message_timestamp_type="LogAppendTime"))
    write(log, (1, 0, 0))
    data = encode_marker(Marker(1, 0, 0, committed=True), 5)
    log.append(data, scan_headers(data), 0, NOW_MS + 9)
    header = scan_headers(log.read(1, 1000, 2).records)[0]
    assert (header.is_control, header.max_timestamp) == (True, NOW_MS + 9)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), max_size=60))
def test_the_first_unstable_offset_is_the_least_of_all(
    steps: list[tuple[int, bool, int]],
) -> None:
    """Each step writes or ends for one producer, and commits some more of the log."""
    transactions = OpenTransactions()
    opened: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    high_watermark = 0
    for offset, (producer_id, ends, more) in enumerate(steps):
        if ends and producer_id in opened:
            first = opened.pop(producer_id)
            stable = transactions.end(first, offset)
            assert stable == min(opened.values(), default=offset + 1)
            ended.append((first, offset))
        elif producer_id not in opened:
            opened[producer_id] = offset
            transactions.begin(producer_id, offset)
        high_watermark = min(high_watermark + more, offset + 1)
        undecided = [*opened.values(), *(entry for entry, at in ended if at >= high_watermark)]
        assert transactions.first_unstable(high_watermark) == min(undecided, default=None)
        assert len(transactions) == len(opened)
