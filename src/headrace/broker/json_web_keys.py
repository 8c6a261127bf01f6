"""The public keys of JSON web tokens, read from a file or a URL, and read again from time to time.

Rule: reading is done on a thread, by one reader at a time, within limits of time and size. Keys
that were read count until others are: an issuer that cannot be reached keeps nobody out.
"""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from urllib.request import HTTPRedirectHandler, Request, build_opener

from headrace.broker.thread_pools import run_in
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.security.json_web_tokens import KeySet, KeySetError, read_key_set
from headrace.tasks import TaskScope

logger = logging.getLogger(__name__)

_READ_SECONDS_MAX = 5.0
_DOCUMENT_BYTES_MAX = 1024 * 1024
_CHUNK_BYTES = 64 * 1024
# A token with an unknown key has the keys read again, though not more often than so.
_RENEWAL_SECONDS_MIN = 10.0
# The pause after a read that failed.
_RETRY_SECONDS = 1.0


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: keys come from the URL in the settings alone."""

    def redirect_request(self, *_: object) -> Request | None:
        return None


def fetch_key_set(url: str) -> KeySet:
    """Read the keys at a URL, on a thread; KeySetError if that fails."""
    ends = time.monotonic() + _READ_SECONDS_MAX
    document = b""
    try:
        with build_opener(_NoRedirects).open(url, timeout=_READ_SECONDS_MAX) as response:
            while chunk := response.read1(_CHUNK_BYTES):
                document += chunk
                if len(document) > _DOCUMENT_BYTES_MAX:
                    raise KeySetError(f"it has more than {_DOCUMENT_BYTES_MAX} bytes")
                if time.monotonic() > ends:
                    raise KeySetError(f"it took longer than {_READ_SECONDS_MAX:g} s")
    except (OSError, HTTPException) as error:
        raise KeySetError(str(error) or type(error).__name__) from None
    return read_key_set(document)


class JsonWebKeys:
    """The keys at one URL. Used on the event loop's thread only."""

    def __init__(self, url: str, refresh_ms: int, clock: Clock) -> None:
        self._url = url
        self._refresh_s = refresh_ms / 1000
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="token-keys")
        self._keys = KeySet()
        self._began_s = float("-inf")
        self._failed = False
        self._tasks = TaskScope("keys of tokens")
        self._reading: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._tasks.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def current(self) -> KeySet:
        """The keys, read first if there are none; those out of date are renewed meanwhile."""
        pause_s = _RETRY_SECONDS if self._failed else self._refresh_s
        reading = self._begin(pause_s if len(self._keys) else _RETRY_SECONDS)
        if reading is not None and not len(self._keys):
            # Shared by all logins: one of them being cancelled must not cancel the others.
            await asyncio.shield(reading)
        return self._keys

    async def renewed(self) -> KeySet:
        """The keys, read again unless that was done lately."""
        reading = self._begin(_RENEWAL_SECONDS_MIN)
        if reading is not None:
            await asyncio.shield(reading)
        return self._keys

    def _begin(self, pause_s: float) -> asyncio.Task[None] | None:
        """The read that is under way, begun now unless the last one began `pause_s` ago or less."""
        if self._reading is None and self._clock.monotonic() - self._began_s >= pause_s:
            self._began_s = self._clock.monotonic()
            self._reading = self._tasks.start(self._read(), self._url)
        return self._reading

    async def _read(self) -> None:
        try:
            self._keys = await run_in(self._thread, lambda: fetch_key_set(self._url))
            self._failed = False
        except HeadraceError as error:
            self._failed = True
            logger.warning(
                "the keys of tokens at %s cannot be read: %s; %s",
                self._url,
                error,
                "the earlier ones still count" if len(self._keys) else "nobody can log in by them",
            )
        finally:
            self._reading = None
