"""Every state against every request, as a table."""

import pytest

from headrace.coordinator.transactions import decisions
from headrace.coordinator.transactions.decisions import Decision, Producer
from headrace.coordinator.transactions.metadata import SOURCES, TransactionMetadata
from headrace.coordinator.transactions.values import EPOCH_MAX, VERSION_WITH_BUMP, Status
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
EM, ON, PC, PA, CC, CA = Status
PRESENT = Producer(ID, EPOCH)
BEFORE = Producer(ID, EPOCH - 1)
ANOTHER = A._replace(partition=9)


def metadata(
    status: Status,
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


def initialize(current: TransactionMetadata | None, expected: Producer | None = None) -> Decision:
    return decisions.initialize(current, expected, TIMEOUT_MS, NOW_MS, lambda: NEW_ID)


@pytest.mark.parametrize(
    ("status", "expected", "outcome"),
    [
        (None, None, (EM, NEW_ID, 0)),
        (None, PRESENT, (EM, NEW_ID, 0)),
        (EM, None, (EM, ID, EPOCH + 1)),
        (CC, None, (EM, ID, EPOCH + 1)),
        (CA, None, (EM, ID, EPOCH + 1)),
        # The client asks again, when the abort is done.
        (ON, None, (PA, ID, EPOCH + 1)),
        (PC, None, CONCURRENT),
        (PA, None, CONCURRENT),
        (EM, PRESENT, (EM, ID, EPOCH + 1)),
        (CC, PRESENT, (EM, ID, EPOCH + 1)),
        (CA, PRESENT, (EM, ID, EPOCH + 1)),
        (ON, PRESENT, (PA, ID, EPOCH + 1)),
        (PC, PRESENT, CONCURRENT),
        (PA, PRESENT, CONCURRENT),
        (EM, BEFORE, FENCED),
        (CC, BEFORE, FENCED),
        (CA, BEFORE, FENCED),
        # A zombie does not abort the transaction of who came after it.
        (ON, BEFORE, FENCED),
        (EM, Producer(OLD_ID, EPOCH), FENCED),
        (ON, Producer(OLD_ID, EPOCH), FENCED),
        (PC, Producer(OLD_ID, EPOCH), FENCED),
        (CC, Producer(ID, EPOCH + 1), FENCED),
    ],
)
def test_initialize(status: Status | None, expected: Producer | None, outcome: object) -> None:
    current = None if status is None else metadata(status)
    assert shown(initialize(current, expected)) == outcome


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
    expected = Producer(ID, EPOCH_MAX - 1)
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
    assert initialize(after, Producer(ID, EPOCH)) is FENCED


def test_the_last_epoch_but_one_is_for_clients_and_the_last_to_fence_them() -> None:
    assert shown(initialize(metadata(EM, EPOCH_MAX - 2))) == (EM, ID, EPOCH_MAX - 1)
    assert shown(initialize(metadata(ON, EPOCH_MAX - 1))) == (PA, ID, EPOCH_MAX)
    assert shown(initialize(metadata(CA, EPOCH_MAX))) == (EM, NEW_ID, 0)
    assert initialize(metadata(CA, EPOCH_MAX), Producer(ID, EPOCH_MAX - 1)) is FENCED


@pytest.mark.parametrize("current", [None, metadata(EM, EPOCH_MAX - 1)])
def test_no_producer_id_at_hand(current: TransactionMetadata | None) -> None:
    decision = decisions.initialize(current, None, TIMEOUT_MS, NOW_MS, lambda: None)
    assert decision is LOADING


@pytest.mark.parametrize(
    ("status", "producer", "committed", "outcome"),
    [
        (ON, PRESENT, True, (PC, ID, EPOCH)),
        (ON, PRESENT, False, (PA, ID, EPOCH)),
        (PC, PRESENT, True, CONCURRENT),
        (PC, PRESENT, False, INVALID),
        (PA, PRESENT, True, INVALID),
        (PA, PRESENT, False, CONCURRENT),
        (CC, PRESENT, True, NONE),
        (CC, PRESENT, False, INVALID),
        (CA, PRESENT, True, INVALID),
        (CA, PRESENT, False, NONE),
        (EM, PRESENT, True, INVALID),
        (EM, PRESENT, False, INVALID),
        *((status, BEFORE, True, FENCED) for status in Status),
        *((status, Producer(ID, EPOCH + 1), True, FENCED) for status in Status),
        *((status, Producer(OLD_ID, EPOCH), True, MAPPING) for status in Status),
        (None, PRESENT, True, MAPPING),
    ],
)
def test_end(status: Status | None, producer: Producer, committed: bool, outcome: object) -> None:
    current = None if status is None else metadata(status, version=0)
    assert shown(decisions.end(current, producer, committed, NOW_MS)) == outcome


def end_with_bump(
    current: TransactionMetadata | None, producer: Producer, committed: bool
) -> Decision:
    return decisions.end_with_bump(current, producer, committed, NOW_MS, lambda: NEW_ID)


@pytest.mark.parametrize(
    ("status", "producer", "committed", "outcome"),
    [
        (ON, PRESENT, True, (PC, ID, EPOCH + 1)),
        (ON, PRESENT, False, (PA, ID, EPOCH + 1)),
        (ON, BEFORE, True, FENCED),
        (ON, BEFORE, False, FENCED),
        # Sent again: the epoch was raised by the same request.
        (PC, BEFORE, True, CONCURRENT),
        (PC, BEFORE, False, INVALID),
        (PA, BEFORE, True, INVALID),
        (PA, BEFORE, False, CONCURRENT),
        (PC, PRESENT, True, FENCED),
        (PA, PRESENT, False, FENCED),
        (CC, BEFORE, True, NONE),
        (CC, BEFORE, False, INVALID),
        (CA, BEFORE, False, NONE),
        (CA, BEFORE, True, INVALID),
        # Nothing was written; the epoch rises all the same.
        (EM, PRESENT, False, (CA, ID, EPOCH + 1)),
        (CC, PRESENT, False, (CA, ID, EPOCH + 1)),
        (CA, PRESENT, False, (CA, ID, EPOCH + 1)),
        (EM, PRESENT, True, INVALID),
        (CC, PRESENT, True, INVALID),
        (CA, PRESENT, True, INVALID),
        (EM, BEFORE, True, FENCED),
        (EM, BEFORE, False, FENCED),
        *((status, Producer(ID, EPOCH - 2), False, FENCED) for status in Status),
        *((status, Producer(ID, EPOCH + 1), False, FENCED) for status in Status),
        *((status, Producer(OLD_ID, EPOCH), False, MAPPING) for status in Status),
        (None, PRESENT, True, MAPPING),
    ],
)
def test_end_with_bump(
    status: Status | None, producer: Producer, committed: bool, outcome: object
) -> None:
    current = None if status is None else metadata(status)
    assert shown(end_with_bump(current, producer, committed)) == outcome


def test_an_end_that_raised_no_epoch_is_not_taken_for_one_sent_again() -> None:
    """The epoch before belongs to somebody else, who is fenced."""
    for status in (PC, PA, CC, CA):
        for committed in (True, False):
            assert end_with_bump(metadata(status, version=0), BEFORE, committed) is FENCED


def test_an_end_with_the_last_epoch_goes_on_with_another_producer_id() -> None:
    last = Producer(ID, EPOCH_MAX - 1)
    prepared = end_with_bump(metadata(ON, EPOCH_MAX - 1), last, True)
    assert isinstance(prepared, TransactionMetadata)
    # Markers belong to the id that wrote the records.
    assert shown(prepared) == (PC, ID, EPOCH_MAX)
    assert prepared.client_producer == (NEW_ID, 0)
    assert end_with_bump(prepared, last, True) is CONCURRENT
    assert end_with_bump(prepared, Producer(NEW_ID, 0), True) is MAPPING
    assert prepared.check_producer(NEW_ID, 0) is NONE
    assert prepared.check_producer(*last) is FENCED
    complete = prepared.completed(NOW_MS)
    assert shown(complete) == (CC, NEW_ID, 0)
    assert complete.previous_producer_id == ID
    assert end_with_bump(complete, last, True) is NONE
    assert end_with_bump(complete, Producer(ID, EPOCH_MAX - 2), True) is MAPPING
    assert shown(initialize(complete, last)) == (EM, NEW_ID, 0)


def test_an_abort_of_nothing_with_the_last_epoch() -> None:
    last = Producer(ID, EPOCH_MAX - 1)
    complete = end_with_bump(metadata(CC, EPOCH_MAX - 1), last, False)
    assert isinstance(complete, TransactionMetadata)
    assert shown(complete) == (CA, NEW_ID, 0)
    assert end_with_bump(complete, last, False) is NONE


def test_an_end_with_the_last_epoch_waits_for_a_producer_id() -> None:
    current, last = metadata(ON, EPOCH_MAX - 1), Producer(ID, EPOCH_MAX - 1)
    assert decisions.end_with_bump(current, last, True, NOW_MS, lambda: None) is LOADING


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH_MAX - 2])
def test_who_was_aborted_by_us_may_abort_and_not_commit(epoch: int) -> None:
    fenced = metadata(ON, epoch).fenced(NOW_MS)
    complete = fenced.completed(NOW_MS)
    producer = Producer(ID, epoch)
    assert end_with_bump(fenced, producer, False) is CONCURRENT
    assert end_with_bump(complete, producer, False) is NONE
    for current in (fenced, complete):
        assert end_with_bump(current, producer, True) is INVALID
        assert decisions.end(current, producer, True, NOW_MS) is FENCED
        assert decisions.end(current, producer, False, NOW_MS) is FENCED
    # Who does not raise the epoch with its ends can ask for the new one.
    assert shown(initialize(complete, producer)) == (EM, ID, epoch + 1)
    assert initialize(complete.with_epoch(epoch + 2, -1, 1, 1), producer) is FENCED


def test_who_was_aborted_by_us_with_the_last_epoch_takes_another_producer_id() -> None:
    producer = Producer(ID, EPOCH_MAX - 1)
    fenced = metadata(ON, EPOCH_MAX - 1).fenced(NOW_MS)
    for current in (fenced, fenced.completed(NOW_MS)):
        for committed in (True, False):
            assert end_with_bump(current, producer, committed) is FENCED
            assert decisions.end(current, producer, committed, NOW_MS) is FENCED
    after = initialize(fenced.completed(NOW_MS), producer)
    assert isinstance(after, TransactionMetadata)
    assert shown(after) == (EM, NEW_ID, 0)
    assert shown(initialize(after, producer)) == (EM, NEW_ID, 0)


@pytest.mark.parametrize(
    ("status", "producer", "outcome"),
    [
        (EM, PRESENT, (ON, ID, EPOCH)),
        (ON, PRESENT, (ON, ID, EPOCH)),
        (CC, PRESENT, (ON, ID, EPOCH)),
        (CA, PRESENT, (ON, ID, EPOCH)),
        (PC, PRESENT, CONCURRENT),
        (PA, PRESENT, CONCURRENT),
        *((status, BEFORE, FENCED) for status in Status),
        *((status, Producer(OLD_ID, EPOCH), MAPPING) for status in Status),
        (None, PRESENT, MAPPING),
    ],
)
def test_add(status: Status | None, producer: Producer, outcome: object) -> None:
    current = None if status is None else metadata(status)
    added = A._replace(partition=9)
    decision = decisions.add(current, producer, (A, added), VERSION_WITH_BUMP, NOW_MS)
    assert shown(decision) == outcome
    if isinstance(decision, TransactionMetadata):
        is_going_on = status is ON
        assert decision.partitions == ((A, B, added) if is_going_on else (A, added))
        assert decision.start_ms == (1_000 if is_going_on else NOW_MS)


def test_there_is_nothing_to_add_twice() -> None:
    assert decisions.add(metadata(ON), PRESENT, (B, A), 0, NOW_MS) is NONE
    assert decisions.add(metadata(EM), PRESENT, (), 0, NOW_MS) is NONE


@pytest.mark.parametrize(
    ("status", "producer", "code"),
    [
        (ON, PRESENT, NONE),
        (EM, PRESENT, ErrorCode.TRANSACTION_ABORTABLE),
        (CC, PRESENT, ErrorCode.TRANSACTION_ABORTABLE),
        (CA, PRESENT, ErrorCode.TRANSACTION_ABORTABLE),
        (PC, PRESENT, CONCURRENT),
        (PA, PRESENT, CONCURRENT),
        (ON, BEFORE, FENCED),
        (ON, Producer(OLD_ID, EPOCH), MAPPING),
        (None, PRESENT, MAPPING),
    ],
)
def test_verify(status: Status | None, producer: Producer, code: ErrorCode) -> None:
    current = None if status is None else metadata(status)
    other = A._replace(partition=9)
    other_code = ErrorCode.TRANSACTION_ABORTABLE if code is NONE else code
    assert decisions.verify(current, producer, (A, other)) == {A: code, other: other_code}


def test_every_decision_is_a_transition_of_the_table() -> None:
    """And every transition of the table is decided somewhere."""
    seen: set[tuple[Status | None, Status | None]] = set()
    producers = [None, PRESENT, BEFORE]
    states = [None, *map(metadata, Status)]
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
        seen |= {(source, one.status) for one in outcomes if isinstance(one, TransactionMetadata)}
    table = {(source, target) for target, sources in SOURCES.items() for source in sources}
    assert seen == {(source, target) for source, target in table if target is not None}
