"""The active controller: answers brokers, fences silent brokers, elects and balances leaders.

Decisions are the commands of `headrace.metadata`; this module decides when they run. On a
controller that is not active commands fail with NOT_CONTROLLER.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from headrace.broker.metadata_store import MetadataStore
from headrace.clock import Clock, SteadyClock
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.metadata.brokers import (
    SESSION_CHECKS,
    Heartbeats,
    ProducerIdBlock,
    allocate_producer_ids,
    fence_brokers,
    heartbeat,
    register_broker,
    unregister_broker,
)
from headrace.metadata.delegation_tokens import remove_expired
from headrace.metadata.elections import (
    MIN_ISR_SETTING,
    RECOVERING,
    balance_leaders,
    elect_leaders,
    elect_missing_leaders,
)
from headrace.metadata.feature_updates import bootstrap, update_features
from headrace.metadata.features import Ranges
from headrace.metadata.image import NO_LEADER, ConfigResourceType, Image
from headrace.metadata.isr import alter_partition, assign_replicas_to_dirs
from headrace.metadata.records import CommandResult
from headrace.metadata.recovery_elections import (
    LogEnd,
    LogEndQuestion,
    PendingElections,
    RecoveredPartition,
)
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.protocol.schema import Message
from headrace.tasks import PeriodicTask
from headrace.types import TopicPartition

# The recovery elections of the active controller: requests log ends from brokers, elects leaders.
#
# The brokers to ask, and the replica to elect by their responses, are decided in
# `headrace.metadata.recovery_elections`.


logger = logging.getLogger(__name__)

# With this replica id any replica answers, not only the leader.
_ANY_REPLICA = -2
_LATEST_TIMESTAMP = -1
_REQUEST_S_MAX = 2.0
_LOG_ENDS_PER_REQUEST = 1000
_MISSING_WARNING_MS = 5000
_PARTITIONS_PER_LINE = 20


class BrokerRequester(Protocol):
    """Requests to brokers: `broker.cluster.channels.BrokerChannels`."""

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Any:
        """A broker's answer to a request; every failure is a HeadraceError."""

    def close(self) -> None:
        """Close the connections; the next request opens them again."""


class RecoveryElections:
    """The elections, round by round. Used on the event loop's thread only."""

    def __init__(
        self, store: MetadataStore, brokers: BrokerRequester, clock: Clock, timeout_ms: int
    ) -> None:
        self._store = store
        self._brokers = brokers
        self._clock = clock
        self._timeout_ms = timeout_ms
        self.reset()

    def reset(self) -> None:
        """Drop all elections: the controller was activated or deactivated."""
        self._brokers.close()
        self._recoveries = PendingElections(self._timeout_ms)
        self._is_search_due = True
        self._waiting_since_ms: int | None = None
        self._warned_of = frozenset[int]()

    def search(self) -> None:
        """Look for partitions without an eligible replica in the next round."""
        self._is_search_due = True

    async def run_round(self) -> None:
        """Ask replicas that have not answered yet, and elect leaders where enough have."""
        if self._is_search_due:
            self._is_search_due = False
            self._recoveries.find_partitions(self._store.image)
        if not self._recoveries:
            self._waiting_since_ms = None
            self._warned_of = frozenset()
            return
        image = self._store.image
        questions = self._recoveries.questions(image)
        await asyncio.gather(
            *(
                self._request_log_ends(image, broker_id, asked)
                for broker_id, asked in questions.items()
            )
        )
        if self._decide(self._store.image, 0).records:
            outcomes = await self._store.submit(self._decide)
            self._is_search_due = True
            _log_outcomes(outcomes)
        self._warn_of_missing()

    def _decide(self, image: Image, _: int) -> CommandResult[list[RecoveredPartition]]:
        return self._recoveries.decide(image, self._clock.now_ms())

    async def _request_log_ends(
        self, image: Image, broker_id: int, questions: Sequence[LogEndQuestion]
    ) -> None:
        broker_epoch = image.brokers[broker_id].epoch
        for first in range(0, len(questions), _LOG_ENDS_PER_REQUEST):
            asked = {
                question.partition: question
                for question in questions[first : first + _LOG_ENDS_PER_REQUEST]
            }
            try:
                response = await self._brokers.ask(
                    broker_id, _log_ends_request(asked), _REQUEST_S_MAX
                )
            except HeadraceError as error:
                logger.info("broker %d did not tell where its logs end: %s", broker_id, error)
                return
            for partition, log_end in _log_ends(response):
                question = asked.get(partition)
                if question is not None:
                    self._recoveries.answer(question, broker_id, broker_epoch, log_end)

    def _warn_of_missing(self) -> None:
        """Log once the brokers that partitions wait for, if it takes longer than a start."""
        now_ms = self._clock.now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < _MISSING_WARNING_MS:
            return
        waiting = self._recoveries.waiting(self._store.image)
        missing = frozenset[int]().union(*(recovery.missing for recovery in waiting))
        if missing - self._warned_of:
            logger.warning(
                "%d partitions, %s among them, have no leader: all replicas that had every"
                " acknowledged record restarted uncleanly or lost their logs. Start %s %s, or"
                " restart if a disk failed there: without them the longest log leads %d s after the"
                " first replica was back",
                len(waiting),
                waiting[0].partition,
                "brokers" if len(missing) > 1 else "broker",
                ", ".join(map(str, sorted(missing))),
                self._timeout_ms // 1000,
            )
        self._warned_of = missing


def _log_outcomes(outcomes: Sequence[RecoveredPartition]) -> None:
    """Log the outcome of each election, and the records that may be lost by it."""
    unanimous = [outcome for outcome in outcomes if outcome.is_unanimous]
    for outcome in outcomes:
        if not outcome.is_unanimous:
            logger.log(logging.WARNING if outcome.is_complete else logging.ERROR, "%s", outcome)
    for first in range(0, len(unanimous), _PARTITIONS_PER_LINE):
        logger.warning(
            "every replica of these partitions restarted uncleanly, and all logs end at the same"
            " offset: %s. If machines lost power, acknowledged records after it that no replica"
            " had flushed are lost",
            ", ".join(
                f"{outcome.partition} at {outcome.log_ends[outcome.leader].offset}"
                for outcome in unanimous[first : first + _PARTITIONS_PER_LINE]
            ),
        )


def _log_ends_request(questions: dict[TopicPartition, LogEndQuestion]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), question in questions.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=index,
                current_leader_epoch=question.leader_epoch,
                timestamp=_LATEST_TIMESTAMP,
            )
        )
    return ListOffsetsRequest(replica_id=_ANY_REPLICA, topics=list(topics.values()))


def _log_ends(response: ListOffsetsResponse) -> list[tuple[TopicPartition, LogEnd]]:
    """The log ends in a response; a replica that answered with an error is asked again.

    A replica that has no log, and does not wait for its disk, answers with the offset -1.
    """
    return [
        (
            TopicPartition(topic.name, partition.partition_index),
            LogEnd(partition.leader_epoch, partition.offset),
        )
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    ]


Response = TypeVar("Response")

_MISSING_LEADERS_SECONDS = 5.0
_CONFIRMED_POLL_SECONDS = 0.01
_RECOVERY_SECONDS = 0.1


class ActiveController:
    """The work of a node with the controller role while it is active.

    Used on the event loop's thread only.
    """

    def __init__(
        self,
        store: MetadataStore,
        config: BrokerConfig,
        clock: Clock,
        *,
        cluster_id: str | None,
        brokers: BrokerRequester,
        first_records: Callable[[], tuple[Message, ...]] = tuple,
    ) -> None:
        self._store = store
        self._config = config
        # Sessions and waits go by a clock that does not jump; tokens expire by the time of day that
        # brokers wrote into them.
        self._clock = SteadyClock(clock)
        self._time_of_day = clock
        self._cluster_id = cluster_id
        self._first_records = first_records
        self._unclean_by_default = config.unclean_leader_election_enable
        self._heartbeats: Heartbeats | None = None
        self._last_searched_image: Image | None = None
        self._recovery = RecoveryElections(
            store, brokers, self._clock, config.unclean_recovery_timeout_ms
        )
        self._recovering = PeriodicTask(
            "recovery elections", _RECOVERY_SECONDS, self._recovery.run_round
        )
        self._duties = [
            self._recovering,
            PeriodicTask(
                "fencing silent brokers",
                config.broker_session_timeout_ms / 1000 / SESSION_CHECKS,
                self._fence_silent,
            ),
            PeriodicTask(
                "removing expired delegation tokens",
                config.delegation_token_expiry_check_interval_ms / 1000,
                self._remove_expired_tokens,
            ),
            PeriodicTask("electing missing leaders", _MISSING_LEADERS_SECONDS, self._elect_missing),
        ]
        if config.auto_leader_rebalance_enable:
            period = float(config.leader_imbalance_check_interval_seconds)
            self._duties.append(PeriodicTask("balancing leaderships", period, self._balance))
        store.on_activation(self._on_activation)

    def activate(self) -> None:
        """Begin the periodic jobs, with a fresh session for every broker."""
        store = self._store
        self._heartbeats = Heartbeats(
            self._config.broker_session_timeout_ms,
            store.image,
            store.image_offset,
            self._clock.now_ms(),
        )
        self._last_searched_image = None
        self._recovery.reset()
        self._warn_of_min_isr()
        for duty in self._duties:
            duty.start()

    def _warn_of_min_isr(self) -> None:
        """Warn if `min.insync.replicas` of the properties file has no effect any more."""
        recorded = self._store.image.config_of(ConfigResourceType.BROKER, "").get(MIN_ISR_SETTING)
        own = self._config.static.get(MIN_ISR_SETTING)
        if None not in (own, recorded) and own != recorded:
            logger.warning(
                "%s=%s of the properties file has no effect: the cluster has %s. Change it with"
                " kafka-configs --entity-type brokers --entity-default",
                MIN_ISR_SETTING,
                own,
                recorded,
            )

    def resign(self) -> None:
        """End the periodic jobs, and drop the state of an active controller."""
        self._heartbeats = None
        self._recovery.reset()
        for duty in self._duties:
            duty.stop()

    def _on_activation(self, active: bool) -> None:
        if active:
            self.activate()
        else:
            self.resign()

    async def register_broker(self, request: BrokerRegistrationRequest) -> int:
        """Register a new run of a broker, and return its epoch."""

        def command(image: Image, offset: int) -> CommandResult[int]:
            heartbeats = self._active_heartbeats()
            now_ms = self._clock.now_ms()
            # No cluster is without brokers for long, so its log gets its feature levels here.
            levels = bootstrap(image, min_insync_replicas=self._config.min_insync_replicas)
            first: tuple[Message, ...] = levels
            if levels and not image.brokers:
                first = (*levels, *self._first_records())
            result = register_broker(
                image.apply(first),
                request,
                cluster_id=self._cluster_id,
                has_session=heartbeats.has_session(request.broker_id, now_ms),
                offset=offset + len(first),
                unclean_by_default=self._unclean_by_default,
            )
            heartbeats.begin_session(request.broker_id, now_ms)
            return CommandResult((*first, *result.records), result.response)

        try:
            epoch = await self._submit(command)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                # The response has no field for the reason.
                logger.warning("broker %d may not register: %s", request.broker_id, error)
            raise
        logger.info("broker %d is registered with epoch %d", request.broker_id, epoch)
        return epoch

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Renew the session of a broker, and fence, unfence or release it."""

        # A heartbeat that changes nothing is queued too: it must not overtake a fencing.
        def command(image: Image, offset: int) -> CommandResult[BrokerHeartbeatResponse]:
            return heartbeat(
                image,
                request,
                self._active_heartbeats(),
                offset=offset,
                now_ms=self._clock.now_ms(),
                unclean_by_default=self._unclean_by_default,
            )

        # The response may have to wait for a slow disk of this controller, or for its own broker to
        # apply a large change: the broker, which sends one after the other, is not silent then.
        heartbeats = self._active_heartbeats()
        heartbeats.arrived(self._store.image, request, self._clock.now_ms())
        try:
            await self._wait_until_confirmed()
            return await self._submit(command)
        finally:
            heartbeats.answered(self._store.image, request, self._clock.now_ms())

    async def _wait_until_confirmed(self) -> None:
        """Return when a majority has answered lately, or this controller is no longer active.

        A controller that did not run for a while may have a successor, which counts sessions from
        its own activation: a lease granted now could outlive such a session.
        """
        while True:
            if self._store.is_confirmed or not self._store.is_active:
                return
            await asyncio.sleep(_CONFIRMED_POLL_SECONDS)

    async def unregister_broker(self, request: UnregisterBrokerRequest) -> None:
        """Remove the registration of a broker."""
        await self._submit(
            lambda image, _: unregister_broker(
                image, request, unclean_by_default=self._unclean_by_default
            )
        )
        logger.info("broker %d is not registered any more", request.broker_id)

    async def update_features(
        self,
        request: UpdateFeaturesRequest,
        *,
        kraft_version: int,
        controllers: Mapping[int, Ranges | None],
    ) -> UpdateFeaturesResponse:
        """Change feature levels, all but `kraft.version`, which is the quorum's."""
        return await self._submit(
            lambda image, _: update_features(
                image,
                request,
                node_id=self._config.node_id,
                kraft_version=kraft_version,
                controllers=controllers,
                min_insync_replicas=self._config.min_insync_replicas,
            )
        )

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change partitions to the ISRs that their leader proposes."""
        return await self._submit(
            lambda image, _: alter_partition(
                image, request, unclean_by_default=self._unclean_by_default
            )
        )

    async def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> AssignReplicasToDirsResponse:
        """Record the directories of a broker's replicas, and which replicas are lost."""
        return await self._submit(
            lambda image, _: assign_replicas_to_dirs(
                image, request, unclean_by_default=self._unclean_by_default
            )
        )

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> ProducerIdBlock:
        """Allocate a block of producer ids to a broker."""
        return await self._submit(
            lambda image, _: allocate_producer_ids(
                image, broker_id=request.broker_id, broker_epoch=request.broker_epoch
            )
        )

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Hold the elections of a request."""
        return await self._submit(
            lambda image, _: elect_leaders(
                image, request, unclean_by_default=self._unclean_by_default
            )
        )

    async def _submit(self, command: Callable[[Image, int], CommandResult[Response]]) -> Response:
        """Submit a command, and log unclean elections in its records; returns its response."""
        unclean: list[str] = []
        may_need_recovery = False

        def watched(image: Image, offset: int) -> CommandResult[Response]:
            nonlocal may_need_recovery
            result = command(image, offset)
            unclean.extend(_unclean_elections(image, result.records))
            may_need_recovery = any(map(_may_need_recovery, result.records))
            return result

        response = await self._store.submit(watched)
        if may_need_recovery:
            self._recovery.search()
            self._recovering.run_now()
        for election in unclean:
            logger.error("%s", election)
        return response

    def _active_heartbeats(self) -> Heartbeats:
        if self._heartbeats is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return self._heartbeats

    async def _fence_silent(self) -> None:
        if self._active_heartbeats().expired_brokers(self._store.image, self._clock.now_ms()):
            silent = await self._submit(self._fence)
            for broker_id in silent:
                logger.warning("broker %d is fenced: it was silent for too long", broker_id)

    def _fence(self, image: Image, offset: int) -> CommandResult[tuple[int, ...]]:
        heartbeats = self._active_heartbeats()
        # Computed again: a heartbeat may have been queued before this command.
        silent = heartbeats.expired_brokers(image, self._clock.now_ms())
        heartbeats.fenced(silent, offset)
        fenced = fence_brokers(image, silent, unclean_by_default=self._unclean_by_default)
        return CommandResult(fenced.records, silent)

    async def _remove_expired_tokens(self) -> None:
        if self._store.image.delegation_tokens:
            now_ms = self._time_of_day.now_ms()
            removed = await self._submit(
                lambda image, _: remove_expired(image.delegation_tokens, now_ms)
            )
            if removed:
                logger.info("%d expired delegation tokens are removed", removed)

    async def _elect_missing(self) -> None:
        image = self._store.image
        if image is not self._last_searched_image:
            elected = await self._submit(
                lambda image, _: elect_missing_leaders(
                    image, unclean_by_default=self._unclean_by_default
                )
            )
            self._last_searched_image = image
            if elected:
                logger.warning("%d partitions without a leader have a leader again", elected)

    async def _balance(self) -> None:
        percentage = self._config.leader_imbalance_per_broker_percentage
        moved = await self._submit(lambda image, _: balance_leaders(image, percentage))
        if moved:
            logger.info("%d leaderships go back to their first replicas", moved)


def _may_need_recovery(record: Message) -> bool:
    """Whether a record may leave a partition without eligible replicas, or bring a replica back.

    Records of these kinds also make brokers active again, and mark replicas as lost or found.
    """
    if isinstance(record, PartitionChangeRecord):
        return record.leader == NO_LEADER or record.directories is not None
    return isinstance(record, BrokerRegistrationChangeRecord | UnregisterBrokerRecord)


def _unclean_elections(image: Image, records: Sequence[Message]) -> Iterator[str]:
    for record in records:
        if isinstance(record, PartitionChangeRecord) and record.leader_recovery_state == RECOVERING:
            name = TopicPartition(image.topics_by_id[record.topic_id].name, record.partition_id)
            yield (
                f"{name} is led by broker {record.leader}, which was not in sync:"
                " acknowledged records may be lost"
            )
