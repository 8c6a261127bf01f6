"""The seeds' Python runs as it stands there, and does what the text around it says.

Only what a snippet leaves undefined is supplied: the imports, `process`, `log`, `database` and the
like, and which topic a consumer reads. `HEADRACE_BOOTSTRAP_SERVERS` says where the broker is.
"""

import logging
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ratelimit  # type: ignore[import-untyped]

import headrace
from headrace import ConsumerRecord, ProducerRecord, TopicPartition
from headrace.client.options import producer_options
from headrace.testing import Broker
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.client import seed_snippets as seeds

SECONDS = 60.0
GROUP = "my-group"
# How long a loop over a consumer goes on after the last message; the seeds' loops have no end.
QUIET_MS = 1_500


class Stage:
    """Runs snippets on one topic of one broker, and closes what they leave open."""

    def __init__(self, broker: Broker, topic: str, stack: ExitStack) -> None:
        self.broker = broker
        self.topic = topic
        self.admin = stack.enter_context(headrace.Admin())
        self.writer = stack.enter_context(headrace.Producer())
        self._stack = stack

    def consumer(self, **given: Any) -> Callable[..., headrace.Consumer]:
        """What the snippets call `Consumer`: it knows its topic, and where to begin."""

        def make(**options: Any) -> headrace.Consumer:
            settings: dict[str, Any] = {
                "auto_offset_reset": "earliest",
                "consumer_timeout_ms": QUIET_MS,
            }
            consumer = headrace.Consumer(self.topic, **(settings | options | given))
            return self._stack.enter_context(consumer)

        return make

    def producer(self, **given: Any) -> Callable[..., headrace.Producer]:
        """What the snippets call `Producer`; what is given here wins over their numbers."""

        def make(**options: Any) -> headrace.Producer:
            return self._stack.enter_context(headrace.Producer(**(options | given)))

        return make

    def run(self, snippet: str, **names: Any) -> SimpleNamespace:
        scope = {"Consumer": self.consumer(), "Producer": self.producer()} | names
        exec(compile(snippet, "<seed>", "exec"), scope)  # noqa: S102
        return SimpleNamespace(**{name: scope[name] for name in scope if name.isidentifier()})

    def send(self, *values: str, key: str | None = None) -> None:
        for future in [self.writer.send(self.topic, value, key=key) for value in values]:
            future.result(scaled(SECONDS))

    def committed(self, partition: int = 0) -> int | None:
        found = self.admin.group_offsets(GROUP).get(TopicPartition(self.topic, partition))
        return None if found is None else found.offset

    def read(self, topic: str | None = None, count: int = 0) -> list[ConsumerRecord]:
        """So many records of a topic, from the beginning, by a consumer of no group."""
        topic = topic or self.topic
        records: list[ConsumerRecord] = []
        with headrace.Consumer(auto_offset_reset="earliest") as consumer:
            partitions = self.admin.describe_topic(topic).partitions
            consumer.assign([TopicPartition(topic, partition.index) for partition in partitions])
            deadline = Deadline(SECONDS)
            while len(records) < count:
                assert not deadline.has_passed, f"{len(records)} of {count} arrived in time"
                records += consumer.poll(500)
            # Longer than the broker takes to answer: there is no more.
            assert consumer.poll(300) == []
        return records


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(proxied=True) as broker:
        yield broker


@pytest.fixture
def stage(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    with ExitStack() as stack:
        # A group of the next test is not this one's.
        stack.callback(delete_group, broker.bootstrap_servers)
        yield Stage(broker, broker.create_topic(), stack)
        # Before clients are closed, which may have something to send.
        broker.heal()


def delete_group(address: str) -> None:
    with headrace.Admin(bootstrap_servers=address) as admin:
        if GROUP in admin.list_groups():
            admin.delete_groups([GROUP])


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = Deadline(SECONDS)
    while not condition():
        assert not deadline.has_passed, what
        time.sleep(0.01)


def text(record: ConsumerRecord) -> str:
    value: bytes = record.value
    return value.decode()


class EndOfTest(Exception):
    """Ends a loop of the seeds, which have no end."""


class Log(logging.Handler):
    """A logger's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.logger = logging.Logger("seed")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self.records]


# -- Topics and Partitions


@pytest.mark.parametrize(
    "snippet", [seeds.ROUND_ROBIN, seeds.KEY_HASH], ids=["round-robin", "key-based"]
)
def test_a_partition_computed_by_the_application_is_where_a_record_goes(
    stage: Stage, snippet: str
) -> None:
    topic = stage.broker.create_topic(partitions=5)

    def partitioner(topic: str, key: bytes | None, partition_count: int) -> int:
        names = {"message_id": key, "message_key": key, "num_partitions": partition_count}
        return int(stage.run(snippet, **names).partition)

    keys = [f"user-{number}" for number in range(200)] * 2
    producer = stage.producer(partitioner=partitioner)()
    sent = [producer.send(topic, key=key).result(scaled(SECONDS)).partition for key in keys]
    # Even enough that none stays empty, and the same for the same key.
    assert set(sent) == set(range(5))
    assert sent[:200] == sent[200:]
    received = stage.read(topic, count=400)
    assert {record.key.decode(): record.partition for record in received} == dict(
        zip(keys, sent, strict=True)
    )


# -- Offset Management


def test_auto_commit_commits_every_five_seconds_what_was_processed(stage: Stage) -> None:
    stage.send("a", "b", "c", "d")
    processed: list[str] = []
    began: list[float] = []
    seen: list[tuple[float, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if began and (offset := stage.committed()) is not None:
                seen.append((time.monotonic() - began[0], offset))
                stage.send("last")
                return
            time.sleep(0.02)

    def process(message: ConsumerRecord) -> None:
        began.append(time.monotonic())
        if text(message) == "last":
            raise EndOfTest
        processed.append(text(message))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        # It waits for more messages until the commit has come.
        patient = stage.consumer(consumer_timeout_ms=int(scaled(60_000)))
        with pytest.raises(EndOfTest):
            stage.run(seeds.AUTO_COMMIT, Consumer=patient, process=process)
    finally:
        done.set()
        watcher.join()
    assert processed == ["a", "b", "c", "d"]
    [(seconds, offset)] = seen
    assert 3.5 < seconds < scaled(7.5)
    assert offset == 4


def test_auto_commit_does_not_commit_what_a_crash_left_unprocessed(stage: Stage) -> None:
    """The risk that the seed names is not taken: messages in hand are not committed."""
    stage.send("a", "b", "c", "d")

    def process(message: ConsumerRecord) -> None:
        if text(message) == "c":
            raise ZeroDivisionError

    with ExitStack() as stack:
        process_of_its_own = Stage(stage.broker, stage.topic, stack)
        with pytest.raises(ZeroDivisionError):
            process_of_its_own.run(seeds.AUTO_COMMIT, process=process)
    left: list[str] = []
    stage.run(seeds.AUTO_COMMIT, process=lambda message: left.append(text(message)))
    assert left == ["c", "d"]


def test_manual_commit_commits_each_message_after_it_was_processed(stage: Stage) -> None:
    stage.send("a", "b", "c")
    committed: list[int | None] = []
    stage.run(seeds.MANUAL_COMMIT, process=lambda message: committed.append(stage.committed()))
    assert committed == [None, 1, 2]
    assert stage.committed() == 3


def test_manual_commit_processes_again_what_was_not_committed(stage: Stage) -> None:
    stage.send("a", "b", "c")

    def process(message: ConsumerRecord) -> None:
        processed.append(text(message))
        if processed == ["a", "b"]:
            raise ZeroDivisionError

    processed: list[str] = []
    with ExitStack() as stack:
        with pytest.raises(ZeroDivisionError):
            Stage(stage.broker, stage.topic, stack).run(seeds.MANUAL_COMMIT, process=process)
    stage.run(seeds.MANUAL_COMMIT, process=process)
    assert processed == ["a", "b", "b", "c"]


class Database:
    """SQLite under the names of the seed."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        self._connection.execute("CREATE TABLE results (value TEXT)")
        self._connection.execute("CREATE TABLE offsets (next_offset INTEGER)")
        self._connection.execute("INSERT INTO offsets VALUES (0)")
        self._connection.commit()
        self.fails_once_at = -1

    def transaction(self) -> sqlite3.Connection:
        # As a context manager a connection commits, or rolls back what an exception interrupts.
        return self._connection

    def process_and_save(self, message: ConsumerRecord) -> None:
        self._connection.execute("INSERT INTO results VALUES (?)", (text(message),))

    def save_offset(self, offset: int) -> None:
        if offset == self.fails_once_at:
            self.fails_once_at = -1
            raise ZeroDivisionError
        self._connection.execute("UPDATE offsets SET next_offset = ?", (offset + 1,))

    def next_offset(self) -> int:
        [(offset,)] = self._connection.execute("SELECT next_offset FROM offsets")
        return int(offset)

    def results(self) -> list[str]:
        return [value for (value,) in self._connection.execute("SELECT value FROM results")]

    def close(self) -> None:
        self._connection.close()


def test_an_offset_in_the_transaction_of_its_result_makes_it_exactly_once(stage: Stage) -> None:
    stage.send("a", "b", "c", "d")
    database = Database()
    database.fails_once_at = 2
    crashes = 0
    while database.next_offset() < 4:
        consumer = stage.consumer(enable_auto_commit=False)()
        consumer.unsubscribe()
        where = TopicPartition(stage.topic, 0)
        consumer.assign([where])
        consumer.seek(where, database.next_offset())
        try:
            for message in consumer:
                stage.run(
                    seeds.TRANSACTIONAL_COMMIT,
                    database=database,
                    message=message,
                    process_and_save=database.process_and_save,
                    save_offset=database.save_offset,
                )
        except ZeroDivisionError:
            crashes += 1
    assert crashes == 1
    assert database.results() == ["a", "b", "c", "d"]
    database.close()


# -- Ordering Guarantees, and Producer Failures


def send_through_faults(stage: Stage, producer: headrace.Producer) -> int:
    """Send while answers are lost, until batches were sent again a few times; how many records."""
    count = 0
    for _ in range(50):
        producer.send(stage.topic, f"{count}").result(scaled(SECONDS))
        stage.broker.slow(latency_ms=300)
        futures = [producer.send(stage.topic, f"{count + 1 + index}") for index in range(200)]
        count += 201
        # They are at the broker soon; their answers are still on the slow way back.
        time.sleep(0.1)
        stage.broker.cut()
        stage.broker.heal()
        for future in futures:
            future.result(scaled(SECONDS))
        if producer.metrics()["record-retry-total"] >= 1_000:
            return count
    raise AssertionError("too few answers were lost")


@pytest.mark.parametrize(
    "snippet",
    [seeds.IDEMPOTENT_PRODUCER, seeds.PRODUCER_CRASH],
    ids=["ordering", "producer crash"],
)
def test_an_idempotent_producer_neither_duplicates_nor_reorders(stage: Stage, snippet: str) -> None:
    # Small batches, so that several are in flight.
    producer = stage.run(snippet, Producer=stage.producer(batch_size=500)).producer
    count = send_through_faults(stage, producer)
    assert [text(entry) for entry in stage.read(count=count)] == [
        f"{index}" for index in range(count)
    ]


def test_idempotence_sets_what_the_seed_says_it_sets() -> None:
    options = producer_options(enable_idempotence=True)
    assert options.max_in_flight == 5
    assert options.retries == 2**31 - 1
    assert options.acks == -1, "all in-sync replicas"


class Integer:
    """Java's."""

    MAX_VALUE = 2**31 - 1


def test_a_producer_retries_through_a_network_failure(stage: Stage) -> None:
    producer = stage.run(seeds.NETWORK_FAILURE, Integer=Integer).producer
    producer.send(stage.topic, "before").result(scaled(SECONDS))
    stage.broker.cut()
    future = producer.send(stage.topic, "meanwhile")
    # Several times its backoff: it has failed by now, and has not given up.
    with pytest.raises(TimeoutError):
        future.result(1.0)
    assert not future.done()
    stage.broker.heal()
    assert future.result(scaled(SECONDS)).offset == 1


def test_an_exception_says_that_all_retries_failed(stage: Stage) -> None:
    limits = {"delivery_timeout_ms": 1_500, "request_timeout_ms": 1_000, "linger_ms": 0}
    producer = stage.run(
        seeds.NETWORK_FAILURE, Integer=Integer, Producer=stage.producer(**limits)
    ).producer
    producer.send(stage.topic, "before").result(scaled(SECONDS))
    stage.broker.cut()
    began = time.monotonic()
    with pytest.raises(headrace.HeadraceError, match=stage.topic):
        producer.send(stage.topic, "never").result(scaled(SECONDS))
    assert time.monotonic() - began < scaled(10)


# -- Backpressure Handling


def fill(producer: headrace.Producer, topic: str) -> int:
    """Send until the buffer refuses; how many bytes it took."""
    value = bytes(100_000)
    taken = 0
    try:
        while taken < 10 * 33_554_432:
            producer.send(topic, value)
            taken += len(value)
    except headrace.BufferExhausted:
        return taken
    raise AssertionError("the buffer has no bound")


def test_send_blocks_while_the_buffer_is_full_and_goes_on_when_there_is_room(
    stage: Stage,
) -> None:
    producer = stage.run(seeds.BUFFER_MANAGEMENT).producer
    producer.send(stage.topic, b"").result(scaled(SECONDS))
    stage.broker.pause()
    sent = 0

    def send() -> None:
        nonlocal sent
        while sent < 40_000_000:
            producer.send(stage.topic, bytes(100_000))
            sent += 100_000

    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_until(lambda: sent > 30_000_000, "the buffer is full before 32 MB")
        # 40 MB do not fit into 32: it is still blocked, and neither dropped nor raised anything.
        thread.join(1.0)
        assert thread.is_alive()
        assert sent <= 33_554_432
    finally:
        stage.broker.resume()
        thread.join(scaled(SECONDS))
    assert sent == 40_000_000
    producer.flush()
    assert producer.metrics()["record-send-total"] == 401


def test_send_raises_buffer_exhausted_when_it_has_blocked_for_long_enough(stage: Stage) -> None:
    """The seed's minute is shortened; its 32 MB are not."""
    patient = stage.producer(max_block_ms=int(scaled(300)), delivery_timeout_ms=60_000)
    producer = stage.run(seeds.BUFFER_MANAGEMENT, Producer=patient).producer
    producer.send(stage.topic, b"").result(scaled(SECONDS))
    stage.broker.pause()
    try:
        taken = fill(producer, stage.topic)
        began = time.monotonic()
        with pytest.raises(headrace.BufferExhausted):
            producer.send(stage.topic, bytes(100_000))
        assert 0.25 < time.monotonic() - began < scaled(5)
    finally:
        stage.broker.resume()
    assert 0.9 * 33_554_432 < taken <= 33_554_432
    producer.flush()


def test_a_rate_limited_send_sends_a_thousand_messages_a_second(stage: Stage) -> None:
    now = 0.0

    def limits(**wanted: float) -> Any:
        # By a clock of ours, so that on a slow machine the next second does not begin too early.
        return ratelimit.limits(**wanted, clock=lambda: now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ratelimit", SimpleNamespace(limits=limits))
        send_message = stage.run(seeds.RATE_LIMITING).send_message
    record = ProducerRecord(stage.topic, "hello")
    for _ in range(1_000):
        send_message(stage.writer, record)
    with pytest.raises(ratelimit.RateLimitException):
        send_message(stage.writer, record)
    now = 1.0
    send_message(stage.writer, record)
    stage.writer.flush()
    assert len(stage.read(count=1_001)) == 1_001


def test_callbacks_hear_of_success_and_of_failure(stage: Stage) -> None:
    stage.admin.create_topic("topic", configs={"max.message.bytes": 1_000})
    log = Log()
    names = {"producer": stage.producer()(), "log": log.logger}
    stage.run(seeds.ASYNC_SEND, msg="small", **names)
    stage.run(seeds.ASYNC_SEND, msg="x" * 5_000, **names)
    wait_until(lambda: len(log.records) == 2, "two callbacks")
    assert sorted(log.lines) == [("ERROR", "Failed to send"), ("INFO", "Sent to topic")]
    [failed] = [record for record in log.records if record.levelname == "ERROR"]
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], headrace.KafkaError)
    assert failed.exc_info[1].code is headrace.ErrorCode.MESSAGE_TOO_LARGE
    assert [text(entry) for entry in stage.read("topic", count=1)] == ["small"]


def test_a_poll_returns_no_more_than_it_may(stage: Stage) -> None:
    for number in range(1_000):
        stage.writer.send(stage.topic, f"{number}")
    stage.writer.flush()
    consumer = stage.run(seeds.FETCH_SIZES).consumer
    values: list[str] = []
    deadline = Deadline(SECONDS)
    while len(values) < 1_000:
        assert not deadline.has_passed
        records = consumer.poll()
        assert len(records) <= 100
        values += map(text, records)
    assert values == [f"{number}" for number in range(1_000)]


def test_a_consumer_is_paused_until_the_queue_is_drained(stage: Stage) -> None:
    stage.send(*(f"{number}" for number in range(25)))
    waiting: list[str] = []
    done: list[str] = []
    drained = 0

    def wait_for_queue_to_drain() -> None:
        nonlocal drained
        assert consumer.paused() == consumer.assignment() == {TopicPartition(stage.topic, 0)}
        # Paused, it gives nothing, though there is more.
        assert consumer.poll(200) == []
        done.extend(waiting)
        waiting.clear()
        drained += 1

    consumer = stage.consumer(group_id=GROUP, enable_auto_commit=False)()
    stage.run(
        seeds.RATE_CONTROL,
        consumer=consumer,
        process=lambda message: waiting.append(text(message)),
        processing_queue=SimpleNamespace(size=lambda: len(waiting)),
        MAX_QUEUE_SIZE=7,
        wait_for_queue_to_drain=wait_for_queue_to_drain,
    )
    assert drained == 3
    assert consumer.paused() == set()
    assert done + waiting == [f"{number}" for number in range(25)]


def test_a_message_whose_processing_failed_comes_again(stage: Stage) -> None:
    class ProcessingError(Exception):
        pass

    stage.send("a", "b", "c")
    processed: list[str] = []
    log = Log()

    def process(message: ConsumerRecord) -> None:
        processed.append(text(message))
        if processed == ["a", "b"]:
            raise ProcessingError

    for _ in range(2):
        with ExitStack() as stack:
            consumer = stack.enter_context(
                stage.consumer(group_id=GROUP, enable_auto_commit=False)()
            )
            stage.run(
                seeds.COMMIT_AFTER_SUCCESS,
                consumer=consumer,
                process=process,
                ProcessingError=ProcessingError,
                log=log.logger,
            )
    assert processed == ["a", "b", "b", "c"]
    assert log.lines == [("ERROR", "Processing failed, will retry")]
    assert stage.committed() == 3


# -- Consumer Groups


CHILD = """
import sys
from functools import partial

import headrace
from tests.integration.client import seed_snippets as seeds

Consumer = partial(headrace.Consumer, sys.argv[1], group_id=sys.argv[2])
exec(seeds.HEARTBEAT)
while True:
    consumer.poll()
"""


def test_a_member_lives_by_its_heartbeats_and_dies_ten_seconds_after_the_last(
    stage: Stage,
) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, stage.topic, GROUP])
    try:
        wait_until(lambda: members(stage) == 1, "the member has joined")
        os.kill(child.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: members(stage) == 0, "the member is taken for dead")
        # The last heartbeat was up to three seconds before.
        assert 10 - scaled(3.5) < time.monotonic() - stopped < scaled(13)
    finally:
        child.kill()
        child.wait()


def members(stage: Stage) -> int:
    if GROUP not in stage.admin.list_groups():
        return 0
    return len(stage.admin.describe_group(GROUP).members)


def test_heartbeats_are_sent_while_the_application_is_busy(stage: Stage) -> None:
    consumer = stage.run(seeds.HEARTBEAT, Consumer=stage.consumer(group_id=GROUP)).consumer
    wait_until(lambda: consumer.poll(50) or consumer.assignment(), "an assignment")
    before = consumer.metrics()["heartbeat-total"]
    began = time.monotonic()
    # No poll here, as in an application that is busy with a message.
    wait_until(lambda: consumer.metrics()["heartbeat-total"] >= before + 2, "two heartbeats")
    assert 2.5 < time.monotonic() - began < scaled(12), "one every three seconds"
    assert members(stage) == 1


# -- Consumer Failures


def test_a_message_that_comes_twice_is_worked_on_once(stage: Stage) -> None:
    for number in range(5):
        stage.send(f"{number}", key=f"key-{number}")
    done: set[bytes] = set()
    worked: list[str] = []
    for _ in range(2):
        consumer = stage.consumer(group_id=GROUP, enable_auto_commit=False)()
        process = stage.run(
            seeds.IDEMPOTENT_PROCESSING,
            consumer=consumer,
            already_processed=done.__contains__,
            do_work=lambda message: worked.append(text(message)),
            mark_processed=done.add,
        ).process
        received = 0
        for message in consumer:
            process(message)
            received += 1
        assert received == 5
        consumer.close()
        # As if the commits were lost in a crash: everything comes again.
        stage.admin.alter_group_offsets(GROUP, {TopicPartition(stage.topic, 0): 0})
    assert worked == ["0", "1", "2", "3", "4"]


def test_a_consumer_that_does_not_poll_for_too_long_is_out_of_its_group(stage: Stage) -> None:
    """The seed's five minutes are shortened to one second."""
    consumer = stage.run(seeds.SLOW_CONSUMER, Consumer=stage.consumer(group_id=GROUP)).consumer
    consumer.close()
    hasty = stage.consumer(group_id=GROUP, max_poll_interval_ms=1_000, heartbeat_interval_ms=100)
    consumer = stage.run(seeds.SLOW_CONSUMER, Consumer=hasty).consumer
    wait_until(lambda: consumer.poll(50) or consumer.assignment(), "an assignment")
    assert members(stage) == 1
    wait_until(lambda: members(stage) == 0, "it is kicked out")
    # It is not lost for good: it joins again with its next poll.
    wait_until(lambda: consumer.poll(50) or members(stage) == 1, "it is back")


def test_messages_given_to_workers_are_committed_meanwhile(stage: Stage) -> None:
    stage.send(*(f"{number}" for number in range(50)))
    worker_queue: queue.Queue[ConsumerRecord] = queue.Queue()
    consumer = stage.consumer(group_id=GROUP, enable_auto_commit=False)()
    stage.run(seeds.ASYNC_PROCESSING, consumer=consumer, worker_queue=worker_queue)
    wait_until(lambda: stage.committed() == 50, "the last commit has arrived")
    assert [text(worker_queue.get()) for _ in range(50)] == [f"{number}" for number in range(50)]


# -- Horizontal Scalability


def test_messages_are_balanced_over_partitions_by_their_key(stage: Stage) -> None:
    topic = "topic"
    if topic in stage.admin.list_topics():
        stage.admin.delete_topic(topic)
    stage.admin.create_topic(topic, partitions=4)
    producer = stage.producer()()
    for number in range(400):
        stage.run(seeds.LOAD_BALANCING, producer=producer, user_id=f"{number % 100}", data="x")
    producer.flush()
    received = stage.read(topic, count=400)
    counts = [sum(tp.partition == partition for tp in received) for partition in range(4)]
    assert min(counts) > 50, counts
    assert len({(record.key, record.partition) for record in received}) == 100


# -- Delivery Semantics, of the fourth seed


def test_at_least_once_repeats_what_was_not_committed_and_loses_nothing(stage: Stage) -> None:
    class Crash(Exception):
        pass

    stage.send(*(f"{number}" for number in range(20)))
    processed: list[str] = []

    def process(message: ConsumerRecord) -> None:
        processed.append(text(message))
        if len(processed) == 7 or text(message) == "last":
            raise Crash

    for _ in range(2):
        with stage.consumer(group_id=GROUP, enable_auto_commit=False, max_poll_records=5)() as one:
            with pytest.raises(Crash):
                stage.run(seeds.AT_LEAST_ONCE, consumer=one, process=process)
        stage.send("last")
    # Five were committed; the two that were processed after them come again.
    everything = [f"{number}" for number in range(20)]
    assert processed == [*everything[:7], *everything[5:], "last"]
    assert stage.committed() == 20


def test_every_snippet_is_run() -> None:
    here = Path(__file__).parent
    tests = "".join(path.read_text() for path in here.glob("test_seed*.py"))
    snippets = [name for name in vars(seeds) if name.isupper()]
    assert len(snippets) == 23
    assert [name for name in snippets if f"seeds.{name}" not in tests] == []
