import pytest

from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsReplicaProblem,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponseCursor as NextCursor,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.types import TopicPartition, uuid_text
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.fakes import AdminBrokers
from tests.unit.client.admin.moving import MovingBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> AdminBrokers:
    brokers = AdminBrokers(nodes=2)
    entry = DescribeConfigsResourceResult(name="retention.ms", value="5", config_source=1)
    default = DescribeConfigsResourceResult(name="segment.ms", value="9", config_source=5)
    answer = DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[entry, default])])
    brokers._DescribeConfigs = lambda node, request: answer  # type: ignore[attr-defined]

    def delete(node: int, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        known = [str(topic.name) in brokers.topics for topic in request.topics]
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=topic.name, error_code=0 if found else 3)
                for topic, found in zip(request.topics, known, strict=True)
            ]
        )

    brokers._DescribeTopicPartitions = (  # type: ignore[attr-defined]
        lambda node, request: DescribeTopicPartitionsResponse()
    )
    brokers._DescribeLogDirs = (  # type: ignore[attr-defined]
        lambda node, request: DescribeLogDirsResponse()
    )
    brokers._DeleteTopics = delete  # type: ignore[attr-defined]
    use(brokers, monkeypatch, "topics")
    return brokers


def test_create_sends_what_was_asked_for(brokers: AdminBrokers) -> None:
    result = invoke(
        "topics", "create", "a", "b", "a", "--partitions", "3", "--config", "retention.ms=5"
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "created topic a with 3 partitions, replication factor 1",
        "created topic b with 3 partitions, replication factor 1",
    ]
    (request,) = brokers.sent(CreateTopicsRequest)
    assert [
        (topic.name, topic.num_partitions, topic.replication_factor) for topic in request.topics
    ] == [
        ("a", 3, -1),
        ("b", 3, -1),
    ]
    assert request.topics[0].configs[0].value == "5"


def test_create_tells_programs_what_was_created(brokers: AdminBrokers) -> None:
    brokers.add_topic("old")
    found = document(invoke("topics", "create", "new", "old", "--if-not-exists", "--json"))
    assert found == {
        "topics": [
            {
                "name": "new",
                "created": True,
                "topic_id": uuid_text(brokers.topics["new"]),
                "partitions": 1,
                "replication_factor": 1,
            },
            {"name": "old", "created": False},
        ]
    }


def test_a_topic_that_exists_fails_alone(brokers: AdminBrokers) -> None:
    brokers.add_topic("old")
    result = invoke("topics", "create", "old", "new")
    assert result.exit_code == 1
    assert result.stdout.startswith("created topic new")
    assert result.stderr == (
        "headrace: Topic 'old' already exists; choose another name, or pass --if-not-exists\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--partitions", "0"], ["--replication-factor", "0"], ["--config", "x"]]
)
def test_create_refuses_wrong_numbers_and_settings(
    brokers: AdminBrokers, arguments: list[str]
) -> None:
    assert invoke("topics", "create", "a", *arguments).exit_code == 2
    assert brokers.requests == []


def test_list_shows_topics_by_name(brokers: AdminBrokers) -> None:
    brokers.add_topic("b", 2)
    brokers.add_topic("a")
    result = invoke("topics", "list")
    assert result.stdout.splitlines() == [
        "TOPIC  PARTITIONS  REPLICAS",
        "a      1           1",
        "b      2           1",
    ]
    found = document(invoke("topics", "list", "--json"))
    assert [(topic["name"], topic["partitions"]) for topic in found["topics"]] == [
        ("a", 1),
        ("b", 2),
    ]


def test_list_without_topics_says_how_to_make_one(brokers: AdminBrokers) -> None:
    result = invoke("topics", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "headrace topics create NAME" in result.stderr
    assert document(invoke("topics", "list", "--json")) == {"topics": []}


def test_describe_shows_partitions_offsets_and_changed_settings(brokers: AdminBrokers) -> None:
    brokers.add_topic("a", 3)
    brokers.logs[TopicPartition("a", 1)].next_offset = 12
    brokers.logs[TopicPartition("a", 2)].leader = -1
    result = invoke("topics", "describe", "a")
    assert result.stdout.splitlines() == [
        f"Topic a, id {uuid_text(brokers.topics['a'])}",
        "Settings: retention.ms=5",
        "PARTITION  LEADER  REPLICAS  IN SYNC  EARLIEST  LATEST",
        "0          1       1         1        0         0",
        "1          2       2         2        0         12",
        "2          none    -1        -1",
    ]
    (topic,) = document(invoke("topics", "describe", "--json"))["topics"]
    assert topic["configs"] == {"retention.ms": "5"}
    assert topic["partitions"][1] == {
        "partition": 1,
        "leader": 2,
        "leader_epoch": 0,
        "replicas": [2],
        "isr": [2],
        "offline": [],
        "eligible": [],
        "last_known_eligible": [],
        "problems": [],
        "earliest_offset": 0,
        "latest_offset": 12,
    }
    assert topic["partitions"][2]["leader"] is None
    assert topic["partitions"][2]["latest_offset"] is None


def test_describe_tells_who_is_away_and_who_could_lead(brokers: AdminBrokers) -> None:
    brokers.add_topic("a", 2)

    def described(cursor: Cursor | None) -> DescribeTopicPartitionsResponse:
        index = 0 if cursor is None else cursor.partition_index
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    name="a",
                    partitions=[
                        DescribeTopicPartitionsResponsePartition(
                            partition_index=index,
                            eligible_leader_replicas=[2, 3] if index else None,
                            last_known_elr=[1] if index else None,
                        )
                    ],
                )
            ],
            next_cursor=None if index else NextCursor(topic_name="a", partition_index=1),
        )

    brokers._DescribeTopicPartitions = (  # type: ignore[attr-defined]
        lambda node, request: described(request.cursor)
    )
    assert invoke("topics", "describe", "a").stdout.splitlines()[-2:] == [
        "1          2       2         2        0         0",
        "partition 1: out of sync with every committed record 2, 3; restarted uncleanly, may lack"
        " records 1",
    ]
    (topic,) = document(invoke("topics", "describe", "--json"))["topics"]
    assert topic["partitions"][1]["eligible"] == [2, 3]
    assert topic["partitions"][1]["last_known_eligible"] == [1]


def test_describe_tells_what_is_wrong_with_replicas(brokers: AdminBrokers) -> None:
    brokers.add_topic("a", 2)

    def health(node: int, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        assert request.include_health
        problems = [
            DescribeLogDirsReplicaProblem(
                topic=topic, partition_index=node - 1, state="stopped", reason="ask \x1b me"
            )
            for topic in ("a", "other")
            if node == 2
        ]
        return DescribeLogDirsResponse(replica_problems=problems)

    brokers._DescribeLogDirs = health  # type: ignore[attr-defined]
    assert invoke("topics", "describe", "a").stdout.splitlines()[-2:] == [
        "1          2       2         2        0         0",
        "partition 1: the replica on broker 2 is stopped: ask \\x1b me",
    ]
    (topic,) = document(invoke("topics", "describe", "--json"))["topics"]
    assert [partition["problems"] for partition in topic["partitions"]] == [
        [],
        [{"broker": 2, "state": "stopped", "reason": "ask \x1b me"}],
    ]


def test_describe_tells_replicas_of_brokers_that_are_down_from_lost_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = MovingBrokers(3, {"a": [[1, 2, 3]]})
    use(brokers, monkeypatch, "topics")
    brokers.fenced.add(3)
    brokers._DescribeTopicPartitions = (  # type: ignore[attr-defined]
        lambda node, request: DescribeTopicPartitionsResponse()
    )
    metadata = brokers._Metadata

    def with_offline(node: int, request: MetadataRequest) -> MetadataResponse:
        answer = metadata(node, request)
        for topic in answer.topics:
            topic.partitions[0].offline_replicas = [2, 3]
            topic.partitions[0].leader_id = -1  # These brokers have no offsets to ask for.
        return answer

    brokers._Metadata = with_offline  # type: ignore[method-assign]
    assert invoke("topics", "describe", "a").stdout.splitlines()[-2:] == [
        "partition 0: the replica on broker 2 is lost: the cluster takes its log for lost until"
        " broker 2 has all of it again",
        "partition 0: the replica on broker 3 is offline: broker 3 is down",
    ]


def test_describe_of_an_unknown_topic_fails(brokers: AdminBrokers) -> None:
    result = invoke("topics", "describe", "nope")
    assert result.exit_code == 1
    assert result.stderr.startswith("headrace: topic nope does not exist; list topics with")


def test_delete_needs_a_yes_where_nobody_can_be_asked(brokers: AdminBrokers) -> None:
    brokers.add_topic("a")
    result = invoke("topics", "delete", "a")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert brokers.requests == []


def test_delete_reports_each_topic(brokers: AdminBrokers) -> None:
    brokers.add_topic("a")
    result = invoke("topics", "delete", "a", "nope", "--yes")
    assert result.exit_code == 1
    assert result.stdout == "deleted topic a\n"
    assert result.stderr.startswith("headrace: topic nope: unknown topic or partition; list")
    found = document(invoke("topics", "delete", "a", "nope", "--yes", "--if-exists", "--json"))
    assert found == {"topics": [{"name": "a", "deleted": True}, {"name": "nope", "deleted": False}]}


def test_any_timeout_is_taken(brokers: AdminBrokers) -> None:
    assert invoke("topics", "create", "a", "--timeout", "1e12").exit_code == 0
    (request,) = brokers.sent(CreateTopicsRequest)
    assert request.timeout_ms < 2**31


def test_a_wrong_bootstrap_address_is_wrong_usage() -> None:
    result = invoke("topics", "list", "--bootstrap-server", "host:port:1")
    assert result.exit_code == 2
    assert result.stderr.startswith("headrace: --bootstrap-server: 'host:port:1' is no broker")
