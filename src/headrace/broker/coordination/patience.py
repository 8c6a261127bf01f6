"""Waiting for the end of a transaction that is decided already."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

# A round of markers takes about as long. Waiting for it here is quicker than having clients ask
# again, who wait for 20 to 100 ms in between.
_BACKOFF_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064)

Response = TypeVar("Response")


async def unless_busy(
    ask: Callable[[], Awaitable[Response]], is_busy: Callable[[Response], bool]
) -> Response:
    """What is answered when the transaction before has all its markers, if that is soon."""
    response = await ask()
    for seconds in _BACKOFF_SECONDS:
        if not is_busy(response):
            break
        await asyncio.sleep(seconds)
        response = await ask()
    return response
