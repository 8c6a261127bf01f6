"""Proposals of ISR changes to the controller, for the partitions that this broker leads.

One request is in flight at a time, with all proposals that are due. While it is unknown whether the
controller accepted a proposal, it stays in flight in its partition, and is sent again: a second
proposal of the same partition epoch changes nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from headrace.broker.cluster.channels import ControllerChannel
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
from headrace.replication.leader import IsrProposal
from headrace.tasks import TaskScope

logger = logging.getLogger(__name__)

_CHECKS_PER_LAG_TIME = 4
_WITHOUT_ROOM_SECONDS = 0.5
_REQUEST_S_MAX = 5.0
_BACKOFF_SECONDS = 0.1
_PROPOSALS_MAX = 2000
_PARTITIONS_PER_TURN = 256
_REPORTED_MAX = 10
# After these a proposal stays in flight, until the metadata log has a change of the partition.
_SUPERSEDED = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class IsrProposer:
    """Proposes ISR changes for the partitions led here. Used on the event loop's thread only.

    Bounded: at most one entry waits for each partition of this broker.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        controllers: ControllerChannel,
        clock: Clock,
    ) -> None:
        self._node_id = config.node_id
        self._lag_time_max_ms = config.replica_lag_time_max_ms
        self._store = store
        self._controllers = controllers
        # A jump of the wall clock must not make every follower look slow.
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
        """Begin to propose changes for `partitions()`, under the present broker epoch."""
        self._partitions = partitions
        self._broker_epoch = broker_epoch
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Send no more proposals; those in flight may or may not be accepted."""
        await self._tasks.close()

    def now_ms(self) -> int:
        """The time for measuring followers."""
        return self._clock.now_ms()

    def may_join(self, partition: Partition, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may enter an ISR: active, with disk space, and in its current epoch.

        Without disk space it may follow a leader without any either: no records are appended, and
        the present ones can be read only when enough replicas are in sync.
        """
        image = self._store.image
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active or broker_epoch not in (-1, broker.epoch):
            return False
        if broker.has_room:
            return True
        without_room = image.replicas_without_room(partition.image)
        return broker_id not in without_room or self._node_id in without_room

    def propose_soon(self, partition: Partition) -> None:
        """Propose an ISR for a partition soon."""
        self._due[partition] = None
        self._wake.set()

    def brokers_changed(self) -> None:
        """Check every partition again: commits must not wait for a follower that is gone."""
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
                await self._mark_all_due()
            proposals = self._collect()
            if proposals and not await self._propose(proposals):
                await asyncio.sleep(_BACKOFF_SECONDS)
            if self._due:
                self._wake.set()

    @property
    def _interval_s(self) -> float:
        """The time between checks: short while a broker lacks space, as appends wait for it."""
        interval_s = self._lag_time_max_ms / 1000 / _CHECKS_PER_LAG_TIME
        if self._store.image.brokers_without_room():
            interval_s = min(interval_s, _WITHOUT_ROOM_SECONDS)
        return interval_s

    async def _mark_all_due(self) -> None:
        for number, partition in enumerate(self._partitions()):
            if partition.is_leader and len(partition.replicas) > 1:
                self._due[partition] = None
            if number % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)

    def _collect(self) -> dict[Partition, IsrProposal]:
        """The proposals that are due: new proposals, and those without a response."""
        now_ms, epoch = self.now_ms(), self._broker_epoch()
        proposals: dict[Partition, IsrProposal] = {}
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

    async def _propose(self, proposals: dict[Partition, IsrProposal]) -> bool:
        """Send proposals to the controller; returns whether all were accepted."""
        try:
            response: AlterPartitionResponse = await self._controllers.ask(
                self._request(proposals), _REQUEST_S_MAX
            )
        except HeadraceError as error:
            logger.warning("in-sync replicas cannot be changed: %s", error)
            response = AlterPartitionResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
        if response.error_code:
            # It is not known whether they were accepted.
            self._due.update(dict.fromkeys(proposals))
            return False
        answers = {
            (topic.topic_id, answered.partition_index): answered
            for topic in response.topics
            for answered in topic.partitions
        }
        refused: Counter[str] = Counter()
        for partition, proposal in proposals.items():
            answer = answers.get((partition.log.topic_id or b"", partition.name.partition))
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            if answer is not None:
                code = error_code(answer.error_code)
                self._apply_answer(partition, proposal, code, answer)
            if code:
                refused[code.name] += 1
        _report(proposals, refused)
        return not refused

    def _request(self, proposals: dict[Partition, IsrProposal]) -> AlterPartitionRequest:
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

    def _apply_answer(
        self,
        partition: Partition,
        proposal: IsrProposal,
        code: ErrorCode,
        answer: AlterPartitionResponsePartitionData,
    ) -> None:
        leadership = partition.leadership
        if leadership is None or leadership.leader_epoch != proposal.leader_epoch:
            return  # The leadership is over; the next leader has the ISR from the metadata log.
        if code in _SUPERSEDED:
            self._due[partition] = None
        elif code:
            partition.isr_changed(leadership.proposal_refused(proposal))
        elif answer.leader_epoch == leadership.leader_epoch:
            partition.isr_changed(leadership.proposal_accepted(answer.isr, answer.partition_epoch))


def _report(proposals: dict[Partition, IsrProposal], refused: Counter[str]) -> None:
    if refused:
        logger.info("%d changes of in-sync replicas were refused: %s", refused.total(), refused)
    elif len(proposals) > _REPORTED_MAX:
        logger.info("the in-sync replicas of %d partitions changed", len(proposals))
    else:
        for partition, proposal in proposals.items():
            logger.info("%s: in sync are %s", partition.name, list(proposal.isr))
