"""What each state of a transactional producer allows, and what the others say instead."""

from collections.abc import Callable

import pytest

from headrace.client.errors import (
    IllegalState,
    ProducerFenced,
    TimedOut,
    TransactionAbortable,
    TransactionFatal,
)
from headrace.client.producer.transaction_state import TransactionPhase, TransactionState, is_fatal
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

REFUSED = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")
FENCED = KafkaError(ErrorCode.PRODUCER_FENCED)


def uninitialized() -> TransactionState:
    return TransactionState("copier")


def ready() -> TransactionState:
    state = uninitialized()
    state.end()
    return state


def in_transaction() -> TransactionState:
    state = ready()
    state.begin()
    return state


def committing() -> TransactionState:
    state = in_transaction()
    state.begin_commit()
    return state


def committing_asked() -> TransactionState:
    state = committing()
    state.is_commit_asked = True
    return state


def failed() -> TransactionState:
    state = in_transaction()
    assert state.fail(REFUSED)
    return state


def aborting() -> TransactionState:
    state = in_transaction()
    state.begin_abort()
    return state


def fenced() -> TransactionState:
    state = in_transaction()
    state.break_off(FENCED)
    return state


STATES = [
    uninitialized,
    ready,
    in_transaction,
    committing,
    committing_asked,
    failed,
    aborting,
    fenced,
]
CALLS: dict[str, Callable[[TransactionState], object]] = {
    "begin": TransactionState.check_begin,
    "send offsets": lambda state: state.check_in_transaction("send_offsets_to_transaction()"),
    "commit": TransactionState.begin_commit,
    "abort": TransactionState.begin_abort,
}

# What is not here is allowed. `begin` after a failure aborts first.
REFUSALS: dict[str, dict[str, type[Exception]]] = {
    "uninitialized": dict.fromkeys(("send offsets", "commit", "abort"), IllegalState),
    "ready": dict.fromkeys(("send offsets", "commit", "abort"), IllegalState),
    "in_transaction": {"begin": IllegalState},
    "committing": {"begin": IllegalState, "send offsets": IllegalState},
    "committing_asked": {
        "begin": IllegalState,
        "send offsets": IllegalState,
        "abort": IllegalState,
    },
    "failed": {"send offsets": TransactionAbortable, "commit": TransactionAbortable},
    "aborting": {"send offsets": IllegalState, "commit": IllegalState},
    "fenced": dict.fromkeys(("begin", "send offsets", "commit", "abort"), ProducerFenced),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("new", STATES, ids=lambda new: new.__name__)
def test_every_call_in_every_state(new: Callable[[], TransactionState], call: str) -> None:
    state = new()
    before = state.phase
    refusal = REFUSALS[new.__name__].get(call)
    if refusal is None:
        CALLS[call](state)
    else:
        with pytest.raises(refusal) as caught:
            CALLS[call](state)
        assert type(caught.value) is refusal
        assert state.phase is before


@pytest.mark.parametrize("new", STATES, ids=lambda new: new.__name__)
def test_only_an_open_transaction_can_still_be_committed(
    new: Callable[[], TransactionState],
) -> None:
    state = new()
    assert state.is_doomed is (new not in (in_transaction, committing, committing_asked))
    assert state.is_open is (new in (in_transaction, committing, failed, aborting))
    assert isinstance(state.failure(), IllegalState | TransactionAbortable | ProducerFenced)


def test_a_failure_is_told_with_its_cause_and_only_the_first() -> None:
    state = in_transaction()
    assert state.fail(REFUSED)
    assert not state.fail(TimedOut("too late"))
    error = state.abortable()
    assert error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert error.__cause__ is REFUSED
    assert "has to be aborted: TOPIC_AUTHORIZATION_FAILED: not allowed" in str(error)


def test_a_failure_without_a_code_has_that_of_transactions() -> None:
    state = in_transaction()
    state.fail(TimedOut("too late"))
    assert state.abortable().code is ErrorCode.TRANSACTION_ABORTABLE


def test_what_is_fatal_stays_and_says_whether_it_is_a_fence() -> None:
    state = in_transaction()
    error = state.break_off(KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    assert type(error) is TransactionFatal
    assert not state.fail(REFUSED)
    assert state.phase is TransactionPhase.FATAL_ERROR
    assert "'copier' was taken by another producer" in str(fenced().failure())
    assert isinstance(fenced().failure(), TransactionFatal)


def test_a_new_transaction_remembers_nothing_of_the_last() -> None:
    state = in_transaction()
    state.is_started = state.needs_epoch = True
    state.add([TopicPartition("t", 0)])
    state.groups.add("readers")
    state.fail(REFUSED)
    state.begin_abort()
    state.end()
    state.begin()
    assert not (state.is_started or state.needs_epoch or state.partitions or state.groups)


@pytest.mark.parametrize(
    ("code", "fatal"),
    [
        (ErrorCode.PRODUCER_FENCED, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True),
        (ErrorCode.UNSUPPORTED_VERSION, True),
        (ErrorCode.TRANSACTION_ABORTABLE, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.ILLEGAL_GENERATION, False),
    ],
)
def test_which_errors_of_a_coordinator_are_fatal(code: ErrorCode, fatal: bool) -> None:
    assert is_fatal(KafkaError(code)) is fatal
    assert not is_fatal(TimedOut("too late"))
