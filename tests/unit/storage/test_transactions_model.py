"""Transactions in a log against a list: whatever is done to it, the same of them is visible."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.storage.log import Log
from tests.unit.storage.logs import NOW_MS, UnsyncedFiles, append, config, open_log
from tests.unit.storage.transacting import end, read_committed, write

PRODUCERS = st.integers(0, 3)


class Entry(NamedTuple):
    """A record or a marker. What has no producer is of no transaction."""

    offset: int
    producer_id: int | None
    committed: bool | None = None


class Transaction(NamedTuple):
    first_offset: int
    marker_offset: int | None
    committed: bool


class TransactionMachine(RuleBasedStateMachine):
    """The model keeps all entries ever written, those that were deleted as well."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.settings = config(segment_bytes=500, file_delete_delay_ms=0)
        self.entries: list[Entry] = []
        self.start = self.flushed = self.high_watermark = 0
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        return open_log(
            self.path,
            self.settings,
            files=UnsyncedFiles(),
            clean=clean,
            recovery_point=self.flushed,
            log_start_offset=self.start,
        )

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), by_coordinator=st.booleans())
    def write(self, producer_id: int, count: int, by_coordinator: bool) -> None:
        producer = self.log.producers.get(producer_id)
        epoch, sequence = (producer.epoch, producer.last_sequence + 1) if producer else (0, 0)
        appended = write(self.log, (producer_id, epoch, -1 if by_coordinator else sequence), count)
        for offset in range(appended.base_offset, appended.last_offset + 1):
            self.entries.append(Entry(offset, producer_id))

    @rule(count=st.integers(1, 3))
    def write_outside(self, count: int) -> None:
        base_offset = append(self.log, count).base_offset
        self.entries += [Entry(base_offset + delta, None) for delta in range(count)]

    @rule(producer_id=PRODUCERS, committed=st.booleans(), bump=st.booleans())
    def end(self, producer_id: int, committed: bool, bump: bool) -> None:
        producer = self.log.producers.get(producer_id)
        epoch = (producer.epoch if producer else 0) + bump
        offset = end(self.log, producer_id, epoch, committed=committed).base_offset
        self.entries.append(Entry(offset, producer_id, committed))

    @rule(more=st.integers(1, 20))
    def commit(self, more: int) -> None:
        ends = [
            batch.header.next_offset
            for segment in self.log.segments
            for batch in segment.batches(0, segment.size)
        ]
        within = [
            entry for entry in ends if self.high_watermark < entry <= self.high_watermark + more
        ]
        self.high_watermark = max(within, default=self.high_watermark)

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        self.flushed = self.log.flush()

    @rule(back=st.integers(1, 15))
    def truncate(self, back: int) -> None:
        self.log.truncate_to(max(self.log.log_end_offset - back, self.start))
        end_offset = self.log.log_end_offset
        self.entries = [entry for entry in self.entries if entry.offset < end_offset]
        self.start = self.log.log_start_offset
        self.flushed = min(self.flushed, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)

    @rule(forward=st.integers(0, 15))
    def delete_records(self, forward: int) -> None:
        self.start = min(self.start + forward, self.high_watermark)
        self.log.advance_log_start(self.start)
        self.log.retire_segments(NOW_MS, self.high_watermark)
        self.log.delete_retired(NOW_MS)

    @rule()
    def reopen_cleanly(self) -> None:
        self.log.close()
        self.flushed = self.high_watermark = self.log.log_end_offset
        self.log = self.open(clean=True)
        assert not self.log.recovery.scanned

    @rule()
    def reopen_after_a_crash(self) -> None:
        self.log.close(clean=False)
        self.log = self.open(clean=False)
        self.flushed = self.high_watermark = self.log.log_end_offset

    @rule(cut=st.integers(1, 40), clean=st.booleans())
    def damage_an_index_and_reopen(self, cut: int, clean: bool) -> None:
        self.log.close(clean=clean)
        if clean:
            self.flushed = self.log.log_end_offset
        for path in sorted(self.path.glob("*.txnindex"))[:1]:
            data = path.read_bytes()
            path.write_bytes(data[: -(cut % 34 or 1)])
        self.log = self.open(clean=clean)
        self.flushed = self.high_watermark = self.log.log_end_offset

    @rule(cut=st.integers(0, 60))
    def damage_a_snapshot_and_reopen(self, cut: int) -> None:
        self.log.close(clean=False)
        paths = sorted(self.path.glob("*.snapshot"))
        if len(paths) > 1 or (paths and not self.log.segments[0].base_offset):
            paths[-1].write_bytes(paths[-1].read_bytes()[:cut])
        self.log = self.open(clean=False)
        self.flushed = self.high_watermark = self.log.log_end_offset

    def transactions(self) -> list[tuple[Transaction, set[int]]]:
        """Every transaction with the offsets of its records."""
        found = []
        begun: dict[int, list[int]] = {}
        for entry in self.entries:
            if entry.producer_id is None:
                continue
            if entry.committed is None:
                begun.setdefault(entry.producer_id, []).append(entry.offset)
            elif (offsets := begun.pop(entry.producer_id, None)) is not None:
                found.append((Transaction(offsets[0], entry.offset, entry.committed), set(offsets)))
        found += [(Transaction(some[0], None, False), set(some)) for some in begun.values()]
        return found

    @invariant()
    def the_same_is_stable(self) -> None:
        assert self.log.last_stable_offset(self.high_watermark) == self.stable_offset()

    def stable_offset(self) -> int:
        unstable = [
            transaction.first_offset
            for transaction, _ in self.transactions()
            if transaction.marker_offset is None or transaction.marker_offset >= self.high_watermark
        ]
        return max(min([self.high_watermark, *unstable]), self.start)

    @invariant()
    def the_same_is_visible(self) -> None:
        hidden = set()
        for transaction, offsets in self.transactions():
            if not transaction.committed:
                hidden |= offsets
        stable = self.stable_offset()
        wanted = [
            entry.offset
            for entry in self.entries
            if entry.committed is None and self.start <= entry.offset < stable
            if entry.offset not in hidden
        ]
        assert read_committed(self.log, self.high_watermark) == wanted


TestTransactionsAgainstAList = TransactionMachine.TestCase
TestTransactionsAgainstAList.settings = settings(max_examples=40, stateful_step_count=40)
