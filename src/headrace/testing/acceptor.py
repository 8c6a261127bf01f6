"""Taking connections so that none is left open, whenever that ends."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any


class Acceptor:
    """Serves every connection to a listener in a task of its own. It lives on an event loop.

    It accepts by itself: a task that is cancelled while it waits in `loop.sock_accept` may lose a
    connection that has just been taken.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept)

    async def close(self) -> None:
        """Drop every connection, and refuse new ones."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # Who wanted to connect has gone again.
            return
        client.setblocking(False)
        task = asyncio.create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, client))

    def _end(self, client: socket.socket, task: "asyncio.Task[None]") -> None:
        """Close a connection; its task cannot, if it is cancelled before it began."""
        client.close()
        self._tasks.discard(task)
