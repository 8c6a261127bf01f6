"""Transactions as their producers see them: begin, end, fence, time out, fail over."""

from collections.abc import Iterable
from itertools import count

import pytest

from headrace.coordinator.records import RecordError, encode_transaction
from headrace.coordinator.shard import CoordinatorRecord
from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    EPOCH_MAX,
    VERSION_WITH_BUMP,
    VERSION_WITHOUT_BUMP,
    TransactionMetadata,
    TransactionSettings,
    TransactionStatus,
)
from headrace.coordinator.transactions.transaction_shard import TIMERS_PER_TICK
from headrace.errors import ErrorCode, error_code
from headrace.protocol.markers import Marker
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.types import TopicPartition
from tests.unit.coordinator.transactions.driving import (
    FIRST_PRODUCER_ID,
    ID,
    OFFSETS,
    SETTINGS,
    START_MS,
    TIMEOUT_MS,
    A,
    B,
    Shell,
)

PRODUCER_ID = FIRST_PRODUCER_ID
DAY_MS = 86_400_000


@pytest.fixture
def shell() -> Shell:
    return Shell()


def exhausted(producer_ids: Iterable[int] | None = None) -> tuple[Shell, ProducerIdAndEpoch]:
    """A producer with the last epoch a client may have."""
    metadata = TransactionMetadata(
        status=TransactionStatus.EMPTY,
        producer_id=PRODUCER_ID,
        producer_epoch=EPOCH_MAX - 1,
        timeout_ms=TIMEOUT_MS,
        updated_ms=START_MS,
    )
    log = [encode_transaction(ID, metadata)]
    if producer_ids is None:
        producer_ids = count(PRODUCER_ID + 1)
    shell = Shell(log=log, producer_ids=producer_ids)
    return shell, ProducerIdAndEpoch(PRODUCER_ID, EPOCH_MAX - 1)


def test_a_transaction_from_start_to_end(shell: Shell) -> None:
    producer = shell.start()
    assert producer == (PRODUCER_ID, 0)
    assert shell.state() == "Empty"
    assert shell.add(producer, A, B) is ErrorCode.NONE
    assert shell.state() == "Ongoing"
    assert shell.end(producer, True) == (PRODUCER_ID, 1)
    assert shell.state() == "PrepareCommit"
    [order] = shell.shard.take_marker_orders()
    assert order.transactional_id == ID
    assert order.marker == Marker(PRODUCER_ID, 1, shell.coordinator_epoch, True)
    assert order.partitions == (A, B)
    assert order.transaction_version == VERSION_WITH_BUMP
    shell.written(order, A)
    assert shell.state() == "PrepareCommit"
    shell.written(order, B)
    assert shell.state() == "CompleteCommit"
    assert shell.shard.take_marker_orders() == []
    assert shell.add(ProducerIdAndEpoch(PRODUCER_ID, 1), A) is ErrorCode.NONE


def test_version_1_keeps_its_epoch(shell: Shell) -> None:
    producer = shell.start()
    assert shell.add(producer, A, version=3) is ErrorCode.NONE
    assert shell.add_offsets(producer) is ErrorCode.NONE
    assert shell.end(producer, False, version=4) is ErrorCode.NONE
    [order] = shell.write_markers()
    assert order.marker == Marker(PRODUCER_ID, 0, shell.coordinator_epoch, False)
    assert order.partitions == (A, OFFSETS)
    assert order.transaction_version == VERSION_WITHOUT_BUMP
    assert shell.state() == "CompleteAbort"
    assert shell.end(producer, False, version=4) is ErrorCode.NONE
    assert shell.add(producer, B, version=3) is ErrorCode.NONE


def test_an_end_is_answered_when_it_is_committed_and_markers_are_ordered_then(
    shell: Shell,
) -> None:
    producer = shell.start()
    shell.add(producer, A)
    shell.is_holding = True
    token = shell.end_request(producer, True)
    assert token not in shell.answers
    assert shell.shard.take_marker_orders() == []
    shell.release()
    assert shell.ended(token) == (PRODUCER_ID, 1)
    assert len(shell.shard.take_marker_orders()) == 1


def test_an_end_sent_again_gets_the_same_answer(shell: Shell) -> None:
    producer = shell.start()
    shell.add(producer, A)
    after = shell.commit(producer)
    assert shell.end(producer, True) is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.write_markers()
    assert shell.end(producer, True) == after
    assert shell.end(producer, False) is ErrorCode.INVALID_TXN_STATE
    assert shell.reload().end(producer, True) == after


def test_the_next_transaction_waits_for_the_markers_of_the_last(shell: Shell) -> None:
    producer = shell.start()
    shell.add(producer, A)
    after = shell.commit(producer)
    assert shell.add(after, B) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.add(after, B, verify=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.end(after, False) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.add(producer, B) is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.write_markers()
    assert shell.add(after, B) is ErrorCode.NONE


def test_requests_build_on_what_is_on_its_way(shell: Shell) -> None:
    """Two brokers add partitions of one producer at once, and the end comes right behind."""
    producer = shell.start()
    shell.is_holding = True
    first = shell.add_request(producer, A)
    second = shell.add_request(producer, B)
    again = shell.add_request(producer, A)
    end = shell.end_request(producer, True)
    assert shell.answers.keys() & {first, second, again, end} == set()
    shell.release()
    assert shell.added(first) == {A: ErrorCode.NONE}
    assert shell.added(second) == {B: ErrorCode.NONE}
    assert shell.added(again) == {A: ErrorCode.NONE}
    assert shell.ended(end) == (PRODUCER_ID, 1)
    [order] = shell.shard.take_marker_orders()
    assert order.partitions == (A, B)


def test_the_next_transaction_may_begin_while_the_completion_is_on_its_way(shell: Shell) -> None:
    producer = shell.start()
    shell.add(producer, A)
    after = shell.commit(producer)
    [order] = shell.shard.take_marker_orders()
    shell.is_holding = True
    shell.written(order, A)
    shell.written(order, A)
    token = shell.add_request(after, B)
    shell.release()
    assert shell.added(token) == {B: ErrorCode.NONE}
    assert shell.state() == "Ongoing"
    assert shell.shard.take_marker_orders() == []


def test_a_marker_that_comes_late_completes_nothing_else(shell: Shell) -> None:
    producer = shell.start()
    shell.add(producer, A)
    producer = shell.commit(producer)
    [late] = shell.write_markers()
    shell.add(producer, A)
    shell.written(late, A)
    assert shell.state() == "Ongoing"
    shell.commit(producer)
    shell.written(late, A)
    assert shell.state() == "PrepareCommit"
    shell.written(late._replace(transactional_id="unknown"), A)
    shell.write_markers()
    assert shell.state() == "CompleteCommit"


def test_a_new_producer_fences_the_one_before(shell: Shell) -> None:
    zombie = shell.start()
    producer = shell.start()
    assert producer == (PRODUCER_ID, 1)
    assert shell.add(zombie, A) is ErrorCode.PRODUCER_FENCED
    assert shell.end(zombie, True) is ErrorCode.PRODUCER_FENCED
    assert shell.add_offsets(zombie) is ErrorCode.PRODUCER_FENCED
    assert shell.init(zombie) is ErrorCode.PRODUCER_FENCED
    assert shell.add(producer, A) is ErrorCode.NONE


def test_a_new_producer_aborts_the_transaction_of_the_one_before(shell: Shell) -> None:
    zombie = shell.start()
    shell.add(zombie, A)
    assert shell.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.end(zombie, True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    [order] = shell.write_markers()
    assert order.marker == Marker(PRODUCER_ID, 1, shell.coordinator_epoch, False)
    assert order.transaction_version == VERSION_WITH_BUMP
    assert shell.end(zombie, True) is ErrorCode.INVALID_TXN_STATE
    assert shell.add(zombie, B) is ErrorCode.PRODUCER_FENCED
    assert shell.start() == (PRODUCER_ID, 2)
    assert shell.end(zombie, False) is ErrorCode.PRODUCER_FENCED
    assert shell.init(zombie) is ErrorCode.PRODUCER_FENCED


def test_a_producer_goes_on_after_the_abort_of_its_own_transaction(shell: Shell) -> None:
    producer = shell.start()
    shell.add(producer, A)
    assert shell.init(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.write_markers()
    after = shell.init(producer)
    assert after == (PRODUCER_ID, 1)
    assert shell.init(producer) == after


def test_a_transaction_that_takes_too_long_is_aborted(shell: Shell) -> None:
    producer = shell.start(timeout_ms=10_000)
    shell.advance(9_000)
    shell.add(producer, A)
    shell.advance(9_000)
    shell.add(producer, B)
    shell.advance(1_000)
    assert shell.state() == "Ongoing"
    shell.advance(1)
    assert shell.state() == "PrepareAbort"
    assert shell.end(producer, True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.end(producer, False) is ErrorCode.CONCURRENT_TRANSACTIONS
    [order] = shell.write_markers()
    assert not order.marker.committed
    assert shell.add(producer, A) is ErrorCode.PRODUCER_FENCED
    assert shell.end(producer, True) is ErrorCode.INVALID_TXN_STATE
    after = shell.abort(producer)
    assert after == (PRODUCER_ID, 1)
    assert shell.add(after, A) is ErrorCode.NONE


def test_timeouts_are_looked_for_at_an_interval() -> None:
    """As in Kafka: a transaction that ends a little late is not aborted."""
    shell = Shell(TransactionSettings(timeout_check_ms=10_000))
    late, dead = (shell.start(name, timeout_ms=12_000) for name in ("late", "dead"))
    shell.advance(1_000)
    for name, producer in (("late", late), ("dead", dead)):
        shell.add(producer, A, transactional_id=name)
    shell.advance(18_999)
    assert shell.state("dead") == "Ongoing"
    assert shell.end(late, True, transactional_id="late") == (late.producer_id, 1)
    shell.advance(1)
    assert shell.state("late") == "PrepareCommit"
    assert shell.state("dead") == "PrepareAbort"


def test_a_transaction_times_out_though_its_coordinator_was_away(shell: Shell) -> None:
    producer = shell.start(timeout_ms=10_000)
    shell.add(producer, A)
    shell.now_ms += 60_000
    after = shell.reload()
    assert after.state() == "Ongoing"
    after.advance(0)
    assert after.state() == "PrepareAbort"


def test_a_clock_that_was_ahead_keeps_no_transaction_open(shell: Shell) -> None:
    producer = shell.start(timeout_ms=10_000)
    shell.now_ms += DAY_MS
    shell.add(producer, A)
    shell.now_ms -= DAY_MS
    after = shell.reload()
    after.advance(10_001)
    assert after.state() == "PrepareAbort"


def test_a_timeout_and_an_addition_on_its_way(shell: Shell) -> None:
    producer = shell.start(timeout_ms=10_000)
    shell.add(producer, A)
    shell.now_ms += 9_999
    shell.is_holding = True
    shell.add_request(producer, B)
    shell.now_ms += 2
    shell.perform(shell.shard.tick(shell.now_ms))
    shell.release()
    shell.advance(0)
    [order] = shell.shard.take_marker_orders()
    assert order.partitions == (A, B)


def test_time_does_not_change_what_is_decided(shell: Shell) -> None:
    producer = shell.start(timeout_ms=10_000)
    shell.add(producer, A)
    shell.commit(producer)
    shell.advance(30 * DAY_MS)
    assert shell.state() == "PrepareCommit"
    shell.write_markers()
    assert shell.state() == "CompleteCommit"


@pytest.mark.parametrize("committed", [True, False])
def test_a_failover_completes_what_was_decided(shell: Shell, committed: bool) -> None:
    producer = shell.start()
    shell.add(producer, A, B)
    after = shell.end(producer, committed)
    [order] = shell.shard.take_marker_orders()
    shell.written(order, A)
    successor = shell.reload()
    [again] = successor.shard.take_marker_orders()
    assert again.partitions == (A, B)
    assert again.marker == order.marker._replace(coordinator_epoch=shell.coordinator_epoch + 1)
    assert again.transaction_version == VERSION_WITH_BUMP
    successor.written(order, A, B)
    assert successor.state().startswith("Prepare"), "that was the marker of the one before"
    successor.written(again, A, B)
    assert successor.end(producer, committed) == after


def test_an_end_that_was_not_committed_has_not_happened(shell: Shell) -> None:
    producer = shell.start()
    shell.add(producer, A)
    shell.is_holding = True
    shell.end_request(producer, True)
    successor = shell.reload(shell.committed)
    assert successor.state() == "Ongoing"
    assert successor.abort(producer) == (PRODUCER_ID, 1)


def test_what_is_not_in_the_log_is_gone_after_a_failover(shell: Shell) -> None:
    producer = shell.start()
    after = shell.init(producer)
    assert after == (PRODUCER_ID, 1)
    assert shell.init(producer) == after
    # As in Kafka: nobody knows any more that this is the same producer.
    assert shell.reload().init(producer) is ErrorCode.PRODUCER_FENCED


def test_an_abort_of_nothing_is_complete_at_once(shell: Shell) -> None:
    producer = shell.start()
    assert shell.end(producer, True) is ErrorCode.INVALID_TXN_STATE
    assert shell.end(producer, False) == (PRODUCER_ID, 1)
    assert shell.state() == "CompleteAbort"
    assert shell.shard.take_marker_orders() == []
    assert shell.end(producer, False) == (PRODUCER_ID, 1)
    assert shell.end(ProducerIdAndEpoch(PRODUCER_ID, 1), False) == (PRODUCER_ID, 2)


def test_a_prepared_transaction_without_partitions_completes_by_itself(shell: Shell) -> None:
    """Kafka writes such records."""
    producer = shell.start()
    shell.add(producer, A)
    shell.commit(producer)
    whole = shell.log[-1].value
    assert whole is not None
    topic = b"\x02\x02a\x02\x00\x00\x00\x00\x00"
    assert whole.count(topic) == 1
    shell.log[-1] = shell.log[-1]._replace(value=whole.replace(topic, b"\x01"))
    after = shell.reload()
    assert after.shard.take_marker_orders() == []
    assert after.state() == "PrepareCommit"
    after.advance(0)
    assert after.state() == "CompleteCommit"
    assert after.shard.next_deadline_ms == after.now_ms + SETTINGS.id_expiration_ms


def test_the_epochs_of_a_producer_id_are_used_up() -> None:
    shell, producer = exhausted()
    shell.add(producer, A)
    after = shell.commit(producer)
    assert after == (PRODUCER_ID + 1, 0)
    assert shell.add(after, B) is ErrorCode.CONCURRENT_TRANSACTIONS
    successor = shell.reload()
    assert successor.end(producer, True) is ErrorCode.CONCURRENT_TRANSACTIONS
    [order] = successor.write_markers()
    assert order.marker == Marker(PRODUCER_ID, EPOCH_MAX, successor.coordinator_epoch, True)
    assert successor.end(producer, True) == after
    assert successor.add(after, B) is ErrorCode.NONE
    assert successor.end(producer, True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_with_the_last_epoch_is_fenced() -> None:
    shell, zombie = exhausted()
    shell.add(zombie, A)
    assert shell.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    [order] = shell.write_markers()
    assert order.marker == Marker(PRODUCER_ID, EPOCH_MAX, shell.coordinator_epoch, False)
    assert shell.start() == (PRODUCER_ID + 1, 1)
    assert shell.end(zombie, False) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_timeout_with_the_last_epoch_waits_for_a_producer_id() -> None:
    shell, producer = exhausted(producer_ids=())
    shell.add(producer, A)
    shell.advance(TIMEOUT_MS + 10)
    assert shell.state() == "Ongoing"
    shell.shard.add_producer_ids([PRODUCER_ID + 1])
    shell.advance(SETTINGS.timeout_check_ms)
    shell.write_markers()
    assert shell.state() == "CompleteAbort"
    assert shell.end(producer, False) == (PRODUCER_ID + 1, 0)


def test_an_id_that_is_not_used_is_forgotten() -> None:
    shell = Shell(TransactionSettings(id_expiration_ms=DAY_MS))
    producer = shell.start()
    shell.add(producer, A)
    shell.abort(producer)
    shell.write_markers()
    shell.advance(DAY_MS - 1)
    assert shell.state() == "CompleteAbort"
    shell.advance(1)
    assert shell.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    assert shell.log[-1].value is None
    assert shell.shard.next_deadline_ms is None
    assert shell.reload().shard.next_deadline_ms is None
    assert shell.end(producer, False) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shell.start() == (PRODUCER_ID + 1, 0)


def test_an_id_comes_back_while_it_is_being_forgotten() -> None:
    shell = Shell(TransactionSettings(id_expiration_ms=DAY_MS))
    shell.start()
    shell.is_holding = True
    shell.advance(DAY_MS)
    request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1)
    token = shell.send(request, 5)
    shell.release()
    assert shell.initialized(token) == (PRODUCER_ID + 1, 0)
    assert shell.reload().state() == shell.state() == "Empty"


def test_many_ids_are_forgotten_bit_by_bit() -> None:
    shell = Shell(TransactionSettings(id_expiration_ms=DAY_MS))
    ids = TIMERS_PER_TICK + 1
    for number in range(ids):
        shell.start(str(number))
    shell.now_ms += 2 * DAY_MS
    shell = shell.reload()
    effects = shell.shard.tick(shell.now_ms)
    assert len(effects.records) == TIMERS_PER_TICK
    shell.perform(effects)
    shell.advance(0)
    assert len(shell.log) == 2 * ids


def test_a_transaction_may_not_grow_beyond_its_record() -> None:
    shell = Shell(TransactionSettings(record_bytes_max=2_000))
    producer = shell.start()
    added = 0
    while (code := shell.add(producer, TopicPartition("t", added))) is ErrorCode.NONE:
        added += 1
    assert code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert 100 < added < 500
    assert shell.commit(producer) == (PRODUCER_ID, 1)
    assert max(len(record.value or b"") for record in shell.log) < 2_000
    [order] = shell.write_markers()
    assert len(order.partitions) == added


def test_no_producer_id_is_at_hand() -> None:
    shell = Shell(producer_ids=[5])
    assert shell.start("first") == (5, 0)
    assert shell.init() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert shell.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    assert shell.shard.missing_producer_ids > 0
    shell.shard.add_producer_ids(range(6, 100))
    assert shell.shard.missing_producer_ids == 0
    assert shell.init() == (6, 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerIdRequest(transactional_id=""), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(transactional_id="x" * 32_768), ErrorCode.INVALID_REQUEST),
        (
            InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=0),
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ),
        (
            InitProducerIdRequest(
                transactional_id=ID, transaction_timeout_ms=SETTINGS.max_timeout_ms + 1
            ),
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ),
        (
            InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1, producer_id=1),
            ErrorCode.INVALID_REQUEST,
        ),
        (
            InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1, producer_epoch=1),
            ErrorCode.INVALID_REQUEST,
        ),
        (
            InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1, enable2_pc=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (
            InitProducerIdRequest(
                transactional_id=ID, transaction_timeout_ms=1, keep_prepared_txn=True
            ),
            ErrorCode.UNSUPPORTED_VERSION,
        ),
    ],
)
def test_refused_starts(shell: Shell, request_: InitProducerIdRequest, code: ErrorCode) -> None:
    assert shell.initialized(shell.send(request_, 6)) is code
    assert shell.log == []


def test_requests_without_a_transactional_id(shell: Shell) -> None:
    nobody = ProducerIdAndEpoch(1, 1)
    assert shell.add(nobody, A, transactional_id="") is ErrorCode.INVALID_REQUEST
    assert shell.add(nobody, A, transactional_id="", verify=True) is ErrorCode.INVALID_REQUEST
    token = shell.send(EndTxnRequest(transactional_id="", committed=True), 5)
    assert shell.ended(token) is ErrorCode.INVALID_REQUEST
    assert shell.log == []


def test_old_clients_learn_that_they_are_fenced_by_an_older_code(shell: Shell) -> None:
    zombie = shell.start()
    shell.start()
    old, new = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
    assert [shell.init(zombie, version=version) for version in (3, 4)] == [old, new]
    assert [shell.add(zombie, A, version=version) for version in (1, 2)] == [old, new]
    assert [shell.add_offsets(zombie, version=version) for version in (1, 2)] == [old, new]
    assert [shell.end(zombie, True, version=version) for version in (1, 2)] == [old, new]


def test_a_log_that_cannot_be_read() -> None:
    shard = Shell().shard
    with pytest.raises(RecordError):
        Shell(log=[CoordinatorRecord(b"", b"")])
    Shell(log=[CoordinatorRecord(b"\x00\x09whatever", None)])
    shard.end_transaction(1, True)
    shard.cancel(1)
    assert error_code(shard.describe("x").error_code) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_timeouts_belong_to_the_transaction_that_is_open(shell: Shell) -> None:
    producer = shell.start(timeout_ms=TIMEOUT_MS)
    for _ in range(5):
        shell.add(producer, A)
        shell.advance(TIMEOUT_MS - 1)
        producer = shell.commit(producer)
        shell.write_markers()
    shell.add(producer, A)
    shell.advance(TIMEOUT_MS)
    assert shell.state() == "Ongoing"
    shell.advance(1)
    assert shell.state() == "PrepareAbort"
