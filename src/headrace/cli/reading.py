"""Records of chosen partitions, from given offsets on, up to given ends or for ever."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.client.administration.admin import Admin
from headrace.client.administration.offsets import EARLIEST, LATEST
from headrace.client.consumer.consumer import Consumer
from headrace.client.failures import NoOffset
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition

POLL_MS = 500
_FOR_EVER = 2**63


class Skipped(NamedTuple):
    """Records that retention deleted before they could be read: offsets [start, end)."""

    tp: TopicPartition
    start_offset: int
    end_offset: int


class Reading:
    """Reads partitions with a consumer that has no group. Not thread-safe."""

    def __init__(
        self,
        consumer: Consumer,
        admin: Admin,
        start: Mapping[TopicPartition, int],
        *,
        until: Mapping[TopicPartition, int] | None,
        timeout_s: float,
        on_skip: Callable[[Skipped], None],
    ) -> None:
        self._consumer = consumer
        self._admin = admin
        self._timeout_s = timeout_s
        self._on_skip = on_skip
        # Where to stop in each partition that is not read to its end yet.
        self._until = {
            tp: _FOR_EVER if until is None else until[tp]
            for tp, offset in start.items()
            if until is None or offset < until[tp]
        }
        self._heard = time.monotonic()
        consumer.assign(self._until)
        for tp in self._until:
            consumer.seek(tp, start[tp])

    @property
    def unfinished(self) -> list[TopicPartition]:
        """The partitions that are not at their end, or have none."""
        return list(self._until)

    def poll(self) -> list[ConsumerRecord]:
        """The next records there are; none if there were none for a moment."""
        try:
            records = self._consumer.poll(timeout_ms=POLL_MS)
        except NoOffset:
            self._skip_deleted()
            return []
        if not records:
            self._notice_ends()
            self._check_alive()
            return []
        self._heard = time.monotonic()
        return self._take(records)

    def _take(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records before the ends."""
        taken: list[ConsumerRecord] = []
        topic, partition, end = "", -1, 0
        for record in records:
            # A poll brings the records of one partition after those of another.
            if record.partition != partition or record.topic != topic:
                topic, partition = record.topic, record.partition
                end = self._until.get(TopicPartition(topic, partition), 0)
            if record.offset < end:
                taken.append(record)
            if record.offset >= end - 1:
                self._finish(TopicPartition(topic, partition))
        return taken

    def _finish(self, tp: TopicPartition) -> None:
        if self._until.pop(tp, None) is not None:
            self._consumer.pause(tp)

    def _notice_ends(self) -> None:
        """See whether the last offsets of a partition have no records, as transactions leave."""
        for tp, end in list(self._until.items()):
            if end != _FOR_EVER and self._consumer.position(tp) >= end:
                self._finish(tp)

    def _check_alive(self) -> None:
        """Ask the brokers whether they are there when nothing has come for long."""
        if self._until and time.monotonic() - self._heard > self._timeout_s:
            self._admin.offsets(dict.fromkeys(self._until, LATEST))
            self._heard = time.monotonic()

    def _skip_deleted(self) -> None:
        """Go on at the start of the log where retention has overtaken us."""
        positions = {tp: self._consumer.position(tp) for tp in self._until}
        earliest = self._admin.offsets(dict.fromkeys(positions, EARLIEST))
        latest = self._admin.offsets(dict.fromkeys(positions, LATEST))
        for tp, position in positions.items():
            start = earliest[tp].offset
            if position < start:
                self._on_skip(Skipped(tp, position, start))
                self._consumer.seek(tp, start)
                if start >= self._until[tp]:
                    self._finish(tp)
            elif position > latest[tp].offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{tp} has no offset {position}: its log ends before it",
                )
