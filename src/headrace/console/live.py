"""Live pages: a stream of server-sent events, one for each new sample of the cluster.

An event says only that there is something newer. The page then asks for itself again, and its
script takes over the parts marked `data-live`: what is shown is made in one place.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

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
