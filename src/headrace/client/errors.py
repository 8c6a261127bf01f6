"""Errors of clients: exceptions that say what to do, and the error code each stands for."""

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
    """The deadline passed before an operation that was retried could succeed."""


class Closed(HeadraceError):
    """The client was closed; make a new one."""


class IllegalState(HeadraceError):
    """A call that does not fit what the client is doing; the text says what to do instead."""


class BufferExhausted(TimedOut):
    """`buffer_memory` stayed full for `max_block_ms`: brokers are slower than the application."""


class RecordTooLarge(KafkaError):
    """A record that is larger than a request or the topic may have."""

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, what, advice=advice)


class BatchRefused(HeadraceError):
    """A record was not written because of another one in its batch; it can be sent again."""


class SerializationFailed(HeadraceError):
    """A serializer or deserializer raised; the text names the topic and the record."""


class NoOffset(HeadraceError):
    """A partition has no position to start at, and `auto_offset_reset` is "none"."""


class LogTruncated(NoOffset):
    """Records before the position of `partition` were lost with a leader (KIP-320).

    From `offset` on the log has other records than those that were read; None if that is not known.
    """

    def __init__(
        self, text: str, partition: TopicPartition, position: int, offset: int | None
    ) -> None:
        super().__init__(text)
        self.partition = partition
        self.position = position
        self.offset = offset


class CommitFailed(KafkaError):
    """Offsets were not committed: the partitions belong to another member of the group by now."""


class TransactionAborted(HeadraceError):
    """A record was not sent, or does not count, because its transaction was aborted."""


class TransactionAbortable(KafkaError):
    """A transaction cannot be committed any more; abort it, and then another can begin."""


class TransactionFatal(KafkaError):
    """A transactional producer cannot go on; close it, and make a new one if that can help."""


class ProducerFenced(TransactionFatal):
    """A newer producer has the transactional id, or a transaction was open for too long."""

    def __init__(self, what: str, *, advice: str = "") -> None:
        super().__init__(ErrorCode.PRODUCER_FENCED, what, advice=advice)


class OutcomeUnknown(HeadraceError):
    """The connection broke after a command was sent, and before it was answered."""


class SomeFailed(KafkaError):
    """A command about several things that failed for some of them.

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
    """The error that a broker answers with, or None; `subject` is the thing that was asked for."""
    if code == ErrorCode.NONE:
        return None
    known = error_code(code)
    what, advice = split_advice(detail or code_words(known))
    if subject is not None and not (detail and _names(what, subject)):
        what = f"{subject}: {what}"
    return KafkaError(known, what, advice=advice, subject=subject)


def _names(text: str, subject: Subject) -> bool:
    """Whether a broker's text names the thing, as some of them do and others do not."""
    return (
        f"'{subject.name}'" in text
        or re.search(rf"{re.escape(str(subject))}(?!\w)", text) is not None
    )


def check(code: int, detail: str | None = None, subject: Subject | None = None) -> None:
    """Raise the error a code stands for, if it stands for one."""
    error = failure(code, detail, subject)
    if error is not None:
        raise error
