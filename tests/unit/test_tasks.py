"""The owner of tasks: names, ends that are bugs and ends that are not, and a bounded close."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.tasks import CANCEL_SECONDS_MAX, TaskScope, report_bug, stop_on_bugs
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

Bugs = list[tuple[str, BaseException]]


def on_loop(test: Callable[[Bugs], Coroutine[Any, Any, None]]) -> Bugs:
    """The bugs that were reported while a test ran on a loop whose time passes at once."""
    bugs: Bugs = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        stop_on_bugs(loop, lambda where, error: bugs.append((where, error)))
        await test(bugs)

    run(FakeClock(), watched())
    return bugs


async def fail(error: BaseException) -> None:
    raise error


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_bug_is_reported_with_the_name_of_its_task_and_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    planted = AssertionError("planted")

    async def test(_: Bugs) -> None:
        scope = TaskScope("in-sync replicas")
        scope.start(fail(planted), "proposals")
        await asyncio.sleep(0.1)
        assert len(scope) == 0

    with caplog.at_level(logging.ERROR, "headrace"):
        assert on_loop(test) == [("task in-sync replicas: proposals", planted)]
    [line] = caplog.records
    assert line.levelno == logging.CRITICAL
    assert "task in-sync replicas: proposals" in line.getMessage()
    assert "status 70" in line.getMessage()
    assert line.exc_info is not None and line.exc_info[1] is planted


@pytest.mark.parametrize(
    "error", [KafkaError(ErrorCode.REQUEST_TIMED_OUT), OSError("no space"), AssertionError()]
)
def test_an_error_that_work_did_not_handle_is_a_bug(error: Exception) -> None:
    async def test(_: Bugs) -> None:
        TaskScope("a part").start(fail(error))
        await asyncio.sleep(0.1)

    assert on_loop(test) == [("task a part", error)]


def test_the_end_of_work_and_a_cancellation_that_was_asked_for_are_no_bugs() -> None:
    async def test(_: Bugs) -> None:
        scope = TaskScope("a part")
        scope.start(asyncio.sleep(0))
        scope.start(wait_for_ever()).cancel()  # Before it has begun.
        waiting = scope.start(wait_for_ever())
        await asyncio.sleep(0.1)
        assert len(scope) == 1
        waiting.cancel()
        await asyncio.sleep(0.1)
        assert len(scope) == 0

    assert on_loop(test) == []


def test_a_cancellation_that_nobody_asked_for_is_a_bug() -> None:
    """Else a loop that awaits a shared future ends in silence when its other waiter is gone."""

    async def test(_: Bugs) -> None:
        shared = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await shared

        TaskScope("a part").start(work())
        await asyncio.sleep(0)
        shared.cancel()
        await asyncio.sleep(0.1)

    [(where, error)] = on_loop(test)
    assert where == "task a part"
    assert "not by its owner" in str(error)


def test_errors_of_awaited_work_go_to_its_caller_and_bugs_to_the_process_too() -> None:
    bug = AssertionError()

    async def test(bugs: Bugs) -> None:
        scope = TaskScope("a part")
        refused = scope.start_awaited(fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT)))
        with pytest.raises(KafkaError):
            await refused
        scope.start_awaited(fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT)))  # Its caller is gone.
        await asyncio.sleep(0.1)
        assert bugs == []
        with pytest.raises(AssertionError):
            await scope.start_awaited(fail(bug))
        await asyncio.sleep(0.1)

    assert on_loop(test) == [("task a part", bug)]


def test_close_cancels_and_waits_for_the_end() -> None:
    ended = []

    async def work() -> None:
        try:
            await wait_for_ever()
        finally:
            await asyncio.sleep(1.0)
            ended.append(True)

    async def test(_: Bugs) -> None:
        scope = TaskScope("a part")
        scope.start(work())
        await asyncio.sleep(0.1)
        await scope.close()
        assert ended == [True] and len(scope) == 0

    assert on_loop(test) == []


def test_close_gives_work_the_time_that_it_is_granted() -> None:
    ended = []

    async def work() -> None:
        await asyncio.sleep(2.0)
        ended.append(True)

    async def test(_: Bugs) -> None:
        scope = TaskScope("a part")
        scope.start(work())
        await scope.close(grace_s=3.0)
        assert ended == [True]
        scope = TaskScope("a part")
        scope.start(work())
        await scope.close(grace_s=1.0)
        assert ended == [True]

    assert on_loop(test) == []


def test_a_bug_during_close_is_reported() -> None:
    bug = AssertionError("while stopping")

    async def work() -> None:
        try:
            await wait_for_ever()
        finally:
            raise bug

    async def test(bugs: Bugs) -> None:
        scope = TaskScope("a part")
        scope.start(work(), "work")
        await asyncio.sleep(0.1)
        await scope.close()
        assert bugs == [("task a part: work", bug)]

    on_loop(test)


def test_close_leaves_a_task_behind_that_does_not_end_and_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3 * CANCEL_SECONDS_MAX)
                return
            except asyncio.CancelledError:
                continue

    async def test(_: Bugs) -> None:
        loop, scope = asyncio.get_running_loop(), TaskScope("a part")
        scope.start(stubborn(), "stubborn")
        await asyncio.sleep(0)
        began = loop.time()
        await scope.close()
        assert loop.time() - began == pytest.approx(CANCEL_SECONDS_MAX)

    with caplog.at_level(logging.ERROR, "headrace"):
        assert on_loop(test) == []
    assert "task a part: stubborn did not end within 5 s" in caplog.text


def test_work_that_is_started_after_close_never_begins() -> None:
    async def test(_: Bugs) -> None:
        scope = TaskScope("a part")
        await scope.close()
        task = scope.start(fail(AssertionError("it ran")))
        await asyncio.sleep(0.1)
        assert task.cancelled() and len(scope) == 0

    assert on_loop(test) == []


def test_bugs_in_callbacks_and_of_tasks_that_nobody_owns_are_reported_too() -> None:
    first, second, third = AssertionError(1), AssertionError(2), AssertionError(3)

    def raise_first() -> None:
        raise first

    async def test(bugs: Bugs) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(raise_first)
        await asyncio.sleep(0.1)
        stray = loop.create_task(fail(second), name="stray")
        await asyncio.sleep(0.1)
        del stray
        await asyncio.sleep(0.1)
        report_bug("a handler", third)
        assert [error for _, error in bugs] == [first, second, third]
        assert [where for where, _ in bugs][1:] == ["task stray", "a handler"]

    on_loop(test)


def test_an_operating_error_that_nobody_waits_for_is_logged_and_no_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(_: Bugs) -> None:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "accept failed", "exception": OSError("EMFILE")})
        loop.call_exception_handler({"message": "something is odd"})

    with caplog.at_level(logging.ERROR, "headrace"):
        assert on_loop(test) == []
    assert [line.getMessage() for line in caplog.records] == ["accept failed", "something is odd"]
