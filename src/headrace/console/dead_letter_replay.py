"""Replay of dead letters: their original records are written back to the topics they came from.

Rule: each batch is a transaction that also commits the position of the replay, as the offsets of
the group `<pipeline>.replay`. So a replay that ends early, or is begun again, writes no record
twice and leaves none out. All of it is done as the viewer, by the viewer's rights.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace import aio
from headrace.client.admin.topics import EARLIEST
from headrace.console.cluster_access import ClusterAccess
from headrace.console.errors import RequestRefused, words_of
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

# Headers of a dead letter that its pipeline added; the others are the record's own.
HEADER_PREFIX = "headrace."
REPLAYS_MAX = 4
_KEPT_MAX = 100
_POLL_MS = 500
# Markers of transactions are no records, but every poll moves past them: this long without any
# progress means that the brokers do not serve the topic.
_STALLED_S_MAX = 30.0
_CONSUMER_OPTIONS = {
    "auto_offset_reset": "earliest",
    "allow_auto_create_topics": False,
    "enable_auto_commit": False,
    # Letters of a batch that Spark does again were aborted with it.
    "isolation_level": "read_committed",
    "max_partition_fetch_bytes": 1024 * 1024,
    "fetch_max_bytes": 8 * 1024 * 1024,
    "max_poll_records": 500,
}
_PRODUCER_OPTIONS = {
    "linger_ms": 0,
    "transaction_timeout_ms": 60_000,
    "max_request_size": 8 * 1024 * 1024,
}


class ReplayPhase(StrEnum):
    """The phase of a replay."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PendingLetters:
    """The dead letters that were not replayed yet: the offsets of each partition."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @property
    def count(self) -> int:
        """At most so many records: offsets of markers count too."""
        return sum(self.ends[tp] - start for tp, start in self.starts.items())


@dataclass(frozen=True, slots=True)
class OriginalRecord:
    """A record as it was before it became a dead letter."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def original_of(letter: ConsumerRecord, pipeline: str) -> OriginalRecord | None:
    """The original of a dead letter; None if another pipeline wrote it, or it names no origin."""
    added = {name: value or b"" for name, value in letter.headers if name.startswith(HEADER_PREFIX)}
    topic = added.get(f"{HEADER_PREFIX}topic", b"").decode(errors="replace")
    number = added.get(f"{HEADER_PREFIX}partition", b"")
    if not topic or not number.isdigit() or len(number) > 9:
        return None
    if added.get(f"{HEADER_PREFIX}pipeline", b"").decode(errors="replace") != pipeline:
        return None
    own = tuple(pair for pair in letter.headers if not pair[0].startswith(HEADER_PREFIX))
    return OriginalRecord(topic, int(number), letter.key, letter.value, own)


def replay_group(pipeline: str) -> str:
    """The group whose offsets are the position of a pipeline's replay, and its transactional id."""
    return f"{pipeline}.replay"


async def pending_letters(access: ClusterAccess, pipeline: str, topic: str) -> PendingLetters:
    """The dead letters of a topic that the replay of a pipeline has not come to yet."""
    info = await access.admin.describe_topic(topic)
    tps = [TopicPartition(topic, partition.index) for partition in info.partitions]
    first = await access.admin.offsets(dict.fromkeys(tps, EARLIEST))
    committed = {}
    try:
        committed = await access.admin.group_offsets(replay_group(pipeline))
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    async with _consumer(access) as consumer:
        ends = await consumer.end_offsets(tps)
    starts = {}
    for tp in tps:
        reached = committed[tp].offset if tp in committed else 0
        start = max(reached, first[tp].offset)
        if start < ends[tp]:
            starts[tp] = start
    return PendingLetters(starts, {tp: ends[tp] for tp in starts})


def _consumer(access: ClusterAccess) -> aio.Consumer:
    return access.consumer(**_CONSUMER_OPTIONS)


class Replay:
    """One replay: up to the ends that the dead-letter topic had when it began."""

    def __init__(self, access: ClusterAccess, pipeline: str, topic: str) -> None:
        self.pipeline = pipeline
        self.topic = topic
        self.phase = ReplayPhase.RUNNING
        self.total = 0
        self.done = 0
        self.written = 0
        # Letters of other pipelines, or without the headers of a pipeline.
        self.left_out = 0
        self.error = ""
        self._access = access
        self._is_cancelled = False
        # The numbers of partitions of the topics that letters came from.
        self._origins: dict[str, int] = {}

    @property
    def fraction(self) -> float:
        """The share of the dead letters that is done, from 0 to 1."""
        return min(self.done / self.total, 1.0) if self.total else 1.0

    def cancel(self) -> None:
        """End after the batch under way."""
        self._is_cancelled = True

    async def run(self) -> None:
        """Replay all; an error of the cluster is kept for the page."""
        try:
            await self._replay()
        except HeadraceError as error:
            self.error = " ".join(words_of(error))
            self.phase = ReplayPhase.FAILED
            logger.warning("the replay of pipeline %r failed: %s", self.pipeline, error)

    async def _replay(self) -> None:
        group = replay_group(self.pipeline)
        producer = self._access.producer(**_PRODUCER_OPTIONS, transactional_id=group)
        async with producer, _consumer(self._access) as consumer:
            # First: it ends a transaction that an earlier replay left, whose offsets then count.
            await producer.init_transactions()
            pending = await pending_letters(self._access, self.pipeline, self.topic)
            self.total = pending.count
            left = dict(pending.ends)
            await consumer.assign(list(left))
            for tp, start in pending.starts.items():
                await consumer.seek(tp, start)
            reached = dict(pending.starts)
            progress_s = asyncio.get_running_loop().time()
            while left and not self._is_cancelled:
                letters = [
                    letter
                    for letter in await consumer.poll(timeout_ms=_POLL_MS)
                    if letter.offset < pending.ends[TopicPartition(letter.topic, letter.partition)]
                ]
                positions = {
                    tp: min(position, pending.ends[tp])
                    for tp, position in consumer.positions().items()
                    if tp in left
                }
                moved = {tp: at for tp, at in positions.items() if at > reached[tp]}
                if not moved:
                    if asyncio.get_running_loop().time() - progress_s > _STALLED_S_MAX:
                        raise RequestRefused(503, f"topic {self.topic} gives no more records")
                    continue
                progress_s = asyncio.get_running_loop().time()
                async with producer.transaction():
                    written = await self._write(producer, letters)
                    await producer.send_offsets_to_transaction(moved, group)
                self.written += written
                self.left_out += len(letters) - written
                reached |= moved
                self.done = sum(reached[tp] - start for tp, start in pending.starts.items())
                for tp in [tp for tp in left if reached[tp] >= left[tp]]:
                    del left[tp]
                    await consumer.pause(tp)
        self.phase = ReplayPhase.CANCELLED if left else ReplayPhase.DONE

    async def _write(self, producer: aio.Producer, letters: list[ConsumerRecord]) -> int:
        """Write the originals of some letters; how many there were."""
        found = [original_of(letter, self.pipeline) for letter in letters]
        originals = [original for original in found if original is not None]
        # A topic that is not there is an error here, where a producer would have it created.
        if unknown := {original.topic for original in originals} - self._origins.keys():
            described = await self._access.admin.describe_topics(unknown)
            self._origins |= {name: len(info.partitions) for name, info in described.items()}
        for original in originals:
            is_kept = original.partition < self._origins[original.topic]
            await producer.send(
                original.topic,
                original.value,
                key=original.key,
                headers=list(original.headers),
                # A record keeps its partition, so that records of its key stay in order.
                partition=original.partition if is_kept else None,
            )
        return len(originals)


class Replays:
    """The replays of a console, of each user and pipeline the newest one."""

    def __init__(self) -> None:
        self._tasks = TaskScope("replay")
        self._replays: dict[tuple[str | None, str], Replay] = {}

    def find(self, access: ClusterAccess, pipeline: str) -> Replay | None:
        """The newest replay of a pipeline that this user has begun."""
        return self._replays.get((access.user, pipeline))

    def begin(self, access: ClusterAccess, pipeline: str, topic: str) -> Replay:
        """Begin a replay, unless too many run, or one of this pipeline."""
        running = [each for each in self._replays.values() if each.phase is ReplayPhase.RUNNING]
        if any(each.pipeline == pipeline for each in running):
            raise RequestRefused(409, f"dead letters of {pipeline} are being replayed already")
        if len(running) >= REPLAYS_MAX:
            raise RequestRefused(503, "too many replays run now", advice="wait until one has ended")
        replay = Replay(access, pipeline, topic)
        self._replays.pop((access.user, pipeline), None)
        self._replays[(access.user, pipeline)] = replay
        for key in [key for key, each in self._replays.items() if each not in running]:
            if len(self._replays) > _KEPT_MAX and self._replays[key] is not replay:
                del self._replays[key]
        self._tasks.start(replay.run(), pipeline)
        return replay

    async def close(self) -> None:
        """End all replays; a batch that is under way is aborted."""
        await self._tasks.close()
