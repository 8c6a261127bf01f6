"""Errors of clients: exceptions with advice, and their error codes."""

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    Subject,
    code_words,
    error_code,
    split_advice,
)
from headrace.types import TopicPartition

_ERRORS_NAMED_MAX = 3


class Unreachable(HeadraceError):
    """No broker of the cluster can be reached."""


class TimedOut(HeadraceError, TimeoutError):
    """The deadline passed before a retried operation succeeded."""


class Closed(HeadraceError):
    """The client was closed; make a new one."""


class IllegalState(HeadraceError):
    """A call that is not allowed in the client's state; the text says what to do instead."""


class BufferExhausted(TimedOut):
    """`buffer_memory` stayed full for `max_block_ms`: brokers are slower than the application."""


class RecordTooLarge(KafkaError):
    """A record larger than the limit of a request or of the topic."""

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, what, advice=advice)


class BatchRefused(HeadraceError):
    """A record was not written because another record in its batch was refused; resend it."""


class SerializationFailed(HeadraceError):
    """A serializer or deserializer raised; the text names the topic and the record."""


class NoOffset(HeadraceError):
    """A partition has no initial position, and `auto_offset_reset` is "none"."""


class LogTruncated(NoOffset):
    """Records before the position of `partition` were lost with a leader (KIP-320).

    Or its topic was deleted, and another one created under that name. From `offset` on the log has
    other records than those that were read; None if unknown.
    """

    def __init__(
        self, text: str, partition: TopicPartition, position: int, offset: int | None
    ) -> None:
        super().__init__(text)
        self.partition = partition
        self.position = position
        self.offset = offset


class CommitFailed(KafkaError):
    """Offsets were not committed: another member of the group owns the partitions by now."""


class TransactionAborted(HeadraceError):
    """A record was not sent, or does not count, because its transaction was aborted."""


class TransactionAbortable(KafkaError):
    """A transaction that cannot be committed any more; abort it, and then begin another."""


class TransactionFatal(KafkaError):
    """A transactional producer that cannot continue; close it, and make a new one if that helps."""


class ProducerFenced(TransactionFatal):
    """A newer producer has the transactional id, or the transaction exceeded its timeout."""

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(ErrorCode.PRODUCER_FENCED, what, advice=advice)


class OutcomeUnknown(HeadraceError):
    """The connection broke after a command was sent, and before the response arrived."""


class SomeFailed(KafkaError):
    """A command about several subjects that failed for some of them.

    `outcomes` has the result or the error of each, `errors` those that failed. The code is that of
    the first error.
    """

    def __init__(self, outcomes: Mapping[Any, Any]) -> None:
        self.outcomes = dict(outcomes)
        self.errors: dict[Any, KafkaError] = {
            item: outcome for item, outcome in outcomes.items() if isinstance(outcome, KafkaError)
        }
        first, *more = self.errors.values()
        words = first.detail or first.code.name
        if more:
            named = "; ".join(
                (error.detail or error.code.name).rstrip(".")
                for error in (first, *more[: _ERRORS_NAMED_MAX - 1])
            )
            left = len(more) + 1 - _ERRORS_NAMED_MAX
            words = f"{len(more) + 1} of {len(outcomes)} failed: {named}"
            words += f"; and {left} more" if left > 0 else ""
        super().__init__(first.code, words)


def failure(
    code: int, detail: str | None = None, subject: Subject | None = None
) -> KafkaError | None:
    """The error for a response's error code, or None; `subject` is the subject of the request."""
    if code == ErrorCode.NONE:
        return None
    known = error_code(code)
    what, advice = split_advice(detail or code_words(known))
    if subject is not None and not (detail and _names(what, subject)):
        what = f"{subject}: {what}"
    return KafkaError(known, what, advice=advice, subject=subject)


def _names(text: str, subject: Subject) -> bool:
    """Whether a broker's text names the subject, as only some do."""
    return (
        f"'{subject.name}'" in text
        or re.search(rf"{re.escape(str(subject))}(?!\w)", text) is not None
    )


def check(code: int, detail: str | None = None, subject: Subject | None = None) -> None:
    """Raise the error for an error code, unless it is NONE."""
    error = failure(code, detail, subject)
    if error is not None:
        raise error
