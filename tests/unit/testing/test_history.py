"""The judge of the fault tests: it must see every way in which a record can go wrong."""

import pytest

from tests.integration.cluster.history import UNKNOWN, PartitionHistory, compare, total


def history(count: int, acknowledged: range | None = None) -> PartitionHistory:
    """Records that were sent at 0 s, 1 s and so on, and acknowledged half a second later."""
    one = PartitionHistory()
    for number in range(count):
        assert one.send(float(number)) == number
    for number in range(count) if acknowledged is None else acknowledged:
        one.acknowledge(number, number, number + 0.5)
    return one


def stored(*numbers: int) -> list[tuple[int, int]]:
    return list(enumerate(numbers))


def test_what_is_stored_as_it_was_acknowledged_is_right() -> None:
    findings = compare(history(3), stored(0, 1, 2))
    assert findings.problems == {}
    assert (findings.acknowledged, findings.stored) == (3, 3)


def test_a_record_that_was_not_acknowledged_may_be_stored_or_not() -> None:
    assert compare(history(3, range(2)), stored(0, 1)).problems == {}
    assert compare(history(3, range(2)), stored(0, 1, 2)).problems == {}


@pytest.mark.parametrize(
    ("numbers", "problems"),
    [
        ((0, 1), {"lost": 1}),
        ((0, 2), {"lost": 1, "misplaced": 1}),
        ((0, 1, 2, 2), {"duplicated": 1}),
        ((0, 1, 2, 0), {"duplicated": 1}),
        ((0, 0, 1, 2), {"duplicated": 1, "misplaced": 2}),
        ((0, 2, 1), {"reordered": 1, "misplaced": 2}),
        ((0, 1, 2, 7), {"unknown": 1}),
    ],
)
def test_what_went_wrong_is_counted(numbers: tuple[int, ...], problems: dict[str, int]) -> None:
    assert compare(history(3), stored(*numbers)).problems == problems


def test_a_record_the_client_gave_up_is_a_problem() -> None:
    one = history(3, range(2))
    one.failed.append(2)
    assert compare(one, stored(0, 1)).problems == {"failed": 1}


def test_an_offset_the_client_was_not_told_is_no_problem() -> None:
    one = history(2, range(1))
    one.acknowledge(1, UNKNOWN, 1.5)
    assert compare(one, stored(0, 1)).problems == {}


def test_writes_resume_with_a_record_sent_after_the_fault() -> None:
    one = history(5, range(3))
    # Sent before, acknowledged after.
    one.acknowledge(3, 3, 9.0)
    assert one.resumed_at(3.5) is None
    one.acknowledge(4, 4, 10.0)
    assert one.resumed_at(3.5) == 10.0
    assert one.resumed_at(3.0) == 9.0


def test_the_longest_gap_is_between_two_acknowledgements() -> None:
    one = history(5, range(3))
    one.acknowledge(4, 4, 9.0)
    assert one.longest_gap_s(0.0) == 6.5
    assert one.longest_gap_s(4.0) == history(0).longest_gap_s(0.0) == 0.0


def test_findings_of_partitions_add_up() -> None:
    found = total([compare(history(3), stored(0, 1)), compare(history(3), stored(0, 1, 2, 2))])
    assert found.problems == {"lost": 1, "duplicated": 1}
    assert (found.acknowledged, found.stored) == (6, 6)
