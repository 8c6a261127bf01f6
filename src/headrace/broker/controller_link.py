"""Requests to the active controller, whichever node that is at the moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.link import Link
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.net.addresses import Address
from headrace.protocol.schema import Message

_BACKOFF_SECONDS = 0.05
# One attempt takes no longer, so that a controller that hangs is given up for its successor.
_ATTEMPT_SECONDS = 2.0


class ControllerLink:
    """Asks the active controller, looking for it again while it moves.

    A request may reach two controllers, if the first one fails before it has answered: only such
    may be asked that a second one finds done, or refuses.
    """

    def __init__(
        self,
        *,
        is_self: Callable[[], bool],
        answer_here: Callable[[Message], Awaitable[Message]],
        address_of: Callable[[], Address | None],
        client_id: str,
    ) -> None:
        self._is_self = is_self
        self._answer_here = answer_here
        self._link = Link(address_of, client_id)

    async def ask(self, request: Message, timeout_s: float) -> Any:
        """The active controller's answer; KafkaError if there is none within `timeout_s`."""
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        while True:
            try:
                response = await self._attempt(request, min(due - loop.time(), _ATTEMPT_SECONDS))
                if response.error_code != ErrorCode.NOT_CONTROLLER:
                    return response
                reason = "it moved"
            except HeadraceError as error:
                reason = str(error)
            if loop.time() + _BACKOFF_SECONDS >= due:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"no active controller could be asked: {reason}"
                )
            await asyncio.sleep(_BACKOFF_SECONDS)

    async def _attempt(self, request: Message, timeout_s: float) -> Any:
        if self._is_self():
            return await self._answer_here(request)
        return await self._link.ask(request, max(timeout_s, 0.001))

    def close(self) -> None:
        self._link.close()
