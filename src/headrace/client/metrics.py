"""Metrics of a client: rates, averages and maxima of the last 30 s, and totals.

Rule: the engines report batches, requests and polls, never single records, so that counting costs
next to nothing. Names are Kafka's where Kafka has the metric. Every number is 0 until it has a
value.
"""

from collections.abc import Mapping

from headrace.clock import Clock, SystemClock
from headrace.types import TopicPartition

WINDOW_S = 30

# Rebalances are rare: their window is an hour.
_REBALANCE_SLOT_S = 3600 // WINDOW_S

PRODUCER_METRICS: Mapping[str, str] = {
    "record-send-rate": "Records acknowledged per second.",
    "record-send-total": "Records acknowledged.",
    "record-error-rate": "Records per second whose sending failed for good.",
    "record-error-total": "Records whose sending failed for good.",
    "record-retry-rate": "Records per second that were sent again.",
    "record-retry-total": "Records that were sent again.",
    "outgoing-byte-rate": "Bytes of acknowledged batches per second, as sent.",
    "outgoing-byte-total": "Bytes of acknowledged batches, as sent.",
    "batch-size-avg": "Mean bytes of a batch, as sent.",
    "batch-size-max": "Bytes of the largest batch, as sent.",
    "records-per-batch-avg": "Mean records of a batch.",
    "compression-rate-avg": "Bytes as sent, divided by bytes before compression.",
    "request-rate": "Produce requests answered per second.",
    "request-total": "Produce requests answered.",
    "request-latency-avg": "Mean milliseconds from a produce request to its answer.",
    "request-latency-max": "Longest milliseconds from a produce request to its answer.",
    "buffer-queued-bytes": "Bytes of records that wait to be sent or acknowledged now.",
    "txn-commit-rate": "Transactions committed per second.",
    "txn-commit-total": "Transactions committed.",
    "txn-commit-latency-avg": "Mean milliseconds of a commit, its wait for records included.",
    "txn-commit-latency-max": "Longest milliseconds of a commit.",
    "txn-abort-rate": "Transactions aborted per second.",
    "txn-abort-total": "Transactions aborted.",
}

CONSUMER_METRICS: Mapping[str, str] = {
    "fetch-rate": "Fetches answered per second.",
    "fetch-total": "Fetches answered.",
    "fetch-latency-avg": "Mean milliseconds from a fetch to its answer, its wait included.",
    "fetch-latency-max": "Longest milliseconds from a fetch to its answer.",
    "fetch-size-avg": "Mean bytes of records in an answer.",
    "fetch-size-max": "Bytes of records in the largest answer.",
    "records-per-request-avg": "Mean records in an answer.",
    "bytes-consumed-rate": "Bytes of records fetched per second.",
    "bytes-consumed-total": "Bytes of records fetched.",
    "records-consumed-rate": "Records given to the application per second.",
    "records-consumed-total": "Records given to the application.",
    "record-e2e-latency-avg": "Mean milliseconds from a record's timestamp to its delivery, of the"
    " first record that each poll takes from a partition.",
    "record-e2e-latency-max": "Longest of these times in milliseconds.",
    "records-lag-max": "Records that the partition furthest behind has yet to give.",
    "records-lag-sum": "Records that all assigned partitions have yet to give.",
    "commit-rate": "Commits acknowledged per second.",
    "commit-total": "Commits acknowledged.",
    "commit-latency-avg": "Mean milliseconds a commit took.",
    "commit-latency-max": "Longest milliseconds a commit took.",
    "rebalance-rate-per-hour": "Rebalances in the last hour.",
    "rebalance-total": "Rebalances.",
    "rebalance-latency-avg": "Mean milliseconds of a rebalance in the last hour.",
    "rebalance-latency-max": "Longest milliseconds of a rebalance in the last hour.",
    "last-rebalance-seconds-ago": "Seconds since the last rebalance; -1 before the first.",
    "heartbeat-rate": "Heartbeats answered per second.",
    "heartbeat-total": "Heartbeats answered.",
    "heartbeat-response-time-max": "Longest milliseconds from a heartbeat to its answer.",
    "last-heartbeat-seconds-ago": "Seconds since the last heartbeat; -1 before the first.",
}

ADMIN_METRICS: Mapping[str, str] = {
    "request-rate": "Requests answered per second, whatever the answer.",
    "request-total": "Requests answered, whatever the answer.",
    "request-latency-avg": "Mean milliseconds from a request to its answer.",
    "request-latency-max": "Longest milliseconds from a request to its answer.",
    "request-error-rate": "Requests per second that had no answer in time.",
    "request-error-total": "Requests that had no answer: the connection failed, or time was up.",
    "connection-count": "Connections that are open.",
    "connection-creation-total": "Connections that were opened.",
}


class Sensor:
    """Numbers reported over time: their sum since the start, and a recent window.

    The window is a ring of slots. A slot that is reused is emptied first, so reporting costs a few
    additions, and old numbers leave one slot at a time.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_maxima",
        "_slot_s",
        "_slots",
        "_started_s",
        "_sums",
        "_turns",
        "count",
        "last_s",
        "total",
    )

    def __init__(self, clock: Clock, *, slot_s: int = 1, slots: int = WINDOW_S) -> None:
        self._clock = clock
        self._slot_s = slot_s
        self._slots = slots
        self._started_s = clock.monotonic()
        self._turns = [-1] * slots
        self._counts = [0] * slots
        self._sums = [0.0] * slots
        self._maxima = [0.0] * slots
        self.count = 0
        self.total = 0.0
        self.last_s: float | None = None

    def add(self, value: float) -> None:
        """Report one number."""
        now_s = self._clock.monotonic()
        turn = int(now_s // self._slot_s)
        at = turn % self._slots
        if self._turns[at] != turn:
            self._turns[at] = turn
            self._counts[at] = 0
            self._sums[at] = self._maxima[at] = 0.0
        self._counts[at] += 1
        self._sums[at] += value
        self._maxima[at] = max(self._maxima[at], value)
        self.count += 1
        self.total += value
        self.last_s = now_s

    def rate(self) -> float:
        """The sum of the window's numbers per second."""
        return sum(self._sums[at] for at in self._live()) / self._elapsed_s()

    def occurrence_rate(self) -> float:
        """The number of reports per second."""
        return self.recent_count() / self._elapsed_s()

    def recent_count(self) -> int:
        """The number of reports in the window."""
        return sum(self._counts[at] for at in self._live())

    def recent_sum(self) -> float:
        """The sum of the window's numbers."""
        return sum(self._sums[at] for at in self._live())

    def average(self) -> float:
        """The mean of the window's numbers; 0 if there is none."""
        return self.recent_sum() / max(1, self.recent_count())

    def maximum(self) -> float:
        """The largest of the window's numbers; 0 if there is none."""
        return max((self._maxima[at] for at in self._live()), default=0.0)

    def seconds_ago(self) -> float:
        """The time since the last number; -1 if there was none."""
        return -1.0 if self.last_s is None else self._clock.monotonic() - self.last_s

    def _live(self) -> list[int]:
        oldest = self._oldest()
        return [at for at in range(self._slots) if self._turns[at] >= oldest]

    def _oldest(self) -> int:
        return int(self._clock.monotonic() // self._slot_s) - self._slots + 1

    def _elapsed_s(self) -> float:
        """The time the window covers: less than all of it for a young client, a slot at least."""
        begin_s = max(self._started_s, self._oldest() * self._slot_s)
        return max(float(self._slot_s), self._clock.monotonic() - begin_s)


class ProducerMetrics:
    """The metrics of a producer. Written by its engine, read from any thread at any time."""

    def __init__(self, clock: Clock | None = None, *, client_id: str = "") -> None:
        clock = clock or SystemClock()
        self.client_id = client_id
        self._records = Sensor(clock)
        self._batches = Sensor(clock)
        self._raw_bytes = Sensor(clock)
        self._latency = Sensor(clock)
        self._errors = Sensor(clock)
        self._retries = Sensor(clock)
        self._commits = Sensor(clock)
        self._aborts = Sensor(clock)
        self._queued_bytes = 0

    def batch_done(self, records: int, batch_bytes: int, raw_bytes: int) -> None:
        """Count an acknowledged batch: records, bytes as sent, and bytes before compression."""
        self._records.add(records)
        self._batches.add(batch_bytes)
        self._raw_bytes.add(raw_bytes)

    def request_done(self, latency_s: float) -> None:
        """Count an answered produce request."""
        self._latency.add(latency_s)

    def errors(self, records: int) -> None:
        """Count records that failed for good."""
        self._errors.add(records)

    def retried(self, records: int) -> None:
        """Count records that are sent again."""
        self._retries.add(records)

    def transaction_done(self, committed: bool, latency_s: float) -> None:
        """Count a committed or aborted transaction and its duration."""
        (self._commits if committed else self._aborts).add(latency_s)

    def queued(self, bytes_now: int) -> None:
        """Set the used bytes of `buffer_memory`."""
        self._queued_bytes = bytes_now

    def snapshot(self) -> dict[str, float]:
        """The current value of every metric in `PRODUCER_METRICS`."""
        return {
            "record-send-rate": self._records.rate(),
            "record-send-total": self._records.total,
            "record-error-rate": self._errors.rate(),
            "record-error-total": self._errors.total,
            "record-retry-rate": self._retries.rate(),
            "record-retry-total": self._retries.total,
            "outgoing-byte-rate": self._batches.rate(),
            "outgoing-byte-total": self._batches.total,
            "batch-size-avg": self._batches.average(),
            "batch-size-max": self._batches.maximum(),
            "records-per-batch-avg": self._records.average(),
            "compression-rate-avg": _ratio(
                self._batches.recent_sum(), self._raw_bytes.recent_sum()
            ),
            "request-rate": self._latency.occurrence_rate(),
            "request-total": float(self._latency.count),
            "request-latency-avg": self._latency.average() * 1000,
            "request-latency-max": self._latency.maximum() * 1000,
            "buffer-queued-bytes": float(self._queued_bytes),
            "txn-commit-rate": self._commits.occurrence_rate(),
            "txn-commit-total": float(self._commits.count),
            "txn-commit-latency-avg": self._commits.average() * 1000,
            "txn-commit-latency-max": self._commits.maximum() * 1000,
            "txn-abort-rate": self._aborts.occurrence_rate(),
            "txn-abort-total": float(self._aborts.count),
        }


class ConsumerMetrics:
    """The metrics of a consumer. Written by its engine, read from any thread at any time."""

    def __init__(self, clock: Clock | None = None, *, client_id: str = "") -> None:
        clock = clock or SystemClock()
        self.client_id = client_id
        self._fetch_latency = Sensor(clock)
        self._fetched_bytes = Sensor(clock)
        self._fetched_records = Sensor(clock)
        self._consumed = Sensor(clock)
        self._ages = Sensor(clock)
        self._clock = clock
        self._commits = Sensor(clock)
        self._rebalances = Sensor(clock, slot_s=_REBALANCE_SLOT_S)
        self._heartbeats = Sensor(clock)
        self._lags: dict[TopicPartition, int] = {}

    def fetch_done(self, latency_s: float, fetched_bytes: int, records: int) -> None:
        """Count an answered fetch with its bytes and records."""
        self._fetch_latency.add(latency_s)
        self._fetched_bytes.add(fetched_bytes)
        self._fetched_records.add(records)

    def consumed(self, records: int) -> None:
        """Count records returned to the application."""
        self._consumed.add(records)

    def delivered(self, timestamp_ms: int) -> None:
        """Count the delivery of a record with a timestamp; -1 is none."""
        if timestamp_ms >= 0:
            # Clocks of producers may be ahead.
            self._ages.add(max(self._clock.now_ms() - timestamp_ms, 0))

    def lag(self, partition: TopicPartition, records: int) -> None:
        """Set the number of a partition's records that were not returned to the application yet."""
        self._lags[partition] = records

    def forget(self, partition: TopicPartition) -> None:
        """Drop the lag of a partition that is no longer assigned."""
        self._lags.pop(partition, None)

    def commit_done(self, latency_s: float) -> None:
        """Count an acknowledged commit."""
        self._commits.add(latency_s)

    def rebalance_done(self, latency_s: float) -> None:
        """Count a finished rebalance."""
        self._rebalances.add(latency_s)

    def heartbeat_done(self, latency_s: float) -> None:
        """Count an answered heartbeat."""
        self._heartbeats.add(latency_s)

    def lags(self) -> dict[TopicPartition, int]:
        """The known lag of each assigned partition, in records."""
        # A single step for Python, so that a rebalance in another thread cannot disturb it.
        return self._lags.copy()

    def snapshot(self) -> dict[str, float]:
        """The current value of every metric in `CONSUMER_METRICS`."""
        lags = self.lags().values()
        return {
            "fetch-rate": self._fetch_latency.occurrence_rate(),
            "fetch-total": float(self._fetch_latency.count),
            "fetch-latency-avg": self._fetch_latency.average() * 1000,
            "fetch-latency-max": self._fetch_latency.maximum() * 1000,
            "fetch-size-avg": self._fetched_bytes.average(),
            "fetch-size-max": self._fetched_bytes.maximum(),
            "records-per-request-avg": self._fetched_records.average(),
            "bytes-consumed-rate": self._fetched_bytes.rate(),
            "bytes-consumed-total": self._fetched_bytes.total,
            "records-consumed-rate": self._consumed.rate(),
            "records-consumed-total": self._consumed.total,
            "record-e2e-latency-avg": self._ages.average(),
            "record-e2e-latency-max": self._ages.maximum(),
            "records-lag-max": float(max(lags, default=0)),
            "records-lag-sum": float(sum(lags)),
            "commit-rate": self._commits.occurrence_rate(),
            "commit-total": float(self._commits.count),
            "commit-latency-avg": self._commits.average() * 1000,
            "commit-latency-max": self._commits.maximum() * 1000,
            "rebalance-rate-per-hour": float(self._rebalances.recent_count()),
            "rebalance-total": float(self._rebalances.count),
            "rebalance-latency-avg": self._rebalances.average() * 1000,
            "rebalance-latency-max": self._rebalances.maximum() * 1000,
            "last-rebalance-seconds-ago": self._rebalances.seconds_ago(),
            "heartbeat-rate": self._heartbeats.occurrence_rate(),
            "heartbeat-total": float(self._heartbeats.count),
            "heartbeat-response-time-max": self._heartbeats.maximum() * 1000,
            "last-heartbeat-seconds-ago": self._heartbeats.seconds_ago(),
        }


class AdminClientMetrics:
    """The metrics of an admin client. Written on its event loop, read from any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._latency = Sensor(clock)
        self._failures = Sensor(clock)
        self._opened = 0

    def request_done(self, latency_s: float) -> None:
        """Count an answered request."""
        self._latency.add(latency_s)

    def request_failed(self) -> None:
        """Count a request that had no answer."""
        self._failures.add(1)

    def connection_opened(self) -> None:
        """Count a connection."""
        self._opened += 1

    def snapshot(self, connections: int) -> dict[str, float]:
        """The current value of every metric in `ADMIN_METRICS`."""
        return {
            "request-rate": self._latency.occurrence_rate(),
            "request-total": float(self._latency.count),
            "request-latency-avg": self._latency.average() * 1000,
            "request-latency-max": self._latency.maximum() * 1000,
            "request-error-rate": self._failures.occurrence_rate(),
            "request-error-total": float(self._failures.count),
            "connection-count": float(connections),
            "connection-creation-total": float(self._opened),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
