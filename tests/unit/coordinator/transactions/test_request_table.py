"""Our decisions, cell by cell of the table."""

from dataclasses import replace

import pytest

from headrace.coordinator.transactions import decisions
from headrace.coordinator.transactions.decisions import Decision, ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    VERSION_WITH_BUMP,
    VERSION_WITHOUT_BUMP,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.errors import ErrorCode
from tests.unit.coordinator.transactions.driving import A, B
from tests.unit.coordinator.transactions.request_table import CELLS, Cell

ID, OTHER_ID, NEW_ID = 7, 6, 8
EPOCH = 5
NOW_MS = 2_000
ADDED = A._replace(partition=9)
SENDERS = {
    "current": ProducerIdAndEpoch(ID, EPOCH),
    "last": ProducerIdAndEpoch(ID, EPOCH - 1),
    "older": ProducerIdAndEpoch(ID, EPOCH - 2),
    "ahead": ProducerIdAndEpoch(ID, EPOCH + 1),
    "other": ProducerIdAndEpoch(OTHER_ID, EPOCH),
    "new": None,
}
CODES = {
    ErrorCode.NONE: "OK",
    ErrorCode.CONCURRENT_TRANSACTIONS: "CON",
    ErrorCode.PRODUCER_FENCED: "FEN",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "MAP",
    ErrorCode.INVALID_TXN_STATE: "ITS",
    ErrorCode.TRANSACTION_ABORTABLE: "ABO",
}
STATUSES = {status.title: status for status in TransactionStatus}
SHORT = dict(zip(TransactionStatus, ("EM", "ON", "PC", "PA", "CC", "CA"), strict=True))


def metadata(state: str) -> TransactionMetadata | None:
    status = STATUSES.get(state)
    if status is None:
        return None
    is_open = status is TransactionStatus.ONGOING or status.is_prepared
    return TransactionMetadata(
        status=status,
        producer_id=ID,
        producer_epoch=EPOCH,
        last_epoch=EPOCH - 1,
        timeout_ms=1_000,
        updated_ms=1_500,
        start_ms=-1 if status is TransactionStatus.EMPTY else 1_000,
        partitions=(A, B) if is_open else (),
        client_version=VERSION_WITH_BUMP,
    )


def decide(
    current: TransactionMetadata | None, request: str, sender: ProducerIdAndEpoch | None
) -> Decision:
    if request == "init":
        return decisions.initialize(current, sender, 1_000, NOW_MS, lambda: NEW_ID)
    assert sender is not None
    kind, _, version = request.partition("-")
    if kind == "add":
        return decisions.add(current, sender, (ADDED,), VERSION_WITH_BUMP, NOW_MS)
    if kind == "verify":
        return decisions.verify(current, sender, (A,))[A]
    if version == "v4":
        return decisions.end(current, sender, kind == "commit", NOW_MS)
    return decisions.end_with_bump(current, sender, kind == "commit", NOW_MS, lambda: NEW_ID)


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_decision(cell: Cell) -> None:
    current = metadata(cell.state)
    decision = decide(current, cell.request, SENDERS[cell.sender])
    if isinstance(decision, ErrorCode):
        outcome = CODES[decision]
    else:
        raised = decision.producer_epoch - (EPOCH if current is not None else 0)
        outcome = f"{SHORT[decision.status]}+{raised}"
        assert decision.producer_id == (ID if current is not None else NEW_ID)
    assert outcome == cell.outcome.rstrip("*")


@pytest.mark.parametrize("state", ["CompleteCommit", "CompleteAbort"])
@pytest.mark.parametrize("request_kind", ["commit-v5", "abort-v5"])
def test_an_end_that_raised_no_epoch_is_not_taken_for_one_sent_again(
    state: str, request_kind: str
) -> None:
    """Unlike Kafka: the epoch before belongs to somebody else, who is fenced."""
    current = metadata(state)
    assert current is not None
    ended = replace(current, client_version=VERSION_WITHOUT_BUMP)
    assert decide(ended, request_kind, SENDERS["last"]) is ErrorCode.PRODUCER_FENCED
