"""The producer against a real broker, read back by librdkafka and by hand."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as KafkaFault
from confluent_kafka import Producer as KafkaProducer

import headrace
from headrace.client.producer.delivery import Future
from headrace.protocol.records import Record
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.wire import create_topic, read_all
from tests.support import BrokerProcess, unused_port

_numbers = count(1)


@pytest.fixture
def producer(shared_broker: BrokerProcess) -> Iterator[headrace.Producer]:
    with headrace.Producer(bootstrap_servers=shared_broker.address) as producer:
        yield producer


@pytest.fixture
def address(shared_broker: BrokerProcess) -> str:
    return shared_broker.address


@pytest.fixture
def topic(address: str) -> str:
    name = f"produced-{next(_numbers)}"
    create_topic(address, name)
    return name


def stored(address: str, topic: str, partition: int = 0) -> list[Record]:
    return read_all(address, topic, partition)


def values(address: str, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stored(address, topic, partition)]


def read_by_librdkafka(address: str, topic: str, wanted: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "x", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Any] = []
    deadline = Deadline(30)
    while len(messages) < wanted and not deadline.has_passed:
        messages += consumer.consume(wanted - len(messages), 1.0)
    consumer.close()
    assert not any(message.error() for message in messages)
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_every_codec(address: str, topic: str, codec: Any) -> None:
    with headrace.Producer(bootstrap_servers=address, compression_type=codec) as producer:
        for number in range(500):
            producer.send(
                topic,
                None if number % 50 == 0 else b"value %d" % number * (number % 20),
                key=f"key {number}" if number % 3 else None,
                headers=[("n", str(number)), ("none", None)] if number % 2 else None,
                timestamp_ms=1_700_000_000_000 + number,
            )
    messages = read_by_librdkafka(address, topic, 500)
    assert len(messages) == 500
    for number, message in enumerate(messages):
        expected = None if number % 50 == 0 else b"value %d" % number * (number % 20)
        assert message.value() == expected
        assert message.key() == (f"key {number}".encode() if number % 3 else None)
        headers = [("n", str(number).encode()), ("none", None)] if number % 2 else None
        assert message.headers() == headers
        assert message.timestamp()[1] == 1_700_000_000_000 + number
        assert message.offset() == number


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement_delivers(address: str, topic: str, acks: Any) -> None:
    with headrace.Producer(bootstrap_servers=address, acks=acks, batch_size=2000) as producer:
        futures = [producer.send(topic, b"%06d" % number * 20) for number in range(2000)]
    offsets = [future.result().offset for future in futures]
    assert offsets == ([-1] * 2000 if acks == 0 else list(range(2000)))
    assert values(address, topic) == [b"%06d" % number * 20 for number in range(2000)]


def test_outcomes_come_by_future_callback_and_await(
    address: str, topic: str, producer: headrace.Producer
) -> None:
    calls: list[Any] = []
    future = producer.send(topic, b"a", on_delivery=lambda *outcome: calls.append(outcome))
    future.add_callback(calls.append).add_errback(calls.append)

    async def wait() -> int:
        # As in a notebook: somebody's loop runs, but not the one that delivers.
        assert producer.send(topic, b"b").result(scaled(10)).offset == 1
        return (await producer.send(topic, b"c")).offset

    assert asyncio.run(wait()) == 2
    written = future.result(scaled(10))
    assert calls == [(None, written), written]
    assert producer.metrics()["record-send-total"] == 3
    assert f"of {address}, 0 unsettled>" in repr(producer)
    assert producer.partitions_for(topic) == [0]


def test_a_topic_is_created_by_sending_to_it(producer: headrace.Producer) -> None:
    name = f"made-by-sending-{next(_numbers)}"
    assert producer.send(name, b"a").result(scaled(10)).topic == name


def test_a_topic_the_broker_does_not_create_is_an_error(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path, settings) as broker:
        with headrace.Producer(bootstrap_servers=broker.address) as producer:
            with pytest.raises(headrace.UnknownTopic, match=r"topic nope does not exist.*create"):
                producer.send("nope", b"a")
            create_topic(broker.address, "nope")
            assert producer.send("nope", b"a").result(scaled(10)).offset == 0


def test_a_partition_that_does_not_exist_is_an_error(
    address: str, topic: str, producer: headrace.Producer
) -> None:
    with pytest.raises(headrace.UnknownTopic, match=f"topic {topic} has no partition 5; it has 1"):
        producer.send(topic, b"a", partition=5)
    with headrace.Admin(bootstrap_servers=address) as admin:
        admin.create_partitions({topic: 6})
    assert producer.send(topic, b"a", partition=5).result(scaled(10)).partition == 5


def test_an_address_where_nobody_is_is_named_in_time() -> None:
    address = f"127.0.0.1:{unused_port()}"
    begun = time.monotonic()
    with headrace.Producer(bootstrap_servers=address, max_block_ms=int(scaled(300))) as producer:
        with pytest.raises(headrace.Unreachable, match=f"{address}: nothing is listening"):
            producer.send("any", b"a")
    assert time.monotonic() - begun < scaled(5)


def test_a_record_that_is_too_large_is_refused_by_us_or_by_the_broker(address: str) -> None:
    name = f"small-{next(_numbers)}"
    create_topic(address, name, max_message_bytes="5000")
    with headrace.Producer(bootstrap_servers=address, max_request_size=20_000) as producer:
        with pytest.raises(headrace.RecordTooLarge, match="max_request_size is 20000"):
            producer.send(name, bytes(20_000))
        refused = producer.send(name, bytes(10_000))
        with pytest.raises(headrace.KafkaError, match=r"max\.message\.bytes: raise that"):
            refused.result(scaled(10))
        # A batch that is too large only as a whole is sent in parts.
        futures = [producer.send(name, b"%04d" % number * 100) for number in range(100)]
        assert [future.result(scaled(10)).offset for future in futures] == list(range(100))
    assert values(address, name) == [b"%04d" % number * 100 for number in range(100)]


def test_a_full_buffer_blocks_and_then_raises_with_numbers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        block_ms = int(scaled(500))
        options: Any = {"buffer_memory": 100_000, "max_block_ms": block_ms, "batch_size": 10_000}
        with headrace.Producer(bootstrap_servers=broker.address, **options) as producer:
            producer.send("t", b"first").result(scaled(10))
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                sent: list[Future] = []
                with pytest.raises(
                    headrace.BufferExhausted, match=rf"100000.*{block_ms} ms.*\d+ records"
                ):
                    sent.extend(producer.send("t", bytes(1000)) for _ in count())
                assert 90 < len(sent) < 110
                with pytest.raises(headrace.TimedOut, match=r"\d+ records are not acknowledged"):
                    producer.flush(timeout_ms=50)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            producer.send("t", b"fits again, after a while").result(scaled(10))
            assert all(future.exception(scaled(10)) is None for future in sent)


def test_threads_share_a_producer_and_each_keeps_its_order(address: str, topic: str) -> None:
    options: Any = {"buffer_memory": 50_000, "batch_size": 4000, "linger_ms": 0}
    with headrace.Producer(bootstrap_servers=address, **options) as producer:

        def send(name: int) -> None:
            for number in range(1000):
                producer.send(topic, b"%d %05d %s" % (name, number, bytes(100)))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found: dict[bytes, list[int]] = {}
    for value in values(address, topic):
        name, number, _ = (value or b"").split(b" ", 2)
        found.setdefault(name, []).append(int(number))
    assert found == {b"%d" % name: list(range(1000)) for name in range(4)}


def test_use_after_closing_is_an_error(address: str, topic: str) -> None:
    producer = headrace.Producer(bootstrap_servers=address)
    future = producer.send(topic, b"a")
    producer.close()
    assert future.result(0).offset == 0
    producer.close()
    for call in (
        lambda: producer.send(topic, b"b"),
        lambda: producer.flush(),
        lambda: producer.partitions_for("other"),
    ):
        with pytest.raises(headrace.Closed, match="the producer is closed; make a new one"):
            call()
    assert "closed>" in repr(producer)


def test_closing_in_time_fails_what_is_left(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        producer = headrace.Producer(bootstrap_servers=broker.address)
        producer.send("t", b"a").result(scaled(10))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            future = producer.send("t", b"b")
            begun = time.monotonic()
            with pytest.raises(headrace.TimedOut, match="closed with 1 records not acknowledged"):
                producer.close(timeout_ms=200)
            assert time.monotonic() - begun < scaled(5)
            assert isinstance(future.exception(0), headrace.Closed)
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_an_exception_in_the_block_is_not_hidden_and_records_are_sent(
    address: str, topic: str
) -> None:
    def send_and_fail() -> None:
        with headrace.Producer(bootstrap_servers=address, linger_ms=60_000) as producer:
            producer.send(topic, b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send_and_fail()
    assert values(address, topic) == [b"a"]


def test_a_callback_may_send_and_close_but_not_wait(address: str, topic: str) -> None:
    producer = headrace.Producer(bootstrap_servers=address)
    done = threading.Event()
    errors: list[BaseException] = []

    def answer(error: Exception | None, metadata: headrace.RecordMetadata | None) -> None:
        for call in (producer.flush, lambda: producer.send("unknown-topic", b"x")):
            try:
                call()
            except headrace.HeadraceError as caught:
                errors.append(caught)
        future = producer.send(topic, b"from the callback")
        future.add_done_callback(lambda _: done.set())
        producer.close()

    producer.send(topic, b"a", on_delivery=answer)
    assert done.wait(scaled(10))
    assert len(errors) == 2
    assert "a delivery callback must not" in str(errors[0])
    assert values(address, topic) == [b"a", b"from the callback"]


def test_a_producer_that_nobody_holds_any_more_delivers_and_ends(address: str, topic: str) -> None:
    producer = headrace.Producer(bootstrap_servers=address, linger_ms=60_000, client_id="dropped")
    producer.partitions_for(topic)
    future = producer.send(topic, b"a")
    [thread] = [thread for thread in threading.enumerate() if thread.name == "headrace-dropped"]
    del producer
    gc.collect()
    assert future.result(scaled(10)).offset == 0
    thread.join(scaled(10))
    assert not thread.is_alive()


SCRIPT = """
import headrace, sys
producer = headrace.Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
for number in range(1000):
    producer.send(sys.argv[2], b"%d" % number)
print("sent", flush=True)
"""


def test_a_script_that_just_ends_loses_nothing(address: str, topic: str) -> None:
    run_script(SCRIPT, address, topic)
    assert values(address, topic) == [b"%d" % number for number in range(1000)]


# The development mode warns of each step of an event loop that takes a tenth of a second, as any
# may on a busy machine.
PATIENT = 'import logging; logging.getLogger("asyncio").setLevel(logging.ERROR)\n'


def run_script(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PATIENT + script, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


FORKING = """
import headrace, os, sys
producer = headrace.Producer(bootstrap_servers=sys.argv[1])
producer.send(sys.argv[2], b"parent").result()
child = os.fork()
if child == 0:
    try:
        producer.send(sys.argv[2], b"child")
    except headrace.Closed as error:
        print(error, flush=True)
    producer.close()
    with headrace.Producer(bootstrap_servers=sys.argv[1]) as own:
        own.send(sys.argv[2], b"own")
    os._exit(0)
os.waitpid(child, 0)
producer.send(sys.argv[2], b"parent again")
"""


def test_the_child_of_a_fork_is_told_to_make_its_own_producer(address: str, topic: str) -> None:
    assert "make a producer in each process" in run_script(FORKING, address, topic)
    assert values(address, topic) == [b"parent", b"own", b"parent again"]


BLOCKED = """
import headrace, sys
producer = headrace.Producer(
    bootstrap_servers=sys.argv[1], buffer_memory=100_000, batch_size=10_000, max_block_ms=600_000
)
try:
    if sys.argv[2] == "topic":
        print("waiting", flush=True)
        producer.send("t", b"x")
    producer.send("t", b"first").result()
    print("stop the broker", flush=True)
    sys.stdin.readline()
    print("waiting", flush=True)
    if sys.argv[2] == "result":
        producer.send("t", b"x").result()
    elif sys.argv[2] == "flush":
        producer.send("t", b"x")
        producer.flush()
    while True:
        producer.send("t", bytes(1000))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    try:
        producer.close(timeout_ms=100)
    except headrace.TimedOut:
        pass
"""


@pytest.mark.parametrize("where", ["result", "flush", "buffer", "topic"])
def test_ctrl_c_interrupts_whatever_is_waited_for(tmp_path: Path, where: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = f"127.0.0.1:{unused_port()}" if where == "topic" else broker.address
        child = subprocess.Popen(
            [sys.executable, "-c", BLOCKED, address, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            if where != "topic":
                assert child.stdout.readline() == "stop the broker\n"
                os.kill(broker.pid, signal.SIGSTOP)
                child.stdin.write("\n")
                child.stdin.flush()
            assert child.stdout.readline() == "waiting\n"
            # It is about to wait, or waits: either way the signal must end it.
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=scaled(30))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            child.kill()
            child.communicate()
        assert (child.returncode, output) == (0, "interrupted\n"), errors
        assert "Traceback" not in errors


def test_columns_arrive_as_rows(address: str, topic: str, producer: headrace.Producer) -> None:
    producer.send(topic, b"before")
    table = pyarrow.table(
        {
            "key": [f"k{number}" for number in range(3000)],
            "value": [b"%d" % number * 50 for number in range(3000)],
            "timestamp": pyarrow.array(range(3000), pyarrow.int64()),
        }
    )
    future = producer.send_arrow(topic, table)
    producer.send(topic, b"after")
    batches = future.result(scaled(10))
    assert sum(batch.count for batch in batches) == 3000
    assert batches[0].base_offset == 1
    producer.flush()
    records = stored(address, topic)
    assert [record.value for record in records] == [
        b"before",
        *(b"%d" % number * 50 for number in range(3000)),
        b"after",
    ]
    assert (records[5].key, records[5].timestamp) == (b"k4", 4)
    messages = read_by_librdkafka(address, topic, 3002)
    assert messages[3000].value() == b"2999" * 50


def test_columns_go_where_rows_with_the_same_keys_go(address: str) -> None:
    name = f"columns-{next(_numbers)}"
    create_topic(address, name, 4)
    keys = [b"%d" % number for number in range(200)]
    with headrace.Producer(bootstrap_servers=address, compression_type="lz4") as producer:
        for key in keys:
            producer.send(name, b"row", key=key)
        columns = pyarrow.record_batch({"key": keys, "value": [b"column"] * 200})
        producer.send_arrow(name, columns)
    for partition in range(4):
        records = stored(address, name, partition)
        rows = [record.key for record in records if record.value == b"row"]
        assert rows == [record.key for record in records if record.value == b"column"]


def test_a_partitioner_function_chooses_for_columns_too(address: str) -> None:
    name = f"columns-{next(_numbers)}"
    create_topic(address, name, 3)

    def by_length(topic: str, key: bytes | None, partition_count: int) -> int:
        return len(key or b"") % partition_count

    with headrace.Producer(bootstrap_servers=address, partitioner=by_length) as producer:
        columns = pyarrow.record_batch({"key": ["a", "bb", None], "value": ["1", "2", "0"]})
        producer.send_arrow(name, columns).result(scaled(10))
    assert [values(address, name, partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_columns_wait_for_room(address: str, topic: str) -> None:
    options: Any = {"buffer_memory": 200_000, "max_request_size": 100_000}
    with headrace.Producer(bootstrap_servers=address, **options) as producer:
        table = pyarrow.table({"value": [b"%05d" % number * 40 for number in range(10_000)]})
        assert len(producer.send_arrow(topic, table).result(scaled(30))) > 15
    assert values(address, topic) == [b"%05d" % number * 40 for number in range(10_000)]


def test_tasks_send_and_await(address: str, topic: str) -> None:
    async def main() -> list[int]:
        async with headrace.aio.Producer(bootstrap_servers=address) as producer:
            assert await producer.partitions_for(topic) == [0]

            async def send_first(number: int) -> int:
                return (await (await producer.send(topic, b"%d" % number))).offset

            offsets = await asyncio.gather(*(send_first(number) for number in range(500)))
            rows = pyarrow.record_batch({"value": ["x", "y"]})
            await (await producer.send_arrow(topic, rows))
            assert producer.metrics()["record-send-total"] == 502
            last = await producer.send(headrace.ProducerRecord(topic, b"last"))
            await producer.flush()
            assert last.done()
            return offsets

    assert asyncio.run(main()) == list(range(500))
    assert values(address, topic)[500:] == [b"x", b"y", b"last"]


async def fill(producer: headrace.aio.Producer) -> None:
    while True:
        await producer.send("t", bytes(1000))


def test_a_task_that_waits_for_room_can_be_cancelled(tmp_path: Path) -> None:
    async def main(broker: BrokerProcess) -> None:
        block_ms = int(scaled(500))
        options: Any = {"buffer_memory": 20_000, "batch_size": 5_000, "max_block_ms": block_ms}
        async with headrace.aio.Producer(bootstrap_servers=broker.address, **options) as producer:
            await (await producer.send("t", b"first"))
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(headrace.BufferExhausted):
                    await fill(producer)
                waiting = asyncio.create_task(producer.send("t", bytes(1000)))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                with pytest.raises(headrace.TimedOut):
                    await producer.flush(timeout_ms=10)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            future = await producer.send("t", bytes(19_000))
            assert (await future).offset > 0

    with BrokerProcess(tmp_path) as broker:
        asyncio.run(main(broker))


def test_a_producer_belongs_to_one_loop(address: str, topic: str) -> None:
    producer = headrace.aio.Producer(bootstrap_servers=address)

    async def use() -> Future:
        future = await producer.send(topic, b"a")
        await future
        return future

    async def use_and_close() -> None:
        await use()
        with pytest.raises(headrace.HeadraceError, match="belongs to the event loop"):
            await asyncio.to_thread(lambda: asyncio.run(producer.partitions_for(topic)))
        await producer.close()
        with pytest.raises(headrace.Closed):
            await use()

    asyncio.run(use_and_close())


def test_only_the_records_that_a_compacted_topic_refuses_have_its_error(address: str) -> None:
    topic = f"produced-{next(_numbers)}"
    create_topic(address, topic, cleanup_policy="compact")
    with headrace.Producer(bootstrap_servers=address, linger_ms=60_000) as producer:
        keyed, keyless = producer.send(topic, b"1", key=b"k"), producer.send(topic, b"2")
        producer.flush()
        refused, innocent = keyless.exception(), keyed.exception()
        assert isinstance(refused, headrace.KafkaError)
        assert refused.code is headrace.ErrorCode.INVALID_RECORD
        assert "it has no key" in str(refused)
        assert isinstance(innocent, headrace.BatchRefused)
        again = producer.send(topic, b"1", key=b"k")
        producer.flush()
        assert again.result().offset == 0


def test_librdkafka_blames_only_the_records_without_a_key(address: str) -> None:
    topic = f"produced-{next(_numbers)}"
    create_topic(address, topic, cleanup_policy="compact")
    producer = KafkaProducer({"bootstrap.servers": address, "linger.ms": 500})
    told: list[tuple[bytes | None, int]] = []

    def delivered(error: Any, sent: Any) -> None:
        told.append((sent.key(), error.code()))

    # If there is only one of them librdkafka blames all, as it does with Apache Kafka.
    for key in (b"a", None, b"b", None):
        producer.produce(topic, b"v", key, on_delivery=delivered)
    assert producer.flush(scaled(30)) == 0
    innocent, refused = KafkaFault._INVALID_DIFFERENT_RECORD, KafkaFault.INVALID_RECORD
    assert told == [(b"a", innocent), (None, refused), (b"b", innocent), (None, refused)]
