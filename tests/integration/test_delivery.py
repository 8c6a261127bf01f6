"""What a crash at the worst moment loses and repeats, for each way to keep offsets.

The programs are those of examples/delivery, killed by `crashing.py` with SIGKILL.
"""

import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Message, Producer, TopicPartition

from examples.delivery import exactly_once_sqlite
from headrace import Admin, Consumer
from headrace import TopicPartition as HeadracePartition
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.testing.time_limits import Deadline, scaled
from tests.integration import crashing
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "delivery"
PAGE = ROOT / "docs" / "delivery.md"

TOPIC = "orders"
GROUP = "workers"
PARTITIONS = 2
RECORDS = 60
# As the examples have it.
BATCH_RECORDS = 10
SECONDS = 60.0


class Seen(NamedTuple):
    """A record that was processed; its value says where it was written."""

    partition: int
    offset: int


EVERYTHING = [
    Seen(partition, offset)
    for partition in range(PARTITIONS)
    for offset in range(RECORDS // PARTITIONS)
]
LAST = {Seen(partition, RECORDS // PARTITIONS - 1) for partition in range(PARTITIONS)}


class Example:
    """A program of examples/delivery that reads the topic of one broker."""

    def __init__(self, address: str, script: str, *arguments: str) -> None:
        self._address = address
        self._command = [str(EXAMPLES / script), "--bootstrap-server", address]
        self._command += ["--topic", TOPIC, "--group", GROUP, *arguments]

    def crash(self, moment: str, count: int) -> list[Seen]:
        """Run it into its death; what it had processed, as far as anybody can see."""
        prefix = [sys.executable, crashing.__file__, moment, str(count)]
        result = subprocess.run(
            [*prefix, *self._command],
            capture_output=True,
            text=True,
            timeout=scaled(SECONDS),
            check=False,
        )
        assert result.returncode == -signal.SIGKILL, result.stderr
        self._bury()
        return [seen(line) for line in result.stdout.splitlines()]

    def finish(self, is_done: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Run it until it has done everything, and stop it with Ctrl-C."""
        process = subprocess.Popen(
            [sys.executable, *self._command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        processed: list[Seen] = []
        reader = threading.Thread(
            target=lambda lines: processed.extend(seen(line) for line in lines),
            args=(process.stdout,),
        )
        reader.start()
        deadline = Deadline(SECONDS)
        while not is_done(processed) and process.poll() is None and not deadline.has_passed:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        reader.join(scaled(SECONDS))
        _, stderr = process.communicate(timeout=scaled(SECONDS))
        assert process.returncode == 0, stderr
        assert is_done(processed), processed
        return processed

    def committed(self) -> dict[int, int]:
        """What the broker knows of the group's offsets, by partition."""
        with Admin(bootstrap_servers=self._address) as admin:
            offsets = admin.group_offsets(GROUP)
        return {tp.partition: committed.offset for tp, committed in offsets.items()}

    def _bury(self) -> None:
        """Take the dead member out of the group, as the end of its session would."""
        with Admin(bootstrap_servers=self._address) as admin:
            (dead,) = admin.describe_group(GROUP).members
        with Wire(self._address) as wire:
            leave = LeaveGroupRequest(
                group_id=GROUP, members=[MemberIdentity(member_id=dead.member_id)]
            )
            assert wire.ask(leave).error_code == 0


def seen(line: str) -> Seen:
    partition, offset, value = line.split()
    assert value == f"{partition}/{offset}", "a record is not the one that was written there"
    return Seen(int(partition), int(offset))


def is_at_the_end(processed: list[Seen]) -> bool:
    """Records of a partition come in order, so behind the last one nothing can be repeated."""
    return set(processed) >= LAST


def below(committed: dict[int, int]) -> set[Seen]:
    return {
        position
        for position in EVERYTHING
        if position.offset < committed.get(position.partition, 0)
    }


@pytest.fixture
def address(start_broker: Callable[..., BrokerProcess]) -> str:
    """A broker with a topic whose records say where they are."""
    broker = start_broker(**{"group.initial.rebalance.delay.ms": "0"})
    create_topic(broker.address, TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.address})
    for partition, offset in EVERYTHING:
        producer.produce(TOPIC, f"{partition}/{offset}", partition=partition)
    assert producer.flush(scaled(SECONDS)) == 0
    return broker.address


def test_at_most_once_loses_the_records_in_hand_and_repeats_none(address: str) -> None:
    example = Example(address, "at_most_once.py")
    first = example.crash("after commit", 2)
    in_hand = below(example.committed()) - set(first)
    assert 1 <= len(in_hand) <= BATCH_RECORDS
    second = example.finish(is_at_the_end)
    assert sorted(first + second) == sorted(set(EVERYTHING) - in_hand)


def test_at_most_once_loses_nothing_that_was_not_committed(address: str) -> None:
    example = Example(address, "at_most_once.py")
    first = example.crash("before commit", 2)
    assert below(example.committed()) == set(first)
    second = example.finish(is_at_the_end)
    assert sorted(first + second) == EVERYTHING


def test_at_least_once_repeats_what_was_not_committed_and_loses_none(address: str) -> None:
    example = Example(address, "at_least_once.py")
    first = example.crash("before commit", 2)
    uncommitted = set(first) - below(example.committed())
    assert 1 <= len(uncommitted) <= BATCH_RECORDS
    second = example.finish(is_at_the_end)
    assert sorted(first + second) == sorted([*EVERYTHING, *uncommitted])


def test_at_least_once_repeats_nothing_that_was_committed(address: str) -> None:
    example = Example(address, "at_least_once.py")
    first = example.crash("after commit", 2)
    assert below(example.committed()) == set(first)
    second = example.finish(is_at_the_end)
    assert sorted(first + second) == EVERYTHING


class Results:
    """The database of the third example, as anybody can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[list[Seen], dict[int, int]]:
        """The results stored, with every repetition, and the next offsets."""
        with closing(sqlite3.connect(self._path, timeout=scaled(SECONDS))) as database:
            with database:
                database.execute("BEGIN")
                values = [value for (value,) in database.execute("SELECT value FROM results")]
                offsets = dict(database.execute("SELECT partition, next_offset FROM offsets"))
        return sorted(Seen(*map(int, value.split("/"))) for value in values), offsets

    def is_complete(self) -> bool:
        return sum(self.read()[1].values()) >= RECORDS


def test_results_with_offsets_in_one_transaction_are_neither_lost_nor_repeated(
    address: str, tmp_path: Path
) -> None:
    results = Results(tmp_path / "results.db")
    example = Example(address, "exactly_once_sqlite.py", "--database", str(tmp_path / "results.db"))
    done = 0
    for moment, count in (
        ("inside transaction", 1),  # The offset has moved, and the result is missing.
        ("inside transaction", 2),
        ("before commit", 1),
        ("after commit", 1),
        ("before commit", 2),
        ("after commit", 2),
    ):
        example.crash(moment, count)
        stored, offsets = results.read()
        assert stored == sorted(below(offsets)), "results and offsets do not agree"
        # A transaction that was committed counts in full, the one that was under way not at all.
        committed = {"before commit": count - 1, "after commit": count}.get(moment, 0)
        assert bool(committed) == (len(stored) > done)
        assert len(stored) <= done + committed * BATCH_RECORDS
        done = len(stored)
    assert 0 < done < RECORDS
    example.finish(lambda _: results.is_complete())
    assert results.read()[0] == EVERYTHING
    assert example.committed() == {}


def committed_results(address: str) -> list[Seen]:
    """What a reader of committed records finds in the topic of results."""
    results = [HeadracePartition("results", number) for number in range(PARTITIONS)]
    found = []
    with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
        consumer.assign(results)
        consumer.seek_to_beginning(*results)
        ends = consumer.end_offsets(results)
        while any(consumer.position(tp) < ends[tp] for tp in results):
            found += [record.value.decode() for record in consumer.poll(timeout_ms=1_000)]
    return sorted(Seen(*map(int, value.split("/"))) for value in found)


def test_results_in_a_topic_and_offsets_in_one_transaction_are_neither_lost_nor_repeated(
    address: str,
) -> None:
    create_topic(address, "results", PARTITIONS)
    example = Example(address, "exactly_once_topic.py", "--results", "results")
    done = 0
    for moment, count in (
        ("inside transaction", 1),
        ("before commit", 1),
        ("after commit", 2),
        ("before commit", 2),
    ):
        example.crash(moment, count)
        # Who takes over aborts what was left, which nobody may have read before either.
        stored = committed_results(address)
        assert stored == sorted(below(example.committed())), "results and offsets do not agree"
        committed = {"before commit": count - 1, "after commit": count}.get(moment, 0)
        assert bool(committed) == (len(stored) > done)
        assert len(stored) <= done + committed * BATCH_RECORDS
        done = len(stored)
    assert 0 < done < RECORDS
    example.finish(lambda _: len(committed_results(address)) == RECORDS)
    assert committed_results(address) == EVERYTHING


def test_a_record_is_stored_once_whoever_brings_it_and_how_often() -> None:
    def records(start: int, end: int) -> list[Message]:
        return [
            Message(topic=TOPIC, partition=0, offset=at, value=b"0/%d" % at)
            for at in range(start, end)
        ]

    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(exactly_once_sqlite.TABLES)
        # One that lost its partitions without noticing, and its successor, who overtakes it.
        for start, end in ((0, 10), (5, 20), (0, 10), (10, 15), (18, 30)):
            exactly_once_sqlite.store(database, records(start, end))
        stored = [value for (value,) in database.execute("SELECT value FROM results")]
        assert stored == [f"0/{at}" for at in range(30)]
        partition = TopicPartition(TOPIC, 0)
        assert exactly_once_sqlite.next_offset(database, partition) == 30
        assert exactly_once_sqlite.next_offset(database, TopicPartition(TOPIC, 1)) < 0


def pieces(page: str) -> Iterator[str]:
    yield from re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_code_that_is_tested() -> None:
    code = "\n".join(path.read_text() for path in sorted(EXAMPLES.glob("*.py")))
    shown = list(pieces(PAGE.read_text()))
    assert len(shown) >= 3
    for piece in shown:
        assert piece in code, piece
