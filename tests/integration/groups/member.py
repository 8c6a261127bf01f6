"""A consumer of a group in a process of its own, which can be killed or stand still.

It takes commands from stdin, a word per line: `pause` to stop polling, `resume`, `close`. On stdout
it tells what happens to it, a JSON list per line: what, when (the machine's monotonic clock, which
all processes share), and the details. Records are reported first and committed then: at least once.
"""

import asyncio
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeAlias

POLL_SECONDS = 0.1
POLL_RECORDS = 200
CLOSE_SECONDS = 10.0
# What commits of librdkafka fail with, first and then, when another has taken the consumer's place.
FENCED = ("FENCED_INSTANCE_ID", "_FATAL")

# What was read: for each partition the offsets, in order.
Batch: TypeAlias = dict[tuple[str, int], list[int]]


class Options(NamedTuple):
    client: str
    address: str
    group: str
    name: str
    topics: list[str]
    strategy: str
    session_ms: int
    heartbeat_ms: int
    poll_interval_ms: int
    metadata_ms: int
    instance: str | None
    reset: str
    # A regular expression instead of topics.
    pattern: str | None


class Fatal(Exception):
    """The client says that this consumer cannot go on."""


class NotCommitted(Exception):
    """The commit was refused; the records may be read again."""


class Reports:
    """Each is one write, so that none is torn unless the process dies in the middle of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, kind: str, details: Any = None) -> None:
        with self._lock:
            line = json.dumps([kind, time.monotonic(), details]).encode() + b"\n"
            while line:
                line = line[os.write(1, line) :]

    def partitions(self, kind: str, partitions: Any) -> None:
        self.say(kind, [[partition.topic, partition.partition] for partition in partitions])


class Commands:
    """What the parent wants. When it is gone, nothing more."""

    def __init__(self) -> None:
        self.is_closing = False
        self._runs = threading.Event()
        self._runs.set()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def is_paused(self) -> bool:
        return not self._runs.is_set()

    def wait_to_resume(self) -> None:
        self._runs.wait()

    def _read(self) -> None:
        for line in sys.stdin:
            if line.strip() == "pause":
                self._runs.clear()
            elif line.strip() == "resume":
                self._runs.set()
            else:
                break
        self.is_closing = True
        self._runs.set()


class Consumer(ABC):
    @abstractmethod
    def poll(self) -> Batch: ...

    @abstractmethod
    def commit(self, offsets: dict[tuple[str, int], int]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Librdkafka(Consumer):
    def __init__(self, options: Options, reports: Reports) -> None:
        import confluent_kafka

        self._module: Any = confluent_kafka
        settings: dict[str, Any] = {
            "bootstrap.servers": options.address,
            "client.id": options.name,
            "group.id": options.group,
            **self.protocol_settings(options),
            "max.poll.interval.ms": options.poll_interval_ms,
            "topic.metadata.refresh.interval.ms": options.metadata_ms,
            "auto.offset.reset": options.reset,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            "error_cb": self._on_error,
        }
        self._fatal: str | None = None
        if options.instance is not None:
            settings["group.instance.id"] = options.instance
        self._consumer: Any = confluent_kafka.Consumer(settings)
        self._consumer.subscribe(
            [options.pattern] if options.pattern else options.topics,
            on_assign=lambda _, partitions: reports.partitions("assigned", partitions),
            on_revoke=lambda _, partitions: reports.partitions("revoked", partitions),
            on_lost=lambda _, partitions: reports.partitions("revoked", partitions),
        )

    def protocol_settings(self, options: Options) -> dict[str, Any]:
        return {
            "partition.assignment.strategy": options.strategy,
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": options.heartbeat_ms,
        }

    def _on_error(self, error: Any) -> None:
        # A fenced consumer that has read nothing since reads nothing more and commits nothing more:
        # this callback alone hears of it.
        if error.fatal():
            self._fatal = error.name()

    def poll(self) -> Batch:
        batch: Batch = {}
        try:
            messages = self._consumer.consume(POLL_RECORDS, POLL_SECONDS)
        except self._module.KafkaException as error:
            raise Fatal(str(error)) from error
        if self._fatal is not None:
            raise Fatal(self._fatal)
        for message in messages:
            failure = message.error()
            if failure is None:
                batch.setdefault((message.topic(), message.partition()), []).append(
                    message.offset()
                )
            elif failure.fatal() or failure.code() == self._module.KafkaError._AUTO_OFFSET_RESET:
                raise Fatal(failure.name())
        return batch

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        wanted = [self._module.TopicPartition(*where, at) for where, at in offsets.items()]
        try:
            done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except self._module.KafkaException as error:
            name = error.args[0].name()
            raise (Fatal if name in FENCED else NotCommitted)(name) from error
        for entry in done:
            if entry.error is not None:
                raise NotCommitted(entry.error.name())

    def close(self) -> None:
        self._consumer.close()


class LibrdkafkaAssigned(Librdkafka):
    """librdkafka in a group whose coordinator assigns; timeouts are those of the broker."""

    def protocol_settings(self, options: Options) -> dict[str, Any]:
        return {"group.protocol": "consumer", "group.remote.assignor": options.strategy}


class KafkaPython(Consumer):
    # If a call ends while a join is under way that a change of metadata began, it forgets the join
    # and sends no heartbeats any more. With records coming in a call ends soon anyway.
    POLL_SECONDS = 3.0

    def __init__(self, options: Options, reports: Reports) -> None:
        import kafka
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                reports.partitions("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                reports.partitions("revoked", revoked)

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        self._module: Any = kafka
        self._consumer: Any = kafka.KafkaConsumer(
            bootstrap_servers=options.address,
            client_id=options.name,
            group_id=options.group,
            group_instance_id=options.instance,
            partition_assignment_strategy=[assignors[options.strategy]],
            session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.heartbeat_ms,
            max_poll_interval_ms=options.poll_interval_ms,
            metadata_max_age_ms=options.metadata_ms,
            auto_offset_reset=options.reset,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            reconnect_backoff_max_ms=500,
        )
        self._consumer.subscribe(
            topics=options.topics or (), pattern=options.pattern, listener=Listener()
        )

    def poll(self) -> Batch:
        try:
            found = self._consumer.poll(
                timeout_ms=int(self.POLL_SECONDS * 1000), max_records=POLL_RECORDS
            )
        except self._module.errors.KafkaConnectionError:
            return {}  # The broker is away; it leaves it to its user to try again.
        return {
            (tp.topic, tp.partition): [message.offset for message in messages]
            for tp, messages in found.items()
        }

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        kafka = self._module
        try:
            self._consumer.commit(
                {
                    kafka.TopicPartition(*where): kafka.OffsetAndMetadata(at, "", -1)
                    for where, at in offsets.items()
                },
                timeout_ms=5000,
            )
        except kafka.errors.KafkaError as error:
            raise NotCommitted(type(error).__name__) from error

    def close(self) -> None:
        self._consumer.close(timeout_ms=CLOSE_SECONDS * 1000)


class Aiokafka(Consumer):
    """Its loop runs in a thread, as heartbeats have to go on while nobody polls."""

    def __init__(self, options: Options, reports: Reports) -> None:
        import aiokafka
        import aiokafka.errors
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        class Listener(aiokafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                reports.partitions("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                reports.partitions("revoked", revoked)

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }
        self._module: Any = aiokafka
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

        async def start() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=options.address,
                client_id=options.name,
                group_id=options.group,
                group_instance_id=options.instance,
                partition_assignment_strategy=[assignors[options.strategy]],
                session_timeout_ms=options.session_ms,
                heartbeat_interval_ms=options.heartbeat_ms,
                max_poll_interval_ms=options.poll_interval_ms,
                rebalance_timeout_ms=options.poll_interval_ms,
                metadata_max_age_ms=options.metadata_ms,
                auto_offset_reset=options.reset,
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
            )
            consumer.subscribe(
                topics=options.topics or (), pattern=options.pattern, listener=Listener()
            )
            await consumer.start()
            return consumer

        self._consumer: Any = self._run(start())

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def poll(self) -> Batch:
        found = self._run(
            self._consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=POLL_RECORDS)
        )
        return {
            (tp.topic, tp.partition): [message.offset for message in messages]
            for tp, messages in found.items()
        }

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        errors = self._module.errors
        wanted = {self._module.TopicPartition(*where): at for where, at in offsets.items()}
        try:
            self._run(self._consumer.commit(wanted))
        except (errors.KafkaError, errors.IllegalStateError) as error:
            raise NotCommitted(type(error).__name__) from error

    def close(self) -> None:
        self._run(self._consumer.stop())


class Headrace(Consumer):
    def __init__(self, options: Options, reports: Reports) -> None:
        import headrace

        class Listener(headrace.RebalanceListener):
            def on_partitions_assigned(self, assigned: Any, /) -> None:
                reports.partitions("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any, /) -> None:
                reports.partitions("revoked", revoked)

        self._module: Any = headrace
        self._consumer: Any = headrace.Consumer(
            bootstrap_servers=options.address,
            client_id=options.name,
            group_id=options.group,
            group_instance_id=options.instance,
            partition_assignment_strategy=options.strategy,
            session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.heartbeat_ms,
            max_poll_interval_ms=options.poll_interval_ms,
            metadata_max_age_ms=options.metadata_ms,
            auto_offset_reset=options.reset,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        )
        self._consumer.subscribe(
            topics=options.topics or None, pattern=options.pattern, listener=Listener()
        )

    def poll(self) -> Batch:
        try:
            records = self._consumer.poll(int(POLL_SECONDS * 1000), max_records=POLL_RECORDS)
        except self._module.KafkaError as error:
            raise Fatal(error.code.name) from error
        batch: Batch = {}
        for record in records:
            batch.setdefault((record.topic, record.partition), []).append(record.offset)
        return batch

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        wanted = {self._module.TopicPartition(*where): at for where, at in offsets.items()}
        try:
            self._consumer.commit(wanted)
        except self._module.CommitFailed as error:
            name = error.code.name
            raise (Fatal if name in FENCED else NotCommitted)(name) from error

    def close(self) -> None:
        self._consumer.close(timeout_ms=CLOSE_SECONDS * 1000)


CONSUMERS: dict[str, type[Any]] = {
    "headrace": Headrace,
    "librdkafka": Librdkafka,
    "librdkafka-assigned": LibrdkafkaAssigned,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


def consume(consumer: Consumer, commands: Commands, reports: Reports) -> None:
    while not commands.is_closing:
        if commands.is_paused:
            reports.say("paused")
            commands.wait_to_resume()
            continue
        batch = consumer.poll()
        if not batch:
            continue
        reports.say("records", [[*where, offsets] for where, offsets in batch.items()])
        ends = {where: offsets[-1] + 1 for where, offsets in batch.items()}
        try:
            consumer.commit(ends)
        except NotCommitted as error:
            reports.say("not committed", str(error))
        else:
            reports.say("committed", [[*where, end] for where, end in ends.items()])


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    reports, commands = Reports(), Commands()
    consumer: Consumer = CONSUMERS[options.client](options, reports)
    try:
        consume(consumer, commands, reports)
    except Fatal as error:
        reports.say("failed", str(error))
    consumer.close()
    reports.say("closed")


if __name__ == "__main__":
    main()
