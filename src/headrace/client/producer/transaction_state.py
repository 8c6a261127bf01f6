"""The state of a transactional producer, and the calls it allows. Pure.

An error is abortable: the transaction cannot be committed, and after an abort another may begin. Or
it is fatal: the producer can do nothing any more.
"""

from collections.abc import Iterable
from enum import Enum

from headrace.client.errors import (
    IllegalState,
    ProducerFenced,
    TransactionAbortable,
    TransactionFatal,
)
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.types import TopicPartition

# Sent by a coordinator, these mean that another producer has the transactional id or that the
# coordinator has fenced this one. A partition leader that is ahead of this producer sends the
# second.
FENCED = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH))
FATAL = frozenset(
    (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    )
)
# The coordinator does not know the transaction to abort; acquiring the transactional id again makes
# sure that nothing is left of it.
NOTHING_TO_ABORT = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    )
)
# A commit that is refused with one of these has not happened. Unlike Kafka's client: a transaction
# in another state, most likely aborted after its timeout, does not end the producer.
NOT_COMMITTED = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    )
)


class TransactionPhase(Enum):
    """Kafka's states of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTABLE_ERROR = "failed, and to be aborted"
    ABORTING = "aborting"
    FATAL_ERROR = "unusable"


class TransactionState:
    """The transaction of a producer, from one call of the application to the next.

    Invariant: `is_started` is false only if no broker can know of the transaction; then it ends
    without a request. `needs_epoch` says that sequence numbers were used which may or may not be in
    the log: the next transaction takes another epoch, where they begin anew.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.phase = TransactionPhase.UNINITIALIZED
        # 2: leaders add their partitions to the transaction themselves (KIP-890), 1: the producer
        # does.
        self.version = 1
        self.is_started = False
        self.needs_epoch = False
        self.is_commit_asked = False
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self._error: HeadraceError | None = None

    @property
    def is_doomed(self) -> bool:
        """Whether records sent now could not be committed any more."""
        return self.phase not in (TransactionPhase.IN_TRANSACTION, TransactionPhase.COMMITTING)

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that can be aborted."""
        if self.phase is TransactionPhase.COMMITTING:
            return not self.is_commit_asked
        return self.phase in (
            TransactionPhase.IN_TRANSACTION,
            TransactionPhase.ABORTABLE_ERROR,
            TransactionPhase.ABORTING,
        )

    def failure(self) -> HeadraceError:
        """The error for a record that is sent in this state."""
        if self.phase is TransactionPhase.FATAL_ERROR:
            return self._fatal()
        if self.phase is TransactionPhase.ABORTABLE_ERROR:
            return self.abortable()
        if self.phase in (TransactionPhase.UNINITIALIZED, TransactionPhase.READY):
            return IllegalState(
                "a transactional producer sends records in transactions only",
                advice=(
                    "call begin_transaction(), or send inside of `with producer.transaction():`"
                ),
            )
        return IllegalState(f"no record can be sent while the producer is {self.phase.value}")

    def abortable(self) -> TransactionAbortable:
        """The error of a failed transaction that has to be aborted."""
        cause = self._error
        code = cause.code if isinstance(cause, KafkaError) else ErrorCode.TRANSACTION_ABORTABLE
        error = TransactionAbortable(
            code, f"the transaction cannot be committed and has to be aborted: {_words(cause)}"
        )
        error.__cause__ = cause
        return error

    # -- calls of the application

    def check_begin(self) -> None:
        """Check that a transaction may begin, if need be after an abort."""
        self.check_usable()
        if self.phase is TransactionPhase.IN_TRANSACTION:
            raise IllegalState(
                "a transaction is open already, and they cannot be nested",
                advice="commit or abort it",
            )
        if self.phase is TransactionPhase.COMMITTING:
            raise IllegalState(
                "whether the last transaction was committed is not known;"
                " call commit_transaction() again"
            )

    def begin(self) -> None:
        """Begin a transaction, of which no broker knows yet."""
        assert self.phase is TransactionPhase.READY
        self.phase = TransactionPhase.IN_TRANSACTION
        self._error = None
        self.is_started = self.is_commit_asked = False
        self.partitions.clear()
        self.groups.clear()

    def check_in_transaction(self, what: str) -> None:
        """Check that the open transaction accepts more records and offsets."""
        self.check_usable()
        if self.phase is TransactionPhase.ABORTABLE_ERROR:
            raise self.abortable()
        if self.phase is not TransactionPhase.IN_TRANSACTION:
            raise IllegalState(f"{what} needs an open transaction, and the producer is {self}")

    def begin_commit(self) -> None:
        """Begin to commit; may be repeated by the application."""
        if self.phase is not TransactionPhase.COMMITTING:
            self.check_in_transaction("commit_transaction()")
            self.phase = TransactionPhase.COMMITTING

    def begin_abort(self) -> None:
        """Begin to abort; may be repeated by the application."""
        self.check_usable()
        if self.phase is TransactionPhase.COMMITTING and self.is_commit_asked:
            raise IllegalState(
                "the transaction may have been committed, so it cannot be aborted;"
                " call commit_transaction() again to learn its outcome"
            )
        if not self.is_open:
            raise IllegalState(
                f"abort_transaction() needs an open transaction, and the producer is {self}"
            )
        self.phase = TransactionPhase.ABORTING

    def end(self) -> None:
        """The transaction was committed or aborted, or the transactional id was acquired."""
        self.phase = TransactionPhase.READY
        self.is_started = self.needs_epoch = False

    def check_usable(self) -> None:
        """Raise the fatal error, if there was one."""
        if self.phase is TransactionPhase.FATAL_ERROR:
            raise self._fatal()

    # -- events

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Note partitions that are part of the transaction."""
        self.partitions.update(partitions)

    def fail(self, error: HeadraceError) -> bool:
        """The transaction cannot be committed; returns whether this is the first failure."""
        if self.is_doomed:
            return False
        self.phase = TransactionPhase.ABORTABLE_ERROR
        self._error = error
        return True

    def break_off(self, error: HeadraceError) -> TransactionFatal:
        """The producer cannot continue; returns the error that every further call raises."""
        self.phase = TransactionPhase.FATAL_ERROR
        self._error = error
        return self._fatal()

    def _fatal(self) -> TransactionFatal:
        cause = self._error
        if isinstance(cause, KafkaError) and cause.code in FENCED:
            error: TransactionFatal = ProducerFenced(
                f"transactional_id {self.transactional_id!r} was taken by another producer, or a"
                " transaction was open for longer than transaction_timeout_ms; close this producer,"
                " and make a new one only if it is the one to go on"
            )
        else:
            code = cause.code if isinstance(cause, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
            error = TransactionFatal(
                code, f"the producer cannot go on, close it and make a new one: {_words(cause)}"
            )
        error.__cause__ = cause
        return error

    def __str__(self) -> str:
        return self.phase.value


def is_fatal(error: Exception, *, fenced: frozenset[ErrorCode] = FENCED) -> bool:
    """Whether an error is fatal for the producer; `fenced` are the codes of a fenced producer."""
    return isinstance(error, KafkaError) and (error.code in fenced or error.code in FATAL)


def _words(error: HeadraceError | None) -> str:
    return "it was aborted" if error is None else str(error)
