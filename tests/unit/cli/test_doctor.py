import json

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsHealth,
    DescribeLogDirsReplicaProblem,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsSetAside,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from tests.unit.cli.invoking import invoke, use
from tests.unit.client.admin.moving import MovingBrokers
from tests.unit.metadata.clusters import id_of


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> MovingBrokers:
    brokers = MovingBrokers(3, {"orders": [[1, 2, 3], [2, 3, 1], [3, 1, 2]], "audit": [[1, 2]]})
    use(brokers, monkeypatch, "doctor")
    return brokers


def change(brokers: MovingBrokers, partition: int, **fields: object) -> None:
    record = PartitionChangeRecord(topic_id=id_of("orders"), partition_id=partition, **fields)  # type: ignore[arg-type]
    brokers.image = brokers.image.apply([record])


def findings(brokers: MovingBrokers) -> list[tuple[str, str, str]]:
    """What is told programs, after a look at whether people are told the same."""
    told = invoke("doctor", "--json")
    found = json.loads(told.stdout)["findings"]
    shown = invoke("doctor")
    assert told.exit_code == shown.exit_code == (1 if found else 0)
    if found:
        lines = [f"{entry['subject']}: {entry['detail']}" for entry in found]
        assert shown.stdout.splitlines() == lines
    return [(entry["check"], entry["subject"], entry["detail"]) for entry in found]


def test_a_cluster_of_which_nothing_is_wrong_passes(brokers: MovingBrokers) -> None:
    assert findings(brokers) == []
    assert invoke("doctor").stdout == "nothing is wrong: 3 brokers, 2 topics, 4 partitions\n"


def test_partitions_that_lack_the_same_replicas_are_told_together(brokers: MovingBrokers) -> None:
    for partition in (0, 1):
        change(brokers, partition, isr=[1, 2], leader=1)
    change(brokers, 2, isr=[1], leader=1)
    brokers.settings[2, "orders"] = {"min.insync.replicas": "2"}
    [some, few] = findings(brokers)
    assert some[:2] == ("under-replicated", "orders:0,1")
    assert some[2].startswith("replicas on broker 3 are not in sync: they catch up by themselves")
    assert few[:2] == ("under-min-isr", "orders:2")
    assert few[2].startswith(
        "replicas on brokers 3, 2 are not in sync, and min.insync.replicas is 2: writes with"
        " acks=all are refused"
    )


def test_a_partition_without_a_leader_and_a_broker_that_is_down(brokers: MovingBrokers) -> None:
    brokers.fenced.add(3)
    change(brokers, 2, isr=[3], leader=-1)
    [down, offline] = findings(brokers)
    assert down[:2] == ("broker", "broker 3")
    assert "`headrace brokers drain 3`" in down[2]
    assert offline[:2] == ("offline-partition", "orders:2")
    assert offline[2].startswith("no replica leads; in sync were broker 3: start their brokers.")


def test_new_replicas_of_a_partition_that_moves_are_not_missed(brokers: MovingBrokers) -> None:
    brokers.is_quick = False
    change(brokers, 0, replicas=[1, 2, 3], isr=[1, 2], adding_replicas=[3])
    assert findings(brokers) == []


def test_replicas_and_directories_are_told_as_their_broker_tells_of_them(
    brokers: MovingBrokers,
) -> None:
    health = DescribeLogDirsHealth(
        set_aside=[
            DescribeLogDirsSetAside(name="old-0.77-stray", reason="nobody knows it"),
            DescribeLogDirsSetAside(name="__cluster_metadata-0.88-damaged", reason="damaged"),
        ]
    )
    problem = DescribeLogDirsReplicaProblem(
        topic="orders", partition_index=1, state="stopped", reason="its leader lacks records"
    )

    def describe(node: int, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        assert request.include_health
        if node != 2:
            return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="/data")])
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(log_dir="/a", is_cordoned=True, health=health),
                DescribeLogDirsResult(log_dir="/b", error_code=ErrorCode.KAFKA_STORAGE_ERROR),
            ],
            replica_problems=[problem],
        )

    brokers._DescribeLogDirs = describe  # type: ignore[method-assign]
    [full, stray, metadata, failed, stopped] = findings(brokers)
    assert full[:2] == ("directory", "broker 2, /a")
    assert full[2].startswith("the data directory is full")
    assert stray == (
        "set-aside",
        "broker 2, /a",
        "1 log (old-0.77-stray) was set aside: see why with `headrace log strays list /a`, then"
        " restore or discard",
    )
    assert metadata[2].startswith(
        "1 damaged metadata log (__cluster_metadata-0.88-damaged) was set aside"
    )
    assert failed[:2] == ("directory", "broker 2, /b")
    assert stopped == (
        "replica",
        "orders-1 on broker 2",
        "the replica is stopped: its leader lacks records",
    )


def test_a_broker_that_does_not_answer_and_a_missing_controller_are_findings(
    brokers: MovingBrokers,
) -> None:
    brokers.down.add(3)
    brokers.quorum_error = ErrorCode.UNSUPPORTED_VERSION
    [controller, silent] = findings(brokers)
    assert controller[:2] == ("controller", "controller")
    assert silent[:2] == ("broker", "broker 3")
    assert silent[2].startswith("it does not answer, see its log: BROKER_NOT_AVAILABLE")
