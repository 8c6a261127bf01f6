"""The authorization table: for each API and right, what a sender without the right is answered."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.access.rules import LEFT_OUT, NO_RIGHT_NEEDED, NeededRight
from headrace.broker.apis import SERVED, ServedApi
from headrace.broker.dispatch import Dispatcher
from headrace.broker.forwarding import (
    begin_locally,
    decode_principal,
    encode_principal,
    open_envelope,
)
from headrace.broker.quotas import ClientQuotas
from headrace.broker.request import RequestContext
from headrace.config import broker_config
from headrace.errors import ErrorCode, ProtocolError
from headrace.metrics.registry import Registry
from headrace.protocol.apis import (
    Api,
    RequestHeader,
    decode_response,
    encode_request,
    served_versions,
)
from headrace.protocol.messages import (
    consumer_group_describe,
    delete_topics,
    describe_configs,
    describe_transactions,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_groups,
    list_transactions,
)
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.alter_configs import AlterConfigsResource as LegacyResource
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.envelope import EnvelopeRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.schema import Message
from headrace.security.acls import AclOperation, AclResourceType
from headrace.security.authorization import ANONYMOUS, Decision, Principal, Right
from tests.integration.requests import requests_of
from tests.unit.client.fake_brokers import FakeClock

TOPIC, TOPIC_ID = "orders", b"orders-topic-id-"
SECRET = "secret"
REQUESTS = requests_of(TOPIC, TOPIC_ID)
ROWS = {row.api: row for row in SERVED}
# They come before authentication, or are about their sender alone.
OPEN_TO_ALL = {
    Api.API_VERSIONS,
    Api.SASL_HANDSHAKE,
    Api.SASL_AUTHENTICATE,
    # Of a token whose secret the sender has; its owner, requester and renewers may.
    Api.RENEW_DELEGATION_TOKEN,
    Api.EXPIRE_DELEGATION_TOKEN,
    Api.GET_TELEMETRY_SUBSCRIPTIONS,
    Api.PUSH_TELEMETRY,
}
# Their handlers ask, since they may be about topics that no request names; they are tested with a
# broker in tests/integration/test_acls.py. Those of tokens: tests/unit/broker/handlers.
ASKED_BY_HANDLERS = {
    Api.METADATA,
    Api.FETCH,
    Api.DESCRIBE_TOPIC_PARTITIONS,
    Api.CREATE_DELEGATION_TOKEN,
    Api.DESCRIBE_DELEGATION_TOKEN,
}
AUTHORIZATION_CODES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def _configs(resource_type: int) -> list[Message]:
    legacy = LegacyResource(resource_type=resource_type, resource_name="x")
    changed = incremental_alter_configs.AlterConfigsResource(
        resource_type=resource_type, resource_name="x"
    )
    described = describe_configs.DescribeConfigsResource(
        resource_type=resource_type, resource_name="x"
    )
    return [
        AlterConfigsRequest(resources=[legacy]),
        incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[changed]),
        describe_configs.DescribeConfigsRequest(resources=[described]),
    ]


# Requests that need rights which the plain ones do not.
MORE_REQUESTS: list[Message] = [
    init_producer_id.InitProducerIdRequest(transactional_id="t"),
    *(
        find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
        for key_type in (0, 1, 2)
    ),
    *(request for resource_type in (2, 4, 16, 32, 100) for request in _configs(resource_type)),
    ProduceRequest(
        transactional_id="t", acks=1, topic_data=cast("Any", REQUESTS[Api.PRODUCE](13)).topic_data
    ),
    delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name=None, topic_id=TOPIC_ID)]
    ),
]

# Answers of handlers that have something to be left out, or to be added to.
ANSWERS: dict[Api, Callable[[], Message]] = {
    Api.LIST_GROUPS: lambda: list_groups.ListGroupsResponse(
        groups=[list_groups.ListedGroup(group_id=SECRET)]
    ),
    Api.CONSUMER_GROUP_DESCRIBE: lambda: consumer_group_describe.ConsumerGroupDescribeResponse(
        groups=[
            consumer_group_describe.DescribedGroup(
                members=[
                    consumer_group_describe.Member(
                        assignment=consumer_group_describe.Assignment(
                            topic_partitions=[
                                consumer_group_describe.TopicPartitions(topic_name=SECRET)
                            ]
                        )
                    )
                ]
            )
        ]
    ),
    Api.LIST_TRANSACTIONS: lambda: list_transactions.ListTransactionsResponse(
        transaction_states=[list_transactions.TransactionState(transactional_id=SECRET)]
    ),
    Api.DESCRIBE_TRANSACTIONS: lambda: describe_transactions.DescribeTransactionsResponse(
        transaction_states=[
            describe_transactions.TransactionState(
                topics=[describe_transactions.TopicData(topic=SECRET)]
            )
        ]
    ),
    Api.CREATE_TOPICS: lambda: CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name)
            for topic in cast("Any", REQUESTS[Api.CREATE_TOPICS](7)).topics
        ]
    ),
}


class Denying:
    """An authorizer that denies some operations on types of resources, and notes the questions."""

    def __init__(self, denied: Callable[[AclOperation, AclResourceType], bool]) -> None:
        self._denied = denied
        self.asked: list[tuple[Principal, str, Right]] = []

    def decide(self, principal: Principal, host: str, right: Right) -> Decision:
        self.asked.append((principal, host, right))
        return Decision(not self._denied(right.operation, right.resource_type), "test")

    def decide_any(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> Decision:
        return Decision(not self._denied(operation, resource_type), "test")


def without(right: NeededRight) -> Denying:
    """An authorizer that denies a right and its alternatives."""
    pairs = {(right.operation, right.resource_type), *right.alternatives}
    return Denying(lambda operation, resource_type: (operation, resource_type) in pairs)


def everything() -> Denying:
    return Denying(lambda operation, resource_type: True)


def node_with(authorizer: Any, rows: dict[Api, ServedApi] = ROWS, listener: str = "") -> Any:
    topic = SimpleNamespace(name=TOPIC)
    image = SimpleNamespace(topics={TOPIC: topic}, topics_by_id={TOPIC_ID: topic})
    config = SimpleNamespace(
        controller_listener_names=(listener,), client_listeners=broker_config({}).client_listeners
    )
    node = SimpleNamespace(
        config=config,
        ready=asyncio.Event(),
        store=SimpleNamespace(is_active=True, image=image),
        membership=SimpleNamespace(may_write=True),
        authorizer=authorizer,
        audit=None,
        apis=rows,
        clock=FakeClock(),
        metrics=Registry(),
        quotas=ClientQuotas(Registry(), FakeClock().monotonic),
    )
    node.ready.set()
    return node


def ask(row: ServedApi, authorizer: Any, request: Message, version: int) -> Any:
    """The response of a row's handler, or of the rule in its place, over the wire's format."""
    dispatcher = Dispatcher(node_with(authorizer, listener="PLAINTEXT"), "PLAINTEXT", [row])
    frame = b"".join(encode_request(request, version, 7, "someone"))[4:]
    connection = SimpleNamespace(peer_host="10.0.0.7", received_s=0.0, principal=ANONYMOUS)
    reply = dispatcher.respond(cast("Any", connection), memoryview(frame))
    assert isinstance(reply, list)
    return decode_response(row.api, version, b"".join(reply)[4:])[1]


def stubbed(api: Api) -> ServedApi:
    """The row of an API with a handler that has nothing to say of what is taken out."""
    answer = ANSWERS.get(api, api.response)
    return ROWS[api]._replace(handler=lambda context, request: answer(), is_local=None)


def codes_of(message: object) -> set[int]:
    """Every error code in a response."""
    return {
        value
        for name, value in _fields(message)
        if name.endswith("error_code") and isinstance(value, int) and value
    }


def _fields(message: Any) -> Iterator[tuple[str, object]]:
    if isinstance(message, list):
        for item in message:
            yield from _fields(item)
    elif hasattr(type(message), "__specs__"):
        for name in type(message).__specs__:
            value = getattr(message, name)
            yield name, value
            yield from _fields(value)


def requests_for(api: Api) -> Iterator[tuple[Message, int]]:
    first, last = served_versions(api)
    for version in range(first, last + 1):
        yield REQUESTS[api](version), version
    for request in MORE_REQUESTS:
        if isinstance(request, api.request):
            yield request, last


def test_only_these_apis_are_open_to_all() -> None:
    assert {row.api for row in SERVED if row.access == NO_RIGHT_NEEDED} == OPEN_TO_ALL
    asked = {row.api for row in SERVED if row.access.rights and row.access.check is None}
    assert asked == ASKED_BY_HANDLERS


TABLE = [
    (row.api, right)
    for row in SERVED
    if row.api not in ASKED_BY_HANDLERS
    for right in row.access.rights
]


@pytest.mark.parametrize(
    ("api", "right"),
    TABLE,
    ids=lambda cell: (
        cell.name if isinstance(cell, Api) else f"{cell.operation.name}-{cell.resource_type.name}"
    ),
)
def test_a_missing_right_is_answered_as_the_table_says(api: Api, right: NeededRight) -> None:
    row = stubbed(api)
    # Copies: a rule takes what it denies out of a request.
    allowed = [ask(row, Denying(lambda *_: False), *sent) for sent in _copies(api)]
    denied = [ask(row, without(right), *sent) for sent in _copies(api)]
    assert not AUTHORIZATION_CODES & {code for response in allowed for code in codes_of(response)}
    if right.place == LEFT_OUT:
        assert all(SECRET in repr(_texts(response)) for response in allowed)
        assert not any(SECRET in repr(_texts(response)) for response in denied)
    elif (right.operation, api) == (AclOperation.DESCRIBE, Api.DELETE_TOPICS):
        return  # Of a topic that may not be deleted; see below.
    else:
        assert right.code in {code for response in denied for code in codes_of(response)}


def _copies(api: Api) -> Iterator[tuple[Message, int]]:
    yield from requests_for(api)


def _texts(message: object) -> list[object]:
    return [value for _, value in _fields(message) if isinstance(value, str)]


@pytest.mark.parametrize(
    "api", sorted(set(Api) - OPEN_TO_ALL - ASKED_BY_HANDLERS), ids=lambda api: api.name
)
def test_without_any_right_every_version_is_refused(api: Api) -> None:
    def never(context: RequestContext, request: Message) -> Message:
        raise AssertionError("a request that is denied has come to its handler")

    lists = (Api.LIST_GROUPS, Api.LIST_TRANSACTIONS, Api.DESCRIBE_TRANSACTIONS, Api.CREATE_TOPICS)
    row = stubbed(api) if api in lists else ROWS[api]._replace(handler=never, is_local=None)
    first, last = served_versions(api)
    for version in range(first, last + 1):
        if (api, version) == (Api.DESCRIBE_LOG_DIRS, 1):
            continue  # Its answer has no place for a code before version 3.
        authorizer = everything()
        response = ask(row, authorizer, REQUESTS[api](version), version)
        assert SECRET not in repr(_texts(response))
        if LEFT_OUT not in {right.place for right in row.access.rights}:
            if not (api is Api.DESCRIBE_LOG_DIRS and version < 3):
                assert codes_of(response) & AUTHORIZATION_CODES, version
        principal, host, _ = authorizer.asked[0]
        assert (principal, host) == (ANONYMOUS, "10.0.0.7")


def test_a_topic_that_may_be_described_is_named_when_it_may_not_be_deleted() -> None:
    request = delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name=None, topic_id=TOPIC_ID)]
    )
    row = stubbed(Api.DELETE_TOPICS)
    described = Denying(lambda operation, _: operation is AclOperation.DELETE)
    for authorizer, name in ((described, TOPIC), (everything(), None)):
        [result] = ask(row, authorizer, request, 6).responses
        assert (result.name, result.topic_id) == (name, TOPIC_ID)
        assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        request.topics = [delete_topics.DeleteTopicState(name=None, topic_id=TOPIC_ID)]


def test_what_is_allowed_goes_on_beside_what_is_denied() -> None:
    class OnlyMine(Denying):
        def decide(self, principal: Principal, host: str, right: Right) -> Decision:
            return Decision(right.name == "mine", "test")

    def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=topic.name) for topic in request.topics]
        )

    row = ROWS[Api.CREATE_TOPICS]._replace(handler=create)
    request = CreateTopicsRequest(topics=[CreatableTopic(name="mine"), CreatableTopic(name="its")])
    response = ask(row, OnlyMine(lambda *_: True), request, 7)
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "mine": 0,
        "its": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


def test_a_request_is_answered_if_its_sender_has_the_right() -> None:
    row = ROWS[Api.HEARTBEAT]._replace(handler=lambda *_: HeartbeatResponse(throttle_time_ms=5))
    allowed = ask(row, Denying(lambda *_: False), HeartbeatRequest(group_id="mine"), 4)
    assert (allowed.error_code, allowed.throttle_time_ms) == (0, 5)


def test_produce_without_an_answer_closes_the_connection() -> None:
    request = cast("ProduceRequest", REQUESTS[Api.PRODUCE](9))
    request.acks = 0
    with pytest.raises(ProtocolError, match="User:ANONYMOUS failed: TOPIC_AUTHORIZATION_FAILED"):
        ask(stubbed(Api.PRODUCE), everything(), request, 9)


def envelope_context(node: Any, principal: Principal) -> RequestContext:
    header = RequestHeader(Api.ENVELOPE, 0, 0, "node", 0)
    return RequestContext(node, header, "host", principal=principal, authorizer=node.authorizer)


def test_a_request_in_an_envelope_is_judged_for_its_principal() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="new")])
    frame = b"".join(encode_request(request, 7, 0, None))[4:]
    authorizer = everything()
    node = node_with(authorizer, {**ROWS, Api.CREATE_TOPICS: stubbed(Api.CREATE_TOPICS)})
    alice = Principal("User", "alice", ("staff",))
    broker = Principal("User", "broker")
    for sent, judged in ((encode_principal(alice), alice), (None, broker)):
        authorizer.asked.clear()
        envelope = EnvelopeRequest(
            request_data=frame, request_principal=sent, client_host_address=b"client"
        )
        response = asyncio.run(open_envelope(envelope_context(node, broker), envelope))
        assert response.error_code == 0
        assert {(principal, host) for principal, host, _ in authorizer.asked} == {
            (judged, "client")
        }


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1x", b"\0\0\x05ab"])
def test_bytes_that_are_no_principal_are_refused(data: bytes) -> None:
    frame = b"".join(encode_request(CreateTopicsRequest(), 7, 0, None))[4:]
    envelope = EnvelopeRequest(
        request_data=frame, request_principal=data, client_host_address=b"client"
    )
    node = node_with(everything())
    response = asyncio.run(open_envelope(envelope_context(node, ANONYMOUS), envelope))
    assert response.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


def test_a_principal_is_the_same_after_an_envelope() -> None:
    principal = Principal("User", "CN=älice,O=x", ("a", "b"))
    assert decode_principal(encode_principal(principal)) == principal


def test_nobody_is_asked_about_the_requests_of_the_node_itself() -> None:
    authorizer = everything()
    answered = list_groups.ListGroupsResponse()
    row = ROWS[Api.LIST_GROUPS]._replace(handler=lambda *_: answered)
    node = node_with(authorizer, {Api.LIST_GROUPS: row})
    assert begin_locally(node, ListGroupsRequest()) is answered
    assert authorizer.asked == []
