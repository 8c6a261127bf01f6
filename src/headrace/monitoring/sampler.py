"""The sampler of a cluster: asks its brokers at intervals, and keeps the history of the answers.

Rule: a part that takes long is asked less often, so that sampling takes at most `LOAD_MAX` of the
time of whatever answers it. A part that fails leaves the others alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace import aio
from headrace.client.admin.cluster import BrokerHealth, ClusterDescription
from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.errors import SomeFailed, TimedOut
from headrace.clock import Clock, SystemClock
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.monitoring.cluster_history import ClusterHistory, ClusterSample
from headrace.monitoring.cluster_status import ClusterStatus
from headrace.monitoring.problems import MIN_IN_SYNC, ClusterFacts
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

Item = TypeVar("Item")
Result = TypeVar("Result")

INTERVAL_S = 2.0
# The share of the time that sampling one part may take.
LOAD_MAX = 0.1
# The topics whose settings are read to tell whether they refuse writes.
_LACKING_MAX = 50
_NO_RIGHT = frozenset(
    (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    )
)


@dataclass(slots=True)
class _Part:
    """A part of the samples: how often it is asked, and when next, by the monotonic clock."""

    name: str
    interval_s: float
    ask: Callable[[], Awaitable[dict[str, Any]]]
    due: float = 0.0


async def _outcomes(call: Awaitable[dict[Item, Result]]) -> dict[Item, Result | KafkaError]:
    """The results of a call about several items, errors included."""
    try:
        return {**await call}
    except SomeFailed as failed:
        return failed.outcomes


class Sampler:
    """Samples a cluster while it is open. For one event loop; the admin client stays the caller's.

    `history.state` is the newest state, None before the first sample.
    """

    def __init__(
        self, admin: aio.Admin, *, interval_s: float = INTERVAL_S, clock: Clock | None = None
    ) -> None:
        self.history = ClusterHistory()
        self._admin = admin
        self._clock = clock or SystemClock()
        self._tasks = TaskScope("sampler")
        self._changed = asyncio.Event()
        self._topics: Mapping[str, TopicInfo] = {}
        self._brokers: ClusterDescription | None = None
        self._parts = (
            _Part("metadata", interval_s, self._metadata),
            _Part("offsets", interval_s, self._offsets),
            _Part("groups", 2 * interval_s, self._groups),
            _Part("quorum", 2 * interval_s, self._quorum),
            _Part("directories", 5 * interval_s, self._directories),
        )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def state(self) -> ClusterStatus | None:
        """The newest state; None before the first sample."""
        return self.history.state

    def start(self) -> None:
        """Begin to sample; the first sample is taken at once."""
        self._tasks.start(self._run(), "samples")

    async def close(self) -> None:
        """End sampling."""
        await self._tasks.close()

    async def newer(self, version: int = 0) -> ClusterStatus:
        """The newest state, as soon as its version is above this one."""
        while self.state is None or self.state.version <= version:
            await self._changed.wait()
        return self.state

    def refresh(self) -> None:
        """Ask all parts anew at the next turn: the caller has changed something."""
        for part in self._parts:
            part.due = 0.0

    async def sample(self) -> ClusterStatus:
        """Ask the parts that are due, and take the answers into the history."""
        answers: dict[str, Any] = {}
        errors: dict[str, str] = {}
        sampled = set()
        for part in self._parts:
            begun = self._clock.monotonic()
            if begun < part.due:
                continue
            sampled.add(part.name)
            try:
                answers |= await part.ask()
            except (HeadraceError, OSError) as error:
                errors[part.name] = str(error)
            now = self._clock.monotonic()
            part.due = max(begun + part.interval_s, now + (now - begun) / LOAD_MAX)
        sample = ClusterSample(
            self._clock.now_ms(), errors=errors, asked=frozenset(sampled), **answers
        )
        state = self.history.add(sample)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return state

    async def _run(self) -> None:
        while True:
            begun = self._clock.monotonic()
            await self.sample()
            now = self._clock.monotonic()
            due = min(part.due for part in self._parts)
            # Also what follows from a sample takes time, the more the larger the cluster is.
            await asyncio.sleep(max(due - now, (now - begun) / LOAD_MAX / len(self._parts), 0.05))

    # -- parts

    async def _metadata(self) -> dict[str, Any]:
        self._brokers = await self._describe_cluster()
        self._topics = await self._admin.list_topics(internal=True)
        return {
            "description": self._brokers,
            "topics": self._topics,
            "min_in_sync": await self._min_in_sync(),
        }

    async def _describe_cluster(self) -> ClusterDescription:
        try:
            return await self._admin.describe_cluster(include_fenced=True)
        except KafkaError as error:
            # Brokers before Kafka 4.0 do not tell of fenced ones.
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return await self._admin.describe_cluster()

    async def _min_in_sync(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in ClusterFacts({}, self._topics).lacking_topics()[:_LACKING_MAX]:
            try:
                entry = (await self._admin.describe_configs(topic=name)).get(MIN_IN_SYNC)
            except (KafkaError, TimedOut):
                continue  # Deleted meanwhile, or no right: what is lacking is shown anyway.
            if entry is not None and entry.value:
                found[name] = int(entry.value)
        return found

    async def _offsets(self) -> dict[str, Any]:
        """The end offsets, of each leader by itself: one that fails must not hide the others."""
        asked_ms = self._clock.now_ms()
        return {"end_offsets": await self._offsets_at(LATEST), "offsets_ms": asked_ms}

    async def _offsets_at(self, time_ms: int) -> dict[TopicPartition, int]:
        alive = {
            broker.node_id
            for broker in (self._brokers.brokers if self._brokers else ())
            if not broker.is_fenced
        }
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for name, topic in self._topics.items():
            for partition in topic.partitions:
                if partition.leader in alive:
                    wanted = by_leader.setdefault(partition.leader, {})
                    wanted[TopicPartition(name, partition.index)] = time_ms
        outcomes = await asyncio.gather(
            *(self._admin.offsets(wanted) for wanted in by_leader.values()), return_exceptions=True
        )
        found: dict[TopicPartition, int] = {}
        errors: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                errors.append(outcome)
            else:
                found |= {tp: result.offset for tp, result in outcome.items()}
        if errors and not found:
            raise errors[0]
        return found

    async def _groups(self) -> dict[str, Any]:
        listed = await self._admin.list_groups()
        described = await _outcomes(self._admin.describe_groups(listed))
        committed = await _outcomes(self._admin.offsets_of_groups(listed))
        return {
            "groups": listed,
            "members": {
                name: group
                for name, group in described.items()
                if not isinstance(group, KafkaError)
            },
            "committed": {
                name: {tp: committed.offset for tp, committed in offsets.items()}
                for name, offsets in committed.items()
                if not isinstance(offsets, KafkaError)
            },
        }

    async def _quorum(self) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        try:
            answer = {"quorum": await self._admin.describe_quorum(), "has_controller": True}
            answer["moving"] = await self._admin.list_partition_reassignments()
        except (KafkaError, TimedOut) as error:
            refused = isinstance(error, KafkaError) and error.code in _NO_RIGHT
            if not refused:
                return {"has_controller": False}
            raise
        return answer

    async def _directories(self) -> dict[str, Any]:
        alive = [
            broker.node_id
            for broker in (self._brokers.brokers if self._brokers else ())
            if not broker.is_fenced
        ]
        health: dict[int, BrokerHealth | KafkaError] = {}
        if alive:
            health = await _outcomes(self._admin.describe_health(alive))
        refused = [
            answer
            for answer in health.values()
            if isinstance(answer, KafkaError) and answer.code in _NO_RIGHT
        ]
        # A user without the right to see directories is no problem of the brokers.
        if refused:
            raise refused[0]
        return {"health": health, "start_offsets": await self._offsets_at(EARLIEST)}
