"""Work in threads: what it raises reaches its caller, and a bug somebody in any case."""

import asyncio
import threading

import pytest

from headrace.broker.thread_pools import ThreadPools
from headrace.errors import StorageError
from headrace.tasks import stop_on_bugs
from headrace.testing.time_limits import scaled


@pytest.mark.parametrize(
    ("error", "is_bug"), [(AssertionError("planted"), True), (StorageError("no disk"), False)]
)
def test_a_bug_in_work_whose_caller_is_gone_is_reported(error: Exception, is_bug: bool) -> None:
    bugs: list[tuple[str, BaseException]] = []
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(scaled(30))
        raise error

    async def test() -> None:
        loop = asyncio.get_running_loop()
        stop_on_bugs(loop, lambda *bug: bugs.append(bug))
        workers = ThreadPools()
        go_on.set()
        with pytest.raises(type(error)):
            await workers.read(work)
        await asyncio.sleep(0)
        assert bugs == []
        begun.clear()
        go_on.clear()
        reading = asyncio.ensure_future(workers.read(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.sleep(0)
        go_on.set()
        workers.close()
        await asyncio.sleep(0.01)

    asyncio.run(test())
    assert bugs == ([("a worker thread", error)] if is_bug else [])
