"""Consumers in groups: who reads what, what is committed when, and what survives a crash."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from headrace.client.admin.admin import Admin
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.rebalance_listener import RebalanceListener
from headrace.client.errors import CommitFailed, IllegalState, NoOffset
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.testing.time_limits import Deadline, scaled
from headrace.types import TopicPartition
from tests.integration.client.feeding import create_topic, feed
from tests.support import BrokerProcess

WAIT_S = 60.0
WAIT_MS = WAIT_S * 1000
QUICK = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def address(start_broker: Callable[..., BrokerProcess]) -> str:
    return start_broker(**QUICK).address


@pytest.fixture
def tp(address: str) -> TopicPartition:
    create_topic(address, "orders", 1)
    return TopicPartition("orders", 0)


def member(address: str, *topics: str, **options: Any) -> Consumer:
    chosen: dict[str, Any] = {
        "bootstrap_servers": address,
        "group_id": "readers",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
    }
    return Consumer(*topics, **(chosen | options))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def committed(address: str, tp: TopicPartition) -> int | None:
    """What the group has, asked by somebody else."""
    with member(address, enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        found = consumer.committed(tp)
        return found.offset if found else None


def until(condition: Callable[[], object], *consumers: Consumer) -> list[Any]:
    """Poll consumers in turn until something is so; the records they got meanwhile."""
    records: list[Any] = []
    deadline = Deadline(WAIT_S)
    while not condition():
        assert not deadline.has_passed, "it did not happen in time"
        for consumer in consumers:
            records += consumer.poll(50)
        if not consumers:
            time.sleep(0.02)
    return records


def until_records(consumer: Consumer, count: int) -> list[Any]:
    """The next records of a consumer, as many as that."""
    records: list[Any] = []
    deadline = Deadline(WAIT_S)
    while len(records) < count:
        assert not deadline.has_passed, f"only {len(records)} of {count} records came"
        records += consumer.poll(100)
    return records


class Told(RebalanceListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: Collection[TopicPartition], /) -> None:
        self.heard.append(("revoked", sorted(revoked)))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
        self.heard.append(("assigned", sorted(assigned)))

    def on_partitions_lost(self, lost: Collection[TopicPartition], /) -> None:
        self.heard.append(("lost", sorted(lost)))


def test_a_group_goes_on_where_it_committed(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    with member(address, tp.topic, enable_auto_commit=False) as consumer:
        assert len(consumer.poll(scaled(WAIT_MS), max_records=4)) == 4
        consumer.commit()
        assert consumer.committed(tp) == OffsetAndMetadata(4, leader_epoch=0)
        assert len(consumer.poll(scaled(WAIT_MS))) == 6
    with member(address, tp.topic) as consumer:
        assert consumer.poll(scaled(WAIT_MS))[0].offset == 4
        assert consumer.position(tp) == 10


def test_offsets_can_be_given(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    with member(address, tp.topic, enable_auto_commit=False) as consumer:
        consumer.poll(scaled(WAIT_MS))
        consumer.commit({tp: OffsetAndMetadata(7, "a note")})
        assert consumer.committed(tp) == OffsetAndMetadata(7, "a note")
        consumer.commit({tp: 3})
        assert consumer.committed() == {tp: OffsetAndMetadata(3)}


def test_auto_commit_covers_earlier_polls_only(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    with member(address, tp.topic, auto_commit_interval_ms=50) as consumer:
        assert len(consumer.poll(scaled(WAIT_MS), max_records=4)) == 4
        begun = time.monotonic()
        while time.monotonic() - begun < 0.5:
            assert committed(address, tp) in (None, 0), "they may still be worked on"
        assert len(consumer.poll(scaled(WAIT_MS), max_records=3)) == 3
        until(lambda: committed(address, tp) == 4)
        assert consumer.position(tp) == 7
    assert committed(address, tp) == 7, "closing says that the last ones are done too"


def test_auto_commit_leaves_out_the_record_a_loop_is_at(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    with member(address, tp.topic, auto_commit_interval_ms=20) as consumer:
        for record in consumer:
            if record.offset == 5:
                break
        until(lambda: committed(address, tp) == 5)
        assert consumer.position(tp) == 6
    assert committed(address, tp) == 5


def test_a_commit_in_a_loop_includes_the_record_at_hand(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    with member(address, tp.topic, enable_auto_commit=False) as consumer:
        for record in consumer:
            consumer.commit()
            epoch = record.leader_epoch
            assert consumer.committed(tp) == OffsetAndMetadata(record.offset + 1, "", epoch)
            if record.offset == 3:
                break
    assert committed(address, tp) == 4


def test_what_was_not_processed_is_not_committed(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))

    def fail_at_the_sixth() -> None:
        with member(address, tp.topic) as consumer:
            consumer.poll(scaled(WAIT_MS), max_records=4)
            consumer.poll(scaled(WAIT_MS), max_records=4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_sixth()
    assert committed(address, tp) == 4


def test_commits_without_waiting_are_done_in_order(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    done: list[tuple[dict[TopicPartition, OffsetAndMetadata], HeadraceError | None]] = []
    with member(address, tp.topic, enable_auto_commit=False) as consumer:
        while len(done) < 10:
            for _ in consumer.poll(100, max_records=1):
                consumer.commit_async(callback=lambda *told: done.append(told))
    assert [(offsets[tp].offset, error) for offsets, error in done] == [
        (offset, None) for offset in range(1, 11)
    ]
    assert committed(address, tp) == 10


def test_closing_waits_for_commits_on_their_way(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(3))
    done: list[Any] = []
    consumer = member(address, tp.topic, enable_auto_commit=False)
    assert consumer.poll(scaled(WAIT_MS))
    consumer.commit_async(callback=lambda *told: done.append(told))
    consumer.close()
    assert [error for _, error in done] == [None]
    assert committed(address, tp) == 3


def test_partitions_are_committed_without_a_membership(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(5))
    with member(address, auto_commit_interval_ms=50) as consumer:
        consumer.assign([tp])
        assert len(consumer.poll(scaled(WAIT_MS))) == 5
        consumer.poll(0)
        until(lambda: consumer.committed(tp) == OffsetAndMetadata(5, leader_epoch=0))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_partitions_move_to_new_members_and_back(address: str, strategy: str) -> None:
    create_topic(address, "shared", 4)
    everything = {TopicPartition("shared", number) for number in range(4)}
    first_told, second_told = Told(), Told()
    with member(address, partition_assignment_strategy=strategy) as first:
        first.subscribe(["shared"], listener=first_told)
        until(lambda: first.assignment() == everything, first)
        for partition in range(4):
            feed(address, "shared", numbers(25), partition=partition)
        seen: list[Any] = []
        with member(address, partition_assignment_strategy=strategy) as second:
            second.subscribe(["shared"], listener=second_told)
            seen += until(
                lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second
            )
            assert first.assignment() | second.assignment() == everything
        seen += until(lambda: first.assignment() == everything, first)
        seen += until_records(first, 100 - len(seen))
        # Longer than the broker takes to answer: there is no more.
        seen += first.poll(500)
    # Everything was committed when it moved, so nobody read anything twice.
    assert sorted((position.partition, position.offset) for position in seen) == [
        (partition, offset) for partition in range(4) for offset in range(25)
    ]
    assert first_told.heard[0] == ("assigned", sorted(everything))
    revoked = [partitions for what, partitions in first_told.heard[1:] if what == "revoked"]
    assert len(revoked[0]) == (2 if strategy == "cooperative-sticky" else 4)
    assert second_told.heard[-1][0] == "revoked", "closing gives back what it has"
    assert first_told.heard[-1] == ("revoked", sorted(everything))
    assert "lost" not in [what for what, _ in first_told.heard + second_told.heard]


def test_a_listener_may_use_the_consumer(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))

    class Stored(RebalanceListener):
        def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
            for entry in assigned:
                consumer.seek(entry, 6)

        def on_partitions_revoked(self, revoked: Collection[TopicPartition], /) -> None:
            consumer.commit({entry: consumer.position(entry) for entry in revoked})
            with pytest.raises(IllegalState, match="called by a listener or callback"):
                consumer.poll(0)

    with member(address, enable_auto_commit=False) as consumer:
        consumer.subscribe([tp.topic], listener=Stored())
        assert consumer.poll(scaled(WAIT_MS))[0].offset == 6
        with member(address, tp.topic, enable_auto_commit=False) as other:
            until(
                lambda: len(consumer.assignment()) + len(other.assignment()) == 1, consumer, other
            )
            until(lambda: committed(address, tp) == 10, consumer, other)


def test_what_a_listener_raises_is_raised_by_poll(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(3))

    class Broken(RebalanceListener):
        def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
            raise ZeroDivisionError("in the listener")

    class Async(RebalanceListener):
        async def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
            pass

    with member(address) as consumer:
        consumer.subscribe([tp.topic], listener=Broken())
        with pytest.raises(ZeroDivisionError, match="in the listener"):
            consumer.poll(scaled(WAIT_MS))
        assert len(consumer.poll(scaled(WAIT_MS))) == 3, "the assignment stands"
    with member(address, group_id="others") as consumer:
        consumer.subscribe([tp.topic], listener=Async())
        with pytest.raises(IllegalState, match=r"use it with headrace\.aio\.Consumer"):
            consumer.poll(scaled(WAIT_MS))


def test_a_member_that_does_not_poll_loses_its_partitions(
    address: str, tp: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    feed(address, tp.topic, numbers(5))
    told = Told()
    with (
        member(address, max_poll_interval_ms=700, enable_auto_commit=False) as slow,
        member(address, tp.topic, client_id="quick") as quick,
    ):
        slow.subscribe([tp.topic], listener=told)
        until(lambda: slow.assignment() == {tp}, slow)
        until(lambda: quick.assignment() == {tp}, quick)
        with pytest.raises(CommitFailed):
            slow.commit()
        until(lambda: told.heard[-1][0] != "assigned", slow, quick)
        assert ("lost", [tp]) in told.heard
    assert "has not polled for max_poll_interval_ms=700" in caplog.text


@pytest.mark.parametrize("group_id", ["readers", None])
def test_patterns_find_topics_as_they_come(address: str, group_id: str | None) -> None:
    create_topic(address, "invoices-a", 1)
    create_topic(address, "orders", 1)
    with member(address, group_id=group_id, metadata_max_age_ms=200) as consumer:
        consumer.subscribe(pattern="invoices-.*")
        until(lambda: TopicPartition("invoices-a", 0) in consumer.assignment(), consumer)
        create_topic(address, "invoices-b", 2)
        feed(address, "invoices-b", [b"new"], partition=1)
        [record] = until_records(consumer, 1)
        assert (record.topic, record.partition, record.value) == ("invoices-b", 1, b"new")
        assert consumer.subscription() == {"invoices-a", "invoices-b"}


def test_a_subscription_can_be_replaced(address: str) -> None:
    for topic in ("before", "after"):
        create_topic(address, topic, 1)
        feed(address, topic, [topic.encode()])
    with member(address, "before") as consumer:
        assert [record.value for record in consumer.poll(scaled(WAIT_MS))] == [b"before"]
        consumer.subscribe(["after"])
        assert [record.value for record in until_records(consumer, 1)] == [b"after"]
        assert consumer.assignment() == {TopicPartition("after", 0)}
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription()) == (set(), set())
        assert committed(address, TopicPartition("after", 0)) == 1
        feed(address, "before", [b"again"])
        consumer.subscribe(["before"])
        assert [record.value for record in until_records(consumer, 1)] == [b"again"]


def test_a_static_member_keeps_its_partitions_through_a_restart(address: str) -> None:
    create_topic(address, "shared", 2)
    options: dict[str, Any] = {"session_timeout_ms": 20_000}
    with member(address, "shared", group_instance_id="a", **options) as first:
        told = Told()
        second = member(address, group_instance_id="b", **options)
        second.subscribe(["shared"], listener=told)
        until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
        kept, rebalances = second.assignment(), first.metrics()["rebalance-total"]
        second.close()
        with member(address, "shared", group_instance_id="b", **options) as back:
            until(lambda: back.assignment() == kept, first, back)
            assert first.metrics()["rebalance-total"] == rebalances
            with member(address, "shared", group_instance_id="b", **options) as twin:
                with pytest.raises(KafkaError) as raised:
                    until(lambda: False, twin, back)
                assert raised.value.code is ErrorCode.FENCED_INSTANCE_ID


def test_a_group_without_offsets_needs_a_policy(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(1))
    with member(address, tp.topic, auto_offset_reset="none") as consumer:
        with pytest.raises(NoOffset, match=f"group readers has no committed offset for {tp}"):
            until(lambda: False, consumer)
        consumer.seek_to_beginning(tp)
        assert consumer.poll(scaled(WAIT_MS))[0].offset == 0


def test_members_of_other_clients_share_the_group(address: str) -> None:
    create_topic(address, "shared", 4)
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "readers",
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 100,
        }
    )
    try:
        theirs.subscribe(["shared"])
        with member(address, "shared", partition_assignment_strategy="range") as ours:

            def is_shared() -> bool:
                theirs.poll(0.05)
                return len(ours.assignment()) == len(theirs.assignment()) == 2

            until(is_shared, ours)
            numbers = {tp.partition for tp in ours.assignment()}
            assert numbers | {tp.partition for tp in theirs.assignment()} == {0, 1, 2, 3}
        until(lambda: theirs.poll(0.05) or len(theirs.assignment()) == 4)
    finally:
        theirs.close()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_of_the_broker_loses_nothing(
    start_broker: Callable[..., BrokerProcess], how: str
) -> None:
    broker = start_broker(**QUICK)
    create_topic(broker.address, "orders", 2)
    feed(broker.address, "orders", numbers(100), partition=0)
    tp = TopicPartition("orders", 0)
    with member(broker.address, "orders", auto_commit_interval_ms=50) as consumer:
        seen = until_records(consumer, 100)
        consumer.commit()
        getattr(broker, how)()
        assert consumer.poll(500) == []
        with pytest.raises(HeadraceError):
            consumer.commit({tp: 50}, timeout_ms=300)
        broker.start()
        feed(broker.address, "orders", numbers(100), partition=1)
        seen += until_records(consumer, 100)
        assert sorted((position.partition, position.offset) for position in seen) == [
            (partition, offset) for partition in range(2) for offset in range(100)
        ]
        consumer.commit()


def test_a_close_is_bounded_though_the_broker_is_away(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**QUICK)
    create_topic(broker.address, "orders", 1)
    feed(broker.address, "orders", numbers(3))
    consumer = member(broker.address, "orders")
    assert len(consumer.poll(scaled(WAIT_MS))) == 3
    broker.kill()
    begun = time.monotonic()
    consumer.close(timeout_ms=1000)
    assert time.monotonic() - begun < scaled(8)
    broker.start()


INTERRUPTED = """
import sys, headrace
from headrace.client.admin.admin import Admin
from headrace.client.consumer.consumer import Consumer
consumer = Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id="interrupted")
consumer.poll(0)
try:
    print("waiting", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
consumer.close()
"""


@pytest.mark.parametrize("call", ["consumer.poll(60_000)", "next(consumer)"])
def test_ctrl_c_ends_a_wait_at_once(address: str, tp: TopicPartition, call: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(call=call), address, tp.topic],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout as lines:
        assert lines.readline() == "waiting\n"
        begun = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        assert lines.readline() == "interrupted\n"
        assert time.monotonic() - begun < scaled(5)
        assert process.wait(scaled(20)) == 0


def test_consumers_on_threads_share_the_work(address: str) -> None:
    create_topic(address, "shared", 6)
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def work() -> None:
        with member(address, "shared", max_poll_records=50) as consumer:
            while not done.is_set():
                seen.extend(
                    (position.partition, position.offset) for position in consumer.poll(100)
                )

    with ExitStack() as stack:
        for thread in [threading.Thread(target=work) for _ in range(3)]:
            thread.start()
            stack.callback(thread.join)
        stack.callback(done.set)
        for partition in range(6):
            feed(address, "shared", numbers(500), partition=partition)
        until(lambda: len(set(seen)) == 3000)
    assert sorted(set(seen)) == [(index, offset) for index in range(6) for offset in range(500)]


def test_commits_on_their_way_are_waited_for_without_a_membership(
    address: str, tp: TopicPartition
) -> None:
    done: list[Any] = []
    with member(address, enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        consumer.position(tp)
        for offset in range(5):
            consumer.commit_async({tp: offset}, lambda *told: done.append(told))
    assert [(offsets[tp].offset, error) for offsets, error in done] == [
        (offset, None) for offset in range(5)
    ]
    assert committed(address, tp) == 4


def test_a_poll_that_is_interrupted_gives_nothing_away(
    address: str, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(address, tp.topic, numbers(10))
    consumer = member(address, tp.topic)
    assert len(consumer.poll(scaled(WAIT_MS), max_records=4)) == 4
    take = consumer._engine.handout.records

    def interrupted(limit: int) -> list[Any]:
        assert take(limit)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(consumer._engine.handout, "records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(scaled(WAIT_MS))
    assert consumer.position(tp) == 4
    consumer.close()
    assert committed(address, tp) == 4


def test_a_name_no_topic_can_have_is_an_error(address: str) -> None:
    with member(address, "not a name") as consumer:
        for _ in range(2):
            with pytest.raises(KafkaError) as raised:
                until(lambda: False, consumer)
            assert raised.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert "not a name" in str(raised.value)


@pytest.mark.parametrize("group_id", ["readers", None])
def test_new_partitions_of_a_topic_are_read(address: str, group_id: str | None) -> None:
    create_topic(address, "growing", 1)
    with member(address, "growing", group_id=group_id, metadata_max_age_ms=200) as consumer:
        until(lambda: len(consumer.assignment()) == 1, consumer)
        with Admin(bootstrap_servers=address) as admin:
            admin.create_partitions({"growing": 3})
        feed(address, "growing", [b"new"], partition=2)
        assert [record.value for record in until_records(consumer, 1)] == [b"new"]
        assert len(consumer.assignment()) == 3
