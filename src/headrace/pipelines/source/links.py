"""Connections that outlive a task: a worker of Spark reads many ranges, one after the other.

Rule: no threads. The event loop of a link runs while the task that borrowed it waits for an answer;
between that, what was asked for arrives in the socket by itself.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.client.options import ConsumerOptions, consumer_options, from_properties
from headrace.client.transport.cluster import Cluster

Result = TypeVar("Result")

# What one fetch brings, unless the user says so: large enough for a batch of many rows, and for
# little of it to be the beginning of a record batch that does not fit.
FETCH_BYTES = 4 * 1_048_576

_Key = tuple[tuple[str, str], ...]


class Link:
    """A cluster as one task at a time sees it, on an event loop of its own."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.cluster = Cluster(options.bootstrap_servers, **options.cluster_arguments())
        self._loop = asyncio.new_event_loop()

    def run(self, work: "Coroutine[Any, Any, Result] | asyncio.Task[Result]") -> Result:
        """Wait for something."""
        return self._loop.run_until_complete(work)

    def begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Have something go on until it has to wait: by then a request has left."""
        task = self._loop.create_task(work)
        self._loop.run_until_complete(asyncio.sleep(0))
        return task

    def close(self) -> None:
        """Close every connection."""
        self._loop.run_until_complete(self.cluster.close())
        self._loop.close()


_idle: dict[_Key, list[Link]] = {}
_owner = os.getpid()


@contextmanager
def borrowed(client: Mapping[str, str]) -> Iterator[Link]:
    """A link made with these consumer properties, for as long as the caller needs it.

    After an error it is not used again.
    """
    key = tuple(sorted(client.items()))
    link = _take(key) or Link(_options(client))
    try:
        yield link
    except GeneratorExit:
        _idle.setdefault(key, []).append(link)
        raise
    except BaseException:
        link.close()
        raise
    _idle.setdefault(key, []).append(link)


def _options(client: Mapping[str, str]) -> ConsumerOptions:
    config = from_properties(client, "consumer")
    config.setdefault("max_partition_fetch_bytes", FETCH_BYTES)
    return consumer_options(**config)


def _take(key: _Key) -> Link | None:
    global _owner  # noqa: PLW0603 - a fork must not use its parent's sockets
    if _owner != os.getpid():
        _owner = os.getpid()
        _idle.clear()
    links = _idle.get(key)
    return links.pop() if links else None


def close_idle() -> None:
    """Close the links that nobody uses now."""
    while _idle:
        for link in _idle.popitem()[1]:
            link.close()
