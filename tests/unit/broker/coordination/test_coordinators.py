"""Where a group is kept, and how the records of one request become batches of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.coordination.runtime import java_hash, to_batches
from headrace.coordinator.shard import CoordinatorRecord

records = st.builds(CoordinatorRecord, st.binary(max_size=20), st.none() | st.binary(max_size=60))


@given(st.lists(records, min_size=1, max_size=30), st.integers(1, 100))
def test_batches_hold_all_records_in_order_and_are_no_larger_than_they_must(
    wanted: list[CoordinatorRecord], bytes_max: int
) -> None:
    batches = list(to_batches(tuple(wanted), bytes_max))
    assert [record for batch in batches for record in batch] == wanted
    for batch in batches:
        size = sum(len(record.key) + len(record.value or b"") for record in batch)
        assert len(batch) == 1 or size <= bytes_max


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("hello", 99_162_322),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        # Two of Java's characters.
        ("\N{GRINNING FACE}", 1_772_899),
    ],
)
def test_hash_of_a_group_is_that_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected
