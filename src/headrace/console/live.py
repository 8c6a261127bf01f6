"""Live pages: server-sent events for each sample of the cluster, and streams that clean up.

An event says only that there is something newer. The page then asks for itself again, and its
script takes over the parts marked `data-live`: what is shown is made in one place.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.console.cluster_access import ClusterAccess
from headrace.console.errors import RequestRefused
from headrace.console.viewers import Console, access_of, console_of

STREAMS_MAX = 256
# A comment now and then shows that a browser is still there.
_HEARTBEAT_S = 15.0
# A browser connects again by itself; nothing lives for ever.
_AGE_S_MAX = 3600.0


async def events(request: Request) -> Response:
    """`GET /events`: an event "sample" for each new state of the cluster."""
    console = console_of(request)
    if console.streams >= STREAMS_MAX:
        raise RequestRefused(503, "too many pages are open", advice="close some, and reload")
    return StreamingResponse(_events(console, access_of(request)), media_type="text/event-stream")


async def _events(console: Console, access: ClusterAccess) -> AsyncIterator[str]:
    console.streams += 1
    try:
        until = asyncio.get_running_loop().time() + _AGE_S_MAX
        version = 0
        yield "retry: 3000\n\n"
        while not access.is_closed and asyncio.get_running_loop().time() < until:
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    state = await access.sampler.newer(version)
            except TimeoutError:
                yield ": \n\n"
                continue
            version = state.version
            body = {"version": version, "problems": len(state.problems)}
            yield f"event: sample\ndata: {json.dumps(body)}\n\n"
    finally:
        console.streams -= 1


ROUTES = [Route("/events", events)]

# Streams that clean up behind them when their viewer has gone.
#
# Rule: Starlette ends the stream of a viewer who has gone by a cancellation that hits every wait,
# also those of cleaning up. So what has to be closed is closed out of its reach.


Resource = TypeVar("Resource")


@asynccontextmanager
async def closed_after(
    resource: AbstractAsyncContextManager[Resource, bool | None],
) -> AsyncIterator[Resource]:
    """A context manager whose exit is not cancelled."""
    entered = await resource.__aenter__()
    try:
        yield entered
    finally:
        with anyio.CancelScope(shield=True):
            await resource.__aexit__(None, None, None)


class ClosingStream(StreamingResponse):
    """A stream made by a generator, which is closed when the answer ends, however it does."""

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        media_type: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._body.aclose()
