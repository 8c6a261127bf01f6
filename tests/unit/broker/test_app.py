"""The stop of a node: what it waits for is said, and logs are flushed several at a time."""

import asyncio
import logging
from contextlib import AsyncExitStack
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.app import BrokerServer, ShutdownSteps
from headrace.config import broker_config
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run


def test_steps_run_in_the_order_of_the_stack_and_long_ones_are_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    done: list[str] = []

    async def step(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append(name)

    async def main() -> None:
        shutdown = ShutdownSteps(clock)
        shutdown.report()
        async with AsyncExitStack() as stack:
            shutdown.push(stack, "logs to be flushed", step, "last", 2.0)
            shutdown.push(stack, "nothing much", step, "first", 0.01)
        shutdown.report()

    run(clock, main())
    assert done == ["first", "last"]
    assert [record.getMessage() for record in caplog.records] == [
        "stopping: waiting for logs to be flushed",
        "stopped in 2.0 s: 2.0 s for logs to be flushed",
    ]


def test_step_that_fails_is_reported_and_ends_the_others_in_their_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise ZeroDivisionError

    async def main() -> None:
        shutdown = ShutdownSteps(clock)
        with pytest.raises(ZeroDivisionError):
            await shutdown.run("a bug", fail)
        shutdown.report()

    run(clock, main())
    assert caplog.messages == ["stopped in 0.5 s: 0.5 s for a bug"]


def test_logs_are_closed_several_at_a_time() -> None:
    together = Barrier(2, timeout=60)
    closed: list[str] = []

    class Logs(list[str]):
        def close_log(self, log: str) -> None:
            together.wait()
            closed.append(log)

        def close(self, **_: object) -> None:
            closed.append("manager")

    async def main() -> None:
        broker = BrokerServer(broker_config({}))
        broker._recovered = True
        broker._node = cast(
            "Any",
            SimpleNamespace(
                replicas=SimpleNamespace(high_watermarks=dict),
                membership=SimpleNamespace(broker_epoch=5),
            ),
        )
        await broker._close_logs(cast("Any", Logs(["a", "b", "c", "d"])))
        broker._workers.close()

    asyncio.run(main())
    assert (sorted(closed[:-1]), closed[-1]) == (["a", "b", "c", "d"], "manager")
