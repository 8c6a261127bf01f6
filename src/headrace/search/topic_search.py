"""The search of a topic: reads ranges of offsets as columns, and returns records as they are found.

Rule: memory is bounded by what the consumer fetches ahead and by one batch. Between two polls the
search can be cancelled.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.consumer.consumer import Consumer
from headrace.client.options import ConsumerConfig
from headrace.clock import Clock
from headrace.search.column_filter import ColumnFilter, records_at
from headrace.search.expressions import parse_expression
from headrace.search.record_predicate import Headers
from headrace.search.scan_ranges import (
    ScanRange,
    SearchRequest,
    scan_bounds,
    scan_ranges,
    scan_windows,
)
from headrace.types import TopicPartition

# A search is no reason for large pauses of the broker, nor of the one who wants to cancel it.
FETCH_BYTES = 1024 * 1024
FETCH_BYTES_MAX = 16 * 1024 * 1024
POLL_MS = 100.0
PROGRESS_S = 0.2
# After so long without a record the brokers are asked whether they are there.
SILENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A record that was found. What is shown of it may be cut; the sizes are those of the whole."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    key_size: int
    value_size: int

    def cut(self, size: int) -> "SearchHit":
        """The hit with at most `size` bytes of its key, of its value, and of all its headers."""
        headers: list[tuple[str, bytes | None]] = []
        left = size
        for name, data in self.headers:
            if left <= 0:
                break
            headers.append((name[:left], data and data[:left]))
            left -= len(name) + len(data or b"")
        key = self.key and self.key[:size]
        value = self.value and self.value[:size]
        return replace(self, key=key, value=value, headers=tuple(headers))


class SearchEnd(Enum):
    """Why a search ended."""

    COMPLETE = "complete"
    HITS_MAX = "hits_max"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is. Offsets stand for records: a compacted log has fewer of these."""

    offsets_total: int = 0
    offsets_done: int = 0
    records_read: int = 0
    bytes_read: int = 0
    hits: int = 0
    seconds: float = 0.0

    @property
    def bytes_total(self) -> int:
        """The bytes of all ranges, as far as the part that was read tells."""
        if not self.offsets_done:
            return 0
        return self.bytes_read * self.offsets_total // self.offsets_done

    @property
    def records_per_s(self) -> float:
        """The rate of reading since the search began."""
        return self.records_read / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time to the end at the present rate; None before anything is read."""
        if not self.offsets_done:
            return None
        return self.seconds * (self.offsets_total - self.offsets_done) / self.offsets_done


@dataclass(frozen=True, slots=True)
class SearchUpdate:
    """Records that were found since the last update, and the progress; the last has the end."""

    hits: tuple[SearchHit, ...]
    progress: SearchProgress
    end: SearchEnd | None = None


def search_consumer_config(config: ConsumerConfig) -> ConsumerConfig:
    """The options of a consumer for a search: those of its connections, and gentle fetches."""
    merged: ConsumerConfig = {
        **config,
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": FETCH_BYTES,
        "fetch_max_bytes": FETCH_BYTES_MAX,
        "allow_auto_create_topics": False,
    }
    # A search is no member of the application's group.
    merged.pop("group_id", None)
    merged.pop("group_instance_id", None)
    return merged


class WindowReader:
    """Reads ranges of offsets with a consumer, as batches without records beyond the ranges."""

    def __init__(
        self, consumer: Consumer, window: Mapping[TopicPartition, ScanRange], clock: Clock
    ) -> None:
        self._consumer = consumer
        self._clock = clock
        self._ends = {tp: offsets.end for tp, offsets in window.items()}
        self._positions = {tp: offsets.start for tp, offsets in window.items()}
        self._unfinished = set(window)
        self._heard = clock.monotonic()
        self.offsets_done = 0
        consumer.assign(window)
        # An earlier window may have paused them at its end.
        consumer.resume(list(window))
        for tp, offsets in window.items():
            consumer.seek(tp, offsets.start)

    @property
    def is_done(self) -> bool:
        """Whether every range is read to its end."""
        return not self._unfinished

    def poll(self) -> list[pa.RecordBatch]:
        """The next records, mostly as one batch; none if none arrived for a moment."""
        batch = self._consumer.poll_arrow(timeout_ms=POLL_MS)
        if batch.num_rows == 0:
            self._skip_gaps()
            self._check_alive()
            return []
        self._heard = self._clock.monotonic()
        pieces = []
        is_whole = True
        for start, length in _partition_runs(batch):
            part = batch.slice(start, length)
            kept = self._take(part)
            is_whole = is_whole and kept.num_rows == length
            if kept.num_rows:
                pieces.append(kept)
        return [batch] if is_whole else pieces

    def _take(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one partition that belong to its range and were not seen before."""
        offsets = part.column("offset")
        tp = TopicPartition(part.column("topic")[0].as_py(), part.column("partition")[0].as_py())
        end, position = self._ends.get(tp, 0), self._positions.get(tp, 0)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if last >= end or first < position:
            kept = pc.and_(pc.greater_equal(offsets, position), pc.less(offsets, end))
            part = part.filter(kept)
        self._advance(tp, last + 1)
        return part

    def _advance(self, tp: TopicPartition, position: int) -> None:
        if tp not in self._unfinished:
            return
        end, before = self._ends[tp], self._positions[tp]
        reached = max(min(position, end), before)
        self._positions[tp] = reached
        self.offsets_done += reached - before
        if reached == end:
            self._unfinished.discard(tp)
            self._consumer.pause(tp)

    def _skip_gaps(self) -> None:
        """Note positions beyond offsets without records, as after transactions and compaction."""
        for tp, position in self._consumer.positions().items():
            self._advance(tp, position)

    def _check_alive(self) -> None:
        """Ask the brokers for the ends of logs when nothing has come for long, for their error."""
        if self._unfinished and self._clock.monotonic() - self._heard > SILENCE_S:
            self._consumer.end_offsets(list(self._unfinished))
            self._heard = self._clock.monotonic()


def _partition_runs(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """The start and the length of each run of rows of one partition."""
    ends = pc.run_end_encode(batch.column("partition")).run_ends.to_pylist()
    return [(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


class TopicSearch:
    """One search with one consumer. `updates` may be called once."""

    def __init__(
        self,
        consumer: Consumer,
        request: SearchRequest,
        clock: Clock,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Parses the expression: ConfigError if it is not valid."""
        expression = parse_expression(request.expression, ignore_case=request.ignore_case)
        self._filter = ColumnFilter(expression)
        self._consumer = consumer
        self._request = request
        self._clock = clock
        self._is_cancelled = is_cancelled
        self._bounds = scan_bounds(expression)
        self._progress = SearchProgress()
        self._began = clock.monotonic()
        self._updated = self._began

    def updates(self) -> Iterator[SearchUpdate]:
        """Hits as soon as they are found, and the progress at least every `PROGRESS_S`."""
        ranges = scan_ranges(self._consumer, self._request, self._bounds)
        total = sum(end - start for start, end in ranges.values())
        self._progress = replace(self._progress, offsets_total=total)
        yield self._update()
        end = SearchEnd.COMPLETE
        for window in scan_windows(ranges, newest_first=self._request.newest_first):
            end = yield from self._read(window)
            if end is not SearchEnd.COMPLETE:
                break
        yield self._update(end=end)

    def _read(
        self, window: Mapping[TopicPartition, ScanRange]
    ) -> Generator[SearchUpdate, None, SearchEnd]:
        """Search a window of offsets."""
        reader = WindowReader(self._consumer, window, self._clock)
        done_before = self._progress.offsets_done
        while not reader.is_done:
            if self._is_cancelled():
                return SearchEnd.CANCELLED
            hits: list[SearchHit] = []
            for batch in reader.poll():
                hits += self._search(batch, self._request.hits_max - self._progress.hits)
            self._progress = replace(self._progress, offsets_done=done_before + reader.offsets_done)
            is_full = self._progress.hits >= self._request.hits_max
            if hits or self._clock.monotonic() - self._updated >= PROGRESS_S:
                yield self._update(tuple(hits))
            if is_full:
                return SearchEnd.HITS_MAX
        return SearchEnd.COMPLETE

    def _search(self, batch: pa.RecordBatch, hits_max: int) -> list[SearchHit]:
        rows = self._filter.matching_rows(batch)[:hits_max]
        progress = self._progress
        self._progress = replace(
            progress,
            records_read=progress.records_read + batch.num_rows,
            bytes_read=progress.bytes_read + batch.nbytes,
            hits=progress.hits + len(rows),
        )
        return hits_at(batch, rows)

    def _update(
        self, hits: tuple[SearchHit, ...] = (), end: SearchEnd | None = None
    ) -> SearchUpdate:
        self._updated = self._clock.monotonic()
        self._progress = replace(self._progress, seconds=self._updated - self._began)
        return SearchUpdate(hits, self._progress, end)


def hits_at(batch: pa.RecordBatch, rows: list[int]) -> list[SearchHit]:
    """The records of some rows of a batch, whole."""
    return [
        SearchHit(
            record.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            record.headers,
            len(record.key or b""),
            len(record.value or b""),
        )
        for record in records_at(batch, rows)
    ]
