"""The state of a transactional producer, and what may be done from there. Pure.

Pure.

An error is abortable: the transaction cannot be committed, and after it is aborted another may
begin. Or it is fatal: the producer can do nothing any more.
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

# After these from a coordinator, another producer has the transactional id or the coordinator has
# taken it away from us. A leader of a partition may only be ahead of us: it says so by the second.
FENCED = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH))
FATAL = frozenset(
    (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    )
)
# The coordinator knows nothing of the transaction that is to be aborted; taking the transactional
# id over from ourselves makes sure that nothing is left of it.
NOTHING_TO_ABORT = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    )
)
# A commit that is refused with one of these has not happened. Unlike Kafka's client: a transaction
# in another state, most likely aborted after its time was over, does not end the producer.
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

    Invariant: `is_started` is false only if no broker can have heard of the transaction; then it
    ends without asking anybody. `needs_epoch` says that sequence numbers were used which may or may
    not be in the log: the next transaction takes another epoch, where they begin anew.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.phase = TransactionPhase.UNINITIALIZED
        # 2: leaders add their partitions to the transaction themselves (KIP-890), 1: we do.
        self.version = 1
        self.is_started = False
        self.needs_epoch = False
        self.is_commit_asked = False
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self._error: HeadraceError | None = None

    @property
    def is_doomed(self) -> bool:
        """Whether what is sent now could not be committed any more."""
        return self.phase not in (TransactionPhase.IN_TRANSACTION, TransactionPhase.COMMITTING)

    @property
    def is_open(self) -> bool:
        """Whether there is something to abort."""
        if self.phase is TransactionPhase.COMMITTING:
            return not self.is_commit_asked
        return self.phase in (
            TransactionPhase.IN_TRANSACTION,
            TransactionPhase.ABORTABLE_ERROR,
            TransactionPhase.ABORTING,
        )

    def failure(self) -> HeadraceError:
        """The error for a record that is sent now."""
        if self.phase is TransactionPhase.FATAL_ERROR:
            return self._fatal()
        if self.phase is TransactionPhase.ABORTABLE_ERROR:
            return self.abortable()
        if self.phase in (TransactionPhase.UNINITIALIZED, TransactionPhase.READY):
            return IllegalState(
                "a transactional producer sends records in transactions only; call"
                " begin_transaction(), or send inside of `with producer.transaction():`"
            )
        return IllegalState(f"no record can be sent while the producer is {self.phase.value}")

    def abortable(self) -> TransactionAbortable:
        """The error that ends a transaction which has failed."""
        cause = self._error
        code = cause.code if isinstance(cause, KafkaError) else ErrorCode.TRANSACTION_ABORTABLE
        error = TransactionAbortable(
            code, f"the transaction cannot be committed and has to be aborted: {_words(cause)}"
        )
        error.__cause__ = cause
        return error

    # -- what the application asks for

    def check_begin(self) -> None:
        """See that a transaction may begin, or may after an abort."""
        self.check_usable()
        if self.phase is TransactionPhase.IN_TRANSACTION:
            raise IllegalState(
                "a transaction is open already, and they cannot be nested; commit or abort it"
            )
        if self.phase is TransactionPhase.COMMITTING:
            raise IllegalState(
                "whether the last transaction was committed is not known;"
                " call commit_transaction() again"
            )

    def begin(self) -> None:
        """A transaction has begun, of which no broker knows."""
        assert self.phase is TransactionPhase.READY
        self.phase = TransactionPhase.IN_TRANSACTION
        self._error = None
        self.is_started = self.is_commit_asked = False
        self.partitions.clear()
        self.groups.clear()

    def check_in_transaction(self, what: str) -> None:
        """See that the open transaction can take more."""
        self.check_usable()
        if self.phase is TransactionPhase.ABORTABLE_ERROR:
            raise self.abortable()
        if self.phase is not TransactionPhase.IN_TRANSACTION:
            raise IllegalState(f"{what} needs an open transaction, and the producer is {self}")

    def begin_commit(self) -> None:
        """The application has sent everything; it may ask for this again."""
        if self.phase is not TransactionPhase.COMMITTING:
            self.check_in_transaction("commit_transaction()")
            self.phase = TransactionPhase.COMMITTING

    def begin_abort(self) -> None:
        """The application gives the transaction up; it may ask for this again."""
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
        """The transaction is committed or aborted, or the transactional id is ours now."""
        self.phase = TransactionPhase.READY
        self.is_started = self.needs_epoch = False

    def check_usable(self) -> None:
        """See that nothing fatal has happened."""
        if self.phase is TransactionPhase.FATAL_ERROR:
            raise self._fatal()

    # -- what happens to it

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """These are part of the transaction, for all who take part in it."""
        self.partitions.update(partitions)

    def fail(self, error: HeadraceError) -> bool:
        """The transaction cannot be committed; whether that is news."""
        if self.is_doomed:
            return False
        self.phase = TransactionPhase.ABORTABLE_ERROR
        self._error = error
        return True

    def break_off(self, error: HeadraceError) -> TransactionFatal:
        """The producer cannot go on; this is what every call raises from now on."""
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
    """Whether an error ends the producer; `fenced` are the codes by which it is shut out."""
    return isinstance(error, KafkaError) and (error.code in fenced or error.code in FATAL)


def _words(error: HeadraceError | None) -> str:
    return "it was aborted" if error is None else str(error)
