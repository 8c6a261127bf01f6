# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records gathered into batches by any thread, and taken from there by the sender.

Rule: `send` and `append` never wait; they return None when a topic is not known yet or the buffer
is full, and the producer around them waits in its own way. The sender is woken when there is
something new for it to do: a batch is full, or the first one begins to linger.
"""

from __future__ import annotations

import threading
import time
from collections import deque

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.client.failures import RecordTooLarge
from headrace.client.producer.batches import Batch
from headrace.client.producer.headers import encode_headers
from headrace.client.serializers import encoder
from headrace.protocol.builder import BatchBuilder
from headrace.protocol.murmur2 import partition_for_key
from headrace.types import TopicPartition

if cython.compiled:
    from cython.cimports.headrace.client.producer.delivery import (
        Delivery,
        Future,
        attach,
        new_future,
    )
else:
    from headrace.client.producer.delivery import Delivery, Future, attach, new_future

COMPILED = cython.compiled

# What a record takes beyond its key, value and headers is less than this, and a header likewise.
_RECORD_OVERHEAD = cython.declare(cython.longlong, 36)
_HEADER_OVERHEAD = cython.declare(cython.longlong, 10)
_BATCH_OVERHEAD = cython.declare(cython.longlong, 61)

_NO_LINGER = float("inf")


@cython.final
@cython.cclass
class _Topic:
    """The partitions of a topic. `sticky` is where records without a key go for now, or -1."""

    name = cython.declare(str)
    slots = cython.declare(list)
    count = cython.declare(cython.longlong)
    sticky = cython.declare(cython.longlong)
    turn = cython.declare(cython.longlong)

    def __init__(self, name):
        self.name = name
        self.slots = []
        self.count = 0
        self.sticky = -1
        self.turn = -1


@cython.final
@cython.cclass
class Slot:
    """One partition: the batch that is being filled, and those that are full.

    `queue` and `node_id` are the sender's. `is_due` says that the batch being filled may leave.
    """

    tp = cython.declare(object, visibility="readonly")
    has_leader = cython.declare(cython.bint, visibility="public")
    queue = cython.declare(object, visibility="public")
    batch_bytes_max = cython.declare(cython.longlong, visibility="public")
    _topic = cython.declare(_Topic)
    _index = cython.declare(cython.longlong)
    _builder = cython.declare(object)
    _append = cython.declare(object)
    _delivery = cython.declare(Delivery)
    _count = cython.declare(cython.longlong)
    _reserved = cython.declare(cython.longlong)
    _opened_at = cython.declare(cython.double)
    _is_due = cython.declare(cython.bint)
    _is_listed = cython.declare(cython.bint)
    _sealed = cython.declare(object)

    def __init__(self, topic: _Topic, index: cython.longlong, batch_bytes_max: cython.longlong):
        self.tp = TopicPartition(topic.name, index)
        self.has_leader = True
        self.queue = None
        self.batch_bytes_max = batch_bytes_max
        self._topic = topic
        self._index = index
        self._builder = None
        self._append = None
        self._delivery = None
        self._count = 0
        self._reserved = 0
        self._opened_at = 0.0
        self._is_due = False
        self._is_listed = False
        self._sealed = deque()

    def __repr__(self) -> str:
        return f"<Slot {self.tp}, {len(self._sealed)} full batches>"


@cython.final
@cython.cclass
class Accumulator:
    """Open and full batches of every partition, within `buffer_memory` bytes. Thread-safe.

    Invariant: `_used` is the sum of what unsettled batches and granted waiters have reserved.
    """

    refusal = cython.declare(object, visibility="public")
    _topics = cython.declare(dict)
    _unsettled = cython.declare(dict)
    _acquire = cython.declare(object)
    _release = cython.declare(object)
    _wake = cython.declare(object)
    _now = cython.declare(object)
    _wall = cython.declare(object)
    _choice = cython.declare(object)
    _keys = cython.declare(object)
    _values = cython.declare(object)
    _partitioner = cython.declare(object)
    _hashes_keys = cython.declare(cython.bint)
    _takes_turns = cython.declare(cython.bint)
    _plain_keys = cython.declare(cython.bint)
    _plain_values = cython.declare(cython.bint)
    _limit = cython.declare(cython.longlong)
    _used = cython.declare(cython.longlong)
    _records = cython.declare(cython.longlong)
    _request_bytes_max = cython.declare(cython.longlong)
    _batch_bytes_max = cython.declare(cython.longlong)
    _linger_s = cython.declare(cython.double)
    _delivery_s = cython.declare(cython.double)
    _is_woken = cython.declare(cython.bint)
    _is_armed = cython.declare(cython.bint)
    _has_news = cython.declare(cython.bint)
    _lingering = cython.declare(object)
    _listed = cython.declare(list)
    _waiters = cython.declare(object)

    def __init__(
        self,
        options,
        wake,
        *,
        choice,
        partitioner="murmur2",
        monotonic=time.monotonic,
        wall=time.time,
    ):
        lock = threading.Lock()
        self.refusal = None
        self._topics = {}
        self._unsettled = {}
        self._acquire = lock.acquire
        self._release = lock.release
        self._wake = wake
        self._now = monotonic
        self._wall = wall
        self._choice = choice
        self._keys = encoder(options.key_serializer, "key")
        self._values = encoder(options.value_serializer, "value")
        self._partitioner = partitioner if callable(partitioner) else None
        self._hashes_keys = partitioner == "murmur2"
        self._takes_turns = partitioner == "round_robin"
        self._plain_keys = options.key_serializer is None
        self._plain_values = options.value_serializer is None
        self._limit = options.buffer_memory
        self._used = 0
        self._records = 0
        self._request_bytes_max = options.max_request_size
        self._batch_bytes_max = min(options.batch_size, options.max_request_size)
        self._linger_s = options.linger_ms / 1000
        self._delivery_s = options.delivery_timeout_ms / 1000
        self._is_woken = False
        self._is_armed = False
        self._has_news = False
        self._lingering = deque()
        self._listed = []
        self._waiters = deque()

    # -- for senders of records, on any thread

    def send(self, topic, value, key, headers, partition, timestamp_ms, on_delivery):
        """The future of a record, or the arguments for `append` once that can succeed."""
        if self.refusal is not None:
            raise self.refusal()
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
        if need + _BATCH_OVERHEAD > self._request_bytes_max or need > self._limit:
            self._refuse_size(topic, need)
        future = self._add(topic, key, value, headers, partition, timestamp_ms, on_delivery, need, False)
        if future is None:
            return topic, key, value, headers, partition, timestamp_ms, on_delivery, need
        return future

    def append(self, topic, key, value, headers, partition, timestamp_ms, on_delivery, need, granted):
        """`send` again, with room in the buffer already given if `granted`."""
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
        topic: _Topic = self._topics.get(name)
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
        self._acquire()
        try:
            if not granted and (self._used + need > self._limit or self._waiters):
                return None
            slot: Slot = self._put(topic, index, timestamp, key, value, headers)
            future = new_future(
                slot._delivery,
                slot._count,
                timestamp,
                -1 if key is None else len(cython.cast(bytes, key)),
                -1 if value is None else len(cython.cast(bytes, value)),
            )
            slot._count += 1
            slot._reserved += need
            self._records += 1
            if not granted:
                self._used += need
            if on_delivery is not None:
                attach(slot._delivery, future, on_delivery)
            wakes = self._should_wake()
        finally:
            self._release()
        if wakes:
            self._wake()
        return future

    @cython.cfunc
    def _put(self, topic: _Topic, index: cython.longlong, timestamp, key, value, headers) -> Slot:
        """Write a record into the batch of its partition; -1 is a partition of our choice."""
        is_free: cython.bint = index < 0
        if is_free:
            index = self._pick(topic)
        slot: Slot = topic.slots[index]
        if slot._append is not None:
            if slot._append(timestamp, key, value, headers):
                return slot
            self._seal(slot)
            if is_free and topic.sticky < 0 and not self._takes_turns:
                slot = topic.slots[self._pick(topic)]
                if slot._append is not None:
                    if slot._append(timestamp, key, value, headers):
                        return slot
                    self._seal(slot)
        self._open(slot, timestamp, key, value, headers)
        return slot

    @cython.cfunc
    @cython.exceptval(-1)
    def _pick(self, topic: _Topic) -> cython.longlong:
        """A partition for a record that may go to any: one with a leader, if there is one."""
        slot: Slot
        if self._takes_turns:
            for _ in range(topic.count):
                topic.turn = (topic.turn + 1) % topic.count
                slot = topic.slots[topic.turn]
                if slot.has_leader:
                    break
            return topic.turn
        if topic.sticky < 0:
            led: list = [
                index
                for index in range(topic.count)
                if topic.slots[index].has_leader and index != topic.turn
            ]
            # `turn` is where records went last: another one's turn, unless it is the only one.
            topic.turn = topic.sticky = self._choice(led) if led else max(topic.turn, 0)
        return topic.sticky

    @cython.cfunc
    def _open(self, slot: Slot, timestamp, key, value, headers):
        """Begin a batch with its first record."""
        builder = BatchBuilder(slot.batch_bytes_max)
        builder.append(timestamp, key, value, headers)
        slot._builder = builder
        slot._append = builder.append
        slot._delivery = Delivery(slot.tp)
        slot._count = 0
        slot._reserved = 0
        slot._opened_at = self._now()
        self._unsettled[slot._delivery] = slot._opened_at + self._delivery_s
        slot._is_due = self._linger_s == 0.0 or len(self._waiters) > 0
        if slot._is_due:
            self._list(slot)
            return
        self._lingering.append((slot, slot._delivery))
        if not self._is_armed:
            self._is_armed = True
            self._has_news = True

    @cython.cfunc
    def _seal(self, slot: Slot):
        """Close the batch that is being filled, and have the sender look at it."""
        slot._delivery.count = slot._count
        slot._sealed.append(
            Batch(
                slot.tp,
                slot._builder.finish,
                slot._delivery,
                slot._count,
                slot._builder.size_bytes,
                slot._reserved,
                slot._opened_at + self._delivery_s,
            )
        )
        slot._builder = None
        slot._append = None
        slot._delivery = None
        slot._is_due = False
        if slot._topic.sticky == slot._index:
            slot._topic.sticky = -1
        self._list(slot)

    @cython.cfunc
    def _list(self, slot: Slot):
        if not slot._is_listed:
            slot._is_listed = True
            self._listed.append(slot)
        self._has_news = True

    @cython.cfunc
    def _should_wake(self) -> cython.bint:
        """Whether the sender has to be told of news; once is enough until it looks."""
        if not self._has_news:
            return False
        self._has_news = False
        if self._is_woken:
            return False
        self._is_woken = True
        return True

    def add_columns(self, name, index, encode, count, raw_bytes) -> Delivery:
        """Put a batch that is already whole behind those of its partition; room was granted."""
        if self.refusal is not None:
            raise self.refusal()
        topic: _Topic = self._topics[name]
        slot: Slot = topic.slots[index]
        delivery = Delivery(slot.tp, count)
        self._acquire()
        try:
            if slot._append is not None:
                self._seal(slot)
            deadline = self._now() + self._delivery_s
            slot._sealed.append(
                Batch(slot.tp, encode, delivery, count, raw_bytes, raw_bytes, deadline)
            )
            self._unsettled[delivery] = deadline
            self._records += count
            self._list(slot)
            wakes: cython.bint = self._should_wake()
        finally:
            self._release()
        if wakes:
            self._wake()
        return delivery

    def enter(self, waiter) -> bool:
        """Whether there is room for a waiter now; if not, it waits in line and is told."""
        self._acquire()
        try:
            if not self._waiters and self._used + waiter.size_bytes <= self._limit:
                self._used += waiter.size_bytes
                waiter.is_granted = True
                return True
            self._waiters.append(waiter)
            # Room comes from batches that leave, so none may linger now.
            self._hurry()
            wakes: cython.bint = self._should_wake()
        finally:
            self._release()
        if wakes:
            self._wake()
        return False

    def leave(self, waiter) -> None:
        """A waiter gives up; what it was granted in the meantime goes to others."""
        granted: list = []
        self._acquire()
        try:
            if waiter.is_granted:
                waiter.is_granted = False
                self._used -= waiter.size_bytes
            else:
                self._waiters.remove(waiter)
            granted = self._grant()
        finally:
            self._release()
        for one in granted:
            one.wake()

    def hurry(self) -> list:
        """Let every batch leave now; return the deliveries that are not done."""
        self._acquire()
        try:
            self._hurry()
            unsettled: list = list(self._unsettled)
            wakes: cython.bint = self._should_wake()
        finally:
            self._release()
        if wakes:
            self._wake()
        return unsettled

    @property
    def records(self) -> int:
        """How many records have no outcome yet."""
        return self._records

    @property
    def used_bytes(self) -> int:
        """How much of the buffer is taken."""
        return self._used

    def partition_count(self, name) -> int:
        """How many partitions a topic has, 0 if it is not known."""
        topic: _Topic = self._topics.get(name)
        return 0 if topic is None else topic.count

    def sticky(self, name) -> int:
        """The partition that records without a key go to for now."""
        self._acquire()
        try:
            return self._pick(self._topics[name])
        finally:
            self._release()

    # -- for the sender, on the thread of its loop

    def set_topic(self, name, leaders) -> None:
        """A topic's partitions: for each whether it has a leader."""
        self._acquire()
        try:
            topic: _Topic = self._topics.get(name)
            if topic is None:
                topic = _Topic(name)
            while len(topic.slots) < len(leaders):
                topic.slots.append(Slot(topic, len(topic.slots), self._batch_bytes_max))
            slot: Slot
            for slot, has_leader in zip(topic.slots, leaders, strict=False):
                slot.has_leader = has_leader
            topic.count = len(leaders)
            if topic.sticky >= topic.count or (
                topic.sticky >= 0 and not leaders[topic.sticky] and any(leaders)
            ):
                topic.sticky = -1
            if topic.turn >= topic.count:
                topic.turn = -1
            # Only now: `_add` looks topics up without the lock.
            self._topics[name] = topic
        finally:
            self._release()

    def drain(self, now: cython.double) -> tuple:
        """The slots to look at since the last time, and when to come again for lingering ones."""
        slot: Slot
        self._acquire()
        try:
            self._is_woken = False
            self._has_news = False
            next_linger: cython.double = _NO_LINGER
            while self._lingering:
                slot, delivery = self._lingering[0]
                # A batch that was sealed since lingers no more.
                if slot._delivery is delivery:
                    if slot._opened_at + self._linger_s > now:
                        next_linger = slot._opened_at + self._linger_s
                        break
                    slot._is_due = True
                    self._list(slot)
                self._lingering.popleft()
            self._is_armed = next_linger != _NO_LINGER
            self._has_news = False
            listed, self._listed = self._listed, []
            for slot in listed:
                slot._is_listed = False
        finally:
            self._release()
        return listed, next_linger

    def take(self, slot: Slot):
        """The next batch of a partition that may leave, or None."""
        self._acquire()
        try:
            if not slot._sealed and slot._is_due:
                self._seal(slot)
            return slot._sealed.popleft() if slot._sealed else None
        finally:
            self._release()

    def next_expiry(self) -> float:
        """When the time of the oldest batch is over."""
        self._acquire()
        try:
            for deadline in self._unsettled.values():
                return deadline
            return _NO_LINGER
        finally:
            self._release()

    def drop(self, now=None) -> list:
        """Take out the batches whose time is over by `now`, or with None all that are here."""
        dropped: list = []
        slot: Slot
        topic: _Topic
        self._acquire()
        try:
            for topic in self._topics.values():
                for slot in topic.slots:
                    if slot._append is not None and (
                        now is None or slot._opened_at + self._delivery_s <= now
                    ):
                        self._seal(slot)
                    while slot._sealed and (now is None or slot._sealed[0].deadline <= now):
                        dropped.append(slot._sealed.popleft())
        finally:
            self._release()
        return dropped

    def forget(self, delivery: Delivery) -> None:
        """A delivery is done; nobody waits for it any more."""
        self._acquire()
        try:
            while delivery is not None and delivery.is_done:
                self._unsettled.pop(delivery, None)
                delivery = delivery.parent
        finally:
            self._release()

    def free(self, batch) -> None:
        """A batch is settled and its memory free for others."""
        granted: list = []
        self._acquire()
        try:
            self._used -= batch.reserved_bytes
            self._records -= batch.count
            granted = self._grant()
        finally:
            self._release()
        for waiter in granted:
            waiter.wake()

    @cython.cfunc
    def _grant(self) -> list:
        """Give room to those who wait for it, in their order."""
        granted: list = []
        while self._waiters and self._used + self._waiters[0].size_bytes <= self._limit:
            waiter = self._waiters.popleft()
            waiter.is_granted = True
            self._used += waiter.size_bytes
            granted.append(waiter)
        return granted

    @cython.cfunc
    def _hurry(self):
        slot: Slot
        for slot, delivery in self._lingering:
            if slot._delivery is delivery:
                slot._is_due = True
                self._list(slot)

    @cython.cfunc
    def _refuse_size(self, topic, need: cython.longlong):
        if need > self._limit:
            raise RecordTooLarge(
                f"a record for topic {topic} takes {need} bytes, and buffer_memory is"
                f" {self._limit}; raise buffer_memory, or send smaller records"
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
