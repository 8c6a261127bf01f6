"""Calls as generators: what their drivers await, throw into them and return."""

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.client.blocking import Call, LoopThread, Signal, Wait, run_async
from headrace.client.errors import Closed
from headrace.testing.time_limits import scaled

Driver = Callable[[Call[Any]], Any]


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


@pytest.fixture(params=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest, thread: LoopThread) -> Driver:
    if request.param == "blocking":
        return thread.run
    return lambda call: asyncio.run(run_async(call))


async def twice(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise ValueError("theirs")


def test_a_call_gets_the_results_of_its_waits(run: Driver) -> None:
    def call() -> Call[list[int]]:
        first = yield twice(1)
        second = yield twice(first)
        return [first, second]

    assert run(call()) == [2, 4]


def test_a_call_without_waits_returns_its_result_and_starts_no_thread(thread: LoopThread) -> None:
    def call() -> Call[int]:
        if thread.is_closed:
            yield twice(1)
        return 7

    assert thread.run(call()) == 7
    assert asyncio.run(run_async(call())) == 7
    assert not thread.is_started


def test_both_drivers_take_coroutines(thread: LoopThread) -> None:
    assert thread.run(twice(2)) == asyncio.run(run_async(twice(2))) == 4


def test_errors_of_waits_are_raised_in_the_call(run: Driver) -> None:
    def call() -> Call[str]:
        try:
            yield fail()
        except ValueError as error:
            return f"caught {error}, {(yield twice(1))}"
        return "not raised"

    assert run(call()) == "caught theirs, 2"


def test_errors_of_a_call_go_to_the_caller(run: Driver) -> None:
    def call() -> Call[None]:
        yield from passing()

    def passing() -> Call[None]:
        yield fail()

    with pytest.raises(ValueError, match="theirs"):
        run(call())


def test_a_call_runs_in_the_thread_of_the_caller_and_its_waits_on_the_loop(
    thread: LoopThread,
) -> None:
    async def here() -> str:
        return threading.current_thread().name

    def call() -> Call[tuple[str, str]]:
        waited = yield here()
        return waited, threading.current_thread().name

    assert thread.run(call()) == ("test", threading.current_thread().name)


def test_a_cancelled_task_cancels_the_call(thread: LoopThread) -> None:
    ended: list[str] = []

    def call() -> Call[None]:
        try:
            yield asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            yield asyncio.sleep(0)
            ended.append("tidied up")

    async def main() -> None:
        task = asyncio.create_task(run_async(call()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ["cancelled", "tidied up"]


def test_ctrl_c_is_raised_in_the_call(thread: LoopThread) -> None:
    def interrupted(timeout_s: float | None) -> bool:
        raise KeyboardInterrupt

    ended: list[str] = []

    def call() -> Call[None]:
        try:
            yield Wait(interrupted, asyncio.Future, None)
        finally:
            ended.append((yield twice_text("tidied")))

    async def twice_text(text: str) -> str:
        return text * 2

    with pytest.raises(KeyboardInterrupt):
        thread.run(call())
    assert ended == ["tidiedtidied"]


def test_errors_leave_no_cycle_behind(thread: LoopThread) -> None:
    class Big:
        pass

    def call(held: Big) -> Call[None]:
        assert held
        yield fail()

    held = Big()
    gone = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            thread.run(call(held))
        del held
        assert gone() is None
    finally:
        gc.enable()


def test_a_closed_thread_ends_a_call_at_its_next_wait(thread: LoopThread) -> None:
    def call() -> Call[None]:
        yield twice(1)
        thread.close()
        yield twice(2)

    with pytest.raises(Closed, match="make a new one"):
        thread.run(call())


def test_a_thread_that_was_never_used_closes_at_once(thread: LoopThread) -> None:
    thread.close()
    thread.close()
    thread.join()
    thread.post(print, "never")
    assert not thread.is_started


def test_a_signal_that_is_set_ends_the_wait(run: Driver) -> None:
    def call() -> Call[tuple[bool, bool, bool]]:
        signal = Signal()
        late = yield signal.wait(0.001)
        signal.set()
        set_before = yield signal.wait(scaled(30))
        signal.clear()
        return late, set_before, (yield signal.wait(0.001))

    assert run(call()) == (False, True, False)


def test_another_thread_sets_the_signal_of_a_thread(thread: LoopThread) -> None:
    signal = Signal()

    def call() -> Call[bool]:
        thread.post(signal.set)
        came: bool = yield signal.wait(scaled(30))
        return came

    assert thread.run(call())


def test_a_task_sets_the_signal_of_another() -> None:
    async def main() -> bool:
        signal = Signal()
        asyncio.get_running_loop().call_later(0.001, signal.set)
        return await signal.wait(scaled(30))

    assert asyncio.run(main())
