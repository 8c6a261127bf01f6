"""Metadata: cluster operations in the versions that have them, and topics made on demand."""

import asyncio
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.handlers.metadata import metadata
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.apis import (
    Api,
    RequestHeader,
    decode_request,
    encode_response,
    read_request_header,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headrace.raft.messages import LeaderAndEpoch
from headrace.security.acls import OPERATIONS_OF, AclResourceType, operation_bits
from tests.unit.broker.handling import TOPIC, OneNode

NOT_ASKED = -(2**31)


class FakeController:
    """The active controller elsewhere: it notes the topics to make, and says `code` of each."""

    def __init__(self, code: ErrorCode | None = ErrorCode.NONE) -> None:
        self.code = code
        self.topics: list[CreatableTopic] = []

    async def ask(self, envelope: EnvelopeRequest, *args: Any, **kwargs: Any) -> EnvelopeResponse:
        if self.code is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "nobody leads")
        frame = memoryview(envelope.request_data)
        header = read_request_header(frame)
        assert header.api_key == Api.CREATE_TOPICS
        topics = decode_request(header, frame).topics
        self.topics += topics
        results = [CreatableTopicResult(name=topic.name, error_code=self.code) for topic in topics]
        reply = RequestHeader(header.api_key, header.api_version, 0, None, 0)
        response = encode_response(reply, CreateTopicsResponse(topics=results))
        return EnvelopeResponse(response_data=b"".join(response)[4:])


def ask(
    path: Path, controller: FakeController, *names: str, version: int = 13, **request: Any
) -> MetadataResponse:
    node = OneNode(path)
    node.node.controllers = controller
    node.node.cluster_id = "cluster"
    node.node.store = SimpleNamespace(image=node.node.store.image, is_active=False)
    node.node.quorum = SimpleNamespace(leader=LeaderAndEpoch(1, 5))
    node.node.replicas = SimpleNamespace(offline_replicas=lambda topic, index: [])
    topics = [MetadataRequestTopic(name=name) for name in names]

    async def answer() -> MetadataResponse:
        answer = metadata(node.context(version), MetadataRequest(topics=topics, **request))
        return await answer if isawaitable(answer) else answer

    return asyncio.run(answer())


def test_operations_on_the_cluster_are_told_if_they_are_asked_for(tmp_path: Path) -> None:
    for version in (8, 9, 10):
        for wanted, told in (
            (True, operation_bits(OPERATIONS_OF[AclResourceType.CLUSTER])),
            (False, NOT_ASKED),
        ):
            response = ask(
                tmp_path,
                FakeController(),
                TOPIC,
                version=version,
                include_cluster_authorized_operations=wanted,
            )
            assert response.cluster_authorized_operations == told


@pytest.mark.parametrize(
    ("name", "partitions"), [("__consumer_offsets", 50), ("__transaction_state", 50)]
)
def test_an_internal_topic_made_on_demand_is_like_its_coordinator_makes_it(
    tmp_path: Path, name: str, partitions: int
) -> None:
    controller = FakeController()
    [topic] = ask(tmp_path, controller, name).topics
    [made] = controller.topics
    assert made.num_partitions == partitions
    assert {config.name: config.value for config in made.configs}["cleanup.policy"] == "compact"
    assert (topic.error_code, topic.is_internal) == (ErrorCode.LEADER_NOT_AVAILABLE, True)


def test_a_name_that_is_not_legal_is_not_asked_for(tmp_path: Path) -> None:
    controller = FakeController()
    [topic] = ask(tmp_path, controller, "bad name").topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert controller.topics == []


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE),
        (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.LEADER_NOT_AVAILABLE),
        (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_topic_that_is_not_there_yet_has_a_code_that_clients_wait_on(
    tmp_path: Path, refusal: ErrorCode | None, code: ErrorCode
) -> None:
    [topic] = ask(tmp_path, FakeController(refusal), "new").topics
    assert topic.error_code == code
