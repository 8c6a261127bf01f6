"""Kafka's command-line tools against a broker of ours and one of Apache Kafka, step by step.

Rule: a step that ends or prints otherwise than with Kafka is listed in differences.py with its
reason, or the test fails; so it does if a listed one no longer differs.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import headrace
from headrace.testing.time_limits import Deadline
from tests.compat.brokers import SNAPSHOT_BYTES, Both, Node, ask_both, both_brokers, check
from tests.compat.command_steps import (
    FILES,
    HANGING,
    REASSIGNMENTS,
    SEGMENTS,
    STEPS,
    TOPIC,
    TRANSACTION,
    TRANSACTIONS,
)
from tests.compat.differences import DIFFERENCES, of_step
from tests.compat.kafka_commands import run_step

# The same in both brokers, so that their files can be the same.
_FIRST_TIMESTAMP_MS = 1_700_000_000_000
_VALUE_BYTES = 50_000
_SNAPSHOT_S_MAX = 60


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Both]]:
    """What each step prints with both brokers."""
    with both_brokers(tmp_path_factory.mktemp("commands")) as brokers:
        yield ask_both(run_all, brokers)


def run_all(node: Node) -> dict[str, str]:
    """What each step prints with a broker."""
    words = {"server": node.server, "controller": node.controller}
    found = {}
    with ExitStack() as stack:
        for step in STEPS:
            if step is REASSIGNMENTS[0]:
                words |= _plans(node)
            if step is TRANSACTIONS[0]:
                _end_transactions(node)
                words["open_offset"] = stack.enter_context(_open_transaction(node))
            if step is FILES[0]:
                words |= _files(node)
            found[step.title] = run_step(step, words)
    return found


def _plans(node: Node) -> dict[str, str]:
    partition = {"topic": TOPIC, "partition": 0, "replicas": [1]}
    first, second = node.directories
    target = second if (first / f"{TOPIC}-0").exists() else first
    documents = {
        "plan": {"version": 1, "partitions": [partition]},
        "lost_plan": {"version": 1, "partitions": [{**partition, "replicas": [99]}]},
        "dir_plan": {"version": 1, "partitions": [{**partition, "log_dirs": [str(target)]}]},
        "moved": {"version": 1, "topics": [{"topic": TOPIC}]},
        "deletions": {
            "version": 1,
            "partitions": [{"topic": TOPIC, "partition": 0, "offset": 0}],
        },
    }
    paths = {}
    for name, document in documents.items():
        path = node.home / f"{name}.json"
        path.write_text(json.dumps(document))
        paths[name] = str(path)
    (node.home / "empty.properties").touch()
    return paths | {"empty": str(node.home / "empty.properties")}


def _end_transactions(node: Node) -> None:
    """Commit and abort transactions, in segments enough that the first is complete."""
    with headrace.Producer(bootstrap_servers=node.server, transactional_id=TRANSACTION) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"committed", partition=0)
        producer.commit_transaction()
        for number in range(30):
            producer.begin_transaction()
            value = bytes([number]) * _VALUE_BYTES
            timestamp_ms = _FIRST_TIMESTAMP_MS + number
            producer.send(SEGMENTS, value, partition=0, timestamp_ms=timestamp_ms).result()
            if number % 10 == 5:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


@contextmanager
def _open_transaction(node: Node) -> Iterator[str]:
    """The offset of the first record of a transaction that nobody ends before a command does."""
    producer = headrace.Producer(bootstrap_servers=node.server, transactional_id=HANGING)
    producer.init_transactions()
    producer.begin_transaction()
    yield str(producer.send(TOPIC, b"open", partition=1).result().offset)
    with suppress(headrace.HeadraceError):
        producer.close()


def _files(node: Node) -> dict[str, str]:
    """Files of the logs that the steps have filled."""

    def files(pattern: str) -> list[Path]:
        return sorted(path for each in node.directories for path in each.glob(pattern))

    def fullest(topic: str) -> str:
        return str(max(files(f"{topic}-*/*.log"), key=lambda path: path.stat().st_size))

    segment = files(f"{SEGMENTS}-0/*.log")[0]
    shares = files("__share_group_state-*/*.log")
    return _metadata_files(node) | {
        "log": fullest(TOPIC),
        "segment": str(segment),
        "index": str(segment.with_suffix(".index")),
        "time_index": str(segment.with_suffix(".timeindex")),
        "transaction_index": str(segment.with_suffix(".txnindex")),
        "snapshot": str(files(f"{SEGMENTS}-0/*.snapshot")[0]),
        "offsets": fullest("__consumer_offsets"),
        "transactions": fullest("__transaction_state"),
        "shares": str(shares[0] if shares else node.home / "no-file.log"),
    }


def _metadata_files(node: Node) -> dict[str, str]:
    """Copies of the log of the metadata, and of a snapshot that is made now and removes the log.

    They are copies because Kafka's shell reads none of a directory that is in use.
    """
    directory = node.directories[0] / "__cluster_metadata-0"
    copies = node.home / "copies" / directory.name
    copies.mkdir(parents=True)
    log = shutil.copy(min(directory.glob("*.log")), copies)
    before = set(directory.glob("*.checkpoint"))
    # As many bytes as a string of a request may have, or nearly.
    throttled = ",".join(f"0:{number}" for number in range(4_000))
    assert SNAPSHOT_BYTES < len(throttled) < 2**15
    with headrace.Admin(bootstrap_servers=node.server) as admin:
        admin.alter_configs({"leader.replication.throttled.replicas": throttled}, topic=SEGMENTS)
    deadline = Deadline(_SNAPSHOT_S_MAX)
    while not (made := set(directory.glob("*.checkpoint")) - before):
        assert not deadline.has_passed, f"no new snapshot in {directory}"
        time.sleep(0.1)
    return {"metadata": str(log), "checkpoint": str(shutil.copy(max(made), copies))}


def test_every_difference_is_of_a_step() -> None:
    assert {title for each in DIFFERENCES for title in each.steps} <= {step.title for step in STEPS}


@pytest.mark.parametrize("title", [step.title for step in STEPS])
def test_a_command_ends_and_prints_as_with_kafka(printed: dict[str, Both], title: str) -> None:
    check(title, printed[title], of_step(title))
