"""Leader epochs: where each began and ended, in memory and in the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.batch import read_header
from headrace.storage.files import Files
from headrace.storage.leader_epochs import EpochScan, LeaderEpochs, StaleBatch
from tests.unit.storage.logs import FaultyFiles, UnsyncedFiles, batch


def load(path: Path, files: Files | None = None) -> LeaderEpochs:
    epochs = LeaderEpochs(files or UnsyncedFiles(), str(path))
    epochs.load()
    return epochs


def test_an_epoch_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    epochs = load(tmp_path)
    assert epochs.end_offset_for(0, 0) == (-1, -1)
    for epoch, start in ((1, 5), (3, 10), (7, 10), (9, 30)):
        epochs.assign(epoch, start)
    assert epochs.entries == ((1, 5), (7, 10), (9, 30))  # Epoch 3 wrote nothing.
    assert [epochs.end_offset_for(epoch, 50) for epoch in (-1, 0, 1, 3, 7, 8, 9, 10)] == [
        (-1, -1),
        (0, 5),
        (1, 10),
        (1, 10),
        (7, 30),
        (7, 30),
        (9, 50),
        (-1, -1),
    ]
    assert [epochs.epoch_of(offset) for offset in (4, 5, 9, 10, 29, 30, 99)] == [
        -1, 1, 1, 7, 7, 9, 9,
    ]  # fmt: skip


def test_an_older_or_known_epoch_changes_nothing(tmp_path: Path) -> None:
    epochs = load(tmp_path)
    epochs.assign(4, 10)
    changes = epochs.changes
    for epoch, start in ((4, 20), (3, 30), (-1, 5)):
        epochs.assign(epoch, start)
    assert (epochs.entries, epochs.changes) == (((4, 10),), changes)


def scan(named: list[tuple[int, int]], batches: list[tuple[int, int]]) -> EpochScan:
    """A scan of batches, each an epoch and an offset, beside what the file says."""
    found = EpochScan(named)
    for epoch, offset in batches:
        found.add(read_header(batch(base_offset=offset, leader_epoch=epoch)))
    return found


def test_a_scan_takes_epochs_from_the_batches() -> None:
    for named in ([], [(1, 0)], [(1, 0), (3, 2)]):
        found = scan(named, [(1, 0), (1, 1), (3, 2), (3, 5)])
        assert found.found == [(1, 0), (3, 2)]
        assert (found.stale, found.file_is_wrong) == (None, False)
    # The log starts in the middle of an epoch, and compaction has removed all of another.
    found = scan([(2, 4), (3, 6), (5, 9)], [(1, 0), (2, 3), (2, 5), (5, 9)])
    assert (found.stale, found.file_is_wrong) == (None, False)


def test_batches_older_than_the_file_says_are_stale() -> None:
    found = scan([(1, 0), (2, 5)], [(1, 0), (1, 4), (1, 5), (1, 6)])
    assert found.stale == StaleBatch(5, 1, 2)
    assert not found.file_is_wrong
    with pytest.raises(CorruptBatch, match="leader epoch 1, those before it of 2"):
        scan([], [(2, 0), (1, 1)])


@pytest.mark.parametrize(
    "named",
    [
        [(7, 0)],  # An epoch that no batch has, in the place of one that a batch has.
        [(1, 0), (2, 3)],  # It begins later.
        [(1, 0), (2, 7)],  # It begins earlier.
        [(1, 0), (4, 5)],
    ],
)
def test_a_file_that_the_batches_contradict_is_wrong(named: list[tuple[int, int]]) -> None:
    found = scan(named, [(1, 0), (1, 4), (2, 5), (2, 8)])
    assert (found.stale, found.file_is_wrong) == (None, True)
    assert found.found == [(1, 0), (2, 5)]


def test_what_cannot_be_written_has_not_happened(tmp_path: Path) -> None:
    files = FaultyFiles()
    epochs = load(tmp_path, files)
    epochs.assign(1, 0)
    files.fail("write", ".tmp")
    for change in (
        lambda: epochs.assign(2, 5),
        lambda: epochs.truncate_from_end(0),
        epochs.clear,
    ):
        with pytest.raises(StorageError):
            change()
    assert (epochs.entries, epochs.latest) == (((1, 0),), 1)
    files.heal()
    epochs.assign(2, 5)
    assert load(tmp_path).entries == ((1, 0), (2, 5))


@given(
    steps=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=20),
    cut=st.integers(0, 80),
    start=st.integers(0, 80),
)
def test_truncation_leaves_what_the_offsets_left_say(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    cut: int,
    start: int,
) -> None:
    path = tmp_path_factory.mktemp("epochs")
    epochs = load(path)
    written: list[int] = []  # The epoch of every offset.
    epoch = 0
    for rise, count in steps:
        epoch += rise
        epochs.assign(epoch, len(written))
        written += [epoch] * count
    cut, start = min(cut, len(written)), min(start, cut)
    epochs.truncate_from_end(cut)
    del written[cut:]
    for offset, wrote in enumerate(written):
        assert epochs.epoch_of(offset) == wrote
    epochs.truncate_from_start(start)
    for offset in range(start, cut):
        assert epochs.epoch_of(offset) == written[offset]
    assert all(first >= start for _, first in epochs.entries[1:])
    assert load(path).entries == epochs.entries
    assert epochs.latest == (epochs.entries[-1][0] if epochs.entries else -1)
