"""A log against a list: whatever is done to it, it holds what the list holds."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log import Log
from tests.unit.storage.logs import (
    NOW_MS,
    UnsyncedFiles,
    append,
    check_indexes,
    config,
    open_log,
    read_all,
    values,
)


class LogMachine(RuleBasedStateMachine):
    """Records are (offset, value, timestamp, epoch); the model keeps them from the log start on."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.settings = config(segment_bytes=600, file_delete_delay_ms=0)
        self.records: list[tuple[int, bytes, int, int]] = []
        self.start = self.end = self.flushed = 0
        self.epoch = 0
        self.count = 0
        self.sequence = 0
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

    @rule(count=st.integers(1, 4), size=st.integers(0, 120), age=st.integers(-500, 500))
    def append(self, count: int, size: int, age: int) -> None:
        self.count += 1
        value = b"%d " % self.count + b"." * size
        timestamp = NOW_MS + self.count * 10 + age
        appended = append(
            self.log, count, value=value, timestamp=timestamp, leader_epoch=self.epoch
        )
        assert (appended.base_offset, appended.last_offset) == (self.end, self.end + count - 1)
        self.note(count, value, timestamp)

    @rule(count=st.integers(1, 3))
    def append_idempotently(self, count: int) -> None:
        self.count += 1
        value = b"%d" % self.count
        arguments = {"value": value, "producer": (7, 0, self.sequence), "timestamp": NOW_MS}
        first = append(self.log, count, leader_epoch=self.epoch, **arguments)  # type: ignore[arg-type]
        again = append(self.log, count, leader_epoch=self.epoch, **arguments)  # type: ignore[arg-type]
        assert not first.duplicate
        assert again == first._replace(duplicate=True)
        self.note(count, value, NOW_MS)
        self.sequence += count

    def note(self, count: int, value: bytes, timestamp: int) -> None:
        for delta in range(count):
            self.records.append((self.end + delta, value, timestamp + delta, self.epoch))
        self.end += count

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        self.flushed = self.log.flush()
        assert self.flushed == self.end

    @rule()
    def lead(self) -> None:
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @rule(back=st.integers(1, 10))
    def truncate(self, back: int) -> None:
        offset = max(self.end - back, self.start)
        self.log.truncate_to(offset)
        assert offset - 4 < self.log.log_end_offset <= offset
        self.end = self.log.log_end_offset
        self.start = min(self.start, self.end)
        self.flushed = min(self.flushed, self.end)
        self.records = [record for record in self.records if record[0] < self.end]
        producer = self.log.producers.get(7)
        self.sequence = producer.last_sequence + 1 if producer else 0

    @rule(forward=st.integers(0, 12))
    def delete_records(self, forward: int) -> None:
        self.start = min(self.start + forward, self.end)
        self.log.advance_log_start(self.start)
        self.log.retire_segments(NOW_MS, self.end)
        self.log.delete_retired(NOW_MS)
        self.records = [record for record in self.records if record[0] >= self.start]
        assert self.log.segments[0].base_offset <= self.start

    @rule()
    def reopen_cleanly(self) -> None:
        self.log.close()
        self.flushed = self.end
        self.log = self.open(clean=True)
        assert not self.log.recovery.scanned

    @rule()
    def reopen_after_a_crash(self) -> None:
        self.log.close(clean=False)
        self.log = self.open(clean=False)
        assert self.log.recovery.truncated_bytes == 0
        self.flushed = self.end

    @rule(where=st.integers(0, 10**6), max_bytes=st.integers(0, 800), limit=st.integers(0, 10**6))
    def read(self, where: int, max_bytes: int, limit: int) -> None:
        offset = self.start + where % (self.end - self.start + 1)
        max_offset = self.start + limit % (self.end - self.start + 2)
        found = self.log.read_cached(offset, max_bytes, max_offset, at_least_one=True)
        assert found is not None
        got = [value for value in values(found.records) if value[0] >= offset]
        wanted = [record[:2] for record in self.records if offset <= record[0] < max_offset]
        assert got == wanted[: len(got)]
        if len(wanted) >= 4:
            assert got  # A batch has at most four records, so one of them ends below the limit.

    @rule(age=st.integers(-600, 600))
    def look_up_a_time(self, age: int) -> None:
        timestamp = NOW_MS + self.count * 10 + age
        found = self.log.offset_for_timestamp(timestamp)
        wanted = [
            (record[2], record[0], record[3]) for record in self.records if record[2] >= timestamp
        ]
        assert found == (wanted[0] if wanted else None)

    @rule(beyond=st.integers(1, 5))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.start - beyond, self.end + beyond):
            with pytest.raises(KafkaError) as caught:
                self.log.read(offset, 100, self.end)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert read_all(self.log) == [record[:2] for record in self.records]
        assert self.log.recovery_point == self.flushed

    @invariant()
    def its_indexes_fit(self) -> None:
        check_indexes(self.log)

    @invariant()
    def its_epochs_are_those_of_its_records(self) -> None:
        for offset, _, _, epoch in self.records:
            assert self.log.epochs.epoch_of(offset) == epoch

    @invariant()
    def the_largest_time_is_known(self) -> None:
        with suppress(ValueError):
            newest = max(record[2] for record in self.records)
            found = self.log.max_timestamp_offset()
            assert found is not None
            assert found.timestamp == newest


TestLogAgainstAList = LogMachine.TestCase
TestLogAgainstAList.settings = settings(max_examples=60, stateful_step_count=30)
