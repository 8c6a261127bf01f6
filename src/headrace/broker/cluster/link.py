"""A way to one other node: connected when it is used, and again after it broke.

Answers come in the order of the requests, so whatever may wait (a long fetch) has a link of its
own.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError
from headrace.net.addresses import Address
from headrace.net.outgoing import Connection
from headrace.protocol.schema import Message


class NotSent(HeadraceError):
    """The node cannot be reached now: what was to be asked has not been done."""


class Link:
    """Requests to one node. Used on the event loop's thread only.

    Every failure is a HeadraceError, and closes the connection; the next request opens another.
    Unless it is NotSent, it is unknown whether what was asked has been done.
    """

    def __init__(self, address_of: Callable[[], Address | None], client_id: str) -> None:
        self._address_of = address_of
        self._client_id = client_id
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, request: Message, timeout_s: float) -> Any:
        """The answer to a request, connecting included, within `timeout_s`."""
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        connection = await self._connected(timeout_s)
        try:
            return await connection.ask(request, max(due - loop.time(), 0.001))
        except asyncio.CancelledError:
            # Nobody waits for its answer any more, and those behind it should not have to.
            self.close()
            raise

    def close(self) -> None:
        """Break the connection, if there is one; what is in flight fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _connected(self, timeout_s: float) -> Connection:
        async with self._connecting:
            address = self._address_of()
            if address is None:
                raise NotSent("it is not known where it is")
            known = self._connection
            if known is not None and known.is_open and known.address == address:
                return known
            self.close()
            try:
                self._connection = await Connection.open(
                    address, timeout_s, client_id=self._client_id
                )
            except HeadraceError as error:
                raise NotSent(str(error)) from error
            return self._connection
