# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Batches of every partition that are being filled or are full, within a bound of memory.

Rule: whoever changes them holds the lock, except `set_topic`'s last step: topics are looked up
without it. Nothing waits here: a waiter stands in line and is told when it has its room. The
attributes are typed in `buffers.pxd`, which lets the accumulator reach them without a Python call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.client.producer.batches import Batch
from headrace.protocol.builder import BatchBuilder
from headrace.types import TopicPartition

if cython.compiled:
    from cython.cimports.cpython.pythread import (
        PyThread_acquire_lock,
        PyThread_allocate_lock,
        PyThread_free_lock,
        PyThread_release_lock,
    )
    from cython.cimports.headrace.client.producer.delivery import Delivery
else:
    from headrace.client.producer.delivery import Delivery

COMPILED = cython.compiled

_NEVER = float("inf")
_AT_ONCE = cython.declare(cython.int, 0)
_WAITING = cython.declare(cython.int, 1)


@cython.final
@cython.cclass
class Topic:
    """The partitions of a topic. `sticky` is where records without a key go for now, or -1."""

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

    def __init__(self, topic: Topic, index: cython.longlong, batch_bytes_max: cython.longlong):
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
        return f"<Slot {self.tp}, {len(self.sealed)} full batches>"


@cython.cclass
class Buffers:
    """Open and full batches of every partition, within `buffer_memory` bytes. Thread-safe.

    Invariant: `used_bytes` is the sum of what unsettled batches and granted waiters have reserved.
    The sender is woken when there is something new for it to do: a batch is full, or the first one
    begins to linger.
    """

    def __init__(self, options, wake, *, choice, monotonic=time.monotonic):
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

    # -- for whoever adds records, holding the lock

    @cython.cfunc
    @cython.exceptval(check=False)
    def acquire(self) -> cython.void:
        """Take the lock. A lock of C, because `threading.Lock` parses arguments that nobody gives:
        that took a fifth of the time of `send`."""
        if not cython.compiled:
            self._lock.acquire()
        elif not PyThread_acquire_lock(self._lock, _AT_ONCE):
            # Whoever has it may wait for the interpreter.
            with cython.nogil:
                PyThread_acquire_lock(self._lock, _WAITING)

    @cython.cfunc
    @cython.exceptval(check=False)
    def release(self) -> cython.void:
        """Give the lock back."""
        if cython.compiled:
            PyThread_release_lock(self._lock)
        else:
            self._lock.release()

    @cython.cfunc
    @cython.exceptval(-1)
    def pick(self, topic: Topic) -> cython.longlong:
        """A partition for a record that may go to any: one with a leader, if there is one."""
        slot: Slot
        if self.takes_turns:
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
    def open(self, slot: Slot, timestamp, key, value, headers):
        """Begin a batch with its first record."""
        builder = BatchBuilder(slot.batch_bytes_max)
        builder.append(timestamp, key, value, headers)
        slot.builder = builder
        slot.append = builder.append
        slot.delivery = Delivery(slot.tp, 0, self.home)
        slot.count = 0
        slot.reserved = 0
        slot.opened_at = self._now()
        self._unsettled[slot.delivery] = slot.opened_at + self._delivery_s
        slot.is_due = self._linger_s == 0.0 or len(self.waiters) > 0
        if slot.is_due:
            self._list(slot)
            return
        self._lingering.append((slot, slot.delivery))
        if not self._is_armed:
            self._is_armed = True
            self._has_news = True

    @cython.cfunc
    def seal(self, slot: Slot):
        """Close the batch that is being filled, and have the sender look at it."""
        self._close(slot)
        self._list(slot)

    @cython.cfunc
    def _close(self, slot: Slot):
        slot.delivery.count = slot.count
        slot.sealed.append(
            Batch(
                slot.tp,
                partial(slot.builder.finish, last=True),
                slot.delivery,
                slot.count,
                slot.builder.size_bytes,
                slot.reserved,
                slot.opened_at + self._delivery_s,
            )
        )
        slot.builder = None
        slot.append = None
        slot.delivery = None
        slot.is_due = False
        if slot.topic.sticky == slot.index:
            slot.topic.sticky = -1

    @cython.cfunc
    @cython.exceptval(-1)
    def should_wake(self) -> cython.bint:
        """Whether the sender has to be told of news; once is enough until it looks."""
        if not self._has_news:
            return False
        self._has_news = False
        if self._is_woken:
            return False
        self._is_woken = True
        return True

    @cython.cfunc
    def rouse(self):
        """Wake the sender; if Ctrl-C comes in between, whoever is next does."""
        is_done: cython.bint = False
        try:
            self._wake()
            is_done = True
        finally:
            if not is_done:
                self._is_woken = False
                self._has_news = True

    # -- for producers, on any thread

    def add_columns(self, name, index, encode, count, raw_bytes) -> Delivery:
        """Put a batch that is already whole behind those of its partition; room was granted."""
        topic: Topic = self.topics[name]
        slot: Slot = topic.slots[index]
        delivery = Delivery(slot.tp, count, self.home)
        self.acquire()
        try:
            if self.refusal is not None:
                raise self.refusal()
            if slot.append is not None:
                self.seal(slot)
            deadline = self._now() + self._delivery_s
            slot.sealed.append(
                Batch(slot.tp, encode, delivery, count, raw_bytes, raw_bytes, deadline)
            )
            self._unsettled[delivery] = deadline
            self.records += count
            if topic.sticky == slot.index:
                topic.sticky = -1
            self._list(slot)
            wakes: cython.bint = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return delivery

    def enter(self, waiter) -> bool:
        """Whether there is room for a waiter now; if not, it waits in line and is told."""
        self.acquire()
        try:
            # Closed since the caller looked: nobody would come to tell this one.
            if self.refusal is not None:
                raise self.refusal()
            if not self.waiters and self.used_bytes + waiter.size_bytes <= self.limit:
                self.used_bytes += waiter.size_bytes
                waiter.is_granted = True
                return True
            self.waiters.append(waiter)
            # Room comes from batches that leave, so none may linger now.
            self._hurry()
            wakes: cython.bint = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return False

    def leave(self, waiter) -> None:
        """A waiter gives up; what it was granted in the meantime goes to others."""
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
        for one in granted:
            one.wake()

    def refuse(self, failure, *known) -> bool:
        """Take no more records: `failure()` is the exception for those who try or wait.

        None takes records again. If the reason `known` so far is given and there is another one by
        now, that stays and False is returned: a producer that is closed stays closed.
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

    def hurry(self) -> list:
        """Let every batch leave now; return the deliveries that are not done."""
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
        """How many partitions a topic has, 0 if it is not known."""
        topic: Topic = self.topics.get(name)
        return 0 if topic is None else topic.count

    def sticky(self, name) -> int:
        """The partition that records without a key go to for now."""
        self.acquire()
        try:
            return self.pick(self.topics[name])
        finally:
            self.release()

    # -- for the sender, on the thread of its loop

    def set_topic(self, name, leaders) -> None:
        """A topic's partitions: for each whether it has a leader."""
        self.acquire()
        try:
            topic: Topic = self.topics.get(name)
            if topic is None:
                topic = Topic(name)
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
            self.topics[name] = topic
        finally:
            self.release()

    def drain(self, now: cython.double) -> tuple:
        """The slots to look at since the last time, and when to come again for lingering ones."""
        slot: Slot
        self.acquire()
        try:
            self._is_woken = False
            self._has_news = False
            next_linger: cython.double = _NEVER
            while self._lingering:
                slot, delivery = self._lingering[0]
                # A batch that was sealed since lingers no more.
                if slot.delivery is delivery:
                    if slot.opened_at + self._linger_s > now:
                        next_linger = slot.opened_at + self._linger_s
                        break
                    slot.is_due = True
                    self._list(slot)
                self._lingering.popleft()
            self._is_armed = next_linger != _NEVER
            self._has_news = False
            listed, self._listed = self._listed, []
            for slot in listed:
                slot.is_listed = False
        finally:
            self.release()
        return listed, next_linger

    def take(self, slot: Slot):
        """The next batch of a partition that may leave, or None."""
        self.acquire()
        try:
            if not slot.sealed and slot.is_due:
                self._close(slot)
            return slot.sealed.popleft() if slot.sealed else None
        finally:
            self.release()

    def next_expiry(self) -> float:
        """When the time of the oldest batch is over."""
        self.acquire()
        try:
            for deadline in self._unsettled.values():
                return deadline
            return _NEVER
        finally:
            self.release()

    def drop(self, now=None) -> list:
        """Take out the batches whose time is over by `now`, or with None all that are here."""
        dropped: list = []
        slot: Slot
        topic: Topic
        self.acquire()
        try:
            for topic in self.topics.values():
                for slot in topic.slots:
                    if slot.append is not None and (
                        now is None or slot.opened_at + self._delivery_s <= now
                    ):
                        self.seal(slot)
                    while slot.sealed and (now is None or slot.sealed[0].deadline <= now):
                        dropped.append(slot.sealed.popleft())
        finally:
            self.release()
        return dropped

    def forget(self, delivery: Delivery) -> None:
        """A delivery is done; nobody waits for it any more."""
        self.acquire()
        try:
            while delivery is not None and delivery.is_done:
                self._unsettled.pop(delivery, None)
                delivery = delivery.parent
        finally:
            self.release()

    def free(self, batch) -> None:
        """A batch is settled and its memory free for others."""
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
        """Give room to those who wait for it, in their order."""
        granted: list = []
        while self.waiters and self.used_bytes + self.waiters[0].size_bytes <= self.limit:
            waiter = self.waiters.popleft()
            waiter.is_granted = True
            self.used_bytes += waiter.size_bytes
            granted.append(waiter)
        return granted

    @cython.cfunc
    def _hurry(self):
        slot: Slot
        for slot, delivery in self._lingering:
            if slot.delivery is delivery:
                slot.is_due = True
                self._list(slot)

    @cython.cfunc
    def _list(self, slot: Slot):
        if not slot.is_listed:
            slot.is_listed = True
            self._listed.append(slot)
        self._has_news = True
