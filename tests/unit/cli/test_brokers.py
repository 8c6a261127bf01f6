import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsHealth,
    DescribeLogDirsReplicaProblem,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.moving import MovingBrokers
from tests.unit.metadata.clusters import id_of


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> MovingBrokers:
    ring = [[1, 2, 3], [2, 3, 4], [3, 4, 1], [4, 1, 2]]
    brokers = MovingBrokers(4, {"orders": ring}, racks={1: "a"})
    use(brokers, monkeypatch, "brokers")
    monkeypatch.setattr("headrace.cli.reassignment_moves.PAUSE_S", 0)
    return brokers


def held(brokers: MovingBrokers) -> list[int]:
    return [broker for replicas in brokers.replicas("orders") for broker in replicas]


def test_brokers_are_listed_with_what_they_hold(brokers: MovingBrokers) -> None:
    brokers.fenced.add(3)
    change = PartitionChangeRecord(topic_id=id_of("orders"), partition_id=2, isr=[4, 1], leader=4)
    brokers.image = brokers.image.apply([change])
    result = invoke("brokers", "list")
    assert result.stdout.splitlines() == [
        "Cluster fake",
        "BROKER  ADDRESS        RACK  STATE           LEADS  REPLICAS  BEHIND  SIZE",
        "1       10.0.0.1:9092  a     up              1      3         0       3.0 kB",
        "2       10.0.0.2:9092        up, controller  1      3         0       3.0 kB",
        "3       10.0.0.3:9092        down            0      3         1",
        "4       10.0.0.4:9092        up              2      3         0       3.0 kB",
    ]
    told = document(invoke("brokers", "list", "--json"))
    assert told["cluster_id"] == "fake"
    assert told["brokers"][2] == {
        "id": 3,
        "address": "10.0.0.3:9092",
        "rack": None,
        "state": "down",
        "controller": False,
        "leads": 0,
        "replicas": 3,
        "behind": 1,
        "bytes": None,
    }


def test_directories_are_described_with_the_progress_and_findings_of_scrubbing(
    brokers: MovingBrokers,
) -> None:
    def describe(node: int, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        assert request.include_health
        started = {1: -1, 2: 1_700_000_000_000, 3: 1_700_000_000_000}
        health = DescribeLogDirsHealth(
            scrub_started_ms=started[node],
            scrub_finished_ms=1_700_000_600_000 if node == 3 else -1,
            scrubbed_segments=3,
            scrubbed_bytes=250,
            closed_bytes=1000,
            damaged_segments=node - 1,
        )
        problem = DescribeLogDirsReplicaProblem(
            topic="orders", partition_index=2, state="damaged", reason="a bit flipped"
        )
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(log_dir="/data", health=health)],
            replica_problems=[problem] if node == 3 else [],
        )

    brokers._DescribeLogDirs = describe  # type: ignore[method-assign]
    result = invoke("brokers", "describe", "1", "2", "3")
    heading, *lines = result.stdout.splitlines()
    assert heading.split("  ")[-1] == "SET ASIDE"
    assert [" ".join(line.split()) for line in lines] == [
        "1 /data online 0 0 B not yet 0 0",
        "2 /data online 0 0 B 25% since 2023-11-14T22:13:20.000Z 1 0",
        "3 /data online 0 0 B all until 2023-11-14T22:23:20.000Z 2 0",
        "orders-2 on broker 3 is damaged: a bit flipped",
    ]
    told = document(invoke("brokers", "describe", "2", "--json"))["brokers"]
    assert [(entry["id"], entry["problems"]) for entry in told] == [(2, [])]
    assert told[0]["directories"][0]["scrub"] == {
        "started_ms": 1_700_000_000_000,
        "finished_ms": None,
        "segments": 3,
        "bytes": 250,
        "bytes_of": 1000,
        "damaged_segments": 1,
    }


def test_a_cluster_that_does_not_tell_its_controller_is_listed_all_the_same(
    brokers: MovingBrokers,
) -> None:
    brokers.quorum_error = ErrorCode.UNSUPPORTED_VERSION
    found = document(invoke("brokers", "list", "--json"))["brokers"]
    assert [entry["controller"] for entry in found] == [False] * 4
    assert "no controller answers, so this may be out of date" in invoke("brokers", "list").stderr


def test_a_broker_that_should_be_up_and_does_not_answer_is_told(brokers: MovingBrokers) -> None:
    brokers.down = {4}
    found = document(invoke("brokers", "list", "--json"))["brokers"]
    assert [entry["state"] for entry in found] == ["up", "up", "up", "no answer"]


def test_draining_takes_everything_off_a_broker(brokers: MovingBrokers) -> None:
    result = invoke("brokers", "drain", "4")
    assert (result.exit_code, result.stdout) == (0, "nothing is left on broker 4\n")
    assert "3 replicas to copy, 3.0 kB" in result.stderr
    assert sorted(held(brokers)) == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert sorted(brokers.leaders("orders")) in ([1, 1, 2, 3], [1, 2, 2, 3], [1, 2, 3, 3])


def test_a_broker_that_is_down_is_drained_too(brokers: MovingBrokers) -> None:
    brokers.fenced.add(4)
    assert invoke("brokers", "drain", "4").exit_code == 0
    assert 4 not in held(brokers)


def test_who_waits_is_told_what_for(
    brokers: MovingBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.reassignment_moves._LINE_EVERY_S", 0)
    brokers.is_quick = False
    looked = 0
    answer = brokers._ListPartitionReassignments

    def slowly(node: int, request: object) -> object:
        nonlocal looked
        looked += 1
        # Seen on the way: all is well, then 3 is down, then back and everything arrives.
        brokers.fenced = {3} if looked in (4, 5) else set()
        brokers.is_quick = looked > 6
        return answer(node, request)

    brokers._ListPartitionReassignments = slowly  # type: ignore[method-assign]
    result = invoke("brokers", "drain", "4")
    assert (result.exit_code, result.stdout) == (0, "nothing is left on broker 4\n")
    lines = result.stderr.splitlines()
    assert "3 partitions left, 0 B of 3.0 kB copied" in lines
    assert "broker 3 is down; what goes there waits for it" in lines


def test_a_dry_run_changes_nothing(brokers: MovingBrokers) -> None:
    before = brokers.image
    found = document(invoke("brokers", "drain", "4", "--dry-run", "--json"))
    assert (found["executed"], found["bytes"], found["replicas_left"]) == (False, 3000, 3)
    assert len(found["plan"]["partitions"]) >= 3
    assert "Dry run" in invoke("brokers", "drain", "4", "--dry-run").stdout
    assert brokers.image is before


def test_without_waiting_the_rest_is_told(brokers: MovingBrokers) -> None:
    brokers.is_quick = False
    result = invoke("brokers", "drain", "4", "--no-wait", "--throttle", "9")
    assert (result.exit_code, result.stdout) == (0, "3 replicas left on broker 4\n")
    assert "headrace reassign verify" in result.stderr
    assert (4, "1") in brokers.settings


def test_a_throttle_is_lifted_at_the_end(brokers: MovingBrokers) -> None:
    assert invoke("brokers", "drain", "4", "--throttle", "9").exit_code == 0
    assert brokers.settings == {}


def test_draining_needs_enough_brokers_that_are_up(brokers: MovingBrokers) -> None:
    result = invoke("brokers", "drain", "3", "4")
    assert result.exit_code == 1
    assert "orders-0 needs 3 replicas, and only 2 brokers may have some" in result.stderr
    brokers.fenced.add(1)
    result = invoke("brokers", "drain", "4")
    assert result.exit_code == 1
    assert "broker 1 is down, and moves would wait for its replicas" in result.stderr
    result = invoke("brokers", "drain", "9")
    assert "there is no broker 9; the cluster has 1, 2, 3, 4" in result.stderr


def test_a_broker_is_removed_when_it_is_drained_and_stopped(brokers: MovingBrokers) -> None:
    result = invoke("brokers", "remove", "4", "--yes")
    assert result.exit_code == 1
    assert (
        "broker 4 has 3 replicas; move them away with `headrace brokers drain 4`" in result.stderr
    )
    invoke("brokers", "drain", "4")
    result = invoke("brokers", "remove", "4", "--yes")
    assert "broker 4 is up and would come back at once; stop it first" in result.stderr
    brokers.fenced.add(4)
    assert invoke("brokers", "remove", "4").exit_code == 2, "there is no terminal to ask"
    result = invoke("brokers", "remove", "4", "--yes")
    assert (result.exit_code, result.stdout) == (0, "removed broker 4\n")
    assert list(brokers.nodes) == [1, 2, 3]
    assert "there is no broker 4" in invoke("brokers", "remove", "4", "--yes").stderr


def test_preferred_leaders_are_elected(brokers: MovingBrokers) -> None:
    for index in (0, 2):
        record = PartitionChangeRecord(topic_id=id_of("orders"), partition_id=index, leader=1)
        brokers.image = brokers.image.apply([record])
    assert invoke("brokers", "elect", "--topic", "orders:0,1").stdout == "no leader changed\n"
    result = invoke("brokers", "elect")
    assert (result.exit_code, result.stdout) == (0, "elected leaders of orders:2\n")
    assert brokers.leaders("orders") == [1, 2, 3, 4]


def test_a_leader_that_cannot_be_elected_is_told(brokers: MovingBrokers) -> None:
    record = PartitionChangeRecord(topic_id=id_of("orders"), partition_id=1, leader=3, isr=[3, 4])
    brokers.image = brokers.image.apply([record])
    result = invoke("brokers", "elect", "--json")
    assert (result.exit_code, result.stdout) == (1, '{"elected": []}\n')
    assert f"partition {TopicPartition('orders', 1)}: preferred leader" in result.stderr


def test_an_unclean_election_must_be_meant(brokers: MovingBrokers) -> None:
    assert invoke("brokers", "elect", "--unclean", "--yes").exit_code == 2
    assert invoke("brokers", "elect", "--unclean", "--topic", "orders:0").exit_code == 2
    assert brokers.requests == []
    assert invoke("brokers", "elect", "--unclean", "--topic", "orders:0", "--yes").exit_code == 0
