"""The metadata log of this node, and the image that replaying it gives.

Commands run one after another against the newest image. What they come to is one batch in the log,
flushed before anybody is answered; commands that come during a flush share the next one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from headrace.broker.workers import Workers
from headrace.clock import Clock
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.metadata.controller import Result
from headrace.metadata.image import Image
from headrace.metadata.records import decode_record, encode_record
from headrace.protocol.records import decode_rows, encode_batch, scan_headers
from headrace.protocol.schema import Message
from headrace.storage.log import Log

logger = logging.getLogger(__name__)

Response = TypeVar("Response")
Command = Callable[[Image, int], Result[Any]]

_READ_BYTES = 4 * 1024 * 1024
_LEADER_EPOCH = 0


class _Submitted(NamedTuple):
    command: Command
    answer: asyncio.Future[Any]


class MetadataStore:
    """The one writer of the metadata log. Used on the event loop's thread only.

    Invariant: `image` is what the flushed part of the log replays to.
    """

    def __init__(self, log: Log, clock: Clock, workers: Workers) -> None:
        self.image = replay(log)
        self._log = log
        self._clock = clock
        self._workers = workers
        self._queue: deque[_Submitted] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._followers: list[Callable[[Image, Image], Awaitable[None]]] = []

    def follow(self, on_change: Callable[[Image, Image], Awaitable[None]]) -> None:
        """Await `on_change(old, new)` for every later image, before the change is answered."""
        self._followers.append(on_change)

    async def submit(self, command: Callable[[Image, int], Result[Response]]) -> Response:
        """Run `command(image, next_offset)`; its response comes when its records are durable."""
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._queue.append(_Submitted(command, answer))
        if self._writer is None:
            # A task of its own: a caller that is cancelled must not stop a write half way.
            self._writer = asyncio.create_task(self._write_all())
        return await answer

    async def close(self) -> None:
        """Let what was submitted finish."""
        while self._writer is not None:
            await self._writer

    async def _write_all(self) -> None:
        try:
            while self._queue:
                await self._write_some()
        finally:
            self._writer = None

    async def _write_some(self) -> None:
        answers: list[tuple[asyncio.Future[Any], object]] = []
        try:
            await self._write(answers)
        finally:
            # A bug in a command or a follower must not leave anybody waiting for ever.
            for answer, _ in answers:
                _fail(answer, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    async def _write(self, answers: list[tuple[asyncio.Future[Any], object]]) -> None:
        image, records = self.image, list[Message]()
        while self._queue:
            command, answer = self._queue.popleft()
            try:
                result = command(image, self._log.log_end_offset + len(records))
                image = image.apply(result.records)
            except HeadraceError as error:
                _fail(answer, error)
                continue
            records += result.records
            answers.append((answer, result.response))
        try:
            if records:
                await self._append(records)
        except HeadraceError as error:
            logger.critical("the metadata log cannot be written: %s", error)
            for answer, _ in answers:
                _fail(answer, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        old, self.image = self.image, image
        if image is not old:
            for on_change in self._followers:
                await on_change(old, image)
        for answer, response in answers:
            if not answer.done():
                answer.set_result(response)

    async def _append(self, records: list[Message]) -> None:
        now_ms = self._clock.now_ms()
        batch = bytearray(
            encode_batch([(now_ms, None, encode_record(record), ()) for record in records])
        )
        self._log.append(batch, scan_headers(batch), _LEADER_EPOCH, now_ms)
        await self._workers.flush(self._log.flush)


def _fail(answer: asyncio.Future[Any], error: HeadraceError) -> None:
    if not answer.done():
        answer.set_exception(error)


def replay(log: Log) -> Image:
    """The image of everything in a metadata log."""
    image, offset = Image(), log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, _READ_BYTES, log.log_end_offset, at_least_one=True).records
        headers = scan_headers(data)
        records = [
            decode_record(row.value)
            for header in headers
            for row in decode_rows(data, header)
            if row.value is not None
        ]
        image = image.apply(records)
        offset = headers[-1].next_offset
    return image
