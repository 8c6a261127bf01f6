"""A search in a process of its own, for programs whose event loop has other things to do.

Rule: leaving the context ends the process at once, whatever it is doing.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from headrace.client.options import ConsumerConfig
from headrace.search.expressions import parse_expression
from headrace.search.scan_ranges import SearchRequest
from headrace.search.search_messages import SearchFailed, SearchOrder, decode_update, encode_order
from headrace.search.topic_search import SearchUpdate

SHOWN_BYTES = 4096
HITS_MAX = 10_000
SHOWN_BYTES_MAX = 1024 * 1024
# The longest line of a worker: `UPDATE_BYTES_MAX` and one record more, as base64.
_LINE_BYTES_MAX = 64 * 1024 * 1024


class SearchProcess:
    """A search that runs while this context is entered.

    Records are cut to `shown_bytes` each for key, value and headers. Its memory is bounded here by
    one update, and in the worker by what a search holds.
    """

    def __init__(
        self, request: SearchRequest, client: ConsumerConfig, *, shown_bytes: int = SHOWN_BYTES
    ) -> None:
        """ConfigError if the expression or an option is not valid."""
        parse_expression(request.expression)
        assert 0 < request.hits_max <= HITS_MAX, request.hits_max
        assert 0 < shown_bytes <= SHOWN_BYTES_MAX, shown_bytes
        self._order = encode_order(SearchOrder(request, client, shown_bytes))
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.search.search_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.kill()
        await process.wait()

    @property
    def status(self) -> int | None:
        """The exit status of the process; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def updates(self) -> AsyncIterator[SearchUpdate]:
        """The updates up to the one with the end; SearchFailed if the search ended by an error."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(self._order)
        process.stdin.close()
        while line := await process.stdout.readline():
            update = decode_update(line)
            yield update
            if update.end is not None:
                return
        status = await process.wait()
        raise SearchFailed(f"the process of the search ended by itself, with status {status}")
