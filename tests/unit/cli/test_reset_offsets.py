import json
from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.fakes import AdminBrokers
from tests.unit.client.fake_groups import FakeGroup, member

A0, A1, A2, B0 = (
    TopicPartition("a", 0),
    TopicPartition("a", 1),
    TopicPartition("a", 2),
    TopicPartition("b", 0),
)
RESET = ("groups", "reset-offsets", "g")


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> AdminBrokers:
    """Topic a holds [10, 20), [0, 4) and nothing; b holds [0, 6)."""
    brokers = AdminBrokers(nodes=2)
    use(brokers, monkeypatch, "reset_offsets")
    brokers.add_topic("a", 3)
    brokers.add_topic("b")
    brokers.logs[A0].start_offset = 10
    for tp, end in ((A0, 20), (A1, 4), (B0, 6)):
        brokers.logs[tp].next_offset = end
    brokers.groups = {"g": FakeGroup(node=2, offsets={A0: 15, A1: 2, B0: 6})}
    return brokers


def new_offsets(*arguments: str) -> dict[str, int]:
    """Where a dry run would move the group, by partition."""
    found = document(invoke(*RESET, *arguments, "--json"))["offsets"]
    return {
        f"{partition['topic']}-{partition['partition']}": partition["new_offset"]
        for partition in found
    }


def test_a_dry_run_shows_and_changes_nothing(brokers: AdminBrokers) -> None:
    result = invoke(*RESET, "--topic", "a", "--to-earliest")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "TOPIC  PARTITION  OLD  NEW  CHANGE",
        "a      0          15   10   -5",
        "a      1          2    0    -2",
        "a      2               0",
    ]
    assert result.stderr == "Dry run, nothing is changed; add --execute to do it.\n"
    assert brokers.sent(OffsetCommitRequest) == []


def test_execute_commits_what_is_shown(brokers: AdminBrokers) -> None:
    result = invoke(*RESET, "--topic", "a", "--to-earliest", "--execute")
    assert result.stdout.splitlines()[1] == "a      0          15   10   -5"
    assert result.stderr == "Reset 3 offsets of group g.\n"
    assert brokers.groups["g"].offsets == {A0: 10, A1: 0, A2: 0, B0: 6}


def test_programs_are_told_the_same(brokers: AdminBrokers) -> None:
    found = document(invoke(*RESET, "--topic", "a:0,2", "--to-offset", "12", "--json"))
    assert found == {
        "group": "g",
        "executed": False,
        "offsets": [
            {
                "topic": "a",
                "partition": 0,
                "old_offset": 15,
                "new_offset": 12,
                "change": -3,
                "clamped": False,
            },
            {
                "topic": "a",
                "partition": 2,
                "old_offset": None,
                "new_offset": 0,
                "change": None,
                "clamped": True,
            },
        ],
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], [10, 0, 0]),
        (["--to-latest"], [20, 4, 6]),
        (["--to-offset", "3"], [10, 3, 3]),
        (["--to-offset", str(2**70)], [20, 4, 6]),
        (["--shift-by", "-3"], [12, 0, 3]),
        (["--shift-by", "3"], [18, 4, 6]),
        (["--to-current"], [15, 2, 6]),
    ],
)
def test_every_target_stays_inside_the_log(
    brokers: AdminBrokers, target: list[str], expected: list[int]
) -> None:
    found = new_offsets("--all-topics", *target)
    assert found == dict(zip(["a-0", "a-1", "b-0"], expected, strict=True))


def test_an_offset_outside_the_log_is_said_to_be(brokers: AdminBrokers) -> None:
    result = invoke(*RESET, "--topic", "a:0-1", "--to-offset", "5")
    assert result.stderr.splitlines() == [
        "headrace: a-0 has no offset 5, only 10 to 20; taking 10",
        "headrace: a-1 has no offset 5, only 0 to 4; taking 4",
        "Dry run, nothing is changed; add --execute to do it.",
    ]


def test_times_and_ages_are_looked_up_in_the_log(brokers: AdminBrokers) -> None:
    now_ms = brokers.clock.now_ms()
    brokers.timed[A0, now_ms - 3_600_000] = 17
    brokers.timed[A0, 1_714_564_800_000] = 11
    # Where no record is that late the group goes to the end.
    assert new_offsets("--topic", "a:0,1", "--by-duration", "1h") == {"a-0": 17, "a-1": 4}
    time = "2024-05-01T12:00:00Z"
    assert new_offsets("--topic", "a:0", "--to-datetime", time) == {"a-0": 11}


def test_to_current_is_the_end_where_nothing_is_committed(brokers: AdminBrokers) -> None:
    del brokers.groups["g"].offsets[A0]
    assert new_offsets("--topic", "a", "--to-current") == {"a-0": 20, "a-1": 2, "a-2": 0}


def test_nothing_can_be_shifted_that_is_not_committed(brokers: AdminBrokers) -> None:
    result = invoke(*RESET, "--topic", "a", "--shift-by", "1")
    assert result.exit_code == 1
    assert result.stderr == (
        "headrace: a-2 has no committed offset to shift from; name the partitions that have one, as"
        " --topic a:0,1\n"
    )


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
@pytest.mark.parametrize("execute", [[], ["--execute"]])
def test_a_group_that_runs_is_refused(
    brokers: AdminBrokers, state: str, execute: list[str]
) -> None:
    brokers.groups["g"].state = state
    brokers.groups["g"].members = [member("c", {"a": [0]})]
    result = invoke(*RESET, "--topic", "a", "--to-latest", *execute)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"headrace: group g is {state} and has 1 member; stop its consumers first,"
        " `headrace groups describe g --members` shows them\n"
    )
    assert brokers.sent(OffsetCommitRequest) == []


def test_a_group_that_starts_meanwhile_is_not_moved(brokers: AdminBrokers) -> None:
    brokers.partition_faults.extend([ErrorCode.UNKNOWN_MEMBER_ID])
    result = invoke(*RESET, "--topic", "a:0-1", "--to-latest", "--execute")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == ["a      1          2    4    +2"]
    assert result.stderr.splitlines() == [
        "Reset 1 offset of group g.",
        "headrace: partition a-0: unknown member id; the group has members again, so stop its"
        " consumers first",
    ]


def test_a_group_that_does_not_exist_is_made(brokers: AdminBrokers) -> None:
    command = ("groups", "reset-offsets", "new", "--topic", "b", "--to-offset", "3", "--execute")
    result = invoke(*command)
    assert result.exit_code == 0
    assert "group new does not exist yet; a reset makes it" in result.stderr
    assert brokers.groups["new"].offsets == {B0: 3}
    result = invoke("groups", "reset-offsets", "none", "--all-topics", "--to-latest")
    assert result.exit_code == 1
    assert "committed nothing in any topic there is; choose some with --topic" in result.stderr


def test_topics_that_are_gone_are_left_alone(brokers: AdminBrokers) -> None:
    brokers.groups["g"].offsets = {TopicPartition("gone", 0): 1, B0: 2}
    brokers._versions[9] = 9  # By name: an id could not name a topic that is gone.
    result = invoke(*RESET, "--all-topics", "--to-latest", "--execute")
    assert "headrace: gone-0 does not exist any more; left as it is\n" in result.stderr
    assert brokers.groups["g"].offsets == {TopicPartition("gone", 0): 1, B0: 6}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--topic", "a"],
        ["--topic", "a", "--to-latest", "--to-earliest"],
        ["--topic", "a", "--to-latest", "--shift-by", "0"],
        ["--to-latest"],
        ["--topic", "a", "--all-topics", "--to-latest"],
        ["--topic", "a", "--from-file", "-"],
        ["--all-topics", "--from-file", "-"],
        ["--topic", "a", "--to-offset", "-1"],
        ["--topic", "a", "--to-datetime", "yesterday"],
        ["--topic", "a", "--by-duration", "1 hour"],
        ["--topic", "a:x", "--to-latest"],
    ],
)
def test_what_is_asked_for_must_be_clear(brokers: AdminBrokers, arguments: list[str]) -> None:
    result = invoke(*RESET, *arguments, stdin="a,0,1")
    assert result.exit_code == 2
    assert result.stderr.endswith("see `headrace groups reset-offsets --help`\n") or "is not" in (
        result.stderr
    )
    assert brokers.sent(OffsetCommitRequest) == []


def test_shifting_by_nothing_is_a_target_too(brokers: AdminBrokers) -> None:
    assert new_offsets("--topic", "b", "--shift-by", "0") == {"b-0": 6}
    assert new_offsets("--topic", "b", "--to-offset", "0") == {"b-0": 0}


def test_offsets_can_be_kept_and_brought_back(brokers: AdminBrokers, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(invoke(*RESET, "--all-topics", "--to-current", "--json").stdout)
    before = dict(brokers.groups["g"].offsets)
    assert invoke(*RESET, "--all-topics", "--to-earliest", "--execute").exit_code == 0
    assert brokers.groups["g"].offsets != before
    assert invoke(*RESET, "--from-file", str(saved), "--execute").exit_code == 0
    assert brokers.groups["g"].offsets == before


def test_lines_of_kafkas_tool_are_a_plan(brokers: AdminBrokers) -> None:
    plan = '"a",0,12\n\nb, 0, 99\n'
    result = invoke(*RESET, "--from-file", "-", "--execute", stdin=plan)
    assert result.exit_code == 0
    assert "b-0 has no offset 99, only 0 to 6; taking 6" in result.stderr
    assert brokers.groups["g"].offsets == {A0: 12, A1: 2, B0: 6}


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ("", "<stdin> has no offsets; write lines as orders,0,42"),
        ("a,0\n", "line 1 of <stdin> has no topic, partition and offset; write lines"),
        ("a,0,1\na,0,-1\n", "line 2 of <stdin> has no topic, partition and offset"),
        (f"a,{2**31},1\n", "line 1 of <stdin> has no topic, partition and offset"),
        (f"a,0,{2**63}\n", "line 1 of <stdin> has no topic, partition and offset"),
        (",0,1\n", "line 1 of <stdin> has no topic, partition and offset"),
        ("a,0,1\nb,0,1\na,0,2\n", "line 3 of <stdin> gives a-0 a second time; leave one"),
        ('{"offsets": 1}', '<stdin> has no list "offsets"; take what'),
        ('{"offsets": [1]}', "offset 1 of <stdin> has no topic, partition and offset"),
        (
            json.dumps({"offsets": [{"topic": "a", "partition": True, "new_offset": 1}]}),
            "offset 1 of <stdin> has no topic",
        ),
        ('{"offsets": []}', "<stdin> has no offsets"),
        ("{", "<stdin> is no JSON: "),
        (b"\xff\xfe", "<stdin> is no text; write lines"),
        ("a,9,1\n", "topic a has no partition 9; it has 3, numbered from 0 to 2"),
        ("nope,0,1\n", "topic nope does not exist; list topics with"),
    ],
)
def test_a_plan_that_is_none_says_where(
    brokers: AdminBrokers, plan: str | bytes, line: str
) -> None:
    result = invoke(*RESET, "--from-file", "-", "--execute", stdin=plan)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headrace: {line}"), result.stderr
    assert result.stderr.count("\n") == 1
    assert brokers.sent(OffsetCommitRequest) == []
