"""Records that were deleted are told from records that were lost."""

import pytest

from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.trimmed_topic import TrimmedLog


def log_of(acknowledged: int, *, asked_before: int, deleted_before: int) -> TrimmedLog:
    """The account of a log with a record at each offset, of which the oldest are deleted."""
    log = TrimmedLog()
    log.acknowledged = {offset: b"%d" % offset for offset in range(acknowledged)}
    log.asked_before, log.deleted_before = asked_before, deleted_before
    return log


def records(first: int, end: int) -> dict[int, bytes]:
    return {offset: b"%d" % offset for offset in range(first, end)}


@pytest.mark.parametrize("first", [2, 3, 4])
def test_a_log_begins_between_what_is_deleted_and_what_was_to_be(first: int) -> None:
    log = log_of(9, asked_before=4, deleted_before=2)
    log.check_start(first, log.deleted_before)
    log.check(records(first, 9))


@pytest.mark.parametrize("first", [1, 5])
def test_a_log_that_begins_earlier_or_later_is_wrong(first: int) -> None:
    log = log_of(9, asked_before=4, deleted_before=2)
    with pytest.raises(Violation, match="begins at offset"):
        log.check_start(first, log.deleted_before)
    with pytest.raises(Violation):
        log.check(records(first, 9))


def test_a_record_that_nobody_deleted_is_lost() -> None:
    log = log_of(9, asked_before=4, deleted_before=4)
    with pytest.raises(Violation, match="at offset 8, where b'8' was acknowledged"):
        log.check(records(4, 8))


def test_an_empty_log_is_right_only_if_all_was_to_be_deleted() -> None:
    log_of(9, asked_before=9, deleted_before=9).check({})
    with pytest.raises(Violation, match="at offset 8"):
        log_of(9, asked_before=8, deleted_before=8).check({})


def test_a_record_is_there_once() -> None:
    log = log_of(3, asked_before=0, deleted_before=0)
    with pytest.raises(Violation, match="twice"):
        log.check({**records(0, 3), 3: b"2"})
