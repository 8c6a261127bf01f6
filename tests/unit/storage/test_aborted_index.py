"""The index of aborted transactions against a list."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.aborted_index import AbortedIndex, AbortedTransaction
from headrace.storage.files import Files
from headrace.storage.index import DamagedIndex
from headrace.storage.open_files import OpenFiles

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "write", "truncate", "open"]), st.integers(1, 400)),
    max_size=25,
)


def entry(number: int) -> AbortedTransaction:
    """One of two records and a marker, which follows on the one before."""
    first = number * 3
    return AbortedTransaction(7, first, first + 2, first + 3)


@given(steps=STEPS, start=st.integers(0, 3000), length=st.integers(1, 60))
def test_it_holds_what_the_list_holds(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    start: int,
    length: int,
) -> None:
    path = tmp_path_factory.mktemp("index") / "0.txnindex"
    index = AbortedIndex(OpenFiles(Files()), str(path), 0)
    wanted: list[AbortedTransaction] = []
    for step, number in steps:
        if step == "append":
            for _ in range(number):
                wanted.append(entry(len(wanted)))
                index.append(wanted[-1])
        elif step == "write":
            index.write_pending()
            index.sync()
            assert path.exists() == bool(wanted) or not wanted
        elif step == "truncate":
            offset = max(wanted[-1].last_offset - number, 0) if wanted else 0
            wanted = [batch for batch in wanted if batch.last_offset < offset]
            index.truncate(offset)
        else:
            index.write_pending()
            size = path.stat().st_size if path.exists() else 0
            index = AbortedIndex(OpenFiles(Files()), str(path), size)
        assert len(index) == len(wanted)
    assert index.entries() == wanted
    found, _ = index.overlapping(start, start + length)
    overlapping = [
        batch
        for batch in wanted
        if batch.first_offset < start + length and batch.last_offset >= start
    ]
    assert found == overlapping


def test_the_end_of_the_file_is_read_from_memory(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index = AbortedIndex(OpenFiles(Files()), str(path), 0)
    for number in range(1000):
        index.append(entry(number))
        index.write_pending()
    path.write_bytes(b"")
    assert index.overlapping(2900, 2904) == ([entry(966), entry(967)], True)
    with pytest.raises(DamagedIndex, match="ends before"):
        index.overlapping(10, 20)


def test_a_file_that_is_gone_is_damage(tmp_path: Path) -> None:
    index = AbortedIndex(OpenFiles(Files()), str(tmp_path / "0.txnindex"), 34)
    with pytest.raises(DamagedIndex):
        index.overlapping(0, 1)
    index.reset()
    assert index.overlapping(0, 1) == ([], False)
