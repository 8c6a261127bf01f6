"""The judge of copies: it must see every way in which a copy can go wrong."""

import pytest

from tests.integration.transactions.judging import (
    STRANGE,
    Findings,
    Watch,
    doomed,
    is_doomed,
    judge,
    number_of,
    total,
    value_of,
)


def values(*numbers: int) -> list[bytes | None]:
    return [value_of(number) for number in numbers]


def test_a_value_says_which_record_it_is() -> None:
    assert [number_of(value_of(number)) for number in (0, 1, 49, 50, 1234)] == [0, 1, 49, 50, 1234]
    assert number_of(b"12 damaged") == number_of(b"") == number_of(None) == STRANGE
    assert is_doomed(doomed(value_of(3))) and not is_doomed(value_of(3))


def test_a_copy_in_order_is_right() -> None:
    findings = judge(values(0, 1, 2), 3)
    assert (findings.copied, findings.problems) == (3, {})


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        (values(0, 1), {"missing": 1}),
        (values(), {"missing": 3}),
        (values(0, 1, 1, 2), {"duplicated": 1}),
        (values(0, 1, 2, 0), {"duplicated": 1}),
        (values(0, 2, 1), {"reordered": 1}),
        (values(0, 1, 2, 3), {"strange": 1}),
        ([*values(0, 1, 2), b"1 damaged"], {"strange": 1}),
        ([*values(0, 1, 2), doomed(value_of(2))], {"aborted": 1}),
        ([*values(0, 1), doomed(value_of(2))], {"aborted": 1, "missing": 1}),
    ],
)
def test_what_went_wrong_is_counted(found: list[bytes | None], problems: dict[str, int]) -> None:
    assert judge(found, 3).problems == problems


def test_findings_of_partitions_add_up() -> None:
    found = total([judge(values(0, 1), 3), judge(values(0, 1, 1, 2), 3)])
    assert found == Findings(5, missing=1, duplicated=1)


@pytest.mark.parametrize(
    "wrong", [value_of(0), value_of(1), value_of(4), doomed(value_of(2)), b"", None]
)
def test_who_watches_a_copy_takes_nothing_but_the_next_record(wrong: bytes | None) -> None:
    watch = Watch()
    for number in range(2):
        watch.see(number, value_of(number))
    watch.see(2, wrong)
    assert (watch.following, len(watch.violations)) == (2, 1)
    watch.see(3, value_of(2))
    assert (watch.following, len(watch.violations)) == (3, 1)
