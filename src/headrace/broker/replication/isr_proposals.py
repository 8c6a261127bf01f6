"""Who is in sync, as this broker's leaders see it: changes are proposed to the controller.

One request is in flight at a time, with all that is due. While it is unknown whether the controller
took a proposal, the proposal stays in flight in its partition, and is sent again: a second one of
the same partition epoch changes nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from headrace.broker.cluster.channels import ControllerLink
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.replication.partition import Partition
from headrace.clock import Clock, SteadyClock
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, HeadraceError, error_code
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
    PartitionData,
    TopicData,
)
from headrace.replication.leader import Proposal
from headrace.tasks import TaskScope

logger = logging.getLogger(__name__)

_CHECKS_PER_LAG_TIME = 4
_WITHOUT_ROOM_SECONDS = 0.5
_ASK_SECONDS = 5.0
_BACKOFF_SECONDS = 0.1
_PROPOSALS_MAX = 2000
_PARTITIONS_PER_TURN = 256
_REPORTED_MAX = 10
# What these say is that the metadata log has news of the partition, which come by themselves.
_SUPERSEDED = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class IsrKeeper:
    """Proposes for the partitions this broker leads. Used on the event loop's thread only.

    Bounded: what waits is at most one entry for each partition of this broker.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        controllers: ControllerLink,
        clock: Clock,
    ) -> None:
        self._node_id = config.node_id
        self._lag_time_max_ms = config.replica_lag_time_max_ms
        self._store = store
        self._controllers = controllers
        # A jump of the system's time must not make every follower look slow.
        self._clock = SteadyClock(clock)
        self._partitions: Callable[[], Iterable[Partition]] = tuple
        self._broker_epoch: Callable[[], int] = lambda: -1
        self._due: dict[Partition, None] = {}
        self._check_all = False
        self._wake = asyncio.Event()
        self._tasks = TaskScope("in-sync replicas")

    def start(
        self, partitions: Callable[[], Iterable[Partition]], broker_epoch: Callable[[], int]
    ) -> None:
        """Begin to look after `partitions()`, in the name of this broker's present epoch."""
        self._partitions = partitions
        self._broker_epoch = broker_epoch
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Propose nothing more; what is in flight may or may not be taken."""
        await self._tasks.close()

    def now_ms(self) -> int:
        """The time that followers are measured with."""
        return self._clock.now_ms()

    def may_join(self, partition: Partition, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may enter an ISR: alive, with room on its disk, and not one that stops
        or has a successor.

        Without room it may follow a leader that has none either: no records come, and those that
        are there can be read only when enough replicas are in sync.
        """
        image = self._store.image
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active or broker_epoch not in (-1, broker.epoch):
            return False
        if broker.has_room:
            return True
        without_room = image.replicas_without_room(partition.image)
        return broker_id not in without_room or self._node_id in without_room

    def can_grow(self, partition: Partition) -> None:
        """Propose for a partition soon."""
        self._due[partition] = None
        self._wake.set()

    def brokers_changed(self) -> None:
        """Look at every partition again: nobody waits for a follower that is gone."""
        self._check_all = True
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_check = loop.time() + self._interval_s
        while True:
            try:
                async with asyncio.timeout(max(next_check - loop.time(), 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                self._check_all = True
            self._wake.clear()
            if self._check_all:
                self._check_all = False
                next_check = loop.time() + self._interval_s
                await self._look_at_all()
            proposals = self._collect()
            if proposals and not await self._propose(proposals):
                await asyncio.sleep(_BACKOFF_SECONDS)
            if self._due:
                self._wake.set()

    @property
    def _interval_s(self) -> float:
        """How often to look: soon, while a broker has no room, as nobody should wait for it."""
        interval_s = self._lag_time_max_ms / 1000 / _CHECKS_PER_LAG_TIME
        if self._store.image.brokers_without_room():
            interval_s = min(interval_s, _WITHOUT_ROOM_SECONDS)
        return interval_s

    async def _look_at_all(self) -> None:
        for number, partition in enumerate(self._partitions()):
            if partition.is_leader and len(partition.replicas) > 1:
                self._due[partition] = None
            if number % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)

    def _collect(self) -> dict[Partition, Proposal]:
        """The proposals that are due: new ones, and those whose answer never came."""
        now_ms, epoch = self.now_ms(), self._broker_epoch()
        proposals: dict[Partition, Proposal] = {}
        due, self._due = self._due, {}
        for partition in due:
            leadership = partition.leadership
            if leadership is None:
                continue
            if len(proposals) == _PROPOSALS_MAX:
                self._due[partition] = None
                continue
            proposal, has_committed = leadership.pending, False
            if proposal is None:
                lag_ms, may_join = self._lag_time_max_ms, partial(self.may_join, partition)
                has_committed = leadership.choose_joining(now_ms, lag_ms, may_join)
                proposal = leadership.propose(now_ms, lag_ms, epoch, may_join)
            partition.isr_changed(has_committed)
            if proposal is not None:
                proposals[partition] = proposal
        return proposals

    async def _propose(self, proposals: dict[Partition, Proposal]) -> bool:
        """Ask the controller; whether all went well."""
        try:
            response: AlterPartitionResponse = await self._controllers.ask(
                self._request(proposals), _ASK_SECONDS
            )
        except HeadraceError as error:
            logger.warning("in-sync replicas cannot be changed: %s", error)
            response = AlterPartitionResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
        if response.error_code:
            # Nobody knows what came of it.
            self._due.update(dict.fromkeys(proposals))
            return False
        answers = {
            (topic.topic_id, one.partition_index): one
            for topic in response.topics
            for one in topic.partitions
        }
        refused: Counter[str] = Counter()
        for partition, proposal in proposals.items():
            answer = answers.get((partition.log.topic_id or b"", partition.name.partition))
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            if answer is not None:
                code = error_code(answer.error_code)
                self._take(partition, proposal, code, answer)
            if code:
                refused[code.name] += 1
        _report(proposals, refused)
        return not refused

    def _request(self, proposals: dict[Partition, Proposal]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        for partition, proposal in proposals.items():
            topic_id = partition.log.topic_id or b""
            topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id))
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.name.partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker_id, broker_epoch=broker_epoch)
                        for broker_id, broker_epoch in zip(
                            proposal.isr, proposal.broker_epochs, strict=True
                        )
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )

    def _take(
        self,
        partition: Partition,
        proposal: Proposal,
        code: ErrorCode,
        answer: AlterPartitionResponsePartitionData,
    ) -> None:
        leadership = partition.leadership
        if leadership is None or leadership.leader_epoch != proposal.leader_epoch:
            return  # It is over; the next leader knows who is in sync from the metadata log.
        if code in _SUPERSEDED:
            self._due[partition] = None
        elif code:
            partition.isr_changed(leadership.refused(proposal))
        elif answer.leader_epoch == leadership.leader_epoch:
            partition.isr_changed(leadership.answered(answer.isr, answer.partition_epoch))


def _report(proposals: dict[Partition, Proposal], refused: Counter[str]) -> None:
    if refused:
        logger.info("%d changes of in-sync replicas were refused: %s", refused.total(), refused)
    elif len(proposals) > _REPORTED_MAX:
        logger.info("the in-sync replicas of %d partitions changed", len(proposals))
    else:
        for partition, proposal in proposals.items():
            logger.info("%s: in sync are %s", partition.name, list(proposal.isr))
