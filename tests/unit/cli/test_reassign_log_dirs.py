"""Plans with `log_dirs`: replicas that move between the directories of their brokers."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.moving import MovingBrokers

ORDERS = TopicPartition("orders", 0)


class DirectoryBrokers(MovingBrokers):
    """Brokers with the directories `/one` and `/two`; replicas begin in the first.

    `late` is how many requests find that a replica is not on its broker yet.
    """

    def __init__(self) -> None:
        super().__init__(3, {"orders": [[1, 2]]})
        self.homes: dict[tuple[int, TopicPartition], str] = {}
        self.futures: dict[tuple[int, TopicPartition], str] = {}
        self.late = 0

    def arrive_in_directories(self) -> None:
        self.homes.update(self.futures)
        self.futures.clear()

    def _AlterReplicaLogDirs(self, node: int, request: Any) -> AlterReplicaLogDirsResponse:
        results = [
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(
                        partition_index=index,
                        error_code=self._move(node, TopicPartition(topic.name, index), entry.path),
                    )
                    for index in topic.partitions
                ],
            )
            for entry in request.dirs
            for topic in entry.topics
        ]
        return AlterReplicaLogDirsResponse(results=results)

    def _move(self, node: int, tp: TopicPartition, path: str) -> ErrorCode:
        if path not in ("/one", "/two"):
            return ErrorCode.LOG_DIR_NOT_FOUND
        if self.late:
            self.late -= 1
            return ErrorCode.REPLICA_NOT_AVAILABLE
        self.futures.pop((node, tp), None)
        if self.homes.get((node, tp), "/one") != path:
            self.futures[node, tp] = path
        return ErrorCode.NONE

    def _DescribeLogDirs(self, node: int, request: Any) -> DescribeLogDirsResponse:
        replicas = self.partition(*ORDERS).replicas
        results = []
        for path in ("/one", "/two"):
            found = []
            if node in replicas and self.homes.get((node, ORDERS), "/one") == path:
                found.append(DescribeLogDirsPartition(partition_index=0, partition_size=1000))
            if self.futures.get((node, ORDERS)) == path:
                found.append(
                    DescribeLogDirsPartition(
                        partition_index=0, partition_size=400, offset_lag=60, is_future_key=True
                    )
                )
            topics = [DescribeLogDirsTopic(name="orders", partitions=found)] if found else []
            results.append(DescribeLogDirsResult(log_dir=path, topics=topics))
        return DescribeLogDirsResponse(results=results)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> DirectoryBrokers:
    brokers = DirectoryBrokers()
    use(brokers, monkeypatch, "reassign")
    monkeypatch.setattr("headrace.cli.reassignment_moves.PAUSE_S", 0)
    monkeypatch.setattr("headrace.cli.reassign.PAUSE_S", 0)
    return brokers


def plan(tmp_path: Path, *log_dirs: object, replicas: tuple[int, ...] = (1, 2)) -> str:
    entry = {"topic": "orders", "partition": 0, "replicas": list(replicas), "log_dirs": log_dirs}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return str(path)


def test_replicas_are_moved_and_followed_to_their_directories(
    brokers: DirectoryBrokers, tmp_path: Path
) -> None:
    path = plan(tmp_path, "/two", "any")
    result = invoke("reassign", "execute", path, "--throttle", "5000")
    assert result.exit_code == 0, result.stderr
    assert brokers.futures == {(1, ORDERS): "/two"}
    assert brokers.settings[4, "1"]["replica.alter.log.dirs.io.max.bytes.per.second"] == "5000"
    result = invoke("reassign", "verify", path)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "replica orders-0 of broker 1 moves from /one to /two, 60 offsets behind",
        "0 of 1 replica in the directory of the plan",
        "1 of 1 partition done",
    ]
    assert "orders-0" in invoke("reassign", "verify").stdout
    brokers.arrive_in_directories()
    result = invoke("reassign", "verify", path)
    assert (result.exit_code, result.stderr) == (0, "removed the throttle\n")
    [state] = document(invoke("reassign", "verify", path, "--json"))["log_dirs"]
    assert (state["state"], state["log_dir"], state["broker"]) == ("done", "/two", 1)
    assert (4, "1") not in brokers.settings


def test_a_replica_that_is_on_its_way_is_asked_for_again(
    brokers: DirectoryBrokers, tmp_path: Path
) -> None:
    brokers.late = 3
    assert invoke("reassign", "execute", plan(tmp_path, "any", "/two")).exit_code == 0
    assert brokers.futures == {(2, ORDERS): "/two"}


@pytest.mark.parametrize("arguments", [[], ["--all"]])
def test_moves_between_directories_are_cancelled(
    brokers: DirectoryBrokers, tmp_path: Path, arguments: list[str]
) -> None:
    path = plan(tmp_path, "/two", "/two")
    invoke("reassign", "execute", path)
    assert len(brokers.futures) == 2
    result = invoke("reassign", "cancel", *(arguments or [path]))
    assert (result.exit_code, result.stdout) == (0, "cancelled the moves of 1 partition\n")
    assert brokers.futures == {}
    result = invoke("reassign", "verify", path)
    assert "is in /one and does not move to /two" in result.stdout


def test_a_directory_that_a_broker_does_not_have_is_told(
    brokers: DirectoryBrokers, tmp_path: Path
) -> None:
    result = invoke("reassign", "execute", plan(tmp_path, "/nope", "any"))
    assert result.exit_code == 1
    assert "replica orders-0 of broker 1: log dir not found" in result.stderr


@pytest.mark.parametrize(
    ("log_dirs", "told"),
    [
        (("/two",), 'the "log_dirs" of orders-0 are not a path, or "any", for each replica'),
        (("/two", 5), 'the "log_dirs" of orders-0 are not a path, or "any", for each replica'),
        (("two", "any"), "the path 'two' in \"log_dirs\" of orders-0 is not absolute"),
    ],
)
def test_directories_that_cannot_be_meant_are_refused(
    brokers: DirectoryBrokers, tmp_path: Path, log_dirs: tuple[object, ...], told: str
) -> None:
    result = invoke("reassign", "execute", plan(tmp_path, *log_dirs))
    assert result.exit_code == 1
    assert told in result.stderr
    assert brokers.futures == {}
