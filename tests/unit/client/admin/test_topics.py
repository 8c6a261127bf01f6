from typing import Any

import pytest

from headrace.client.admin.topics import CreatedTopic, NewTopic
from headrace.client.errors import OutcomeUnknown, SomeFailed, TimedOut, Unreachable
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from headrace.protocol.messages.metadata import MetadataRequest
from tests.unit.client.admin.fakes import AdminBrokers


def test_created_topics_come_back_by_name() -> None:
    brokers = AdminBrokers()
    new = NewTopic("new", 3, configs={"retention.ms": 1, "unclean.leader.election.enable": True})
    assert brokers.admin(lambda admin: admin.create_topics([new, "other"])) == {
        "new": CreatedTopic("new", brokers.topics["new"], 3, 1),
        "other": CreatedTopic("other", brokers.topics["other"], 1, 1),
    }
    (request,) = brokers.sent(CreateTopicsRequest)
    assert [
        (topic.name, topic.num_partitions, topic.replication_factor) for topic in request.topics
    ] == [
        ("new", 3, -1),
        ("other", -1, -1),
    ]
    assert [(config.name, config.value) for config in request.topics[0].configs] == [
        ("retention.ms", "1"),
        ("unclean.leader.election.enable", "true"),
    ]


def test_a_topic_that_fails_does_not_hide_the_others() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("old")
    with pytest.raises(SomeFailed, match=r"TOPIC_ALREADY_EXISTS: Topic 'old' already") as caught:
        brokers.admin(lambda admin: admin.create_topics(["new", "old"]))
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert caught.value.outcomes["new"] == CreatedTopic("new", brokers.topics["new"], 1, 1)
    assert list(caught.value.errors) == ["old"]


def test_a_call_about_one_topic_raises_its_error() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("old")
    with pytest.raises(KafkaError, match="Topic 'old' already exists") as caught:
        brokers.admin(lambda admin: admin.create_topic("old"))
    assert not isinstance(caught.value, SomeFailed)


def test_commands_go_to_the_controller() -> None:
    brokers = AdminBrokers(nodes=3)
    brokers.controller = 2
    brokers.admin(lambda admin: admin.create_topic("a"), bootstrap=(3,))
    assert brokers.asked(CreateTopicsRequest) == [2]


def test_without_a_controller_any_broker_is_asked() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.controller = -1
    brokers.admin(lambda admin: admin.create_topic("a"))
    assert brokers.asked(CreateTopicsRequest) == [1]


def test_a_controller_that_moved_is_found() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.controller = 1
    create = brokers._CreateTopics

    def moved(node: int, request: Any) -> CreateTopicsResponse:
        brokers.controller = 2
        if node == 2:
            return create(node, request)
        refused = [
            CreatableTopicResult(name=topic.name, error_code=ErrorCode.NOT_CONTROLLER)
            for topic in request.topics
        ]
        return CreateTopicsResponse(topics=refused)

    brokers._CreateTopics = moved  # type: ignore[method-assign]
    assert brokers.admin(lambda admin: admin.create_topic("a")).partitions == 1
    assert brokers.asked(CreateTopicsRequest) == [1, 2]


def test_what_was_done_is_told_though_the_rest_runs_out_of_time() -> None:
    brokers = AdminBrokers()
    create = brokers._CreateTopics

    def throttle(node: int, request: Any) -> CreateTopicsResponse:
        done = [topic for topic in request.topics if topic.name == "a"]
        refused = [
            CreatableTopicResult(
                name=topic.name, error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, error_message="no"
            )
            for topic in request.topics
            if topic.name != "a"
        ]
        answer = create(node, CreateTopicsRequest(topics=done))
        return CreateTopicsResponse(topics=answer.topics + refused)

    brokers._CreateTopics = throttle  # type: ignore[method-assign]
    with pytest.raises(SomeFailed, match="topic b: no") as caught:
        brokers.admin(lambda admin: admin.create_topics(["a", "b"]), timeout_s=5)
    assert isinstance(caught.value.outcomes["a"], CreatedTopic)
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert brokers.clock.seconds <= 1005
    # What was created is not created again.
    assert [len(request.topics) for request in brokers.sent(CreateTopicsRequest)][:2] == [2, 1]
    with pytest.raises(TimedOut, match=r"gave up after 5 s: THROTTLING_QUOTA_EXCEEDED: topic b"):
        brokers.admin(lambda admin: admin.create_topic("b"), timeout_s=5)


def test_a_command_whose_answer_is_lost_is_not_repeated() -> None:
    brokers = AdminBrokers()
    brokers.lost = [CreateTopicsRequest]
    with pytest.raises(OutcomeUnknown, match="look before repeating"):
        brokers.admin(lambda admin: admin.create_topic("a"))
    assert len(brokers.sent(CreateTopicsRequest)) == 1


def test_a_command_is_repeated_while_nobody_could_be_sent_it() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.controller = 2
    brokers.down = {2}

    async def scenario(admin: Any) -> object:
        await admin.describe_cluster()
        brokers.controller = 1
        return await admin.create_topic("a")

    brokers.admin(scenario)
    assert brokers.asked(CreateTopicsRequest) == [1]


def test_a_topic_the_broker_says_nothing_of_has_failed() -> None:
    brokers = AdminBrokers()
    brokers._CreateTopics = lambda node, request: CreateTopicsResponse()  # type: ignore[method-assign]
    with pytest.raises(KafkaError, match="the broker says nothing of a"):
        brokers.admin(lambda admin: admin.create_topic("a"))


def test_topics_are_listed_by_name_and_described_in_the_order_asked() -> None:
    brokers = AdminBrokers()
    for name in ("b", "a", "c"):
        brokers.add_topic(name, 2)
    assert list(brokers.admin(lambda admin: admin.list_topics())) == ["a", "b", "c"]
    found = brokers.admin(lambda admin: admin.describe_topics(["c", "a", "c"]))
    assert list(found) == ["c", "a"]
    assert [partition.index for partition in found["c"].partitions] == [0, 1]
    assert [topic.name for topic in brokers.sent(MetadataRequest)[-1].topics] == ["c", "a"]


def test_internal_topics_are_listed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    brokers.add_topic("__consumer_offsets")
    describe = brokers._describe

    def internal(name: str) -> Any:
        topic = describe(name)
        topic.is_internal = name.startswith("__")
        return topic

    monkeypatch.setattr(brokers, "_describe", internal)
    assert list(brokers.admin(lambda admin: admin.list_topics())) == ["a"]
    found = brokers.admin(lambda admin: admin.list_topics(internal=True))
    assert list(found) == ["__consumer_offsets", "a"]


def test_topics_that_do_not_exist_are_named() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    with pytest.raises(UnknownTopic, match="topic b does not exist"):
        brokers.admin(lambda admin: admin.describe_topic("b"))
    names = ["a", "b", "c", "d", "e"]
    with pytest.raises(SomeFailed) as caught:
        brokers.admin(lambda admin: admin.describe_topics(names))
    assert caught.value.detail == (
        "4 of 5 failed: topic b does not exist; topic c does not exist; topic d does not exist;"
        " and 1 more"
    )
    assert all(isinstance(caught.value.errors[name], UnknownTopic) for name in names[1:])
    assert caught.value.outcomes["a"].name == "a"


def test_a_topic_that_cannot_be_described_yet_is_asked_for_again() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    describe = brokers._describe
    codes = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE]

    def loading(name: str) -> Any:
        topic = describe(name)
        topic.error_code = codes.pop() if codes else 0
        return topic

    brokers._describe = loading  # type: ignore[method-assign]
    assert brokers.admin(lambda admin: admin.describe_topic("a")).name == "a"


def deleting(brokers: AdminBrokers) -> None:
    def delete(node: int, request: Any) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=topic.name, error_code=0 if brokers.topics.pop(topic.name, None) else 3
                )
                for topic in request.topics
            ]
        )

    brokers._DeleteTopics = delete  # type: ignore[attr-defined]


def test_topics_are_deleted_each_with_its_own_outcome() -> None:
    brokers = AdminBrokers()
    deleting(brokers)
    for name in ("a", "b", "c"):
        brokers.add_topic(name)
    assert brokers.admin(lambda admin: admin.delete_topics(["a"])) is None
    with pytest.raises(SomeFailed, match="topic a: unknown topic or partition") as caught:
        brokers.admin(lambda admin: admin.delete_topics(["a", "b"]))
    assert caught.value.outcomes["b"] is None
    brokers.admin(lambda admin: admin.delete_topic("c"))
    assert brokers.topics == {}
    assert len(brokers.sent(DeleteTopicsRequest)) == 3


def test_a_deleted_topic_is_forgotten() -> None:
    brokers = AdminBrokers()
    deleting(brokers)
    brokers.add_topic("a")

    async def scenario(admin: Any) -> None:
        await admin.offsets({("a", 0): -1})
        await admin.delete_topic("a")
        with pytest.raises(UnknownTopic):
            await admin.offsets({("a", 0): -1})

    brokers.admin(scenario)


def test_partitions_are_added() -> None:
    brokers = AdminBrokers()
    brokers._CreatePartitions = lambda node, request: CreatePartitionsResponse(  # type: ignore[attr-defined]
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=37 * (topic.name == "b"))
            for topic in request.topics
        ]
    )
    assert brokers.admin(lambda admin: admin.create_partitions({"a": 4})) is None
    with pytest.raises(SomeFailed, match="INVALID_PARTITIONS: topic b: invalid partitions"):
        brokers.admin(lambda admin: admin.create_partitions({"a": 5, "b": 1}))
    first, second = brokers.sent(CreatePartitionsRequest)
    assert [(topic.name, topic.count, topic.assignments) for topic in first.topics] == [
        ("a", 4, None)
    ]
    assert [(topic.name, topic.count) for topic in second.topics] == [("a", 5), ("b", 1)]


def test_nothing_is_asked_about_nothing() -> None:
    brokers = AdminBrokers()
    assert brokers.admin(lambda admin: admin.create_topics([])) == {}
    assert brokers.admin(lambda admin: admin.describe_topics([])) == {}
    assert brokers.admin(lambda admin: admin.delete_topics([])) is None
    assert brokers.requests == []


def test_an_unreachable_cluster_ends_a_call_at_its_deadline() -> None:
    brokers = AdminBrokers()
    brokers.down = {1}
    with pytest.raises(Unreachable, match=r"gave up after 5 s: no broker at 10\.0\.0\.1:9092"):
        brokers.admin(lambda admin: admin.create_topic("a"), timeout_s=5)
    assert brokers.clock.seconds <= 1005
    with pytest.raises(Unreachable, match=r"^no broker at 10\.0\.0\.1:9092"):
        brokers.admin(lambda admin: admin.create_topic("a"), patient=False)
    assert brokers.clock.seconds <= 1005
