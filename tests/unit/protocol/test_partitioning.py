"""Rows of columns to partitions: hashed as other clients do, grouped in order, cut to size."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.column_encoder import encode_columns
from headrace.protocol.columns import BinaryColumn, HeaderColumn
from headrace.protocol.murmur2 import partition_for_key
from headrace.protocol.partitioning import cut_rows, group_rows, partitions_of_keys
from headrace.protocol.records import decode_rows, encode_batch

maybe_bytes = st.none() | st.binary(max_size=60)
header_lists = st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3)
row_lists = st.lists(
    st.tuples(st.integers(0, 2**48), maybe_bytes, maybe_bytes, header_lists), max_size=40
)


def column(cells: Sequence[bytes | None]) -> BinaryColumn:
    offsets = array("i", [0])
    validity = bytearray(len(cells) // 8 + 1)
    for row, cell in enumerate(cells):
        offsets.append(offsets[-1] + len(cell or b""))
        validity[row >> 3] |= (cell is not None) << (row & 7)
    data = b"".join(cell for cell in cells if cell is not None)
    nulls = sum(cell is None for cell in cells)
    return BinaryColumn(len(cells), offsets.tobytes(), data, validity if nulls else None, nulls)


def columns_of(
    rows: Sequence[Any],
) -> tuple[bytes, BinaryColumn, BinaryColumn, HeaderColumn]:
    """Timestamps, keys, values and headers, as `encode_columns` takes them."""
    entries = [header for row in rows for header in row[3]]
    ends = array("i", [0])
    for row in rows:
        ends.append(ends[-1] + len(row[3]))
    headers = HeaderColumn(
        ends.tobytes(),
        column([name.encode() for name, _ in entries]),
        column([value for _, value in entries]),
    )
    keys, values = column([row[1] for row in rows]), column([row[2] for row in rows])
    return array("q", [row[0] for row in rows]).tobytes(), keys, values, headers


def int32s(numbers: Sequence[int]) -> bytes:
    return array("i", numbers).tobytes()


def numbers_of(int32_array: bytearray) -> list[int]:
    return memoryview(int32_array).cast("i").tolist()


# Keys


@given(keys=st.lists(maybe_bytes, max_size=40), partition_count=st.integers(1, 2**31 - 1))
def test_every_key_has_the_partition_it_has_alone(
    keys: list[bytes | None], partition_count: int
) -> None:
    assert numbers_of(partitions_of_keys(column(keys), partition_count)) == [
        -1 if key is None else partition_for_key(key, partition_count) for key in keys
    ]


def test_keys_of_a_slice_have_their_partitions() -> None:
    whole = column([b"a", None, b"ccc", b"", None, b"f" * 100, b"g"])
    part = whole._replace(length=4, offsets=whole.offsets[2 * 4 :], null_count=1, validity_start=2)
    expected = [partition_for_key(key, 7) for key in (b"ccc", b"", b"f" * 100)]
    assert numbers_of(partitions_of_keys(part, 7)) == [*expected[:2], -1, expected[2]]


@pytest.mark.parametrize("partition_count", [0, -1, 2**31])
def test_topic_has_at_least_one_partition(partition_count: int) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partitions_of_keys(column([b"k"]), partition_count)
    with pytest.raises(ValueError, match="at least one partition"):
        group_rows(int32s([0]), partition_count)


@pytest.mark.parametrize(
    "bad",
    [
        BinaryColumn(3, int32s([0, 1, 2]), b"abc"),
        BinaryColumn(2, int32s([0, 1, 4]), b"abc"),
        BinaryColumn(2, int32s([0, 2, 1]), b"abc"),
        BinaryColumn(2, int32s([-1, 1, 2]), b"abc"),
        BinaryColumn(9, int32s(range(10)), b"abcdefghi", b"\xff", 1),
        BinaryColumn(2, int32s([0, 1, 2]), b"abc", b"\xff", 1, 7),
        BinaryColumn(2, int32s([0, 1, 2]), b"abc", b"\xff", 1, -1),
        BinaryColumn(-2, int32s([0, 1, 2]), b"abc"),
        BinaryColumn(2**40, int32s([0, 1, 2]), b"abc"),
    ],
)
def test_keys_outside_of_their_buffers_are_refused(bad: BinaryColumn) -> None:
    with pytest.raises(ValueError):
        partitions_of_keys(bad, 3)


# Groups


@given(
    partition_count=st.integers(1, 20),
    numbers=st.lists(st.integers(0, 1000), max_size=60),
)
def test_rows_are_grouped_in_order(partition_count: int, numbers: list[int]) -> None:
    partitions = [number % partition_count for number in numbers]
    rows, bounds = group_rows(int32s(partitions), partition_count)
    assert len(bounds) == partition_count + 1
    assert (bounds[0], bounds[-1]) == (0, len(numbers))
    for partition, (start, end) in enumerate(pairwise(bounds)):
        assert numbers_of(rows)[start:end] == [
            row for row, chosen in enumerate(partitions) if chosen == partition
        ]


@pytest.mark.parametrize("astray", [-1, 3, 2**31 - 1, -(2**31)])
def test_row_of_no_partition_is_named(astray: int) -> None:
    with pytest.raises(ValueError, match=f"row 2 has partition {astray} of 3"):
        group_rows(int32s([0, 1, astray, -1]), 3)


def test_array_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no array of int32"):
        group_rows(bytes(7), 3)


# Selected rows


@given(rows=row_lists.filter(bool), data=st.data())
def test_batch_of_selected_rows_is_that_of_the_same_rows(rows: list[Any], data: Any) -> None:
    columns = columns_of(rows)
    selection = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=30))
    start = data.draw(st.integers(0, len(selection) - 1))
    end = data.draw(st.integers(start + 1, len(selection)))
    batch = encode_columns(*columns, start, end, rows=int32s(selection), producer_id=3)
    expected = encode_batch([rows[row] for row in selection[start:end]], producer_id=3)
    assert batch == expected


@pytest.mark.parametrize(
    ("selection", "start", "end"),
    [
        ([0, 2], 0, None),
        ([0, -1], 0, None),
        ([0, 2**31 - 1], 0, None),
        ([0, 1], 0, 3),
        ([0, 1], -1, 2),
        ([0, 1], 1, 1),
        ([], 0, None),
    ],
)
def test_selection_of_rows_that_are_not_there_is_refused(
    selection: list[int], start: int, end: int | None
) -> None:
    columns = columns_of([(1, b"a", b"b", ()), (2, b"c", b"d", ())])
    with pytest.raises(ValueError):
        encode_columns(*columns, start, end, rows=int32s(selection))


def test_only_rows_that_are_selected_are_looked_at() -> None:
    values = BinaryColumn(4, int32s([0, 1, 99, 2, 3]), b"abc")
    times = bytes(32)
    batch = encode_columns(times, None, values, rows=int32s([3, 0]))
    assert [record.value for record in decode_rows(batch)] == [b"c", b"a"]
    for row in (1, 2):
        with pytest.raises(ValueError, match="offsets"):
            encode_columns(times, None, values, rows=int32s([0, row]))


def test_selected_headers_are_checked() -> None:
    names, values = column([b"a", None, b"c"]), column([b"1", b"2", b"3"])
    headers = HeaderColumn(int32s([0, 1, 2, 3, 9]), names, values)
    keys = column([b"k"] * 4)
    assert len(encode_columns(bytes(32), keys, None, headers, rows=int32s([2, 0]))) > 0
    for row in (1, 3):
        with pytest.raises(ValueError, match="header"):
            encode_columns(bytes(32), keys, None, headers, rows=int32s([row]))


# Cuts


@given(rows=row_lists, bytes_max=st.integers(400, 2000), data=st.data())
def test_batches_are_as_large_as_they_may_be(rows: list[Any], bytes_max: int, data: Any) -> None:
    columns = columns_of(rows)
    selection: list[int] | None = None
    if rows and data.draw(st.booleans()):
        selection = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=40))
    chosen = rows if selection is None else [rows[row] for row in selection]
    start = data.draw(st.integers(0, len(chosen)))
    end = data.draw(st.integers(start, len(chosen)))
    picked = None if selection is None else int32s(selection)
    bounds, sizes = cut_rows(*columns, picked, start, end, bytes_max)
    assert (bounds[0], bounds[-1]) == (start, end)
    assert len(sizes) == len(bounds) - 1
    for number, (first, behind) in enumerate(pairwise(bounds)):
        assert len(encode_batch(chosen[first:behind])) == sizes[number] <= bytes_max
        if behind < end:
            assert len(encode_batch(chosen[first : behind + 1])) > bytes_max


def test_row_too_large_for_any_batch_is_named() -> None:
    columns = columns_of([(1, None, b"small", ()), (1, None, bytes(500), ())])
    with pytest.raises(ValueError, match=r"row 1 makes a batch of 570 bytes, more than the 200"):
        cut_rows(*columns, None, 0, 2, 200)
    with pytest.raises(ValueError, match=r"row 101 makes a batch of 570 bytes"):
        cut_rows(*columns, int32s([1, 0]), 0, 2, 200, 569, 100)


def test_large_row_may_get_a_batch_of_its_own() -> None:
    rows = [(1, None, b"a", ()), (1, None, bytes(500), ()), (1, None, b"b", ())]
    bounds, sizes = cut_rows(*columns_of(rows), None, 0, 3, 200, 570)
    assert bounds == [0, 1, 2, 3]
    assert sizes[1] == 570


def test_times_too_far_apart_for_one_batch_are_cut_apart() -> None:
    rows = [(0, None, b"a", ()), (2**62, None, b"b", ()), (-(2**62) - 1, None, b"c", ())]
    columns = columns_of([*rows, (2**63 - 1, None, b"d", ())])
    bounds, _ = cut_rows(*columns, int32s([0, 2, 1, 3]), 0, 4, 1000)
    assert bounds == [0, 4]
    bounds, _ = cut_rows(*columns, int32s([1, 2, 3, 2]), 0, 4, 1000)
    assert bounds == [0, 1, 2, 3, 4]


def test_cut_of_bad_columns_is_refused() -> None:
    times, keys, values, headers = columns_of([(1, b"k", b"v", ())] * 3)
    with pytest.raises(ValueError):
        cut_rows(times, keys, values, headers, None, 0, 4, 1000)
    with pytest.raises(ValueError):
        cut_rows(times, keys, values._replace(data=b""), headers, None, 0, 3, 1000)
    with pytest.raises(ValueError):
        cut_rows(times, keys, values, headers, int32s([0, 5]), 0, 2, 1000)
