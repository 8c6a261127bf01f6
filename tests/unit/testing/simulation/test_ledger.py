"""The judge of simulated transactions: it must see every way in which one can go wrong."""

import pytest

from headrace.testing.simulation.history import (
    RecordedTransaction,
    TransactionHistory,
    Violation,
    check_copy,
    check_seen,
)
from headrace.types import TopicPartition

LEFT, RIGHT = TopicPartition("ledger", 0), TopicPartition("ledger", 1)


@pytest.fixture
def ledger() -> TransactionHistory:
    return TransactionHistory()


def told(
    ledger: TransactionHistory, committed: bool | None, producer: str = "t1"
) -> RecordedTransaction:
    """A transaction with a record in each of two partitions."""
    one = ledger.begin(producer)
    for partition in (LEFT, RIGHT):
        ledger.write(one, partition)
    one.committed = committed
    return one


def logs(left: list[bytes], right: list[bytes]) -> dict[TopicPartition, dict[int, bytes]]:
    return {LEFT: dict(enumerate(left)), RIGHT: dict(enumerate(right))}


def test_all_of_what_was_committed_and_nothing_else_is_right(ledger: TransactionHistory) -> None:
    first, second = told(ledger, True).values
    told(ledger, False)
    third, fourth = told(ledger, None).values
    told(ledger, None)
    ledger.check(logs([first, third], [second, fourth]))


@pytest.mark.parametrize("committed", [True, None])
@pytest.mark.parametrize("half", [0, 1])
def test_half_a_transaction_is_found(
    ledger: TransactionHistory, committed: bool | None, half: int
) -> None:
    left, right = told(ledger, committed).values
    with pytest.raises(Violation, match=r"in part|cannot be read"):
        ledger.check(logs([left], []) if half == 0 else logs([], [right]))


def test_a_lost_transaction_is_found(ledger: TransactionHistory) -> None:
    told(ledger, True)
    with pytest.raises(Violation, match="cannot be read"):
        ledger.check(logs([], []))


def test_an_aborted_transaction_that_can_be_read_is_found(ledger: TransactionHistory) -> None:
    left, right = told(ledger, False).values
    with pytest.raises(Violation, match="was aborted"):
        ledger.check(logs([left], [right]))


def test_a_record_that_is_there_twice_is_found(ledger: TransactionHistory) -> None:
    left, right = told(ledger, True).values
    with pytest.raises(Violation, match="out of order"):
        ledger.check(logs([left, left], [right]))


def test_transactions_in_the_wrong_order_are_found(ledger: TransactionHistory) -> None:
    first, second = told(ledger, True), told(ledger, True)
    (a, b), (c, d) = first.values, second.values
    with pytest.raises(Violation, match="out of order"):
        ledger.check(logs([c, a], [b, d]))


def test_two_producers_have_no_order_between_them(ledger: TransactionHistory) -> None:
    (a, b), (c, d) = told(ledger, True, "t1").values, told(ledger, True, "t2").values
    ledger.check(logs([a, c], [d, b]))


def test_a_record_that_nobody_wrote_there_is_found(ledger: TransactionHistory) -> None:
    left, right = told(ledger, True).values
    with pytest.raises(Violation, match="no transaction wrote there"):
        ledger.check(logs([right], [left]))


def test_a_reader_that_is_given_an_aborted_record_is_found(ledger: TransactionHistory) -> None:
    [left, _] = told(ledger, False).values
    with pytest.raises(Violation, match="was aborted"):
        ledger.see(LEFT, 0, left)
    with pytest.raises(Violation, match="was aborted"):
        ledger.see(RIGHT, 0, ledger.doom(b"p1/0/0"))


def test_readers_that_are_given_different_records_are_found(ledger: TransactionHistory) -> None:
    (a, _), (c, _) = told(ledger, True).values, told(ledger, True).values
    ledger.see(LEFT, 0, a)
    ledger.see(LEFT, 0, a)
    with pytest.raises(Violation, match="another was given"):
        ledger.see(LEFT, 0, c)


def test_what_a_reader_was_given_and_is_not_there_in_the_end_is_found(
    ledger: TransactionHistory,
) -> None:
    [left, _] = told(ledger, None).values
    ledger.see(LEFT, 3, left)
    with pytest.raises(Violation, match="in the end"):
        check_seen(ledger.seen, logs([], []))


@pytest.mark.parametrize(
    "copy", [[b"a"], [b"a", b"b", b"b"], [b"b", b"a"], [b"a", b"doomed/b"], [b"a", b"b", b"c"]]
)
def test_a_copy_that_is_none_is_found(copy: list[bytes]) -> None:
    source = {0: b"a", 1: b"b"}
    check_copy(source, {3: b"a", 7: b"b"}, LEFT)
    with pytest.raises(Violation, match="no copy"):
        check_copy(source, dict(enumerate(copy)), LEFT)


def test_a_copy_in_the_making_is_judged_as_far_as_it_goes() -> None:
    source = {0: b"a", 1: b"b", 2: b"c"}
    check_copy(source, {3: b"a", 7: b"b"}, LEFT, whole=False)
    with pytest.raises(Violation, match="no copy"):
        check_copy(source, {3: b"a", 7: b"c"}, LEFT, whole=False)
