"""Compaction against a dictionary: transactions, tombstones, producers, restarts and small memory.

Whatever was written and compacted in whatever order, a reader of committed records makes the same
table of the log as of everything that was ever written to it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.batch import check_batch
from headrace.protocol.compression import Compression
from headrace.protocol.markers import decode_marker
from headrace.protocol.records import decode_rows
from headrace.storage.compaction.compaction import CompactionLimits
from headrace.storage.log import Log
from tests.unit.storage.compaction.tables import Found, compact, end_transaction, put, table_of
from tests.unit.storage.logs import NOW_MS, UnsyncedFiles, check_indexes, config, open_log

RETENTION_MS = 1000
COMPACT = config(
    cleanup_policy=("compact",),
    segment_bytes=600,
    segment_index_bytes=200,
    delete_retention_ms=RETENTION_MS,
    segment_ms=10**12,
)
IDEMPOTENT = 7

TRANSACTIONAL = (1, 2, 3)


@dataclass
class Written:
    """A record as it was written, and the transaction it is of."""

    record: Found
    transaction: tuple[int, int] | None


@dataclass
class History:
    """Everything that was written to a log, and what became of its transactions."""

    log: Log
    path: Path
    now_ms: int = NOW_MS
    written: dict[int, Written] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    # Of each transactional producer: the number of its transaction, and whether it is open.
    numbers: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    committed: set[tuple[int, int]] = field(default_factory=set)

    def put(self, chosen: list[tuple[int, str]], codec: int, producer_id: int) -> None:
        offset = self.log.log_end_offset
        made = [
            (b"k%d" % key, None if kind == "tombstone" else b"v%d" % (offset + index))
            for index, (key, kind) in enumerate(chosen)
        ]
        transaction = None
        producer = (-1, -1, -1)
        if producer_id >= 0:
            producer = (producer_id, 0, self.sequences.get(producer_id, 0))
            self.sequences[producer_id] = producer[2] + len(made)
        if producer_id in TRANSACTIONAL:
            if producer_id not in self.open:
                self.numbers[producer_id] = self.numbers.get(producer_id, 0) + 1
                self.open.add(producer_id)
            transaction = (producer_id, self.numbers[producer_id])
        put(
            self.log,
            *made,
            compression=codec,
            producer=producer,
            transactional=transaction is not None,
            timestamp=self.now_ms,
            now_ms=self.now_ms,
        )
        for index, (key, value) in enumerate(made):
            found = Found(offset + index, key, value, self.now_ms + index)
            self.written[found.offset] = Written(found, transaction)

    def end(self, producer_id: int, committed: bool) -> None:
        if producer_id in self.open:
            self.open.remove(producer_id)
            end_transaction(self.log, producer_id, 0, committed=committed)
            if committed:
                self.committed.add((producer_id, self.numbers[producer_id]))

    def compact(self, slots: int, buffer_bytes: int) -> None:
        self.log.roll(self.now_ms)
        compact(self.log, self.now_ms, CompactionLimits(slots * 24, 0.75, buffer_bytes))

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def reopen(self, clean: bool, with_snapshots: bool) -> None:
        """Start again; without snapshots the batches that are left must say it all."""
        log = self.log
        before = producers_of(log)
        offsets = (log.log_start_offset, log.log_end_offset, self.stable_offset, log.clean_offset)
        points = {"recovery_point": log.recovery_point, "clean_offset": log.clean_offset}
        log.close(clean=clean)
        if not with_snapshots:
            for path in self.path.glob("*.snapshot"):
                path.unlink()
        self.log = log = open_log(
            self.path, COMPACT, files=UnsyncedFiles(), clean=clean, now_ms=self.now_ms, **points
        )
        assert log.recovery.truncated_because == ""
        now = (log.log_start_offset, log.log_end_offset, self.stable_offset, log.clean_offset)
        assert now == offsets
        assert producers_of(log) == before

    @property
    def stable_offset(self) -> int:
        return self.log.last_stable_offset(self.log.log_end_offset)

    def committed_records(self) -> list[Found]:
        """What a reader of committed records would have seen had nothing been compacted."""
        return [
            part.record
            for offset, part in sorted(self.written.items())
            if offset < self.stable_offset
            and (part.transaction is None or part.transaction in self.committed)
        ]

    def check(self) -> None:
        read = list(read_committed(self.log))
        expected = self.committed_records()
        assert table_of(read) == table_of(expected)
        assert all(self.written[entry.offset].record == entry for entry in read)
        # Below where compaction came to every key is there once, and is the latest one.
        clean = [entry for entry in read if entry.offset < self.log.clean_offset]
        latest = {
            record.key: record.offset
            for record in expected
            if record.offset < self.log.clean_offset
        }
        assert all(record.offset == latest[record.key] for record in clean)
        check_indexes(self.log)
        for segment in self.log.segments:
            for header, buffer, _ in segment.batches(0, segment.size):
                check_batch(buffer, header, compacted=True)


def producers_of(log: Log) -> dict[int, tuple[int, int, int]]:
    """The epoch, the last sequence and the last offset of every producer."""
    return {
        producer_id: (producer.epoch, producer.last_sequence, producer.batches[-1].last_offset)
        for producer_id, producer in log.producers
        if producer.batches
    }


def read_committed(log: Log) -> Iterator[Found]:
    """Read a log as a client does: with the aborted transactions and the markers it is given."""
    end = log.last_stable_offset(log.log_end_offset)
    aborted = sorted(log.aborted_transactions(0, end), key=lambda one: one.first_offset)
    skipped: set[int] = set()
    for segment in log.segments:
        for header, buffer, _ in segment.batches(0, segment.size):
            if header.base_offset >= end:
                return
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipped.add(aborted.pop(0).producer_id)
            if header.is_control:
                marker = decode_marker(buffer, header)
                if marker is not None and not marker.committed:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                for row in decode_rows(buffer, header):
                    yield Found(row.offset, row.key, row.value, row.timestamp)


@contextmanager
def history() -> Iterator[History]:
    with TemporaryDirectory() as directory:
        path = Path(directory)
        yield History(open_log(path, COMPACT, files=UnsyncedFiles()), path)


def step(modelled: History, rng: Random) -> None:
    """Do something at random, and check the log where that could have changed it."""
    chosen = rng.random()
    if chosen < 0.55:
        codec = rng.choice([Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD])
        pairs = [
            (rng.randrange(9), rng.choice(["value", "value", "tombstone"]))
            for _ in range(rng.randint(1, 4))
        ]
        modelled.put(pairs, codec, rng.choice([-1, IDEMPOTENT, *TRANSACTIONAL]))
    elif chosen < 0.75:
        modelled.end(rng.choice(TRANSACTIONAL), rng.random() < 0.5)
    elif chosen < 0.85:
        modelled.wait(rng.randint(1, RETENTION_MS))
    elif chosen < 0.95:
        modelled.compact(rng.randint(4, 14), rng.choice([200, 400, 5000]))
        modelled.check()
    else:
        modelled.reopen(rng.random() < 0.3, rng.random() < 0.5)
        modelled.check()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_compacted_log_is_the_same_table(seed: int) -> None:
    rng = Random(seed)
    with history() as one:
        for _ in range(rng.randint(1, 120)):
            step(one, rng)
        one.compact(300, 5000)
        one.check()
