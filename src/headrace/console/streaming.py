"""Streams that clean up behind them when their viewer has gone.

Rule: Starlette ends the stream of a viewer who has gone by a cancellation that hits every wait,
also those of cleaning up. So what has to be closed is closed out of its reach.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

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
