"""What decisions leave of a transactional id, and the ends of its epochs; see `request_table`."""

import pytest

from headrace.coordinator.transactions import decisions
from headrace.coordinator.transactions.decisions import Decision, ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    EPOCH_MAX,
    SOURCES,
    VERSION_WITH_BUMP,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.errors import ErrorCode
from tests.unit.coordinator.transactions.driving import A, B

OLD_ID = 6
ID = 7
NEW_ID = 8
EPOCH = 5
TIMEOUT_MS = 60_000
NOW_MS = 2_000
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
NONE = ErrorCode.NONE
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
EM, ON, PC, PA, CC, CA = TransactionStatus
PRESENT = ProducerIdAndEpoch(ID, EPOCH)
BEFORE = ProducerIdAndEpoch(ID, EPOCH - 1)
ANOTHER = A._replace(partition=9)


def metadata(
    status: TransactionStatus,
    epoch: int = EPOCH,
    *,
    last: int = -1,
    following: int = -1,
    version: int = VERSION_WITH_BUMP,
) -> TransactionMetadata:
    has_partitions = status is ON or status.is_prepared
    return TransactionMetadata(
        status=status,
        producer_id=ID,
        producer_epoch=epoch,
        timeout_ms=1_000,
        updated_ms=1_500,
        start_ms=-1 if status is EM else 1_000,
        partitions=(A, B) if has_partitions else (),
        next_producer_id=following,
        last_epoch=last,
        client_version=version,
    )


def shown(decision: Decision) -> object:
    """A decision in short: an error, or the state and who has it."""
    if isinstance(decision, ErrorCode):
        return decision
    return decision.status, decision.producer_id, decision.producer_epoch


def initialize(
    current: TransactionMetadata | None, expected: ProducerIdAndEpoch | None = None
) -> Decision:
    return decisions.initialize(current, expected, TIMEOUT_MS, NOW_MS, lambda: NEW_ID)


def test_who_goes_on_after_an_error_is_known_when_it_asks_again() -> None:
    first = initialize(metadata(EM), PRESENT)
    assert isinstance(first, TransactionMetadata)
    assert (first.producer_epoch, first.last_epoch) == (EPOCH + 1, EPOCH)
    again = initialize(first, PRESENT)
    assert isinstance(again, TransactionMetadata)
    assert (again.producer_epoch, again.last_epoch) == (EPOCH + 1, EPOCH)


def test_who_starts_anew_leaves_nothing_to_ask_again_for() -> None:
    first = initialize(metadata(EM, last=EPOCH - 1))
    assert isinstance(first, TransactionMetadata)
    assert first.last_epoch == -1
    assert initialize(first, PRESENT) is FENCED


def test_a_start_makes_everything_of_the_transaction_before_go() -> None:
    after = initialize(metadata(CC))
    assert isinstance(after, TransactionMetadata)
    assert (after.partitions, after.start_ms, after.updated_ms) == ((), -1, NOW_MS)
    assert after.timeout_ms == TIMEOUT_MS


def test_used_up_epochs_take_another_producer_id() -> None:
    used_up = metadata(EM, EPOCH_MAX - 1)
    expected = ProducerIdAndEpoch(ID, EPOCH_MAX - 1)
    after = initialize(used_up, expected)
    assert isinstance(after, TransactionMetadata)
    assert shown(after) == (EM, NEW_ID, 0)
    assert (after.previous_producer_id, after.last_epoch) == (ID, EPOCH_MAX - 1)
    # Asked twice more, since two answers were lost.
    for _ in range(2):
        repeated = initialize(after, expected)
        assert isinstance(repeated, TransactionMetadata)
        assert shown(repeated) == (EM, NEW_ID, 0)
        after = repeated
    assert initialize(after, ProducerIdAndEpoch(ID, EPOCH)) is FENCED


def test_the_last_epoch_but_one_is_for_clients_and_the_last_to_fence_them() -> None:
    assert shown(initialize(metadata(EM, EPOCH_MAX - 2))) == (EM, ID, EPOCH_MAX - 1)
    assert shown(initialize(metadata(ON, EPOCH_MAX - 1))) == (PA, ID, EPOCH_MAX)
    assert shown(initialize(metadata(CA, EPOCH_MAX))) == (EM, NEW_ID, 0)
    assert initialize(metadata(CA, EPOCH_MAX), ProducerIdAndEpoch(ID, EPOCH_MAX - 1)) is FENCED


@pytest.mark.parametrize("current", [None, metadata(EM, EPOCH_MAX - 1)])
def test_no_producer_id_at_hand(current: TransactionMetadata | None) -> None:
    decision = decisions.initialize(current, None, TIMEOUT_MS, NOW_MS, lambda: None)
    assert decision is LOADING


def end_with_bump(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch, committed: bool
) -> Decision:
    return decisions.end_with_bump(current, producer, committed, NOW_MS, lambda: NEW_ID)


def test_an_end_with_the_last_epoch_goes_on_with_another_producer_id() -> None:
    last = ProducerIdAndEpoch(ID, EPOCH_MAX - 1)
    prepared = end_with_bump(metadata(ON, EPOCH_MAX - 1), last, True)
    assert isinstance(prepared, TransactionMetadata)
    # Markers belong to the id that wrote the records.
    assert shown(prepared) == (PC, ID, EPOCH_MAX)
    assert prepared.client_producer == (NEW_ID, 0)
    # The client may have either by now.
    for producer in (last, ProducerIdAndEpoch(NEW_ID, 0)):
        assert end_with_bump(prepared, producer, True) is CONCURRENT
        assert end_with_bump(prepared, producer, False) is CONCURRENT
        assert decisions.add(prepared, producer, (A,), VERSION_WITH_BUMP, NOW_MS) is CONCURRENT
        assert initialize(prepared, producer) is CONCURRENT
    complete = prepared.completed(NOW_MS)
    assert shown(complete) == (CC, NEW_ID, 0)
    assert complete.previous_producer_id == ID
    assert end_with_bump(complete, last, True) is NONE
    assert end_with_bump(complete, ProducerIdAndEpoch(ID, EPOCH_MAX - 2), True) is MAPPING
    assert shown(initialize(complete, last)) == (EM, NEW_ID, 0)


def test_an_abort_of_nothing_with_the_last_epoch() -> None:
    last = ProducerIdAndEpoch(ID, EPOCH_MAX - 1)
    complete = end_with_bump(metadata(CC, EPOCH_MAX - 1), last, False)
    assert isinstance(complete, TransactionMetadata)
    assert shown(complete) == (CA, NEW_ID, 0)
    assert end_with_bump(complete, last, False) is NONE


def test_an_end_with_the_last_epoch_waits_for_a_producer_id() -> None:
    current, last = metadata(ON, EPOCH_MAX - 1), ProducerIdAndEpoch(ID, EPOCH_MAX - 1)
    assert decisions.end_with_bump(current, last, True, NOW_MS, lambda: None) is LOADING


def fence(epoch: int) -> TransactionMetadata:
    """Aborted by us."""
    fenced = decisions.fence(metadata(ON, epoch), NOW_MS, lambda: NEW_ID)
    assert isinstance(fenced, TransactionMetadata)
    return fenced


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH_MAX - 2])
def test_who_was_aborted_by_us_may_abort_and_not_commit(epoch: int) -> None:
    fenced = fence(epoch)
    complete = fenced.completed(NOW_MS)
    producer = ProducerIdAndEpoch(ID, epoch)
    assert end_with_bump(fenced, producer, False) is CONCURRENT
    assert end_with_bump(complete, producer, False) is NONE
    assert end_with_bump(fenced, producer, True) is CONCURRENT
    assert end_with_bump(complete, producer, True) is INVALID
    for current in (fenced, complete):
        assert decisions.end(current, producer, True, NOW_MS) is FENCED
        assert decisions.end(current, producer, False, NOW_MS) is FENCED
    # Who does not raise the epoch with its ends can ask for the new one.
    assert shown(initialize(complete, producer)) == (EM, ID, epoch + 1)
    assert initialize(complete.with_epoch(epoch + 2, -1, 1, 1), producer) is FENCED


def test_who_was_aborted_by_us_with_the_last_epoch_takes_another_producer_id() -> None:
    producer = ProducerIdAndEpoch(ID, EPOCH_MAX - 1)
    fenced = fence(EPOCH_MAX - 1)
    assert shown(fenced) == (PA, ID, EPOCH_MAX)
    complete = fenced.completed(NOW_MS)
    assert shown(complete) == (CA, NEW_ID, 0)
    assert end_with_bump(complete, producer, False) is NONE
    assert end_with_bump(complete, producer, True) is INVALID
    assert decisions.end(complete, producer, False, NOW_MS) is MAPPING
    after = initialize(complete, producer)
    assert isinstance(after, TransactionMetadata)
    assert shown(after) == (EM, NEW_ID, 0)
    assert shown(initialize(after, producer)) == (EM, NEW_ID, 0)
    without_id = decisions.fence(metadata(ON, EPOCH_MAX - 1), NOW_MS, lambda: None)
    assert without_id is LOADING


@pytest.mark.parametrize("committed", [True, False])
def test_the_last_epoch_of_an_older_log_is_given_to_no_client(committed: bool) -> None:
    """Brokers aborted transactions without another producer id."""
    producer = ProducerIdAndEpoch(ID, EPOCH_MAX - 1)
    complete = metadata(CA, EPOCH_MAX, last=EPOCH_MAX - 1)
    assert end_with_bump(complete, producer, committed) is FENCED
    assert shown(initialize(complete, producer)) == (EM, NEW_ID, 0)


@pytest.mark.parametrize("status", [EM, ON, CC, CA])
def test_add(status: TransactionStatus) -> None:
    decision = decisions.add(metadata(status), PRESENT, (A, ANOTHER), VERSION_WITH_BUMP, NOW_MS)
    assert isinstance(decision, TransactionMetadata)
    is_going_on = status is ON
    assert decision.partitions == ((A, B, ANOTHER) if is_going_on else (A, ANOTHER))
    assert decision.start_ms == (1_000 if is_going_on else NOW_MS)


def test_there_is_nothing_to_add_twice() -> None:
    assert decisions.add(metadata(ON), PRESENT, (B, A), 0, NOW_MS) is NONE
    assert decisions.add(metadata(EM), PRESENT, (), 0, NOW_MS) is NONE


@pytest.mark.parametrize(
    ("producer", "code", "code_of_another"),
    [(PRESENT, NONE, ErrorCode.TRANSACTION_ABORTABLE), (BEFORE, FENCED, FENCED)],
)
def test_verify(producer: ProducerIdAndEpoch, code: ErrorCode, code_of_another: ErrorCode) -> None:
    verdicts = decisions.verify(metadata(ON), producer, (A, ANOTHER))
    assert verdicts == {A: code, ANOTHER: code_of_another}


def test_every_decision_is_a_transition_of_the_table() -> None:
    """And every transition of the table is decided somewhere."""
    seen: set[tuple[TransactionStatus | None, TransactionStatus | None]] = set()
    producers = [None, PRESENT, BEFORE]
    states = [None, *map(metadata, TransactionStatus)]
    for current in states:
        outcomes: list[Decision] = []
        for producer in producers:
            outcomes.append(initialize(current, producer))
        for committed in (True, False):
            outcomes.append(end_with_bump(current, PRESENT, committed))
            outcomes.append(decisions.end(current, PRESENT, committed, NOW_MS))
        outcomes.append(decisions.add(current, PRESENT, (ANOTHER,), 0, NOW_MS))
        if current is not None and current.status.is_prepared:
            outcomes.append(current.completed(NOW_MS))
        source = None if current is None else current.status
        seen |= {
            (source, outcome.status)
            for outcome in outcomes
            if isinstance(outcome, TransactionMetadata)
        }
    table = {(source, target) for target, sources in SOURCES.items() for source in sources}
    assert seen == {(source, target) for source, target in table if target is not None}
