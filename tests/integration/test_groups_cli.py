"""`headrace groups` against a real broker with real consumers in its groups."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from headrace.protocol.records import encode_batch
from headrace.testing.time_limits import scaled
from tests.integration.commands import SECONDS, Cli, on_terminal, wait_until
from tests.integration.wire import Wire, create_topic, produce
from tests.support import BrokerProcess

PARTITIONS = 3
RECORDS = 30


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker(**{"group.initial.rebalance.delay.ms": "0"})


@pytest.fixture
def cli(broker: BrokerProcess) -> Cli:
    """A broker with a topic of three partitions, ten records in each."""
    create_topic(broker.address, "orders", PARTITIONS)
    write(broker, RECORDS)
    return Cli(broker.address)


def write(broker: BrokerProcess, count: int) -> None:
    """Records over all partitions in turn, with timestamps a second apart."""
    with Wire(broker.address) as wire:
        for number in range(count):
            # A batch for each record: timestamps are found by batch.
            batch = encode_batch([(1_700_000_000_000 + number * 1000, None, b"%d" % number, ())])
            assert not produce(wire, "orders", batch, partition=number % PARTITIONS).error_code


def librdkafka(broker: BrokerProcess, group: str, **options: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )


def read(consumer: Consumer, count: int) -> list[Message]:
    """So many records, and a commit of them."""
    consumer.subscribe(["orders"])
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(scaled(SECONDS))
        assert message is not None, f"{len(found)} of {count} records came"
        assert message.error() is None
        found.append(message)
    consumer.commit(asynchronous=False)
    return found


def read_and_leave(broker: BrokerProcess, group: str, count: int = RECORDS) -> list[Message]:
    consumer = librdkafka(broker, group)
    try:
        return read(consumer, count)
    finally:
        consumer.close()


@contextmanager
def in_background(step: Callable[[], object]) -> Iterator[None]:
    """Do something again and again while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            step()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def describe(cli: Cli, group: str) -> Any:
    (found,) = cli.json("groups", "describe", group)["groups"]
    return found


def committed(cli: Cli, group: str) -> dict[int, int]:
    return {
        offset["partition"]: offset["committed_offset"]
        for offset in describe(cli, group)["offsets"]
        if offset["committed_offset"] is not None
    }


def owned(group: Any) -> list[int]:
    """The partitions of the topic that members own, with repetitions."""
    return sorted(
        number for member in group["members"] for number in member["assignment"].get("orders", ())
    )


def test_a_group_is_shown_with_its_members(cli: Cli, broker: BrokerProcess) -> None:
    one = librdkafka(broker, "billing", **{"client.id": "one", "group.instance.id": "desk"})
    two = librdkafka(broker, "billing", **{"client.id": "two"})
    for consumer in (one, two):
        consumer.subscribe(["orders"])
    shown: list[Any] = []

    def settled() -> bool:
        shown[:] = cli.json("groups", "describe")["groups"]
        return any(entry["state"] == "Stable" and len(entry["members"]) == 2 for entry in shown)

    with in_background(lambda: one.poll(0.1)), in_background(lambda: two.poll(0.1)):
        wait_until(settled)
        listed = cli.json("groups", "list")["groups"]
        assert cli.json("groups", "list", "--state", "Empty") == {"groups": []}
        table = cli.text("groups", "describe", "billing", "--members").splitlines()
    two.close()
    one.close()
    (group,) = shown
    assert (group["name"], group["protocol_type"], group["protocol"]) == (
        "billing",
        "consumer",
        "range",
    )
    members = {member["client_id"]: member for member in group["members"]}
    assert (members["one"]["instance_id"], members["two"]["instance_id"]) == ("desk", None)
    assert {member["host"] for member in group["members"]} == {"127.0.0.1"}
    assert [member["subscription"] for member in group["members"]] == [["orders"], ["orders"]]
    assert sorted(len(member["assignment"]["orders"]) for member in group["members"]) == [1, 2]
    assert owned(group) == [0, 1, 2]
    # Nothing is committed yet, so nobody can say how far behind the group is.
    assert [entry["lag"] for entry in group["offsets"]] == [None, None, None]
    owners = [entry["member_id"] for entry in group["offsets"]]
    assert set(owners) == {member["member_id"] for member in group["members"]}
    assert [
        (entry["name"], entry["type"], entry["state"], entry["members"]) for entry in listed
    ] == [("billing", "classic", "Stable", 2)]
    assert table[0] == "Group billing: Stable, 2 members, protocol range, coordinator 1"
    assert sorted(line.split()[-1].partition(":")[0] for line in table[2:]) == ["orders"] * 2


def test_lag_is_what_is_left_to_read(cli: Cli, broker: BrokerProcess) -> None:
    read_and_leave(broker, "billing")
    assert describe(cli, "billing")["total_lag"] == 0
    write(broker, 5)
    group = describe(cli, "billing")
    assert group["state"] == "Empty"
    assert [offset["lag"] for offset in group["offsets"]] == [2, 2, 1]
    assert group["total_lag"] == 5
    lines = cli.text("groups", "describe", "billing").splitlines()
    assert lines[0] == "Group billing: Empty, no members, coordinator 1"
    assert lines[2].split() == ["orders", "0", "10", "12", "2"]
    assert lines[-1] == "Total lag: 5"


def kafka_python(address: str, group: str, over: threading.Event) -> None:
    consumer = KafkaConsumer("orders", bootstrap_servers=address, group_id=group)
    while not over.is_set():
        consumer.poll(100)
    consumer.close()


def aiokafka(address: str, group: str, over: threading.Event) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer("orders", bootstrap_servers=address, group_id=group)
        await consumer.start()
        while not over.is_set():
            await consumer.getmany(timeout_ms=100)
        await consumer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("client", [kafka_python, aiokafka])
def test_what_members_of_every_client_own_can_be_read(
    cli: Cli, broker: BrokerProcess, client: Callable[[str, str, threading.Event], None]
) -> None:
    over = threading.Event()
    thread = threading.Thread(target=client, args=(broker.address, "billing", over))
    thread.start()
    try:
        wait_until(lambda: bool(cli.json("groups", "list", "--state", "Stable")["groups"]))
        group = describe(cli, "billing")
        assert owned(group) == [0, 1, 2]
        assert group["members"][0]["subscription"] == ["orders"]
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], [0, 0, 0]),
        (["--to-latest"], [10, 10, 10]),
        (["--to-offset", "7"], [7, 7, 7]),
        (["--shift-by", "-4"], [6, 6, 6]),
        # Record n has the second n: of those from 14 on, 5, 4 and 5 are the first in a partition.
        (["--to-datetime", "2023-11-14T22:13:34Z"], [5, 5, 4]),
        (["--by-duration", "1h"], [10, 10, 10]),
        (["--to-current"], [10, 10, 10]),
    ],
)
def test_a_reset_is_shown_first_and_then_done(
    cli: Cli, broker: BrokerProcess, target: list[str], expected: list[int]
) -> None:
    read_and_leave(broker, "billing")
    reset = ["groups", "reset-offsets", "billing", "--all-topics", *target]
    planned = cli.json(*reset)
    assert [offset["new_offset"] for offset in planned["offsets"]] == expected
    assert [offset["change"] for offset in planned["offsets"]] == [new - 10 for new in expected]
    assert committed(cli, "billing") == {0: 10, 1: 10, 2: 10}
    done = cli.json(*reset, "--execute")
    assert (planned["executed"], done["executed"]) == (False, True)
    assert done["offsets"] == planned["offsets"]
    assert committed(cli, "billing") == dict(enumerate(expected))


def test_consumers_go_on_where_a_reset_left_them(cli: Cli, broker: BrokerProcess) -> None:
    read_and_leave(broker, "billing")
    reset = ["groups", "reset-offsets", "billing"]
    cli.run(*reset, "--topic", "orders:0,2", "--to-offset", "8", "--execute")
    # Other clients see the same offsets, after a restart too.
    broker.restart()
    admin = AdminClient({"bootstrap.servers": broker.address})
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("billing")])
    found = future["billing"].result(scaled(SECONDS)).topic_partitions
    assert sorted((position.partition, position.offset) for position in found) == [
        (0, 8),
        (1, 10),
        (2, 8),
    ]
    again = read_and_leave(broker, "billing", 4)
    assert sorted((position.partition(), position.offset()) for position in again) == [
        (0, 8),
        (0, 9),
        (2, 8),
        (2, 9),
    ]


def test_a_reset_stays_inside_the_log_and_says_so(cli: Cli, broker: BrokerProcess) -> None:
    result = cli.run(
        "groups", "reset-offsets", "new", "--topic", "orders:1", "--to-offset", "99", "--execute"
    )
    assert result.stderr.decode().splitlines() == [
        "headrace: group new does not exist yet; a reset makes it",
        "headrace: orders-1 has no offset 99, only 0 to 10; taking 10",
        "Reset 1 offset of group new.",
    ]
    assert committed(cli, "new") == {1: 10}


def test_saved_offsets_are_brought_back(cli: Cli, broker: BrokerProcess) -> None:
    read_and_leave(broker, "billing")
    reset = ["groups", "reset-offsets", "billing"]
    saved = cli.run(*reset, "--all-topics", "--to-current", "--json").stdout
    cli.run(*reset, "--all-topics", "--to-earliest", "--execute")
    cli.run(*reset, "--from-file", "-", "--execute", stdin=saved)
    assert committed(cli, "billing") == {0: 10, 1: 10, 2: 10}


def test_a_group_that_runs_is_left_alone(cli: Cli, broker: BrokerProcess) -> None:
    consumer = librdkafka(broker, "billing")
    read(consumer, RECORDS)
    with in_background(lambda: consumer.poll(0.1)):
        error = cli.error("groups", "reset-offsets", "billing", "--all-topics", "--to-earliest")
        assert "group billing is Stable and has 1 member; stop its consumers first" in error
        error = cli.error("groups", "delete", "billing", "--yes")
        assert "group billing: non empty group; stop its consumers first" in error
        result = cli.run("groups", "delete-offsets", "billing", "--topic", "orders", status=1)
        assert result.stderr.count(b"stop the consumers that subscribe to the topic first") == 3
    assert committed(cli, "billing") == {0: 10, 1: 10, 2: 10}
    consumer.close()


def test_offsets_and_groups_are_deleted_for_good(cli: Cli, broker: BrokerProcess) -> None:
    read_and_leave(broker, "billing")
    text = cli.text("groups", "delete-offsets", "billing", "--topic", "orders:0,1")
    assert text == "deleted the offsets of group billing in orders:0,1\n"
    assert committed(cli, "billing") == {2: 10}
    error = cli.error("groups", "delete-offsets", "billing", "--topic", "orders:0")
    assert "has committed nothing in orders-0" in error
    assert cli.text("groups", "delete", "billing", "--yes") == "deleted group billing\n"
    assert cli.json("groups", "list") == {"groups": []}
    assert "does not exist; list groups" in cli.error("groups", "describe", "billing")
    broker.restart()
    assert cli.json("groups", "list") == {"groups": []}
    # A group of the same name begins anew.
    assert len(read_and_leave(broker, "billing")) == RECORDS


def test_a_terminal_is_asked_before_a_group_is_deleted(cli: Cli, broker: BrokerProcess) -> None:
    read_and_leave(broker, "billing")
    status, shown = on_terminal(cli, ["groups", "delete", "billing"], b"n\n")
    assert status == 130
    assert "Delete billing and all committed offsets?" in shown
    status, shown = on_terminal(cli, ["groups", "describe", "billing"])
    assert status == 0
    assert "\x1b[1m" in shown  # The headings are bold.
    assert "Total lag: 0" in shown


def test_simple_consumers_make_groups_too(cli: Cli, broker: BrokerProcess) -> None:
    consumer = librdkafka(broker, "simple")
    consumer.commit(offsets=[TopicPartition("orders", 1, 4)], asynchronous=False)
    consumer.close()
    group = describe(cli, "simple")
    assert (group["state"], group["members"], group["total_lag"]) == ("Empty", [], 6)
