"""What a pass through a log learns of its transactions."""

from headrace.protocol.batch import BatchHeader, assign, read_header
from headrace.protocol.markers import Marker, encode_marker
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.compaction.compaction import PassedTransactions
from tests.unit.storage.compaction.tables import keyed_batch


def batch(offset: int, producer_id: int, *, transactional: bool = True) -> BatchHeader:
    data = keyed_batch([(b"k", b"v")], producer=(producer_id, 0, 0), transactional=transactional)
    header = read_header(data)
    assign(data, header, offset, 0)
    return header


def is_done(passed: PassedTransactions, offset: int, producer_id: int, committed: bool) -> bool:
    data = encode_marker(Marker(producer_id, 0, 0, committed), 0)
    header = read_header(data)
    assign(data, header, offset, 0)
    return passed.is_obsolete(header, data)


def test_an_aborted_transaction_ends_with_its_marker() -> None:
    passed = PassedTransactions()
    aborted = AbortedTransaction(1, 10, 13, 14)
    passed.add_aborted([aborted])
    assert not passed.is_aborted(batch(9, 1))
    assert passed.is_aborted(batch(10, 1))
    assert not passed.is_aborted(batch(11, 2))
    assert not passed.is_aborted(batch(12, 1, transactional=False))
    assert not is_done(passed, 13, 1, False)
    assert passed.still_aborted == [aborted]
    assert not passed.is_aborted(batch(14, 1))


def test_a_marker_is_done_when_no_batch_of_its_transaction_was_met() -> None:
    passed = PassedTransactions()
    passed.add_aborted([AbortedTransaction(1, 10, 13, 14)])
    assert is_done(passed, 13, 1, False)
    assert passed.still_aborted == []
    assert is_done(passed, 14, 1, True)
    passed.is_aborted(batch(15, 1))
    assert not is_done(passed, 16, 1, True)
    assert is_done(passed, 17, 1, True)


def test_a_transaction_of_two_segments_is_told_of_twice_and_counts_once() -> None:
    passed = PassedTransactions()
    spanning = AbortedTransaction(1, 10, 25, 26)
    passed.add_aborted([spanning])
    assert passed.is_aborted(batch(10, 1))
    passed.add_aborted([spanning, AbortedTransaction(2, 21, 24, 10)])
    assert passed.is_aborted(batch(20, 1))
    assert passed.is_aborted(batch(21, 2))
    assert not is_done(passed, 24, 2, False)
    assert not is_done(passed, 25, 1, False)
    assert not passed.is_aborted(batch(30, 1))


def test_a_transaction_whose_marker_is_gone_does_not_swallow_the_next() -> None:
    passed = PassedTransactions()
    passed.add_aborted([AbortedTransaction(1, 10, 13, 14)])
    passed.is_aborted(batch(12, 2))
    assert not passed.is_aborted(batch(14, 1))
