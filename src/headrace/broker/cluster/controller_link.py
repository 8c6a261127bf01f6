"""Requests to the active controller, whichever node that is at the moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.cluster.link import Link, NotSent
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.net.addresses import Address
from headrace.protocol.apis import Api
from headrace.protocol.schema import Message

_BACKOFF_SECONDS = 0.05
# One attempt takes no longer, so that a controller that hangs is given up for its successor. The
# lease to accept records must not end meanwhile, and a heartbeat is soon answered if at all.
_ATTEMPT_SECONDS = 2.0
_HEARTBEAT_SECONDS = 0.5


class ControllerLink:
    """Asks the active controller, looking for it again while it moves.

    A repeatable request may reach two controllers, if the first one fails before it has answered:
    the second one must find it done, or refuse it. Each API has a connection of its own, so that no
    heartbeat waits behind a topic that is created.
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
        self._address_of = address_of
        self._client_id = client_id
        self._links: dict[int, Link] = {}

    async def ask(self, request: Message, timeout_s: float, *, repeatable: bool = True) -> Any:
        """The active controller's answer; KafkaError if there is none within `timeout_s`.

        What is not `repeatable` is asked again only if it surely was not done.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        heartbeat = request.api_key == Api.BROKER_HEARTBEAT
        longest = _HEARTBEAT_SECONDS if heartbeat else _ATTEMPT_SECONDS
        while True:
            left = due - loop.time()
            try:
                response = await self._attempt(request, min(left, longest) if repeatable else left)
                if response.error_code != ErrorCode.NOT_CONTROLLER:
                    return response
                reason = "it moved"
            except HeadraceError as error:
                reason = str(error)
                if not repeatable and not isinstance(error, NotSent):
                    raise KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT, f"it may have been done or not: {reason}"
                    ) from error
            if loop.time() + _BACKOFF_SECONDS >= due:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"no active controller could be asked: {reason}"
                )
            await asyncio.sleep(_BACKOFF_SECONDS)

    async def _attempt(self, request: Message, timeout_s: float) -> Any:
        if self._is_self():
            return await self._answer_here(request)
        link = self._links.get(request.api_key)
        if link is None:
            link = self._links[request.api_key] = Link(self._address_of, self._client_id)
        return await link.ask(request, max(timeout_s, 0.001))

    def close(self) -> None:
        for link in self._links.values():
            link.close()
