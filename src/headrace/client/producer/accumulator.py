# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records from any thread into the batches of their partitions.

Rule: nothing here waits. `put` gives no future when a topic is not known yet or the buffer is full,
and the producer around it waits in its own way, and then tries again.
"""

from __future__ import annotations

import time

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.client.failures import RecordTooLarge
from headrace.client.producer.headers import encode_headers
from headrace.client.producer.partitioners import checked
from headrace.client.producer.values import ProducerRecord
from headrace.client.serializers import encoder
from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.murmur2 import partition_for_key

if cython.compiled:
    from cython.cimports.headrace.client.producer.buffers import Buffers, Slot, Topic
    from cython.cimports.headrace.client.producer.delivery import Future, attach, new_future
else:
    from headrace.client.producer.buffers import Buffers, Slot, Topic
    from headrace.client.producer.delivery import Future, attach, new_future

COMPILED = cython.compiled

# What a record takes beyond its key, value and headers is less than this, and a batch beyond its
# records exactly that.
_RECORD_OVERHEAD = cython.declare(cython.longlong, 36)
_BATCH_OVERHEAD = cython.declare(cython.longlong, HEADER_SIZE)


@cython.final
@cython.cclass
class Accumulator(Buffers):
    """The buffers of a producer, and the way of a record into them. Thread-safe."""

    _wall = cython.declare(object)
    _keys = cython.declare(object)
    _values = cython.declare(object)
    _partitioner = cython.declare(object)
    _hashes_keys = cython.declare(cython.bint)
    _plain_keys = cython.declare(cython.bint)
    _plain_values = cython.declare(cython.bint)
    _request_bytes_max = cython.declare(cython.longlong)

    def __init__(self, options, wake, *, choice, monotonic=time.monotonic, wall=time.time):
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
        topic: Topic = self.topics.get(name)
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
            # Again, now that nobody can refuse in between: what is taken after that is lost.
            if self.refusal is not None:
                raise self.refusal()
            if not granted and (self.used_bytes + need > self.limit or self.waiters):
                return None
            slot: Slot = self._write(topic, index, timestamp, key, value, headers)
            future = new_future(
                slot.delivery,
                slot.count,
                timestamp,
                -1 if key is None else len(cython.cast(bytes, key)),
                -1 if value is None else len(cython.cast(bytes, value)),
            )
            slot.count += 1
            slot.reserved += need
            self.records += 1
            if not granted:
                self.used_bytes += need
            if on_delivery is not None:
                attach(slot.delivery, future, on_delivery)
            wakes = self.should_wake()
        finally:
            self.release()
        if wakes:
            self.rouse()
        return future

    @cython.cfunc
    def _write(self, topic: Topic, index: cython.longlong, timestamp, key, value, headers) -> Slot:
        """Write a record into the batch of its partition; -1 is a partition of our choice."""
        is_free: cython.bint = index < 0
        if is_free:
            index = self.pick(topic)
        slot: Slot = topic.slots[index]
        if slot.append is not None:
            if slot.append(timestamp, key, value, headers):
                return slot
            self.seal(slot)
            if is_free and topic.sticky < 0 and not self.takes_turns:
                slot = topic.slots[self.pick(topic)]
                if slot.append is not None:
                    if slot.append(timestamp, key, value, headers):
                        return slot
                    self.seal(slot)
        self.open(slot, timestamp, key, value, headers)
        return slot

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
    """What the blocking producer does most often, compiled: `send`."""

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
        text, None, or what the serializers take; headers are pairs or a mapping, with values of
        bytes, text or None. `on_delivery(error, metadata)` is called when the outcome is known, on
        the producer's own thread; one of the two is None.

        It waits only for the first metadata of a topic (`UnknownTopic`, `TimedOut`, `Unreachable`)
        and for room in the buffer (`BufferExhausted`), at most `max_block_ms`. What is wrong with
        a record is raised at once: `RecordTooLarge`, `SerializationFailed`, `TypeError`.

        >>> producer.send(topic, "hello", key="greeting", headers={"lang": "en"}).result().offset
        0
        >>> producer.send(topic, {"not": "text"})
        Traceback (most recent call last):
        TypeError: topic ...: a value must be bytes, str or None, not dict; give ...
        """
        if type(topic) is not str and isinstance(topic, ProducerRecord):
            _check_alone(value, key, headers, partition, timestamp_ms)
            value, key, headers = topic.value, topic.key, topic.headers
            partition, timestamp_ms, topic = topic.partition, topic.timestamp_ms, topic.topic
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
    for name, one in given.items():
        if one is not None:
            raise TypeError(f"send(ProducerRecord(...)) takes no {name}; the record has its own")
