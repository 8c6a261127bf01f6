"""The check of a group's history finds what it looks for."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.integration.groups.consumers import Group, Member, Report
from tests.integration.groups.history import check_history

APPLES = [["apples", 0]]


def member(*reports: tuple[str, float, Any], killed_at: float | None = None) -> Any:
    said = [Report(*report) for report in reports]
    made = SimpleNamespace(name="member", reports=said, killed_at=killed_at)
    made.said = lambda kind: Member.said(cast("Member", made), kind)
    return made


def group(*members: Any) -> Group:
    return cast("Group", SimpleNamespace(everybody=list(members)))


def records(*offsets: int) -> list[list[Any]]:
    return [["apples", 0, list(offsets)]]


def test_a_partition_that_goes_from_one_to_the_next_is_fine() -> None:
    check_history(
        group(
            member(
                ("assigned", 1, APPLES),
                ("records", 2, records(0, 1)),
                ("committed", 3, [["apples", 0, 2]]),
                ("records", 4, records(2)),
                ("revoked", 5, APPLES),
            ),
            # What was read but not committed is read again.
            member(("assigned", 6, APPLES), ("records", 7, records(2, 3)), killed_at=8),
            member(("assigned", 9, APPLES), ("paused", 10, None), ("revoked", 20, APPLES)),
            member(("assigned", 11, APPLES), ("closed", 12, None)),
            member(("assigned", 13, APPLES)),
        )
    )


@pytest.mark.parametrize(
    "first",
    [
        member(("assigned", 1, APPLES)),
        member(("assigned", 1, APPLES), ("revoked", 6, APPLES)),
        member(("assigned", 1, APPLES), ("paused", 6, None)),
        member(("assigned", 1, APPLES), ("closed", 6, None)),
        member(("assigned", 1, APPLES), killed_at=6),
    ],
    ids=["never gone", "gone too late", "paused too late", "closed too late", "killed too late"],
)
def test_a_partition_with_two_owners_is_found(first: Any) -> None:
    with pytest.raises(AssertionError, match="owned twice"):
        check_history(group(first, member(("assigned", 5, APPLES))))


def test_a_committed_record_that_is_read_again_is_found() -> None:
    first = member(
        ("assigned", 1, APPLES),
        ("records", 2, records(0, 1)),
        ("committed", 3, [["apples", 0, 2]]),
        ("revoked", 4, APPLES),
    )
    with pytest.raises(AssertionError, match="again"):
        check_history(group(first, member(("assigned", 5, APPLES), ("records", 6, records(1)))))


def test_a_step_back_without_a_new_assignment_is_found() -> None:
    made = member(
        ("assigned", 1, APPLES), ("records", 2, records(0, 1)), ("records", 3, records(1))
    )
    with pytest.raises(AssertionError, match="again"):
        check_history(group(made))
