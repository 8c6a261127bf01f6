"""One after the other, for each of many."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.coordination.producer_queue import HELD_BYTES_MAX, WAITING_MAX, ProducerQueue
from headrace.errors import ErrorCode, KafkaError
from tests.unit.broker.coordinating import on_loop


class Works:
    """Work that notes when it begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def named(self, name: str) -> Callable[[], Awaitable[str]]:
        self.gates[name] = asyncio.Event()

        async def work() -> str:
            self.begun.append(name)
            await self.gates[name].wait()
            return name

        return work

    async def end(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()
        await asyncio.sleep(0.01)


def test_the_second_begins_when_the_first_has_ended() -> None:
    async def test() -> None:
        queue, works = ProducerQueue(), Works()
        first, second = (queue.submit(1, 10, works.named(name)) for name in ("a", "b"))
        await asyncio.sleep(0.01)
        assert works.begun == ["a"]
        await works.end("b")
        assert works.begun == ["a"]
        await works.end("a")
        assert [await first, await second] == ["a", "b"]
        assert not queue.is_busy(1)

    on_loop(test)


def test_the_place_is_taken_before_the_work_begins() -> None:
    async def test() -> None:
        queue, works = ProducerQueue(), Works()
        task = queue.submit(1, 10, works.named("a"))
        assert queue.is_busy(1)
        assert not queue.is_busy(2)
        works.gates["a"].set()
        await task

    on_loop(test)


def test_others_do_not_wait() -> None:
    async def test() -> None:
        queue, works = ProducerQueue(), Works()
        tasks = [queue.submit(number, 10, works.named(str(number))) for number in (1, 2)]
        await asyncio.sleep(0.01)
        assert works.begun == ["1", "2"]
        await works.end("1", "2")
        await asyncio.gather(*tasks)

    on_loop(test)


@pytest.mark.parametrize("before_it_began", [True, False])
@pytest.mark.parametrize("gone", [1, 2])
def test_one_that_is_cancelled_leaves_its_place(gone: int, before_it_began: bool) -> None:
    async def test() -> None:
        queue, works = ProducerQueue(), Works()
        tasks = [queue.submit(1, 10, works.named(name)) for name in "abcd"]
        if not before_it_began:
            await asyncio.sleep(0.01)
        tasks[gone].cancel()
        await asyncio.sleep(0.01)
        # Nobody takes the place of the first, which has not ended.
        assert works.begun == ["a"]
        tasks[0].cancel()
        for name in ("c" if gone == 1 else "b", "d"):
            await asyncio.sleep(0.01)
            assert works.begun[-1] == name
            await works.end(name)
        assert not queue.is_busy(1)

    on_loop(test)


def test_too_many_are_refused() -> None:
    async def test() -> None:
        queue, works = ProducerQueue(), Works()
        tasks = [queue.submit(1, 0, works.named(str(name))) for name in range(WAITING_MAX)]
        with pytest.raises(KafkaError) as caught:
            queue.submit(1, 0, works.named("more"))
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        await works.end(*works.gates)
        await asyncio.gather(*tasks)
        assert not queue.is_busy(1)

    on_loop(test)


def test_all_together_hold_no_more_than_they_may_but_one_may_always_begin() -> None:
    async def test() -> None:
        queue, works = ProducerQueue(), Works()
        large = queue.submit(1, HELD_BYTES_MAX + 1, works.named("large"))
        with pytest.raises(KafkaError):
            queue.submit(2, 1, works.named("small"))
        assert not queue.is_busy(2)
        await works.end("large")
        await large
        small = queue.submit(2, 1, works.named("small"))
        await works.end("small")
        assert await small == "small"

    on_loop(test)
