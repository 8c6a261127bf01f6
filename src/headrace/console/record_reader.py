"""Records for a page: the newest, or those from an offset or a time on, of some partitions.

Rule: bounded in records, in bytes and in time. Records are cut to what is shown as they are read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace import aio
from headrace.console.cluster_access import ClusterAccess
from headrace.console.record_views import LISTED_BYTES, RecordView, record_view
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.search.scan_ranges import ScanRange
from headrace.types import TopicPartition

PAGE_RECORDS = 50
READ_S_MAX = 8.0
READ_BYTES_MAX = 64 * 1024 * 1024
FETCH_OPTIONS = {
    "auto_offset_reset": "earliest",
    "allow_auto_create_topics": False,
    "max_partition_fetch_bytes": 1024 * 1024,
    "fetch_max_bytes": 8 * 1024 * 1024,
    "max_poll_records": 500,
}


class Place(Enum):
    """Where a page of records begins."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records in the order of the page. `is_partial` if reading took too long, or too much."""

    records: Sequence[RecordView]
    start_offsets: dict[int, int]
    end_offsets: dict[int, int]
    is_partial: bool = False


async def read_page(
    access: ClusterAccess,
    topic: str,
    numbers: Sequence[int],
    place: Place,
    *,
    offset: int | None = None,
    time_ms: int | None = None,
    limit: int = PAGE_RECORDS,
) -> RecordPage:
    """Up to `limit` records, newest first for `Place.NEWEST`, else in the order of their times.

    With `Place.NEWEST` offset and time are where it ends, otherwise where it begins.
    """
    partitions = [TopicPartition(topic, number) for number in numbers]
    async with access.consumer(**FETCH_OPTIONS) as consumer:
        starts = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        bounds = dict(ends if place is Place.NEWEST or time_ms is not None else starts)
        if time_ms is not None:
            times = await consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
            bounds |= {tp: found.offset for tp, found in times.items() if found is not None}
        elif offset is not None:
            bounds = dict.fromkeys(partitions, offset)
        # The records of many partitions are merged: each gives some more than its share.
        count = min(limit, max(limit * 8 // max(len(partitions), 1), 1))
        ranges = {}
        for tp in partitions:
            bound = min(max(bounds[tp], starts[tp]), ends[tp])
            if place is Place.NEWEST:
                ranges[tp] = ScanRange(max(bound - count, starts[tp]), bound)
            else:
                ranges[tp] = ScanRange(bound, ends[tp])
        reading = RangeReading(consumer, ranges, count)
        await reading.run()
    found = sorted(
        reading.records,
        key=lambda record: (record.timestamp_ms, record.offset),
        reverse=place is Place.NEWEST,
    )
    return RecordPage(
        found[:limit],
        {tp.partition: start for tp, start in starts.items()},
        {tp.partition: end for tp, end in ends.items()},
        reading.is_partial,
    )


class RangeReading:
    """Reads up to `count` records of each range."""

    def __init__(
        self,
        consumer: aio.Consumer,
        ranges: dict[TopicPartition, ScanRange],
        count: int,
        shown: int = LISTED_BYTES,
    ) -> None:
        self.records: list[RecordView] = []
        self.is_partial = False
        self._consumer = consumer
        self._ends = {tp: found.end for tp, found in ranges.items() if found.start < found.end}
        self._left = dict.fromkeys(self._ends, count)
        self._starts = {tp: ranges[tp].start for tp in self._ends}
        self._bytes_left = READ_BYTES_MAX
        self._shown = shown

    async def run(self) -> None:
        """Read until every range is done, or the limits of time and bytes are reached."""
        if not self._ends:
            return
        try:
            async with asyncio.timeout(READ_S_MAX):
                await self._read()
        except TimeoutError:
            self.is_partial = True

    async def _read(self) -> None:
        consumer = self._consumer
        await consumer.assign(list(self._ends))
        for tp, start in self._starts.items():
            await consumer.seek(tp, start)
        while self._left:
            for record in await consumer.poll(timeout_ms=100):
                self._take(record)
            positions = consumer.positions()
            for tp in list(self._left):
                if self._left[tp] <= 0 or positions.get(tp, 0) >= self._ends[tp]:
                    del self._left[tp]
                    await consumer.pause(tp)
            if self._bytes_left <= 0:
                self.is_partial = bool(self._left)
                return

    def _take(self, record: ConsumerRecord) -> None:
        tp = TopicPartition(record.topic, record.partition)
        if self._left.get(tp, 0) <= 0 or not (self._starts[tp] <= record.offset < self._ends[tp]):
            return
        self._left[tp] -= 1
        self._bytes_left -= len(record.key or b"") + len(record.value or b"")
        self.records.append(view_of(record, self._shown))


def view_of(record: ConsumerRecord, shown: int = LISTED_BYTES) -> RecordView:
    """The view of a record of a consumer."""
    place = (record.partition, record.offset, record.timestamp)
    return record_view(record.topic, place, record.key, record.value, record.headers, shown=shown)
