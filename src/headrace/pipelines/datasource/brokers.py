"""Requests of the data source to brokers, over pooled connections: partitions and offsets."""

import asyncio
import os
import re
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from headrace.client.admin.admin_requests import by_topic, results
from headrace.client.admin.groups import GroupOffsetAdmin
from headrace.client.blocking import Call, run_async
from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.coordinator_lookup import CoordinatorLookup
from headrace.client.errors import check
from headrace.client.list_offsets import NOTHING, list_offsets
from headrace.client.options import ConsumerOptions, consumer_options, from_properties
from headrace.client.property_files import resolved_properties
from headrace.client.types import OffsetAndMetadata
from headrace.errors import Subject
from headrace.options import suggestion
from headrace.pipelines.datasource.errors import SourceError
from headrace.pipelines.datasource.offset_ranges import Offsets, from_json
from headrace.pipelines.datasource.read_options import (
    EARLIEST,
    LATEST,
    Bound,
    ReadOptions,
    listed,
    read_options,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.types import ZERO_UUID, TopicPartition, uuid_text

# Connections that outlive a task: a worker of Spark reads many ranges, one after the other.
#
# Rule: no threads, so not a `LoopThread`: Spark forks its workers, and a thread that works while
# rows are decoded takes the interpreter from them. The event loop of a connection runs only while
# the task that borrowed it waits for a response; in between, responses arrive in the socket buffer
# by themselves.


Result = TypeVar("Result")

# The default bytes of a fetch: enough for a batch of many rows, with little waste for the beginning
# of a record batch that does not fit.
FETCH_BYTES = 4 * 1_048_576

_Key = tuple[tuple[str, str], ...]


class PooledConnection:
    """A cluster client for one task at a time, on an event loop of its own."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.cluster = ClusterClient(options.bootstrap_servers, **options.cluster_arguments())
        self._loop = asyncio.new_event_loop()

    def run(self, call: Call[Result] | Awaitable[Result]) -> Result:
        """The result of a client call; the loop runs until it is known."""
        return self._loop.run_until_complete(run_async(call))

    def begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Start a coroutine and run it until it waits: by then its request has been sent."""
        task = self._loop.create_task(work)
        self._loop.run_until_complete(asyncio.sleep(0))
        return task

    def close(self) -> None:
        """Close every connection."""
        self._loop.run_until_complete(self.cluster.close())
        self._loop.close()


_idle: dict[_Key, list[PooledConnection]] = {}
_owner = os.getpid()


@contextmanager
def borrowed(client: Mapping[str, str]) -> Iterator[PooledConnection]:
    """A pooled connection with these consumer properties, for the length of the block.

    After an error it is not used again.
    """
    key = tuple(sorted(client.items()))
    link = _take(key) or PooledConnection(_options(client))
    try:
        yield link
    except GeneratorExit:
        _idle.setdefault(key, []).append(link)
        raise
    except BaseException:
        link.close()
        raise
    _idle.setdefault(key, []).append(link)


def _options(client: Mapping[str, str]) -> ConsumerOptions:
    config = from_properties(resolved_properties(client), "consumer")
    config.setdefault("max_partition_fetch_bytes", FETCH_BYTES)
    return consumer_options(**config)


def _take(key: _Key) -> PooledConnection | None:
    global _owner  # noqa: PLW0603 - a fork must not use its parent's sockets
    if _owner != os.getpid():
        _owner = os.getpid()
        _idle.clear()
    links = _idle.get(key)
    return links.pop() if links else None


def close_idle() -> None:
    """Close the connections that no task uses."""
    while _idle:
        for link in _idle.popitem()[1]:
            link.close()


# The planner's requests to brokers: partitions, and their start and end offsets.
#
# Rule: each lookup is one request to each broker it concerns, for all partitions at once.


@dataclass(frozen=True, slots=True)
class FoundPartitions:
    """The existing partitions to read, and the missing ones that were named.

    `topic_ids` has the id of each topic in Kafka's text form; a broker older than topic ids has
    none.
    """

    partitions: tuple[TopicPartition, ...]
    missing: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)


class SourceTopics:
    """The topics of a read, looked up over a pooled connection."""

    def __init__(self, options: ReadOptions, link: PooledConnection) -> None:
        self._options = options
        self._link = link
        self._cluster = link.cluster
        self._level = link.options.isolation_level

    # -- partitions

    def find(self) -> FoundPartitions:
        """The selected partitions that exist now."""
        options = self._options
        if options.pattern is not None:
            return self._matching(re.compile(options.pattern))
        names = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.assigned))
        deadline = self._cluster.deadline()
        view = self._link.run(
            self._cluster.retrying(lambda: self._cluster.refresh(names, deadline), deadline)
        )
        there = [
            TopicPartition(name, partition.index)
            for name in names
            if name in view.topics
            for partition in view.topics[name].partitions
        ]
        ids = topic_ids(view.topics[name] for name in names if name in view.topics)
        if options.assigned:
            missing = tuple(str(tp) for tp in options.assigned if tp not in there)
            return FoundPartitions(
                tuple(tp for tp in options.assigned if tp in there), missing, ids
            )
        return FoundPartitions(
            tuple(there), tuple(name for name in names if name not in view.topics), ids
        )

    def _matching(self, pattern: re.Pattern[str]) -> FoundPartitions:
        known = self._link.run(self._cluster.all_topics())
        topics = [
            topic
            for name, topic in sorted(known.items())
            if not topic.is_internal and pattern.fullmatch(name)
        ]
        return FoundPartitions(
            tuple(
                TopicPartition(topic.name, partition.index)
                for topic in topics
                for partition in topic.partitions
            ),
            topic_ids=topic_ids(topics),
        )

    def require(self) -> FoundPartitions:
        """The result of `find`; SourceError if a named partition or every partition is missing."""
        found = self.find()
        if found.missing:
            raise self.missing(found.missing)
        if not found.partitions:
            raise SourceError(
                f"no topic at {self._options.servers} matches {self._options.pattern!r};"
                " subscribePattern must match whole names, so check it, and the broker"
            )
        return found

    def missing(self, names: tuple[str, ...]) -> SourceError:
        """The error for missing topics or partitions."""
        where = f"at {self._options.servers}"
        if not self._options.topics:
            return SourceError(
                f"partition {listed(names)} does not exist {where}", advice="check assign"
            )
        known = self._link.run(self._cluster.all_topics())
        create = f"; create it with: headrace topics create {names[0]}"
        return SourceError(
            f"topic {listed(names)} does not exist {where}{suggestion(names[0], known) or create}"
        )

    # -- offsets

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset behind the last readable record of each partition."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def since(self, partitions: Iterable[TopicPartition], time_ms: int) -> Offsets:
        """The first offset not older than a time, for partitions with such a record."""
        found = self._offsets(dict.fromkeys(partitions, time_ms))
        return {tp: offset for tp, offset in found.items() if offset != NOTHING}

    def resolve(self, bound: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offsets of a bound; SourceError if a time is after all records of a partition."""
        fixed: Offsets = {}
        asked: dict[TopicPartition, int] = {}
        for tp, place in bound.places(partitions).items():
            if place.time_ms is not None:
                asked[tp] = place.time_ms
            elif place.offset is not None:
                (fixed if place.offset >= 0 else asked)[tp] = place.offset
        found = self._offsets(asked)
        late = [tp for tp, offset in found.items() if offset == NOTHING]
        if late and not bound.latest_if_no_record:
            raise SourceError(
                f"{listed(late)} has no record as young as option {bound.option} says",
                advice=(
                    "give an earlier time, or set startingOffsetsByTimestampStrategy to latest"
                ),
            )
        return found | self.ends(late) | fixed

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}
        found = self._link.run(
            list_offsets(self._cluster, wanted, self._cluster.deadline(), self._level)
        )
        return {tp: found[tp].offset for tp in wanted}

    # -- sizes

    def sizes_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The sizes of partitions on the disks of their leaders."""
        wanted, deadline = list(partitions), self._cluster.deadline()

        async def attempt() -> dict[TopicPartition, int]:
            sizes: dict[TopicPartition, int] = {}
            for leader, led in (await self._cluster.by_leader(wanted, deadline)).items():
                answer = await self._cluster.call(_sizes_request(led), deadline, leader)
                check(
                    answer.error_code,
                    subject=Subject("sizes of partitions, for maxBytesPerTrigger"),
                )
                sizes |= _sizes(answer)
            return sizes

        return self._link.run(self._cluster.retrying(attempt, deadline))

    # -- groups

    @cached_property
    def _groups(self) -> GroupOffsetAdmin:
        return GroupOffsetAdmin(self._cluster, CoordinatorLookup(self._cluster))

    def committed(self, group: str) -> Offsets:
        """The committed offsets of a group."""
        found = self._link.run(self._groups.committed(group))
        return {tp: result.offset for tp, result in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""
        given = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        results(self._link.run(self._groups.commit(group, given)))


def topic_ids(topics: Iterable[TopicInfo]) -> dict[str, str]:
    """The ids of topics in Kafka's text form; those without an id are left out."""
    return {
        topic.name: uuid_text(topic.topic_id) for topic in topics if topic.topic_id != ZERO_UUID
    }


def _sizes_request(partitions: Iterable[TopicPartition]) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(
        topics=[
            DescribableLogDirTopic(topic=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ]
    )


def _sizes(answer: DescribeLogDirsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for directory in answer.results
        for topic in directory.topics
        for partition in topic.partitions
        if not partition.is_future_key
    }


def commit_progress(client: Mapping[str, str], group: str, offsets: Mapping[str, Any]) -> None:
    """Commit a query's progress, as `{topic: {partition: offset}}`, for a consumer group.

    `client` has the properties of a Kafka client. A query with `groupId` does this by itself after
    each micro-batch; this is for moving a group by hand.
    """
    wanted = from_json(offsets).offsets
    if not wanted:
        return
    given = {f"kafka.{name}": value for name, value in client.items()}
    options = read_options(given | {"subscribe": ",".join(sorted({tp.topic for tp in wanted}))})
    with borrowed(options.client) as link:
        SourceTopics(options, link).commit(group, wanted)
