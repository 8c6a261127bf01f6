"""The controller's duties, on virtual time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from headrace.broker.cluster.controller import ActiveController
from headrace.broker.metadata_store import MetadataStore
from headrace.config import broker_config
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.features import BOOTSTRAP_LEVELS
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata_records import (
    ConfigRecord,
    DelegationTokenRecord,
    PartitionChangeRecord,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.schema import Message
from headrace.tasks import stop_on_bugs
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run
from tests.unit.metadata.clusters import cluster, id_of, registration, standing
from tests.unit.metadata.test_recovery_elections import restarted

CONFIG = broker_config({"leader.imbalance.check.interval.seconds": "7"})
TOKEN_CHECK_S = CONFIG.delegation_token_expiry_check_interval_ms // 1000
SESSION = CONFIG.broker_session_timeout_ms / 1000


class FakeStore:
    """A metadata store whose quorum is this node alone, and whose disk is never slow."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.image_offset = 100
        self.is_active = False
        self.is_confirmed = True
        self.submitted = 0
        self.fails: Exception | None = None
        self._callbacks: list[Callable[[bool], None]] = []

    def on_activation(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    def turn(self, active: bool) -> None:
        self.is_active = active
        for callback in self._callbacks:
            callback(active)

    async def submit(self, command: Callable[[Image, int], CommandResult[Any]]) -> Any:
        await asyncio.sleep(0)
        self.submitted += 1
        if self.fails is not None:
            raise self.fails
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        result = command(self.image, self.image_offset)
        if result.records:
            self.image = self.image.apply(result.records)
            self.image_offset += len(result.records)
        await asyncio.sleep(0)
        return result.response


class FakeBrokers:
    """The brokers as they are asked for the ends of their logs: those in `log_ends` answer."""

    def __init__(self, log_ends: Mapping[int, tuple[int, int]] | None = None) -> None:
        self.log_ends = dict(log_ends or {})
        self.asked: list[int] = []

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Any:
        self.asked.append(broker_id)
        await asyncio.sleep(0.01)
        assert isinstance(request, ListOffsetsRequest)
        assert request.replica_id == -2
        if broker_id not in self.log_ends:
            await asyncio.sleep(timeout_s)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        epoch, offset = self.log_ends[broker_id]
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=partition.partition_index,
                            error_code=0 if epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                            leader_epoch=epoch,
                            offset=offset,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def close(self) -> None:
        """Nothing: there are no connections."""


Scenario = Callable[[ActiveController, FakeStore], Coroutine[Any, Any, None]]


def try_controller(
    image: Image,
    scenario: Scenario,
    brokers: "FakeBrokers | None" = None,
    clock: FakeClock | None = None,
) -> None:
    clock = clock or FakeClock()

    async def main() -> None:
        store = FakeStore(image)
        controller = ActiveController(
            cast("MetadataStore", store),
            CONFIG,
            clock,
            cluster_id="cluster",
            brokers=brokers or FakeBrokers(),
        )
        store.turn(True)
        await scenario(controller, store)
        controller.resign()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(clock, main())


async def beat(
    controller: ActiveController, store: FakeStore, *broker_ids: int, behind: int = 0
) -> None:
    for broker_id in broker_ids:
        await controller.heartbeat(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=store.image.brokers[broker_id].epoch,
                current_metadata_offset=store.image_offset - 1 - behind,
            )
        )


async def live(controller: ActiveController, store: FakeStore, seconds: float, *heard: int) -> None:
    """Let time pass in which only some brokers are heard of."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    while loop.time() < due:
        await beat(controller, store, *heard)
        await asyncio.sleep(min(0.4, due - loop.time()))


def fenced(store: FakeStore) -> list[int]:
    return [value.broker_id for value in store.image.brokers.values() if value.fenced]


def test_a_silent_broker_is_fenced_soon_after_its_session() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        await live(controller, store, SESSION * 0.95, 1, 2)
        assert fenced(store) == []
        await live(controller, store, SESSION * 0.25, 1, 2)
        assert fenced(store) == [3]
        assert standing(store.image, "a")[0] == (1, 1, 1, (1, 2))
        # It has to know that it was fenced, which two records say, before it may return.
        await beat(controller, store, 3, behind=2)
        assert fenced(store) == [3]
        await beat(controller, store, 3)
        assert fenced(store) == []

    try_controller(cluster(1, 2, 3, topics={"a": [[3, 1, 2]]}), scenario)


def test_a_broker_is_not_silent_while_its_heartbeat_waits_for_an_answer() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        await live(controller, store, SESSION / 2, 1, 2)
        store.is_confirmed = False
        waiting = asyncio.create_task(beat(controller, store, 1))
        await asyncio.sleep(3 * SESSION)
        assert fenced(store) == [2]
        store.is_confirmed = True
        await waiting
        # From the answer on it has a session to send the next one.
        await asyncio.sleep(SESSION * 0.9)
        assert fenced(store) == [2]
        await asyncio.sleep(SESSION * 0.3)
        assert fenced(store) == [1, 2]

    try_controller(cluster(1, 2), scenario)


def test_a_controller_that_becomes_active_gives_everybody_a_fresh_session() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        await live(controller, store, SESSION * 0.9, 1)
        store.turn(False)
        await asyncio.sleep(SESSION)
        assert fenced(store) == []
        store.turn(True)
        await live(controller, store, SESSION * 0.9, 1)
        assert fenced(store) == []
        await live(controller, store, SESSION * 0.3, 1)
        assert fenced(store) == [2]

    try_controller(cluster(1, 2), scenario)


def test_a_controller_that_may_have_a_successor_gives_no_lease() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        store.is_confirmed = False
        beating = asyncio.create_task(beat(controller, store, 1))
        await asyncio.sleep(SESSION / 4)
        assert not beating.done()
        store.is_confirmed = True
        await beating
        store.is_confirmed = False
        beating = asyncio.create_task(beat(controller, store, 1))
        await asyncio.sleep(SESSION / 4)
        store.turn(False)
        with pytest.raises(KafkaError, match="NOT_CONTROLLER"):
            await beating

    try_controller(cluster(1, 2), scenario)


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_tokens_expire_by_the_time_of_day_though_it_was_wrong_at_the_start(jump_s: int) -> None:
    clock = FakeClock()

    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        clock.suspended_s += jump_s
        token = DelegationTokenRecord(
            owner="User:alice",
            requester="User:alice",
            token_id="t",
            expiration_timestamp=clock.now_ms() + 2 * TOKEN_CHECK_S * 1000,
            max_timestamp=clock.now_ms() + 9 * TOKEN_CHECK_S * 1000,
        )
        store.image = store.image.apply([token])
        await asyncio.sleep(1.5 * TOKEN_CHECK_S)
        assert len(store.image.delegation_tokens) == 1
        await asyncio.sleep(2 * TOKEN_CHECK_S)
        assert len(store.image.delegation_tokens) == 0

    try_controller(Image(), scenario, clock=clock)


def test_an_idle_controller_writes_nothing() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        await asyncio.sleep(60)
        # Balance, and one look for missing leaders: the image stayed the same after it.
        assert store.submitted <= 60 / 7 + 2
        assert store.image_offset == 100

    try_controller(Image(), scenario)


def test_a_controller_that_is_not_active_does_nothing() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        store.turn(False)
        await asyncio.sleep(100)
        assert store.submitted == 0
        with pytest.raises(KafkaError) as caught:
            await beat(controller, store, 1)
        assert caught.value.code is ErrorCode.NOT_CONTROLLER

    try_controller(cluster(1), scenario)


def test_leaderships_go_back_by_themselves() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        change = PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, leader=2)
        store.image = store.image.apply([change])
        await live(controller, store, 6.5, 1, 2)
        assert standing(store.image, "a")[0][0] == 2
        await live(controller, store, 1, 1, 2)
        assert standing(store.image, "a")[0][0] == 1

    try_controller(cluster(1, 2, topics={"a": [[1, 2]]}), scenario)


def test_a_partition_gets_an_unclean_leader_once_that_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        gone = PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, isr=[7], leader=-1)
        store.image = store.image.apply([gone])
        await live(controller, store, 20, 1)
        assert standing(store.image, "a")[0][0] == -1
        name = "unclean.leader.election.enable"
        allow = ConfigRecord(resource_type=2, resource_name="a", name=name, value="true")
        store.image = store.image.apply([allow])
        await live(controller, store, 6, 1)
        assert standing(store.image, "a")[0][0] == 1

    try_controller(cluster(1, topics={"a": [[7, 1]]}), scenario)
    [told] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told == (
        "a-0 is led by broker 1, which was not in sync: acknowledged records may be lost"
    )


def test_a_registration_that_is_refused_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        request = registration(1, incarnation=9)
        request.cluster_id = "other"
        with pytest.raises(KafkaError):
            await controller.register_broker(request)

    try_controller(cluster(1), scenario)
    [told] = [record.getMessage() for record in caplog.records]
    assert "broker 1 belongs to the cluster 'other'" in told


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER), None),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space"), logging.ERROR),
    ],
)
def test_a_duty_that_fails_is_told_of_and_tried_again(
    error: Exception, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        store.fails = error
        await asyncio.sleep(SESSION * 2)
        assert fenced(store) == []
        store.fails = None
        await asyncio.sleep(SESSION * 0.2)
        assert fenced(store) == [1, 2]

    try_controller(cluster(1, 2), scenario)
    told = {record.levelno for record in caplog.records if "silent brokers" in record.getMessage()}
    assert told == ({level} if level else set())


def test_a_bug_in_a_duty_is_reported() -> None:
    bugs: list[tuple[str, BaseException]] = []
    bug = ZeroDivisionError("a bug")

    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        loop = asyncio.get_running_loop()
        stop_on_bugs(loop, lambda where, error: bugs.append((where, error)))
        store.fails = bug
        await asyncio.sleep(SESSION * 2)

    try_controller(cluster(1, 2), scenario)
    where, error = bugs[0]
    assert error is bug
    assert "silent brokers" in where


def test_what_brokers_and_operators_ask_is_decided_on_the_newest_image() -> None:
    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        epoch = await controller.register_broker(registration(1, incarnation=9))
        # After the feature levels, which this log had none of.
        assert epoch == 100 + len(BOOTSTRAP_LEVELS)
        assert store.image.features == BOOTSTRAP_LEVELS
        await beat(controller, store, 1)
        assert fenced(store) == []
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
        assert (await controller.allocate_producer_ids(request)).first_id == 0
        alter = AlterPartitionRequest(broker_id=1, broker_epoch=epoch)
        assert (await controller.alter_partition(alter)).topics == []
        elected = await controller.elect_leaders(ElectLeadersRequest(topic_partitions=None))
        assert elected.replica_election_results == []
        await controller.unregister_broker(UnregisterBrokerRequest(broker_id=1))
        assert set(store.image.brokers) == {2}

    try_controller(cluster(1, 2), scenario)


def leader_of(store: FakeStore) -> int:
    return standing(store.image, "a")[0][0]


def test_the_longest_log_leads_as_soon_as_the_last_replica_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers({1: (4, 2000), 2: (4, 3000), 3: (4, 3000)})

    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        store.image_offset = 200
        await live(controller, store, 1.0, 1, 2)
        assert caplog.text == ""
        await live(controller, store, 5.0, 1, 2)
        assert leader_of(store) == -1
        [line] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert "a-0 among them" in line
        assert "Start broker 3" in line
        assert sorted(brokers.asked) == [1, 2], "who has answered is not asked again"
        await beat(controller, store, 3)
        await asyncio.sleep(0.05)
        assert leader_of(store) == 2
        assert "a-0 is led by broker 2, whose log ends at offset 3000" in caplog.text
        assert sorted(brokers.asked) == [1, 2, 3]

    try_controller(restarted(1, 2).image, scenario, brokers)


def test_a_replica_that_cannot_tell_yet_is_asked_again() -> None:
    brokers = FakeBrokers({1: (4, 10), 2: (4, 10), 3: (-1, -1)})

    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        await live(controller, store, 1.0, 1, 2, 3)
        assert leader_of(store) == -1
        brokers.log_ends[3] = (4, 11)
        await live(controller, store, 0.5, 1, 2, 3)
        assert leader_of(store) == 3

    try_controller(restarted(1, 2, 3).image, scenario, brokers)


def test_a_replica_that_never_answers_is_waited_for_until_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers({1: (4, 10), 2: (4, 9)})
    timeout = CONFIG.unclean_recovery_timeout_ms / 1000

    async def scenario(controller: ActiveController, store: FakeStore) -> None:
        await live(controller, store, timeout - 1, 1, 2, 3)
        assert leader_of(store) == -1
        await live(controller, store, 5, 1, 2, 3)
        assert leader_of(store) == 1
        [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert "records after that offset are lost if only broker 3 had them" in line

    try_controller(restarted(1, 2, 3).image, scenario, brokers)
