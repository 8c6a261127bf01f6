"""The virtual loop runs ordinary asyncio code, in virtual time, the same way for the same seed."""

import asyncio
import concurrent.futures
import threading
from typing import Any

import pytest

from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.loop import Deadlock, LimitExceeded, VirtualLoop
from tests.unit.testing.simulation.support import pair, run


def test_ordinary_asyncio_code() -> None:
    async def main(simulation: Simulation) -> None:
        async with asyncio.timeout(10):
            await asyncio.sleep(9)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 1)
        assert 11 < simulation.now < 11.1
        queue: asyncio.Queue[int] = asyncio.Queue(2)

        async def produce() -> None:
            for i in range(10):
                await queue.put(i)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            got = [await queue.get() for _ in range(10)]
        assert got == list(range(10))
        assert await asyncio.gather(*(asyncio.sleep(0.1, i) for i in range(5))) == [0, 1, 2, 3, 4]
        done, pending = await asyncio.wait(
            [asyncio.create_task(asyncio.sleep(d)) for d in (1, 2, 3)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert (len(done), len(pending)) == (1, 2)
        assert await asyncio.to_thread(lambda: 42) == 42

    run(main)


def test_loop_works_without_hosts() -> None:
    async def main() -> float:
        server = await asyncio.start_server(lambda r, w: w.close(), "localhost", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(1000)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(7)) as runner:
        assert runner.run(main()) > 1000


def test_deadlock_and_limits() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Deadlock):
        Simulation(1).run(forever())
    with pytest.raises(LimitExceeded):
        Simulation(1).run(tick(), time_max=100)
    with pytest.raises(LimitExceeded):
        Simulation(1).run(spin(), events_max=1000)


def test_cancelled_timers_do_not_advance_time() -> None:
    async def main(simulation: Simulation) -> None:
        for _ in range(100):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0.001)
        assert simulation.now < 2

    run(main)


def test_work_for_threads_is_done_later_in_order_and_without_threads() -> None:
    async def main(simulation: Simulation) -> None:
        loop = asyncio.get_running_loop()
        log: list[int] = []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            jobs = [loop.run_in_executor(pool, log.append, i) for i in range(50)]
            assert log == []
            await asyncio.gather(*jobs)
        assert log == list(range(50)) and simulation.now > 0.001
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    before = threading.active_count()
    run(main)
    assert threading.active_count() == before


def order_of_steps(seed: int, *, shuffle: bool) -> tuple[list[int], list[int]]:
    async def main(simulation: Simulation) -> tuple[list[int], list[int]]:
        tasks: list[int] = []
        callbacks: list[int] = []

        async def step(i: int) -> None:
            tasks.append(i)

        for i in range(6):
            asyncio.get_running_loop().call_soon(callbacks.append, i)
        await asyncio.gather(*(step(i) for i in range(6)))
        return tasks, callbacks

    steps: tuple[list[int], list[int]] = run(main, seed, shuffle=shuffle)
    return steps


def test_tasks_woken_together_run_in_any_order_and_callbacks_in_theirs() -> None:
    in_order = [0, 1, 2, 3, 4, 5]
    assert all(order_of_steps(s, shuffle=False) == (in_order, in_order) for s in range(5))
    orders = [order_of_steps(s, shuffle=True) for s in range(20)]
    assert len({tuple(tasks) for tasks, _ in orders}) > 5
    assert all(callbacks == in_order for _, callbacks in orders)


def test_same_seed_same_hash_and_other_seed_other_hash() -> None:
    def once(seed: int) -> str:
        async def main() -> None:
            client, _, _, _ = await pair(simulation)
            for i in range(20):
                client.transport.write(bytes(i * 100))
                await asyncio.sleep(simulation.rng.random())

        simulation = Simulation(seed)
        simulation.run(main())
        return simulation.loop.trace.hash()

    assert once(1) == once(1)
    assert len({once(seed) for seed in range(10)}) == 10


def test_sets_of_tasks_have_one_order() -> None:
    def once() -> list[str]:
        async def main(simulation: Simulation) -> list[str]:
            order: list[str] = []

            async def worker() -> None:
                try:
                    await asyncio.sleep(100)
                finally:
                    task: Any = asyncio.current_task()
                    order.append(task.get_name())

            tasks = {asyncio.create_task(worker()) for _ in range(50)}
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return order

        order: list[str] = run(main)
        return order

    ballast = [object() for _ in range(1000)]
    first = once()
    del ballast[::2]
    assert first == once()


def test_errors_nobody_handles_are_kept() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    simulation = Simulation(1)
    simulation.run(main())
    assert ["ZeroDivisionError" in error for error in simulation.loop.errors] == [True]
