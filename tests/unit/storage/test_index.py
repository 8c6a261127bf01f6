"""Sparse indexes against a list of their entries."""

from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.index import (
    PENDING_BYTES_MAX,
    DamagedIndex,
    SparseIndex,
    offset_index,
    time_index,
)
from headrace.storage.open_files import OpenFiles
from tests.unit.storage.logs import UnsyncedFiles

entry_steps = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(1, 5000), st.booleans()), max_size=60
)


def open_index(path: Path, *, kind: str = "index") -> SparseIndex:
    file = path / f"0.{kind}"
    file.touch()
    make = offset_index if kind == "index" else time_index
    return make(OpenFiles(UnsyncedFiles()), str(file), file.stat().st_size, 10_000)


def test_entries_lie_in_the_file_as_kafka_has_them(tmp_path: Path) -> None:
    offsets = open_index(tmp_path)
    offsets.append(57, 4105)
    offsets.append(112, 8210)
    offsets.write_pending()
    assert (tmp_path / "0.index").read_bytes() == pack(">iiii", 57, 4105, 112, 8210)
    times = open_index(tmp_path, kind="timeindex")
    times.append(1_700_000_000_000, 57)
    times.write_pending()
    assert (tmp_path / "0.timeindex").read_bytes() == pack(">qi", 1_700_000_000_000, 57)


@given(steps=entry_steps, probes=st.lists(st.integers(-1, 60_000), max_size=20))
def test_the_floor_of_a_key_is_the_last_entry_not_above_it(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, bool]],
    probes: list[int],
) -> None:
    path = tmp_path_factory.mktemp("index")
    index = open_index(path)
    model: list[tuple[int, int]] = []
    key = value = 0
    for rise, step, write in steps:
        key, value = key + rise, value + step
        index.append(key, value)
        model.append((key, value))
        if write:
            index.write_pending()
    for probe in [*probes, *(key for key, _ in model), *(key - 1 for key, _ in model)]:
        below = [entry for entry in model if entry[0] <= probe]
        assert index.floor(probe) == (below[-1] if below else None)
    assert index.entries() == model
    assert index.last() == (model[-1] if model else None)
    index.write_pending()
    assert open_index(path).entries() == model


@given(steps=entry_steps, field=st.integers(0, 1), limit=st.integers(0, 50_000))
def test_truncation_drops_the_entries_from_a_limit_on(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, bool]],
    field: int,
    limit: int,
) -> None:
    path = tmp_path_factory.mktemp("index")
    index = open_index(path)
    model: list[tuple[int, int]] = []
    key = value = 0
    for rise, step, write in steps:
        key, value = key + rise, value + step
        index.append(key, value)
        model.append((key, value))
        if write:
            index.write_pending()
    index.truncate(field, limit)
    kept = [entry for entry in model if entry[field] < limit]
    assert index.entries() == kept
    index.append(100_000, 500_000)
    index.write_pending()
    assert open_index(path).entries() == [*kept, (100_000, 500_000)]


def test_a_large_index_is_searched_without_loading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = open_index(tmp_path)
    for number in range(100_000):
        index.append(number * 10, number)
    index.write_pending()
    read = 0

    def counting(file: object, position: int, size: int) -> bytes:
        nonlocal read
        read += size
        return (tmp_path / "0.index").read_bytes()[position : position + size]

    for key in (0, 9, 10, 123_456, 999_990, 5_000_000):
        assert index.floor(key, counting) == (min(key // 10, 99_999) * 10, min(key // 10, 99_999))
    assert read < 6 * 4096


def test_entries_gather_until_a_write_is_worth_it(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    for number in range(PENDING_BYTES_MAX // 8):
        assert not index.wants_write
        index.append(number, number)
    assert index.wants_write
    assert (tmp_path / "0.index").stat().st_size == 0
    index.write_pending()
    assert not index.wants_write


def test_an_index_is_full_at_its_limit(tmp_path: Path) -> None:
    index = offset_index(OpenFiles(UnsyncedFiles()), str(tmp_path / "i"), 0, 17)
    index.append(1, 1)
    assert not index.is_full
    index.append(2, 2)
    assert index.is_full


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 0), (0, 0)],
        [(5, 10), (4, 20)],
        [(5, 20), (6, 10)],
        [(5, -1)],
        [(-5, 1)],
        [(5, 10), (6, 1001)],
    ],
)
def test_entries_that_cannot_be_right_are_noticed(
    tmp_path: Path, entries: list[tuple[int, int]]
) -> None:
    (tmp_path / "0.index").write_bytes(b"".join(pack(">ii", *entry) for entry in entries))
    with pytest.raises(DamagedIndex, match=r"0\.index"):
        open_index(tmp_path).check(value_max=1000)


def test_sound_and_empty_indexes_pass(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    index.check(value_max=0)
    index.append(0, 0)
    index.check(value_max=0)
    index.append(3, 1000)
    index.check(value_max=1000)


def test_a_file_cut_behind_our_back_is_damage_and_not_an_answer(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    for number in range(10):
        index.append(number, number)
    index.write_pending()
    (tmp_path / "0.index").write_bytes(b"")
    with pytest.raises(DamagedIndex):
        index.floor(5)
    with pytest.raises(DamagedIndex):
        index.last()
