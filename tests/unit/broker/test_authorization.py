"""The authorizer is asked for the requests of every API, in one place."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.apis import FREE, SERVED, ServedApi
from headrace.broker.dispatch import Dispatcher
from headrace.broker.forwarding import begin_locally, open_envelope
from headrace.broker.request import AccessDenied, RequestContext
from headrace.config import broker_config
from headrace.errors import ErrorCode
from headrace.metrics.registry import Registry
from headrace.protocol.apis import (
    Api,
    RequestHeader,
    decode_response,
    encode_request,
    served_versions,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.envelope import EnvelopeRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.schema import Message
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from headrace.security.authorization import ANONYMOUS, Principal, Right
from tests.integration.requests import requests_of
from tests.unit.client.fake_brokers import FakeClock

TOPIC, TOPIC_ID = "orders", b"orders-topic-id-"
REQUESTS = requests_of(TOPIC, TOPIC_ID)
ROWS = {row.api: row for row in SERVED}
DENIED = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# They come before authentication, say who is there, or are about their sender alone.
OPEN_TO_ALL = {
    Api.API_VERSIONS,
    Api.SASL_HANDSHAKE,
    Api.SASL_AUTHENTICATE,
    Api.DESCRIBE_CLUSTER,
    Api.CREATE_DELEGATION_TOKEN,
    Api.RENEW_DELEGATION_TOKEN,
    Api.EXPIRE_DELEGATION_TOKEN,
    Api.DESCRIBE_DELEGATION_TOKEN,
    Api.GET_TELEMETRY_SUBSCRIPTIONS,
    Api.PUSH_TELEMETRY,
}


class NamedOnly:
    """An authorizer that allows some rights, and notes what it was asked."""

    def __init__(self, *allowed: Right) -> None:
        self._allowed = allowed
        self.asked: list[tuple[Principal, str, Right]] = []

    def allows(self, principal: Principal, host: str, right: Right) -> bool:
        self.asked.append((principal, host, right))
        return right in self._allowed


def node_with(authorizer: NamedOnly, rows: dict[Api, ServedApi] = ROWS) -> Any:
    topic = SimpleNamespace(name=TOPIC)
    image = SimpleNamespace(topics={TOPIC: topic}, topics_by_id={TOPIC_ID: topic})
    node = SimpleNamespace(
        config=broker_config({}),
        ready=asyncio.Event(),
        store=SimpleNamespace(is_active=True, image=image),
        membership=SimpleNamespace(may_write=True),
        authorizer=authorizer,
        apis=rows,
        clock=FakeClock(),
        metrics=Registry(),
    )
    node.ready.set()
    return node


def ask(row: ServedApi, authorizer: NamedOnly, request: Message, version: int) -> Any:
    """The response of a row's handler, or of the dispatcher in its place."""
    dispatcher = Dispatcher(node_with(authorizer), "PLAINTEXT", [row])
    frame = b"".join(encode_request(request, version, 7, "someone"))[4:]
    connection = SimpleNamespace(peer_host="10.0.0.7", received_s=0.0)
    reply = dispatcher.respond(cast("Any", connection), memoryview(frame))
    assert isinstance(reply, list)
    return decode_response(row.api, version, b"".join(reply)[4:])[1]


def never(context: RequestContext, request: Message) -> Message:
    raise AssertionError("a request that is denied has come to its handler")


def test_only_these_apis_are_open_to_all() -> None:
    assert {row.api for row in SERVED if row.access == FREE} == OPEN_TO_ALL


@pytest.mark.parametrize("api", sorted(set(Api) - OPEN_TO_ALL), ids=lambda api: api.name)
def test_a_request_of_every_api_is_denied_by_an_authorizer_that_denies(api: Api) -> None:
    row = ROWS[api]._replace(handler=never)
    first, last = served_versions(api)
    for version in range(first, last + 1):
        authorizer = NamedOnly()
        field = api.response.__specs__.get("error_code")
        if field is not None and field.versions[0] <= version <= field.versions[1]:
            response = ask(row, authorizer, REQUESTS[api](version), version)
            assert response.error_code == DENIED[authorizer.asked[-1][2].resource_type]
        else:
            with pytest.raises(AccessDenied, match=f"User:ANONYMOUS has no right .* {api.name}"):
                ask(row, authorizer, REQUESTS[api](version), version)
        [(principal, host, right)] = authorizer.asked
        assert (principal, host) == (ANONYMOUS, "10.0.0.7")
        assert right.operation in {access.operation for access in row.access}
        assert right.name


def test_a_request_is_answered_if_its_sender_has_the_right() -> None:
    row = ROWS[Api.HEARTBEAT]._replace(handler=lambda *_: HeartbeatResponse(throttle_time_ms=5))
    allowed = Right(AclOperation.READ, AclResourceType.GROUP, "mine")
    mine, other = (
        ask(row, NamedOnly(allowed), HeartbeatRequest(group_id=name), 4) for name in ("mine", "its")
    )
    assert (mine.error_code, mine.throttle_time_ms) == (0, 5)
    assert other.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_handler_learns_which_of_many_resources_are_allowed() -> None:
    allowed = Right(AclOperation.DESCRIBE, AclResourceType.TOPIC, "a")
    header = RequestHeader(Api.LIST_OFFSETS, 7, 0, "someone", 0)
    node = node_with(NamedOnly(allowed))
    context = RequestContext(node, header, "host", authorizer=node.authorizer)
    assert context.allowed(AclResourceType.TOPIC, ["b", "a"]) == ["a"]
    assert RequestContext(node, header, "host").allowed(AclResourceType.TOPIC, "ba") == ["b", "a"]


def test_a_request_in_an_envelope_is_denied_too() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="new")])
    frame = b"".join(encode_request(request, 7, 0, None))[4:]
    authorizer = NamedOnly()
    rows = {**ROWS, Api.CREATE_TOPICS: ROWS[Api.CREATE_TOPICS]._replace(handler=never)}
    context = cast("Any", SimpleNamespace(node=node_with(authorizer, rows)))
    envelope = EnvelopeRequest(
        request_data=frame, request_principal=None, client_host_address=b"host"
    )
    response = asyncio.run(open_envelope(context, envelope))
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [right.name for _, _, right in authorizer.asked] == ["new"]


def test_nobody_is_asked_about_the_requests_of_the_node_itself() -> None:
    authorizer = NamedOnly()
    answered = HeartbeatResponse()
    row = ROWS[Api.LIST_GROUPS]._replace(handler=lambda *_: answered)
    node = node_with(authorizer, {Api.LIST_GROUPS: row})
    assert begin_locally(node, ListGroupsRequest()) is answered
    assert authorizer.asked == []


def test_followers_need_the_right_of_the_cluster_and_consumers_that_of_topics() -> None:
    row = ROWS[Api.FETCH]._replace(handler=never)
    for replica_id, wanted in (
        (-1, Right(AclOperation.READ, AclResourceType.TOPIC, TOPIC)),
        (2, Right(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)),
    ):
        authorizer = NamedOnly()
        request = cast("Any", REQUESTS[Api.FETCH](11))
        request.replica_id = replica_id
        ask(row, authorizer, request, 11)
        assert [right for _, _, right in authorizer.asked] == [wanted]
