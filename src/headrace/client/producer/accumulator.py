# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records from any thread into the batches of their partitions, within a memory limit.

Rule: nothing here waits. `send` returns no future when a topic is unknown or the buffer is full;
the producer around it waits, blocking or in asyncio, and then tries again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.client.errors import RecordTooLarge
from headrace.client.producer.batches import ProducerBatch
from headrace.client.producer.partitioners import checked
from headrace.client.serializers import encoder
from headrace.client.types import ProducerRecord
from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.builder import BatchBuilder
from headrace.protocol.murmur2 import partition_for_key
from headrace.types import TopicPartition

if cython.compiled:
    from cython.cimports.cpython.pythread import (
        PyThread_acquire_lock,
        PyThread_allocate_lock,
        PyThread_free_lock,
        PyThread_release_lock,
    )
    from cython.cimports.headrace.client.producer.delivery import (
        BatchDelivery,
        Future,
        attach,
        new_future,
    )
else:
    from headrace.client.producer.delivery import BatchDelivery, Future, attach, new_future

# The lengths of a header's name and value take less than this.
HEADER_OVERHEAD_BYTES = 10


def encode_headers(topic: str, headers: Any) -> tuple[list[tuple[str, bytes | None]], int]:
    """The headers with their values as bytes, and an upper bound of their encoded size.

    >>> encode_headers("orders", {"trace": "7"})
    ([('trace', b'7')], 16)
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    encoded: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    try:
        for name, value in pairs:
            data = _value(topic, name, value)
            encoded.append((name, data))
            size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(data or b"")
    except (TypeError, ValueError) as error:
        if isinstance(error, _BadHeader):
            raise
        raise TypeError(
            f"topic {topic}: headers must be (name, value) pairs or a mapping, not {headers!r}"
        ) from None
    return encoded, size_bytes


class _BadHeader(TypeError):
    """A header pair whose name or value has the wrong type."""


def _value(topic: str, name: Any, value: Any) -> bytes | None:
    if not isinstance(name, str):
        raise _BadHeader(f"topic {topic}: a header's name must be str, not {type(name).__name__}")
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _BadHeader(
        f"topic {topic}: header {name!r} must be bytes, str or None, not {type(value).__name__}"
    )


# Open and full batches of every partition, within a memory limit.
#
# Rule: they are changed with the lock held, except in `set_topic`'s last step: topics are looked up
# without it. Nothing waits here: a waiter is queued and woken when its room is granted. The
# attributes are typed in `accumulator.pxd`, which lets the accumulator reach them without a Python
# call.


COMPILED = cython.compiled

_NEVER = float("inf")
_AT_ONCE = cython.declare(cython.int, 0)
_WAITING = cython.declare(cython.int, 1)


@cython.final
@cython.cclass
class TopicBuffers:
    """The partitions of a topic. `sticky` is the current partition of keyless records, or -1."""

    def __init__(self, name):
        self.name = name
        self.buffers = []
        self.count = 0
        self.sticky = -1
        self.turn = -1


@cython.final
@cython.cclass
class PartitionBuffer:
    """One partition: its open batch, and its full ones.

    `queue` and `node_id` are the sender's. `is_due` says that the open batch may be sent.
    """

    def __init__(
        self, topic: TopicBuffers, index: cython.longlong, batch_bytes_max: cython.longlong
    ):
        self.tp = TopicPartition(topic.name, index)
        self.has_leader = True
        self.queue = None
        self.batch_bytes_max = batch_bytes_max
        self.topic = topic
        self.index = index
        self.builder = None
        self.append = None
        self.delivery = None
        self.count = 0
        self.reserved = 0
        self.opened_at = 0.0
        self.is_due = False
        self.is_listed = False
        self.sealed = deque()

    def __repr__(self) -> str:
        return f"<PartitionBuffer {self.tp}, {len(self.sealed)} full batches>"


@cython.cclass
class Buffers:
    """Open and full batches of every partition, within `buffer_memory` bytes. Thread-safe.

    Invariant: `used_bytes` is the sum of the reservations of unsettled batches and granted waiters.
    The sender is woken when it has work: a batch is full, or a first batch begins to linger.
    """

    def __init__(self, options, wake, *, choice, monotonic):
        if not cython.compiled:
            self._lock = threading.Lock()
        self.refusal = None
        self.home = None
        self.topics = {}
        self._unsettled = {}
        self._wake = wake
        self._now = monotonic
        self._choice = choice
        self.takes_turns = options.partitioner == "round_robin"
        self.limit = options.buffer_memory
        self.used_bytes = 0
        self.records = 0
        self._batch_bytes_max = min(options.batch_size, options.max_request_size)
        self._linger_s = options.linger_ms / 1000
        self._delivery_s = options.delivery_timeout_ms / 1000
        self._is_woken = False
        self._is_armed = False
        self._has_news = False
        self._lingering = deque()
        self._listed = []
        self.waiters = deque()

    def __cinit__(self, *arguments, **options):
        if cython.compiled:
            self._lock = PyThread_allocate_lock()
            if self._lock == cython.NULL:
                raise MemoryError

    def __dealloc__(self):
        if cython.compiled:
            PyThread_free_lock(self._lock)

    # -- for adding records, with the lock held

    @cython.cfunc
    @cython.exceptval(check=False)
    def acquire(self) -> cython.void:
        """Take the lock. A C lock, because `threading.Lock` parses arguments that are never given:
        that took a fifth of the time of `send`.
        """
        if not cython.compiled:
            self._lock.acquire()
        elif not PyThread_acquire_lock(self._lock, _AT_ONCE):
            # Its holder may wait for the interpreter.
            with cython.nogil:
                PyThread_acquire_lock(self._lock, _WAITING)

    @cython.cfunc
    @cython.exceptval(check=False)
    def release(self) -> cython.void:
        """Release the lock."""
        if cython.compiled:
            PyThread_release_lock(self._lock)
        else:
            self._lock.release()

    @cython.cfunc
    @cython.exceptval(-1)
    def pick(self, topic: TopicBuffers) -> cython.longlong:
        """A partition for a record that may go to any: one with a leader, if possible."""
        buffer: PartitionBuffer
        if self.takes_turns:
            for _ in range(topic.count):
                topic.turn = (topic.turn + 1) % topic.count
                buffer = topic.buffers[topic.turn]
                if buffer.has_leader:
                    break
            return topic.turn
        if topic.sticky < 0:
            led: list = [
                index
                for index in range(topic.count)
                if topic.buffers[index].has_leader and index != topic.turn
            ]
            # `turn` is the last partition used: choose another one, unless it is the only one.
            topic.turn = topic.sticky = self._choice(led) if led else max(topic.turn, 0)
        return topic.sticky

    @cython.cfunc
    def open(self, buffer: PartitionBuffer, timestamp, key, value, headers):
        """Begin a batch with its first record."""
        builder = BatchBuilder(buffer.batch_bytes_max)
        builder.append(timestamp, key, value, headers)
        buffer.builder = builder
        buffer.append = builder.append
        buffer.delivery = BatchDelivery(buffer.tp, 0, self.home)
        buffer.count = 0
        buffer.reserved = 0
        buffer.opened_at = self._now()
        self._unsettled[buffer.delivery] = buffer.opened_at + self._delivery_s
        buffer.is_due = self._linger_s == 0.0 or len(self.waiters) > 0
        if buffer.is_due:
            self._list(buffer)
            return
        self._lingering.append((buffer, buffer.delivery))
        if not self._is_armed:
            self._is_armed = True
            self._has_news = True

    @cython.cfunc
    def close_batch(self, buffer: PartitionBuffer):
        """Close the open batch, and list it for the sender."""
        self._close(buffer)
        self._list(buffer)

    @cython.cfunc
    def _close(self, buffer: PartitionBuffer):
        buffer.delivery.count = buffer.count
        buffer.sealed.append(
            ProducerBatch(
                buffer.tp,
                partial(buffer.builder.finish, last=True),
                buffer.delivery,
                buffer.count,
                buffer.builder.size_bytes,
                buffer.reserved,
                buffer.opened_at + self._delivery_s,
            )
        )
        buffer.builder = None
        buffer.append = None
        buffer.delivery = None
        buffer.is_due = False
        if buffer.topic.sticky == buffer.index:
            buffer.topic.sticky = -1

    @cython.cfunc
    @cython.exceptval(-1)
    def should_wake(self) -> cython.bint:
        """Whether the sender has to be woken for news; once is enough until it drains."""
        if not self._has_news:
            return False
        self._has_news = False
        if self._is_woken:
            return False
        self._is_woken = True
        return True

    @cython.cfunc
    def rouse(self):
        """Wake the sender; if Ctrl-C interrupts this, the next caller wakes it."""
        is_done: cython.bint = False
        try:
            self._wake()
            is_done = True
        finally:
            if not is_done:
                self._is_woken = False
                self._has_news = True

    # -- for producers, on any thread

    def add_columns(self, name, index, encode, count, raw_bytes) -> BatchDelivery:
        """Add a whole batch behind those of its partition; its room was granted before."""
        topic: TopicBuffers = self.topics[name]
        buffer: PartitionBuffer = topic.buffers[index]
        delivery = BatchDelivery(buffer.tp, count, self.home)
        self.acquire()
        try:
            if self.refusal is not None:
                raise self.refusal()
            if buffer.append is not None:
                self.close_batch(buffer)
            deadline = self._now() + self._delivery_s
            buffer.sealed.append(
                ProducerBatch(buffer.tp, encode, delivery, count, raw_bytes, raw_bytes, deadline)
            )
            self._unsettled[delivery] = deadline
            self.records += count
            if topic.sticky == buffer.index:
                topic.sticky = -1
            self._list(buffer)
            wakes: cython.bint = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return delivery

    def enter(self, waiter) -> bool:
        """Whether there is room for a waiter now; if not, it queues and is woken later."""
        self.acquire()
        try:
            # Closed since the caller looked: the waiter would never be woken.
            if self.refusal is not None:
                raise self.refusal()
            if not self.waiters and self.used_bytes + waiter.size_bytes <= self.limit:
                self.used_bytes += waiter.size_bytes
                waiter.is_granted = True
                return True
            self.waiters.append(waiter)
            # Room is freed by batches that are sent, so none may linger now.
            self._hurry()
            wakes: cython.bint = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return False

    def leave(self, waiter) -> None:
        """Remove a waiter; room granted to it in the meantime goes to other waiters."""
        granted: list = []
        self.acquire()
        try:
            if waiter.is_granted:
                waiter.is_granted = False
                self.used_bytes -= waiter.size_bytes
            else:
                self.waiters.remove(waiter)
            granted = self._grant()
        finally:
            self.release()
        for waiting in granted:
            waiting.wake()

    def refuse(self, failure, *known) -> bool:
        """Refuse further records: `failure()` is the exception for callers that send or wait.

        None accepts records again. If the expected reason `known` is given, but the present reason
        is another one, that stays and False is returned: a producer that is closed stays closed.
        """
        self.acquire()
        try:
            if known and self.refusal is not known[0]:
                return False
            self.refusal = failure
            waiting: list = [] if failure is None else list(self.waiters)
        finally:
            self.release()
        for waiter in waiting:
            waiter.wake()
        return True

    def close_open_batches(self) -> list:
        """Make every batch due now; return the unfinished deliveries."""
        self.acquire()
        try:
            self._hurry()
            unsettled: list = list(self._unsettled)
            wakes: cython.bint = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return unsettled

    def partition_count(self, name) -> int:
        """The partition count of a topic, 0 if unknown."""
        topic: TopicBuffers = self.topics.get(name)
        return 0 if topic is None else topic.count

    def sticky(self, name) -> int:
        """The current partition of records without a key."""
        self.acquire()
        try:
            return self.pick(self.topics[name])
        finally:
            self.release()

    # -- for the sender, on the thread of its loop

    def set_topic(self, name, leaders) -> None:
        """Set the partitions of a topic: for each, whether it has a leader."""
        self.acquire()
        try:
            topic: TopicBuffers = self.topics.get(name)
            if topic is None:
                topic = TopicBuffers(name)
            while len(topic.buffers) < len(leaders):
                topic.buffers.append(
                    PartitionBuffer(topic, len(topic.buffers), self._batch_bytes_max)
                )
            buffer: PartitionBuffer
            for buffer, has_leader in zip(topic.buffers, leaders, strict=False):
                buffer.has_leader = has_leader
            topic.count = len(leaders)
            if topic.sticky >= topic.count or (
                topic.sticky >= 0 and not leaders[topic.sticky] and any(leaders)
            ):
                topic.sticky = -1
            if topic.turn >= topic.count:
                topic.turn = -1
            # Last: `_add` looks topics up without the lock.
            self.topics[name] = topic
        finally:
            self.release()

    def drain(self, now: cython.double) -> tuple:
        """The partitions listed since the last call, and when the next lingering batch is due."""
        buffer: PartitionBuffer
        self.acquire()
        try:
            self._is_woken = False
            self._has_news = False
            next_linger: cython.double = _NEVER
            while self._lingering:
                buffer, delivery = self._lingering[0]
                # A batch that was sealed since lingers no more.
                if buffer.delivery is delivery:
                    if buffer.opened_at + self._linger_s > now:
                        next_linger = buffer.opened_at + self._linger_s
                        break
                    buffer.is_due = True
                    self._list(buffer)
                self._lingering.popleft()
            self._is_armed = next_linger != _NEVER
            self._has_news = False
            listed, self._listed = self._listed, []
            for buffer in listed:
                buffer.is_listed = False
        finally:
            self.release()
        return listed, next_linger

    def take(self, buffer: PartitionBuffer):
        """The next sendable batch of a partition, or None."""
        self.acquire()
        try:
            if not buffer.sealed and buffer.is_due:
                self._close(buffer)
            return buffer.sealed.popleft() if buffer.sealed else None
        finally:
            self.release()

    def next_expiry(self) -> float:
        """The time at which the oldest batch expires."""
        self.acquire()
        try:
            for deadline in self._unsettled.values():
                return deadline
            return _NEVER
        finally:
            self.release()

    def drop(self, now=None) -> list:
        """Remove the batches that have expired by `now`, or with None all batches."""
        dropped: list = []
        buffer: PartitionBuffer
        topic: TopicBuffers
        self.acquire()
        try:
            for topic in self.topics.values():
                for buffer in topic.buffers:
                    if buffer.append is not None and (
                        now is None or buffer.opened_at + self._delivery_s <= now
                    ):
                        self.close_batch(buffer)
                    while buffer.sealed and (now is None or buffer.sealed[0].deadline <= now):
                        dropped.append(buffer.sealed.popleft())
        finally:
            self.release()
        return dropped

    def forget(self, delivery: BatchDelivery) -> None:
        """Drop finished deliveries, from a part to the whole."""
        self.acquire()
        try:
            while delivery is not None and delivery.is_done:
                self._unsettled.pop(delivery, None)
                delivery = delivery.parent
        finally:
            self.release()

    def free(self, batch) -> None:
        """Free the memory of a settled batch for waiters."""
        granted: list = []
        self.acquire()
        try:
            self.used_bytes -= batch.reserved_bytes
            self.records -= batch.count
            granted = self._grant()
        finally:
            self.release()
        for waiter in granted:
            waiter.wake()

    @cython.cfunc
    def _grant(self) -> list:
        """Grant room to waiters, in their order."""
        granted: list = []
        while self.waiters and self.used_bytes + self.waiters[0].size_bytes <= self.limit:
            waiter = self.waiters.popleft()
            waiter.is_granted = True
            self.used_bytes += waiter.size_bytes
            granted.append(waiter)
        return granted

    @cython.cfunc
    def _hurry(self):
        buffer: PartitionBuffer
        for buffer, delivery in self._lingering:
            if buffer.delivery is delivery:
                buffer.is_due = True
                self._list(buffer)

    @cython.cfunc
    def _list(self, buffer: PartitionBuffer):
        if not buffer.is_listed:
            buffer.is_listed = True
            self._listed.append(buffer)
        self._has_news = True


# Upper bound of a record's size beyond key, value and headers, and the exact size of a batch beyond
# its records.
_RECORD_OVERHEAD = cython.declare(cython.longlong, 36)
_BATCH_OVERHEAD = cython.declare(cython.longlong, HEADER_SIZE)


@cython.final
@cython.cclass
class Accumulator(Buffers):
    """The buffers of a producer, and the `send` path into them. Thread-safe."""

    _wall = cython.declare(object)
    _keys = cython.declare(object)
    _values = cython.declare(object)
    _partitioner = cython.declare(object)
    _hashes_keys = cython.declare(cython.bint)
    _plain_keys = cython.declare(cython.bint)
    _plain_values = cython.declare(cython.bint)
    _request_bytes_max = cython.declare(cython.longlong)

    def __init__(self, options, wake, *, choice, monotonic, wall):
        Buffers.__init__(self, options, wake, choice=choice, monotonic=monotonic)
        partitioner = checked(options.partitioner)
        self._wall = wall
        self._keys = encoder(options.key_serializer, "key")
        self._values = encoder(options.value_serializer, "value")
        self._partitioner = partitioner if callable(partitioner) else None
        self._hashes_keys = partitioner == "murmur2"
        self._plain_keys = options.key_serializer is None
        self._plain_values = options.value_serializer is None
        self._request_bytes_max = options.max_request_size

    def send(self, topic, value, key, headers, partition, timestamp_ms, on_delivery):
        """The future of a record, or the arguments for a later `append` if the caller has to wait.

        `topic` may be a `ProducerRecord`, which has the rest but `on_delivery`.
        """
        if self.refusal is not None:
            raise self.refusal()
        if type(topic) is not str and isinstance(topic, ProducerRecord):
            _check_alone(value, key, headers, partition, timestamp_ms)
            value, key, headers = topic.value, topic.key, topic.headers
            partition, timestamp_ms, topic = topic.partition, topic.timestamp_ms, topic.topic
        if not (self._plain_values and (type(value) is bytes or value is None)):
            value = self._values(topic, value)
        if not (self._plain_keys and (type(key) is bytes or key is None)):
            key = self._keys(topic, key)
        need: cython.longlong = _RECORD_OVERHEAD
        if value is not None:
            need += len(cython.cast(bytes, value))
        if key is not None:
            need += len(cython.cast(bytes, key))
        if headers:
            headers, extra = encode_headers(topic, headers)
            need += extra
        else:
            headers = None
        if timestamp_ms is None:
            seconds: cython.double = self._wall()
            timestamp_ms = cython.cast(cython.longlong, seconds * 1000.0)
            if not cython.compiled:
                timestamp_ms = int(timestamp_ms)
        else:
            _check_timestamp(timestamp_ms)
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        if need + _BATCH_OVERHEAD > self._request_bytes_max or need > self.limit:
            self._refuse_size(topic, need)
        future = self._add(
            topic, key, value, headers, partition, timestamp_ms, on_delivery, need, False
        )
        if future is None:
            return topic, key, value, headers, partition, timestamp_ms, on_delivery, need
        return future

    def append(
        self, topic, key, value, headers, partition, timestamp_ms, on_delivery, need, granted
    ):
        """Repeat `send` after waiting; `granted` if room in the buffer is reserved already."""
        if self.refusal is not None:
            raise self.refusal()
        return self._add(
            topic, key, value, headers, partition, timestamp_ms, on_delivery, need, granted
        )

    @cython.cfunc
    def _add(
        self,
        name,
        key,
        value,
        headers,
        partition,
        timestamp,
        on_delivery,
        need: cython.longlong,
        granted: cython.bint,
    ):
        topic: TopicBuffers = self.topics.get(name)
        if topic is None:
            return None
        index: cython.longlong = -1
        if partition is not None:
            index = _partition_number(partition)
            if index >= topic.count:
                return None
        elif self._hashes_keys:
            if key is not None:
                index = partition_for_key(key, topic.count)
        elif self._partitioner is not None:
            index = self._partitioner(name, key, topic.count)
        wakes: cython.bint = False
        future: Future = None
        self.acquire()
        try:
            # Checked again, because a record that is accepted after a refusal would be lost.
            if self.refusal is not None:
                raise self.refusal()
            if not granted and (self.used_bytes + need > self.limit or self.waiters):
                return None
            buffer: PartitionBuffer = self._write(topic, index, timestamp, key, value, headers)
            future = new_future(
                buffer.delivery,
                buffer.count,
                timestamp,
                -1 if key is None else len(cython.cast(bytes, key)),
                -1 if value is None else len(cython.cast(bytes, value)),
            )
            buffer.count += 1
            buffer.reserved += need
            self.records += 1
            if not granted:
                self.used_bytes += need
            if on_delivery is not None:
                attach(buffer.delivery, future, on_delivery)
            wakes = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return future

    @cython.cfunc
    def _write(
        self, topic: TopicBuffers, index: cython.longlong, timestamp, key, value, headers
    ) -> PartitionBuffer:
        """Write a record into the batch of its partition; -1 lets the accumulator choose one."""
        is_free: cython.bint = index < 0
        if is_free:
            index = self.pick(topic)
        buffer: PartitionBuffer = topic.buffers[index]
        if buffer.append is not None:
            if buffer.append(timestamp, key, value, headers):
                return buffer
            self.close_batch(buffer)
            if is_free and topic.sticky < 0 and not self.takes_turns:
                buffer = topic.buffers[self.pick(topic)]
                if buffer.append is not None:
                    if buffer.append(timestamp, key, value, headers):
                        return buffer
                    self.close_batch(buffer)
        self.open(buffer, timestamp, key, value, headers)
        return buffer

    @cython.cfunc
    def _refuse_size(self, topic, need: cython.longlong):
        if need > self.limit:
            raise RecordTooLarge(
                f"a record for topic {topic} takes {need} bytes, and buffer_memory is"
                f" {self.limit}; raise buffer_memory, or send smaller records"
            )
        raise RecordTooLarge(
            f"a record for topic {topic} takes {need + _BATCH_OVERHEAD} bytes in a request, and"
            f" max_request_size is {self._request_bytes_max}; raise max_request_size, and the"
            " topic's max.message.bytes if that is lower, or send smaller records"
        )


@cython.cfunc
@cython.exceptval(-1)
def _partition_number(partition) -> cython.longlong:
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"partition must be int or None, not {type(partition).__name__}")
    if partition < 0:
        raise ValueError(f"partition must be 0 or more, not {partition}")
    return partition


@cython.cfunc
def _check_timestamp(timestamp_ms):
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(
            f"timestamp_ms must be int (milliseconds since 1970), not {type(timestamp_ms).__name__}"
        )
    if timestamp_ms < 0:
        raise ValueError(f"timestamp_ms must be 0 or more, not {timestamp_ms}")


@cython.cclass
class RecordSender:
    """The compiled `send` of the blocking producer."""

    _accumulator = cython.declare(Accumulator, visibility="readonly")

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator

    def send(
        self,
        topic,
        value=None,
        key=None,
        headers=None,
        partition=None,
        timestamp_ms=None,
        on_delivery=None,
    ):
        """Add a record to the batch of its partition, and return its `Future`.

        `topic` may be a `ProducerRecord` instead, which has the rest. Keys and values are bytes,
        text, None, or arguments of the serializers; headers are pairs or a mapping, with values of
        bytes, text or None. `on_delivery(error, metadata)` is called when the outcome is known, on
        the producer's own thread; one of the two is None.

        It waits only for the first metadata of a topic (`UnknownTopic`, `TimedOut`, `Unreachable`)
        and for room in the buffer (`BufferExhausted`), at most `max_block_ms`. An invalid record
        raises at once: `RecordTooLarge`, `SerializationFailed`, `TypeError`.

        >>> producer.send(topic, "hello", key="greeting", headers={"lang": "en"}).result().offset
        0
        >>> producer.send(topic, {"not": "text"})
        Traceback (most recent call last):
        TypeError: topic ...: a value must be bytes, str or None, not dict; give ...
        """
        future = self._accumulator.send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if type(future) is tuple:
            return self._send_later(future)
        return future

    def _send_later(self, pending):
        raise NotImplementedError


@cython.cfunc
def _check_alone(value, key, headers, partition, timestamp_ms):
    given = {
        "value": value,
        "key": key,
        "headers": headers,
        "partition": partition,
        "timestamp_ms": timestamp_ms,
    }
    for name, argument in given.items():
        if argument is not None:
            raise TypeError(f"send(ProducerRecord(...)) takes no {name}; the record has its own")
