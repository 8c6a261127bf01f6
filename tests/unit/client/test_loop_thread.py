import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from headrace.client.blocking import LoopThread
from headrace.client.errors import Closed, TimedOut
from headrace.testing.time_limits import scaled, wait_in_parts

SECONDS = 30.0


@pytest.fixture
def thread():
    thread = LoopThread("test")
    yield thread
    thread.close()


def test_a_coroutine_runs_on_the_thread_and_its_result_comes_back(thread: LoopThread) -> None:
    async def name() -> str:
        return threading.current_thread().name

    assert thread.run(name()) == "test"


def test_errors_of_a_coroutine_come_back_as_they_are(thread: LoopThread) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        thread.run(fail())


def test_waiting_ends_at_the_timeout_and_what_ran_is_cancelled(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimedOut, match=r"not done within 0\.01 s"):
        thread.run(forever(), 0.01)
    assert wait_in_parts(cancelled.wait, SECONDS)


def test_ctrl_c_interrupts_a_caller_at_once_and_cancels_what_ran(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # Handled by the main thread, which waits.
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    # Whoever runs the tests in the background may have them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.run(forever())
    finally:
        signal.signal(signal.SIGINT, before)
    assert wait_in_parts(cancelled.wait, SECONDS)


def test_a_closed_thread_says_so_and_ignores_what_is_posted() -> None:
    thread = LoopThread("test")
    thread.close()
    thread.close()

    async def nothing() -> None:
        pass

    with pytest.raises(Closed):
        thread.run(nothing())
    thread.post(print, "never")


def test_closing_ends_those_who_wait() -> None:
    thread = LoopThread("test")
    started = threading.Event()
    outcome: list[BaseException] = []

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.run(forever())
        except Closed as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert wait_in_parts(started.wait, SECONDS)
    thread.close()
    waiting.join(scaled(SECONDS))
    assert [type(error) for error in outcome] == [Closed]


# What is registered first is called last: when the thread is parked already.
LEFT_OPEN = """
import asyncio, atexit, threading

@atexit.register
def look():
    ran = threading.Event()
    thread.post(ran.set)
    try:
        thread.run(asyncio.sleep(0))
    except Closed:
        print("closed", ran.wait(0.2))

from headrace.client.errors import Closed
from headrace.client.blocking import LoopThread

thread = LoopThread("test")
thread.run(asyncio.sleep(0))
asyncio.run_coroutine_threadsafe(asyncio.sleep(60), thread.loop)
"""


def test_nothing_runs_on_a_thread_left_open_when_the_interpreter_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed False\n", "")
