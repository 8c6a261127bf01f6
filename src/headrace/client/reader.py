"""Records from chosen partitions, in offset order within each, without a consumer group.

Rule: a position moves only past what `poll` has returned, so a reader that fails can be made anew
from its `positions`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.client.admin import EARLIEST, Admin
from headrace.client.backoff import delay_s
from headrace.client.batches import Header
from headrace.client.cluster import Cluster
from headrace.client.connection import Connection
from headrace.client.failures import ConnectionFailed, TimedOut
from headrace.client.outcomes import check, error_code
from headrace.errors import CorruptBatch, ErrorCode, HeadraceError, KafkaError
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.protocol.records import decode_rows, scan_headers
from headrace.types import TopicPartition

_SESSIONLESS = -1


class ReadRecord(NamedTuple):
    """A record and where it was found."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records that retention deleted before they could be read: offsets [start, end)."""

    tp: TopicPartition
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """How much to ask for at a time, and how long a broker may wait for records."""

    max_wait_ms: int = 500
    max_bytes: int = 16 * 1_048_576
    partition_max_bytes: int = 2 * 1_048_576


class Reader:
    """Reads partitions from given offsets on, up to given ends or for ever. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        start: Mapping[TopicPartition, int],
        *,
        until: Mapping[TopicPartition, int] | None = None,
        options: ReaderOptions | None = None,
        on_skip: Callable[[Skipped], None] = lambda skipped: None,
    ) -> None:
        self.positions = dict(start)
        self._cluster = cluster
        self._until = dict(until or {})
        self._options = options or ReaderOptions()
        self._on_skip = on_skip
        self._attempts = 0
        self._failing_since: float | None = None

    @property
    def unfinished(self) -> list[TopicPartition]:
        """The partitions that are not at their end, or have none."""
        return [
            tp
            for tp, position in self.positions.items()
            if tp not in self._until or position < self._until[tp]
        ]

    def poll(self) -> list[ReadRecord]:
        """The next records there are; none if there were none for `max_wait_ms`."""
        records: list[ReadRecord] = []
        error: HeadraceError | None = None
        for fetch in self._send_fetches():
            if isinstance(fetch, HeadraceError):
                error = fetch
                continue
            try:
                error = self._receive(fetch, records) or error
            except ConnectionFailed as failed:
                error = failed
        if error is None:
            self._attempts, self._failing_since = 0, None
        else:
            self._pause(error, brief=bool(records))
        return records

    def _send_fetches(self) -> "list[_Fetch | HeadraceError]":
        """Ask all leaders at once, so that they wait for records at the same time."""
        deadline = self._cluster.deadline()
        fetches: list[_Fetch | HeadraceError] = []
        wanted = self.unfinished
        try:
            groups = self._cluster.by_leader(wanted, deadline)
        except (KafkaError, ConnectionFailed) as error:
            return [error]
        for leader, partitions in groups.items():
            try:
                connection = self._cluster.connection(leader, deadline, idle=True)
                request, names = self._request(partitions)
                connection.send(request, deadline)
                fetches.append(_Fetch(connection, names, deadline))
            except (KafkaError, ConnectionFailed) as error:
                fetches.append(error)
        return fetches

    def _request(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[FetchRequest, dict[bytes, str]]:
        topics: dict[str, FetchTopic] = {}
        names: dict[bytes, str] = {}
        for tp in partitions:
            topic = topics.get(tp.topic)
            if topic is None:
                topic_id = self._cluster.topics([tp.topic])[tp.topic].topic_id
                topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=topic_id)
                names[topic_id] = tp.topic
            topic.partitions.append(
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=self._cluster.partition(tp).leader_epoch,
                    fetch_offset=self.positions[tp],
                    partition_max_bytes=self._options.partition_max_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=self._options.max_wait_ms,
            min_bytes=1,
            max_bytes=self._options.max_bytes,
            session_epoch=_SESSIONLESS,
            topics=list(topics.values()),
        )
        return request, names

    def _receive(self, fetch: "_Fetch", records: list[ReadRecord]) -> HeadraceError | None:
        """Take one answer; an error that may pass is returned, another raised."""
        response: FetchResponse = fetch.connection.receive(fetch.deadline)
        check(response.error_code, subject="fetch")
        passing: HeadraceError | None = None
        for topic in response.responses:
            name = topic.topic or fetch.names.get(topic.topic_id, "")
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition_index)
                if partition.error_code:
                    passing = self._refused(tp, partition)
                else:
                    self._take(tp, partition, records)
        return passing

    def _refused(self, tp: TopicPartition, partition: PartitionData) -> HeadraceError | None:
        code = error_code(partition.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skip_deleted(tp)
            return None
        error = KafkaError(code, f"{tp}: fetch failed at offset {self.positions[tp]}")
        if not self._cluster.passes(error):
            raise error
        self._cluster.forget([tp.topic])
        return error

    def _skip_deleted(self, tp: TopicPartition) -> None:
        """Go on at the start of the log if retention has overtaken us."""
        position = self.positions[tp]
        start = Admin(self._cluster).offsets({tp: EARLIEST})[tp].offset
        if position >= start:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{tp} has no offset {position}: its log ends before it",
            )
        self._on_skip(Skipped(tp, position, start))
        self.positions[tp] = start

    def _take(
        self, tp: TopicPartition, partition: PartitionData, records: list[ReadRecord]
    ) -> None:
        """Add the records from the position on, up to the partition's end."""
        data = partition.records
        if not data:
            return
        position = self.positions[tp]
        end = self._until.get(tp, 2**63)
        headers = scan_headers(data)
        if not headers:
            raise CorruptBatch(f"{tp}: the answer at offset {position} holds no whole batch")
        for header in headers:
            # The first batch may begin before the position: batches are sent whole.
            if header.next_offset <= position:
                continue
            if header.base_offset >= end:
                break
            try:
                rows = [] if header.is_control else decode_rows(data, header, position)
            except CorruptBatch as error:
                raise CorruptBatch(f"{tp}: batch at offset {header.base_offset}: {error}") from None
            records += [
                ReadRecord(tp.topic, tp.partition, *row) for row in rows if row.offset < end
            ]
            position = header.next_offset
        self.positions[tp] = min(position, end)

    def _pause(self, error: HeadraceError, *, brief: bool) -> None:
        """Wait before the next attempt; give up if attempts have failed for too long."""
        if not self._cluster.passes(error):
            raise error
        now = self._cluster.clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._cluster.timeout_s:
            raise TimedOut(f"gave up after {self._cluster.timeout_s:g} s: {error}")
        self._cluster.forget()
        if not brief:
            self._cluster.sleep(delay_s(self._attempts, self._cluster.rng))
            self._attempts += 1


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A Fetch request in flight; `names` are its topics, by id."""

    connection: Connection
    names: Mapping[bytes, str]
    deadline: float
