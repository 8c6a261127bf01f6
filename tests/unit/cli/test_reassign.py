import json
from pathlib import Path

import pytest

from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.moving import MovingBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> MovingBrokers:
    """Three brokers that share everything evenly, and a fourth that has nothing."""
    ring = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]
    brokers = MovingBrokers(4, {"orders": ring, "clicks": ring})
    use(brokers, monkeypatch, "reassign")
    monkeypatch.setattr("headrace.cli.reassignment_moves.PAUSE_S", 0)
    return brokers


def plan(tmp_path: Path, **replicas: list[list[int]]) -> str:
    partitions = [
        {"topic": topic, "partition": index, "replicas": entry}
        for topic, given in replicas.items()
        for index, entry in enumerate(given)
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def test_a_plan_is_printed_in_the_format_of_kafka(brokers: MovingBrokers) -> None:
    result = invoke("reassign", "generate")
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["version"] == 1
    assert {partition["topic"] for partition in made["partitions"]} == {"clicks", "orders"}
    copied = [partition for partition in made["partitions"] if 4 in partition["replicas"]]
    assert len(copied) == 6
    assert "6 replicas to copy, 6.0 kB; begin with `headrace reassign execute`" in result.stderr
    assert brokers.partition("orders", 0).adding_replicas == ()


def test_a_plan_for_programs_has_what_is_and_what_would_be(brokers: MovingBrokers) -> None:
    made = document(invoke("reassign", "generate", "--topic", "orders", "--json"))
    assert {partition["topic"] for partition in made["proposed"]["partitions"]} == {"orders"}
    current = {
        (partition["topic"], partition["partition"]) for partition in made["current"]["partitions"]
    }
    assert current == {
        (partition["topic"], partition["partition"]) for partition in made["proposed"]["partitions"]
    }
    assert made["copies"] > 0
    assert made["bytes"] == 1000 * made["copies"]


def test_a_plan_may_leave_brokers_out(brokers: MovingBrokers) -> None:
    made = document(invoke("reassign", "generate", "--brokers", "2,3,4", "--json"))
    after = [set(partition["replicas"]) for partition in made["proposed"]["partitions"]]
    assert after == [{2, 3, 4}] * 8


def test_topics_come_from_a_file_as_kafka_takes_it(brokers: MovingBrokers, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('{"version": 1, "topics": [{"topic": "clicks"}]}')
    made = document(invoke("reassign", "generate", "--topics-from", str(path), "--json"))
    assert {partition["topic"] for partition in made["proposed"]["partitions"]} == {"clicks"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--brokers", "1,9"], "there is no broker 9; the cluster has 1, 2, 3, 4"),
        (["--brokers", "1,2"], "needs 3 replicas, and only 2 brokers may have some"),
        (["--topic", "nope"], "topic nope does not exist"),
    ],
)
def test_what_cannot_be_planned_is_told(
    brokers: MovingBrokers, arguments: list[str], told: str
) -> None:
    result = invoke("reassign", "generate", *arguments)
    assert result.exit_code == 1
    assert told in result.stderr


def test_a_broker_that_is_down_must_be_decided_on(brokers: MovingBrokers) -> None:
    brokers.fenced.add(2)
    result = invoke("reassign", "generate")
    assert result.exit_code == 1
    assert "broker 2 is down; wait until it is back, or say with --brokers" in result.stderr
    assert invoke("reassign", "generate", "--brokers", "1,3,4").exit_code == 0


def test_a_plan_is_begun_and_followed_to_its_end(brokers: MovingBrokers, tmp_path: Path) -> None:
    brokers.is_quick = False
    path = plan(tmp_path, orders=[[4, 2, 3], [2, 3, 1]])
    result = invoke("reassign", "execute", path)
    assert (result.exit_code, result.stdout) == (0, "began to move 2 partitions\n")
    result = invoke("reassign", "verify", path)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "TOPIC   PARTITION  STATE   REPLICAS  IN SYNC  TARGET",
        "orders  0          moving  4,2,3,1   1,2,3    4,2,3",
        "1 of 2 partitions done",
    ]
    brokers.arrive()
    result = invoke("reassign", "verify", path)
    assert (result.exit_code, result.stdout) == (0, "2 of 2 partitions done\n")


def test_waiting_ends_with_the_preferred_leaders(brokers: MovingBrokers, tmp_path: Path) -> None:
    path = plan(tmp_path, orders=[[4, 2, 3], [3, 2, 1]])
    result = invoke("reassign", "execute", path, "--wait")
    assert (result.exit_code, result.stdout) == (0, "moved 2 partitions\n")
    assert brokers.replicas("orders")[:2] == [(4, 2, 3), (3, 2, 1)]
    assert brokers.leaders("orders")[:2] == [4, 3]


def test_who_waits_no_longer_is_told_that_moves_go_on(
    brokers: MovingBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.reassignment_moves.time.sleep", interrupt)
    brokers.is_quick = False
    path = plan(tmp_path, orders=[[4, 2, 3]])
    result = invoke("reassign", "execute", path, "--wait")
    assert result.exit_code == 130
    assert "the moves go on; see how far with `headrace reassign verify`" in result.stderr
    assert brokers.partition("orders", 0).adding_replicas == (4,)


def test_a_generated_plan_can_be_piped_into_execute(brokers: MovingBrokers) -> None:
    made = invoke("reassign", "generate")
    assert invoke("reassign", "execute", "-", "--wait", stdin=made.stdout).exit_code == 0
    held = [replica for topic in ("orders", "clicks") for replica in brokers.replicas(topic)]
    assert [sum(broker in entry for entry in held) for broker in (1, 2, 3, 4)] == [6, 6, 6, 6]
    leaders = brokers.leaders("orders") + brokers.leaders("clicks")
    assert [leaders.count(broker) for broker in (1, 2, 3, 4)] == [2, 2, 2, 2]
    assert json.loads(invoke("reassign", "generate").stdout)["partitions"] == []


def test_a_throttle_is_set_before_anything_moves_and_lifted_when_all_is_done(
    brokers: MovingBrokers, tmp_path: Path
) -> None:
    brokers.is_quick = False
    path = plan(tmp_path, orders=[[4, 2, 3], [3, 2, 1]])
    assert invoke("reassign", "execute", path, "--throttle", "5000").exit_code == 0
    rate = {
        "leader.replication.throttled.rate": "5000",
        "follower.replication.throttled.rate": "5000",
    }
    lists = {
        "leader.replication.throttled.replicas": "0:1,0:2,0:3",
        "follower.replication.throttled.replicas": "0:4",
    }
    assert brokers.settings == {(2, "orders"): lists} | {
        (4, str(number)): rate for number in (1, 2, 3, 4)
    }
    assert brokers.settings_seen == list(brokers.settings.values())
    invoke("reassign", "verify", path)
    assert brokers.settings != {}, "it is still moving"
    brokers.arrive()
    assert "removed the throttle" in invoke("reassign", "verify", path).stderr
    assert brokers.settings == {}
    assert "throttle" not in invoke("reassign", "verify", path).stderr


def test_throttles_may_be_preserved(brokers: MovingBrokers, tmp_path: Path) -> None:
    path = plan(tmp_path, orders=[[4, 2, 3]])
    invoke("reassign", "execute", path, "--throttle", "5000")
    brokers.arrive()
    assert document(invoke("reassign", "verify", path, "--preserve-throttles", "--json"))["done"]
    assert brokers.settings != {}
    assert document(invoke("reassign", "verify", path, "--json"))["throttle_removed"] is True


def test_waiting_lifts_the_throttle(brokers: MovingBrokers, tmp_path: Path) -> None:
    path = plan(tmp_path, orders=[[4, 2, 3]])
    found = document(invoke("reassign", "execute", path, "--throttle", "5000", "--wait", "--json"))
    assert [partition["state"] for partition in found["partitions"]] == ["done"]
    assert brokers.settings_seen != []
    assert brokers.settings == {}


def test_the_way_back_is_saved(brokers: MovingBrokers, tmp_path: Path) -> None:
    path = plan(tmp_path, orders=[[4, 2, 3]])
    saved = tmp_path / "before.json"
    invoke("reassign", "execute", path, "--save-current", str(saved), "--wait")
    assert brokers.replicas("orders")[0] == (4, 2, 3)
    assert invoke("reassign", "execute", str(saved), "--wait").exit_code == 0
    assert brokers.replicas("orders")[0] == (1, 2, 3)


def test_other_moves_must_be_over_or_accepted(brokers: MovingBrokers, tmp_path: Path) -> None:
    brokers.is_quick = False
    assert invoke("reassign", "execute", plan(tmp_path, clicks=[[4, 2, 3]])).exit_code == 0
    path = plan(tmp_path, orders=[[4, 2, 3]])
    result = invoke("reassign", "execute", path)
    assert result.exit_code == 1
    assert "clicks-0 is moving; wait for `headrace reassign verify`" in result.stderr
    assert brokers.partition("orders", 0).adding_replicas == ()
    assert invoke("reassign", "execute", path, "--additional").exit_code == 0
    assert brokers.partition("orders", 0).adding_replicas == (4,)


def test_nothing_is_begun_if_the_plan_names_what_is_not_there(
    brokers: MovingBrokers, tmp_path: Path
) -> None:
    path = plan(tmp_path, orders=[[4, 2, 3]], nope=[[1]])
    result = invoke("reassign", "execute", path, "--throttle", "5")
    assert result.exit_code == 1
    assert "partition nope-0 of the plan does not exist" in result.stderr
    assert brokers.partition("orders", 0).adding_replicas == ()
    assert brokers.settings == {}


def test_an_error_of_one_partition_does_not_stop_the_others(
    brokers: MovingBrokers, tmp_path: Path
) -> None:
    path = plan(tmp_path, orders=[[9, 2, 3], [4, 2, 3]])
    result = invoke("reassign", "execute", path)
    assert (result.exit_code, result.stdout) == (1, "began to move 1 partition\n")
    assert "partition orders-0: the new assignment names broker 9" in result.stderr


def test_moves_are_cancelled(brokers: MovingBrokers, tmp_path: Path) -> None:
    brokers.is_quick = False
    path = plan(tmp_path, orders=[[4, 2, 3], [2, 3, 1]])
    invoke("reassign", "execute", path, "--throttle", "7")
    result = invoke("reassign", "cancel", path)
    assert (result.exit_code, result.stdout) == (0, "cancelled the moves of 1 partition\n")
    assert sorted(brokers.replicas("orders")[0]) == [1, 2, 3]
    assert brokers.settings == {}
    result = invoke("reassign", "cancel", "--all")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No partition of the plan is moving.\n"


def test_cancel_wants_a_plan_or_all(brokers: MovingBrokers) -> None:
    assert invoke("reassign", "cancel").exit_code == 2


def test_what_moves_is_told_without_a_plan(brokers: MovingBrokers, tmp_path: Path) -> None:
    brokers.is_quick = False
    result = invoke("reassign", "verify")
    assert (result.exit_code, result.stderr) == (0, "No partition is moving.\n")
    invoke("reassign", "execute", plan(tmp_path, orders=[[4, 2, 3]]))
    found = json.loads(invoke("reassign", "verify", "--json").stdout)
    assert found["done"] is False
    [one] = found["partitions"]
    assert (one["topic"], one["adding"], one["removing"]) == ("orders", [4], [1])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "it is no JSON"),
        ("[]", "it is not of the form"),
        ('{"version": 2, "partitions": []}', "it is not of the form"),
        ('{"partitions": []}', "it names no partition"),
        ('{"partitions": [{"topic": "a"}]}', 'entry 1 has no "topic" and "partition"'),
        ('{"partitions": [7]}', 'entry 1 has no "topic" and "partition"'),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [true]}]}',
            'the "replicas" of a-0 are no list of broker ids',
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1]},'
            ' {"topic": "a", "partition": 0, "replicas": [2]}]}',
            "it names a-0 twice",
        ),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(
    brokers: MovingBrokers, tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    result = invoke("reassign", "execute", str(path))
    assert result.exit_code == 1
    assert told in result.stderr
    assert brokers.requests == []


def test_a_partition_that_was_deleted_is_told(brokers: MovingBrokers, tmp_path: Path) -> None:
    path = plan(tmp_path, gone=[[1]], orders=[[2, 1, 3]])
    found = json.loads(invoke("reassign", "verify", path, "--json").stdout)
    assert [partition["state"] for partition in found["partitions"]] == ["gone", "elsewhere"]
    assert TopicPartition("gone", 0) not in brokers.logs
