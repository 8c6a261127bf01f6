"""Registration, heartbeats, the lease to write and leaving, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from headrace.broker.cluster.broker_lifecycle import BrokerLifecycle
from headrace.broker.cluster.channels import ControllerChannel
from headrace.config import Listener, broker_config
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from headrace.protocol.schema import Message
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run
from tests.unit.metadata.clusters import cluster

CONFIG = broker_config({"node.id": "7", "broker.rack": "east"})
SESSION = CONFIG.broker_session_timeout_ms / 1000
BEAT = CONFIG.broker_heartbeat_interval_ms / 1000


class FakeStore:
    """As much of a metadata store as a membership looks at."""

    image_offset = 12
    is_alone = False
    image = cluster(3, 7)


class Controllers:
    """The controller as the broker finds it; `answers` says what heartbeats bring."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.registrations: list[BrokerRegistrationRequest] = []
        self.register_codes: list[int] = []
        self.beats: list[tuple[float, BrokerHeartbeatRequest]] = []
        self.answer: Callable[[BrokerHeartbeatRequest], BrokerHeartbeatResponse] = lambda request: (
            BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
        )
        self.reachable = True

    async def ask(self, request: Message, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        if not self.reachable:
            await asyncio.sleep(timeout_s)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody is there")
        if isinstance(request, BrokerRegistrationRequest):
            self.registrations.append(request)
            code = self.register_codes.pop(0) if self.register_codes else 0
            return BrokerRegistrationResponse(error_code=code, broker_epoch=40)
        assert isinstance(request, BrokerHeartbeatRequest)
        self.beats.append((self.clock.monotonic(), request))
        return self.answer(request)


full: list[bytes] = []


def try_membership(
    scenario: Callable[
        [BrokerLifecycle, Controllers, FakeClock, list[str]], Coroutine[Any, Any, None]
    ],
) -> None:
    clock = FakeClock()

    async def main() -> None:
        controllers, expelled = Controllers(clock), list[str]()
        membership = BrokerLifecycle(
            CONFIG,
            cluster_id="cluster",
            incarnation_id=bytes(15) + b"\x07",
            store=cast("Any", FakeStore()),
            controllers=cast("ControllerChannel", controllers),
            clock=clock,
            offline_directories=list,
            full_directories=lambda: full,
            on_expelled=expelled.append,
        )
        try:
            await scenario(membership, controllers, clock, expelled)
        finally:
            await membership.stop()

    run(clock, main())


def test_the_only_voter_may_write_however_busy_it_was() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        membership._store.is_alone = True  # type: ignore[misc]
        assert not membership.may_write
        await join(membership)
        clock.sleep(10 * SESSION)
        assert membership.may_write

    try_membership(scenario)


def test_a_broker_without_peers_just_leaves() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        await join(membership)
        membership._store.image = cluster(7)
        beats = len(controllers.beats)
        await membership.leave()
        assert len(controllers.beats) == beats

    try_membership(scenario)


async def join(membership: BrokerLifecycle) -> None:
    await membership.join([Listener("PLAINTEXT", "host", 9092)], [])


def test_a_broker_registers_and_may_write_while_its_heartbeats_are_answered() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        assert not membership.may_write
        await join(membership)
        (request,) = controllers.registrations
        assert (request.broker_id, request.rack, request.cluster_id) == (7, "east", "cluster")
        assert membership.broker_epoch == 40
        assert membership.may_write
        await asyncio.sleep(10 * BEAT)
        assert 10 <= len(controllers.beats) <= 12
        assert controllers.beats[-1][1].current_metadata_offset == 11
        assert membership.may_write

    try_membership(scenario)


def test_the_lease_ends_a_session_after_the_last_answered_heartbeat_was_sent() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        await join(membership)
        await asyncio.sleep(5 * BEAT)
        controllers.reachable = False
        last_sent = controllers.beats[-1][0]
        await asyncio.sleep(last_sent + SESSION - 0.01 - clock.monotonic())
        assert membership.may_write
        await asyncio.sleep(0.02)
        assert not membership.may_write
        controllers.reachable = True
        await asyncio.sleep(SESSION + BEAT)
        assert membership.may_write

    try_membership(scenario)


def test_a_suspended_broker_has_no_lease_when_it_wakes() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        await join(membership)
        assert membership.may_write
        # The steady clock has stood still.
        clock.suspended_s = SESSION
        assert not membership.may_write
        await asyncio.sleep(2 * BEAT)
        assert membership.may_write

    try_membership(scenario)


def test_a_fenced_broker_may_not_write_and_asks_again_soon() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        controllers.answer = lambda _: BrokerHeartbeatResponse(is_fenced=len(controllers.beats) < 3)
        began = clock.monotonic()
        await join(membership)
        assert len(controllers.beats) == 3
        assert clock.monotonic() - began < BEAT
        assert membership.may_write

    try_membership(scenario)


def test_a_broker_asks_to_stay_fenced_until_its_losses_are_known() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        controllers.answer = lambda request: BrokerHeartbeatResponse(is_fenced=request.want_fence)
        losses = ["orders-0"]
        joining = asyncio.create_task(
            membership.join(
                [Listener("PLAINTEXT", "host", 9092)], [], may_unfence=lambda: not losses
            )
        )
        await asyncio.sleep(3 * BEAT)
        assert not joining.done()
        assert all(request.want_fence for _, request in controllers.beats)
        losses.clear()
        await joining
        # What is lost later takes nobody out of the cluster.
        losses.append("orders-1")
        await asyncio.sleep(3 * BEAT)
        assert not controllers.beats[-1][1].want_fence

    try_membership(scenario)


def test_registration_waits_for_a_controller_and_for_an_earlier_run_to_be_missed() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        controllers.reachable = False
        controllers.register_codes = [ErrorCode.DUPLICATE_BROKER_REGISTRATION] * 3
        joining = asyncio.create_task(join(membership))
        await asyncio.sleep(60)
        assert not joining.done()
        controllers.reachable = True
        await joining
        assert len(controllers.registrations) == 4

    try_membership(scenario)


def test_a_duplicate_of_a_broker_that_lives_gives_up_and_says_what_to_do() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        membership._store.image = cluster(7)
        controllers.register_codes = [ErrorCode.DUPLICATE_BROKER_REGISTRATION] * 1000
        with pytest.raises(KafkaError, match=r"broker 7 \(host-7:9092\).* node.id of its own"):
            await join(membership)
        assert clock.monotonic() > SESSION

    try_membership(scenario)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "of the cluster cluster, and the controllers.* of"),
        (ErrorCode.UNSUPPORTED_VERSION, "install the version of headrace that the others have"),
        (ErrorCode.INVALID_REGISTRATION, "a copy of another broker's"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "the controller's log says why"),
    ],
)
def test_a_registration_that_cannot_succeed_says_why_and_what_to_do(
    code: ErrorCode, advice: str
) -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        controllers.register_codes = [code]
        with pytest.raises(KafkaError, match=f"{code.name}: broker 7 cannot register: .*{advice}"):
            await join(membership)

    try_membership(scenario)


def test_registration_waits_while_the_controller_cannot_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        controllers.register_codes = [ErrorCode.KAFKA_STORAGE_ERROR] * 5
        await join(membership)
        assert len(controllers.registrations) == 6

    try_membership(scenario)
    [line] = caplog.messages
    assert line == (
        "the active controller cannot register broker 7 now (KAFKA_STORAGE_ERROR: its disk is full"
        " or fails); trying again. Its own log says more"
    )


def test_leaving_waits_until_the_controller_has_taken_over_everything() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        await join(membership)
        asked = list[BrokerHeartbeatRequest]()

        def hand_over(request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            asked.append(request)
            done = sum(entry.want_shut_down for entry in asked) >= 3
            return BrokerHeartbeatResponse(is_fenced=False, should_shut_down=done)

        controllers.answer = hand_over
        began = clock.monotonic()
        await membership.leave()
        assert sum(entry.want_shut_down for entry in asked) == 3
        assert clock.monotonic() - began < 2 * BEAT

    try_membership(scenario)


def test_leaving_gives_up_when_there_is_no_controller() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        await join(membership)
        controllers.reachable = False
        began = clock.monotonic()
        await membership.leave()
        assert clock.monotonic() - began < 1.5

    try_membership(scenario)


def test_a_broker_whose_id_another_one_took_is_told_once_and_falls_silent() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, expelled: list[str]
    ) -> None:
        await join(membership)
        controllers.answer = lambda _: BrokerHeartbeatResponse(
            error_code=ErrorCode.STALE_BROKER_EPOCH
        )
        await asyncio.sleep(10 * BEAT)
        assert expelled == ["broker 7: STALE_BROKER_EPOCH"]
        assert not membership.may_write or clock.monotonic() < SESSION + BEAT

    try_membership(scenario)


def test_news_of_full_directories_are_told_at_once() -> None:
    async def scenario(
        membership: BrokerLifecycle, controllers: Controllers, clock: FakeClock, _: list[str]
    ) -> None:
        await join(membership)
        await asyncio.sleep(BEAT / 2)
        told = len(controllers.beats)
        full.append(b"directory")
        membership.heartbeat_now()
        await asyncio.sleep(BEAT / 100)
        assert len(controllers.beats) == told + 1
        assert controllers.beats[-1][1].cordoned_log_dirs == [b"directory"]
        full.clear()

    try_membership(scenario)
