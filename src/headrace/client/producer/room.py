"""Standing in line for room in the buffer, and what it means when none comes."""

import asyncio
import threading

from headrace.client.failures import BufferExhausted
from headrace.client.producer.buffers import Buffers
from headrace.client.producer_options import ProducerOptions
from headrace.client.waiting import wait_in_parts


class ThreadWaiter:
    """A thread that waits until it is given `size_bytes`. Ctrl-C interrupts it."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self._event = threading.Event()

    def wake(self) -> None:
        """Called when it has its room, or when there is no more to wait for."""
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Return when woken, or at the end of the time."""
        wait_in_parts(self._event.wait, timeout_s)


class TaskWaiter:
    """A task that waits until it is given `size_bytes`; it is woken on its own loop."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()

    def wake(self) -> None:
        """Called when it has its room, or when there is no more to wait for."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return when woken, or at the end of the time."""
        await asyncio.wait([self._woken], timeout=timeout_s)


def take_room(
    buffers: Buffers, size_bytes: int, timeout_s: float, options: ProducerOptions
) -> None:
    """Have `size_bytes` of the buffer reserved; BufferExhausted if there is no room in time."""
    waiter = ThreadWaiter(size_bytes)
    if buffers.enter(waiter):
        return
    try:
        waiter.wait(timeout_s)
        _check(buffers, waiter, options)
    except BaseException:
        buffers.leave(waiter)
        raise


async def take_room_async(
    buffers: Buffers, size_bytes: int, timeout_s: float, options: ProducerOptions
) -> None:
    """The same for a task."""
    waiter = TaskWaiter(size_bytes)
    if buffers.enter(waiter):
        return
    try:
        await waiter.wait(timeout_s)
        _check(buffers, waiter, options)
    except BaseException:
        buffers.leave(waiter)
        raise


def give_back(buffers: Buffers, size_bytes: int) -> None:
    """Return room that was taken and is not needed after all."""
    waiter = ThreadWaiter(size_bytes)
    waiter.is_granted = True
    buffers.leave(waiter)


def _check(buffers: Buffers, waiter: ThreadWaiter | TaskWaiter, options: ProducerOptions) -> None:
    if buffers.refusal is not None:
        raise buffers.refusal()
    if not waiter.is_granted:
        raise BufferExhausted(
            f"no room for {waiter.size_bytes} bytes in buffer_memory ({options.buffer_memory}"
            f" bytes) within max_block_ms ({options.max_block_ms} ms): {buffers.records} records"
            " are not acknowledged yet. Brokers are slower than the application, or cannot be"
            " reached; send more slowly, or raise buffer_memory or max_block_ms"
        )
