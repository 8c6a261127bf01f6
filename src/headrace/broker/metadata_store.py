"""The cluster's metadata on this node: the image from replaying the committed metadata log.

On the active controller commands run one after another against the newest image, which includes
uncommitted changes. The records of several commands form one batch; commands that come during a
flush share the next batch. A command is answered when its batch is committed and applied here.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from headrace.broker.thread_pools import ThreadPools
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.metadata.elections import RECOVERING
from headrace.metadata.image import NO_LEADER, Image
from headrace.metadata.records import CommandResult, decode_record, encode_record
from headrace.metadata.snapshot import image_records
from headrace.protocol.batch import scan_headers
from headrace.protocol.records import decode_rows, encode_batch
from headrace.protocol.schema import Message
from headrace.tasks import TaskScope
from headrace.types import Buffer

if TYPE_CHECKING:
    from headrace.broker.quorum.quorum import QuorumNode

logger = logging.getLogger(__name__)

Response = TypeVar("Response")
Command = Callable[[Image, int], CommandResult[Any]]

# The bytes that are replayed before the loop runs other tasks, and the records after which a batch
# is full.
_READ_BYTES = 128 * 1024
_BATCH_RECORDS = 1000
_QUEUE_MAX = 20_000
_CLOSE_SECONDS = 2.0


class _SubmittedCommand(NamedTuple):
    command: Command
    answer: asyncio.Future[Any]


Answers: TypeAlias = list[tuple[asyncio.Future[Any], object]]


class _AppendedCommands(NamedTuple):
    """Commands that are in the log at [start_offset, end_offset), and the image after them.

    `writes` are the responses of these commands, sent when the batch is committed and applied;
    `reads` are those of commands without records that saw the image, sent when it is committed.
    """

    start_offset: int
    end_offset: int
    size: int
    image: Image
    writes: Answers
    reads: Answers


class MetadataStore:
    """The image, and on the active controller its changes. For the loop's thread only.

    Invariant: `image` is the result of replaying the log below `image_offset`, and all of that is
    committed. `_draft` is the image after everything in `_appended`, in order.
    """

    def __init__(
        self, quorum: "QuorumNode", config: BrokerConfig, clock: Clock, workers: ThreadPools
    ) -> None:
        self.image = Image()
        self.image_offset = 0
        self.is_active = False
        self._quorum = quorum
        self._clock = clock
        self._workers = workers
        self._snapshot_bytes = config.metadata_log_max_record_bytes_between_snapshots
        self._bytes_since_snapshot = 0
        # Changes of partition leaders since the node was ready, and those to replicas that may
        # lack committed records.
        self.leader_elections = 0
        self.unclean_elections = 0
        self._draft = self.image
        self._epoch = -1
        self._queue: deque[_SubmittedCommand] = deque()
        self._running: list[asyncio.Future[Any]] = []
        self._appended: deque[_AppendedCommands] = deque()
        self._followers: list[Callable[[Image, Image], Awaitable[None]]] = []
        self._activations: list[Callable[[bool], None]] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._ready = asyncio.Event()
        self._tasks = TaskScope("metadata")
        self._applier: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._snapshotter: asyncio.Task[None] | None = None
        self._closed = False
        quorum.watch(self._on_quorum_change)

    # -- the image and its changes

    @property
    def is_alone(self) -> bool:
        """Whether this node is active and no other ever can be: it is the only voter."""
        return self.is_active and len(self._quorum.voters) == 1

    @property
    def is_confirmed(self) -> bool:
        """Whether this node is active, and no other can be: a majority has answered lately."""
        return self.is_active and self._quorum.is_confirmed

    def follow(self, on_change: Callable[[Image, Image], Awaitable[None]]) -> None:
        """Await `on_change(old, new)` for every later image, before the change is answered."""
        self._followers.append(on_change)

    def on_activation(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(True)` when this node becomes the active controller, and False after it.

        `is_active` is changed before the call, so commands can be submitted.
        """
        self._activations.append(callback)

    async def ready(self) -> None:
        """Return when the image has all records committed at the first contact with a leader."""
        await self._ready.wait()

    async def image_at(self, end_offset: int, timeout_s: float) -> Image:
        """The image once it has all records below `end_offset`; REQUEST_TIMED_OUT if that is late.

        NOT_CONTROLLER if the store is closed first.
        """
        if self.image_offset < end_offset:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((end_offset, waiter))
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"the metadata is at offset {self.image_offset}, not yet at {end_offset}",
                ) from None
            finally:
                self._waiters = [entry for entry in self._waiters if entry[1] is not waiter]
        return self.image

    async def submit(self, command: Callable[[Image, int], CommandResult[Response]]) -> Response:
        """Run `command(image, next_offset)`; its response comes when its records are committed.

        NOT_CONTROLLER if this node is not the active controller, or ceases to be while the command
        waits, although its records may be committed after all.
        """
        if not self.is_active or self._closed:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if len(self._queue) >= _QUEUE_MAX:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many changes wait for the disk")
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._queue.append(_SubmittedCommand(command, answer))
        if self._writer is None:
            # A separate task: a cancelled caller must not stop a write half way.
            self._writer = self._tasks.start(self._run_commands(), "commands")
        return await answer

    async def close(self) -> None:
        """Wait a little for submitted commands to be committed, then stop following the log."""
        waiting = [answer for _, answer in self._queue]
        waiting += [
            answer
            for appended in self._appended
            for answer, _ in (*appended.writes, *appended.reads)
        ]
        waiting = [answer for answer in waiting if not answer.done()]
        if waiting and not self._closed:
            await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
        self._closed = True
        self._deactivate()
        await self._tasks.close()
        for _, waiter in self._waiters:
            _fail(waiter, KafkaError(ErrorCode.NOT_CONTROLLER, "the node is stopping"))

    # -- leadership

    def _on_quorum_change(self) -> None:
        """Follow a change of leadership or of the high watermark."""
        quorum = self._quorum
        if self._closed:
            return
        if self.is_active and not (quorum.is_leader and quorum.leader.epoch == self._epoch):
            self._deactivate()
        for appended in self._appended:
            if appended.end_offset > quorum.high_watermark:
                break
            _succeed_all(appended.reads)
        self._check_activation()
        if self._applier is None and self.image_offset < quorum.high_watermark:
            self._applier = self._tasks.start(self._apply_all(), "replay")

    def _check_activation(self) -> None:
        """Become active once everything that earlier leaders committed is in the image."""
        quorum = self._quorum
        caught_up = quorum.is_leader and self.image_offset > quorum.epoch_start_offset
        if not self.is_active and caught_up:
            self._epoch = quorum.leader.epoch
            self._draft = self.image
            self.is_active = True
            logger.info("active controller in epoch %d", self._epoch)
            self._notify_activation(True)
        seen = quorum.first_high_watermark
        if self.is_active or (seen is not None and self.image_offset >= seen):
            self._ready.set()

    def _deactivate(self) -> None:
        was_active, self.is_active = self.is_active, False
        error = KafkaError(ErrorCode.NOT_CONTROLLER)
        for appended in self._appended:
            _fail_all((*appended.writes, *appended.reads), error)
        for _, answer in self._queue:
            _fail(answer, error)
        self._appended.clear()
        self._queue.clear()
        if was_active:
            logger.info("no longer the active controller")
            self._notify_activation(False)

    def _notify_activation(self, active: bool) -> None:
        for callback in self._activations:
            callback(active)

    # -- writing

    async def _run_commands(self) -> None:
        try:
            while self._queue and self.is_active:
                self._write_batch()
                await self._quorum.wait_until_flushed()
        finally:
            self._writer = None
            # A bug in a command must not leave callers waiting for ever.
            for answer in self._running:
                _fail(answer, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
            self._running.clear()

    def _write_batch(self) -> None:
        """Run the waiting commands, and append their records as one batch."""
        start_offset = self._quorum.log.end_offset
        image, records = self._draft, list[Message]()
        writes: Answers = []
        reads: Answers = []
        earlier_reads: Answers = []
        while self._queue and len(records) < _BATCH_RECORDS:
            command, answer = self._queue.popleft()
            self._running.append(answer)
            try:
                result = command(image, start_offset + len(records))
                image = image.apply(result.records)
            except HeadraceError as error:
                _fail(answer, error)
                continue
            records += result.records
            kind = writes if result.records else reads if records else earlier_reads
            kind.append((answer, result.response))
        self._running.clear()
        self._answer_reads(earlier_reads)
        if not records:
            return
        now_ms = self._clock.now_ms()
        level = image.metadata_version
        batch = encode_batch(
            [(now_ms, None, encode_record(record, level), ()) for record in records]
        )
        self._draft = image
        end_offset = start_offset + len(records)
        # Before the append, which may commit and be applied at once.
        self._appended.append(
            _AppendedCommands(start_offset, end_offset, len(batch), image, writes, reads)
        )
        try:
            self._quorum.append(batch)
        except KafkaError as error:
            self._undo_append(error)

    def _answer_reads(self, reads: Answers) -> None:
        """Answer commands without records, once the changes that they saw are committed."""
        if self._appended and self._appended[-1].end_offset > self._quorum.high_watermark:
            self._appended[-1].reads.extend(reads)
        else:
            _succeed_all(reads)

    def _undo_append(self, error: KafkaError) -> None:
        logger.error("the metadata log cannot be written: %s", error)
        if self._appended:  # Otherwise leadership was lost, and the commands were answered.
            undone = self._appended.pop()
            _fail_all((*undone.writes, *undone.reads), error)
        self._draft = self._appended[-1].image if self._appended else self.image

    # -- replaying

    async def _apply_all(self) -> None:
        """Bring the image to the high watermark."""
        try:
            while self.image_offset < self._quorum.high_watermark and not self._closed:
                await self._apply_next()
                self._check_activation()
        except HeadraceError as error:
            logger.critical("the metadata log cannot be replayed: %s", error)
            self._quorum.fail(error)
        finally:
            self._applier = None

    async def _apply_next(self) -> None:
        high_watermark = self._quorum.high_watermark
        first = self._appended[0] if self._appended else None
        if first is not None and first.start_offset == self.image_offset:
            # The high watermark never lies inside a batch: it is committed as a whole.
            await self._apply_own(self._appended.popleft())
            return
        limit = high_watermark if first is None else min(high_watermark, first.start_offset)
        snapshot = self._quorum.log.snapshots.newest
        if snapshot is not None and (
            self.image_offset == 0 or self.image_offset < self._quorum.log.start_offset
        ):
            await self._load_snapshot()
            return
        data = await self._read(limit)
        if data is None:
            return
        records, end_offset = _decode(data)
        self._bytes_since_snapshot += len(data)
        await self._publish(self.image.apply(records) if records else self.image, end_offset)
        await asyncio.sleep(0)

    async def _apply_own(self, appended: _AppendedCommands) -> None:
        """Publish the image after commands of this node, and answer them."""
        self._bytes_since_snapshot += appended.size
        try:
            await self._publish(appended.image, appended.end_offset)
            _succeed_all(appended.writes)
        finally:
            # A bug in a follower must not leave callers waiting for ever.
            _fail_all(appended.writes, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    async def _publish(self, image: Image, end_offset: int) -> None:
        old, self.image = self.image, image
        if self._ready.is_set() and image.topics is not old.topics:
            self._count_elections(old, image)
        self.image_offset = end_offset
        if image is not old:
            for on_change in self._followers:
                await self._notify(on_change, old, image)
        for offset, waiter in self._waiters:
            if offset <= end_offset and not waiter.done():
                waiter.set_result(None)
        if self._bytes_since_snapshot >= self._snapshot_bytes and self._snapshotter is None:
            self._bytes_since_snapshot = 0
            self._snapshotter = self._tasks.start(self._take_snapshot(), "snapshot")

    def _count_elections(self, old: Image, new: Image) -> None:
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is None or before is topic or before.topic_id != topic.topic_id:
                continue
            for was, now in zip(before.partitions, topic.partitions, strict=False):
                if now is not was and now.leader not in (was.leader, NO_LEADER):
                    self.leader_elections += 1
                    self.unclean_elections += now.leader_recovery_state == RECOVERING

    @staticmethod
    async def _notify(
        on_change: Callable[[Image, Image], Awaitable[None]], old: Image, new: Image
    ) -> None:
        try:
            await on_change(old, new)
        except HeadraceError:
            # The failed part reports it to its callers; later changes are applied nevertheless.
            logger.exception("a change of the metadata could not be followed")

    async def _read(self, limit: int) -> Buffer | None:
        log, offset = self._quorum.log.log, self.image_offset
        try:
            found = log.read_cached(offset, _READ_BYTES, limit, at_least_one=True)
            if found is None:
                found = await self._workers.read(
                    log.read, offset, _READ_BYTES, limit, at_least_one=True
                )
        except KafkaError:
            if self._quorum.log.start_offset > offset:
                return None  # A snapshot replaced it meanwhile.
            raise
        return found.records

    # -- snapshots

    async def _load_snapshot(self) -> None:
        newest = self._quorum.log.snapshots.newest
        try:
            image, end_offset = await self._workers.read(self._quorum.read_snapshot, _image_of)
        except StorageError:
            if newest != self._quorum.log.snapshots.newest:
                return  # A newer snapshot replaced it during the read.
            raise
        logger.info("metadata from the snapshot at offset %d", end_offset)
        self._bytes_since_snapshot = 0
        await self._publish(image, end_offset)

    async def _take_snapshot(self) -> None:
        """Write a snapshot of the image, so that the log before it can be deleted."""
        image, end_offset = self.image, self.image_offset
        try:
            await self._quorum.write_snapshot(
                end_offset, image_records(image), image.metadata_version
            )
            logger.info("metadata snapshot at offset %d", end_offset)
        except HeadraceError as error:
            # The log still has all records, and the next snapshot may succeed.
            logger.error("no metadata snapshot could be written: %s", error)
        finally:
            self._snapshotter = None


def _fail(answer: asyncio.Future[Any], error: HeadraceError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _fail_all(answers: Iterable[tuple[asyncio.Future[Any], object]], error: HeadraceError) -> None:
    for answer, _ in answers:
        _fail(answer, error)


def _succeed_all(answers: Answers) -> None:
    for answer, response in answers:
        if not answer.done():
            answer.set_result(response)
    answers.clear()


def _image_of(records: Iterable[Message]) -> Image:
    return Image().apply(records)


def _decode(data: Buffer) -> tuple[list[Message], int]:
    """The metadata records in batches of the log, and the end offset of the batches."""
    headers = scan_headers(data)
    records = [
        decode_record(row.value)
        for header in headers
        if not header.is_control
        for row in decode_rows(data, header)
        if row.value is not None
    ]
    return records, headers[-1].next_offset
