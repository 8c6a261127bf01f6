import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.client.admin.aio import AsyncAdmin
from headrace.errors import ErrorCode
from headrace.monitoring.sampler import LOAD_MAX, Sampler
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.types import TopicPartition
from tests.unit.client.admin.moving import MovingBrokers
from tests.unit.client.fake_groups import FakeGroup, member
from tests.unit.metadata.clusters import id_of

Result = TypeVar("Result")
A0 = TopicPartition("a", 0)


def sampled(
    brokers: MovingBrokers, scenario: Callable[[Sampler], Awaitable[Result]], timeout_s: float = 5.0
) -> Result:
    async def run(admin: AsyncAdmin) -> Result:
        return await scenario(Sampler(admin, clock=brokers.clock))

    return brokers.admin(run, timeout_s)


def cluster() -> MovingBrokers:
    brokers = MovingBrokers(2, {"a": [[1, 2], [2, 1]]})
    brokers.add_topic("a", 2)
    brokers.topics["a"] = id_of("a")
    brokers.logs[A0].next_offset = 12
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0]})], offsets={A0: 5})}
    return brokers


def test_a_sample_has_topics_offsets_and_groups() -> None:
    async def scenario(sampler: Sampler) -> None:
        state = await sampler.sample()
        assert state.version == 1
        assert state.topics["a"].messages == 12
        assert state.groups["g"].lag == 7
        assert state.groups["g"].members == 1

    sampled(cluster(), scenario)


def test_a_part_that_fails_leaves_the_others_alone() -> None:
    brokers = cluster()
    brokers.quorum_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    async def scenario(sampler: Sampler) -> None:
        state = await sampler.sample()
        assert state.topics["a"].messages == 12
        assert list(state.errors) == ["quorum"]
        assert state.problems == ()
        brokers.quorum_error = ErrorCode.NONE
        sampler.refresh()
        assert (await sampler.sample()).errors == {}


def test_a_quorum_that_does_not_answer_is_a_problem() -> None:
    brokers = cluster()
    brokers.quorum_error = ErrorCode.BROKER_NOT_AVAILABLE

    async def scenario(sampler: Sampler) -> None:
        assert [problem.check for problem in (await sampler.sample()).problems] == ["controller"]

    sampled(brokers, scenario)


def test_a_dead_broker_is_told_and_hides_no_other() -> None:
    brokers = cluster()
    brokers.down.add(2)

    async def scenario(sampler: Sampler) -> None:
        state = await sampler.sample()
        assert state.topics["a"].messages == 12
        assert [(problem.check, problem.name) for problem in state.problems] == [("broker", "2")]
        assert state.brokers[2].error is not None
        assert state.brokers[1].error is None

    sampled(brokers, scenario)


def test_parts_are_asked_at_their_intervals() -> None:
    brokers = cluster()

    async def scenario(sampler: Sampler) -> None:
        sampler.start()
        state = await sampler.newer()
        while state.version < 9:
            state = await sampler.newer(state.version)
        await sampler.close()

    sampled(brokers, scenario)
    offsets = len(brokers.asked(ListOffsetsRequest))
    groups = len(brokers.asked(ListGroupsRequest))
    assert 1.2 * groups < offsets


def test_a_part_that_takes_long_is_asked_less_often() -> None:
    brokers = cluster()
    slow_s = 1.0

    async def scenario(sampler: Sampler) -> None:
        sampling = sampler._parts[2]
        ask = sampling.ask

        async def slowly() -> dict[str, object]:
            await asyncio.sleep(slow_s)
            return await ask()

        sampling.ask = slowly
        await sampler.sample()
        assert sampling.due >= brokers.clock.monotonic() + 0.99 * slow_s / LOAD_MAX - slow_s

    sampled(brokers, scenario)
