"""A connection against bytes that a broker might have sent: the peer is the other end of a pair."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.client.addresses import Address
from headrace.client.connection import FRAME_BYTES_MAX, Connection
from headrace.client.failures import ConnectionFailed
from headrace.clock import SystemClock
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.schema import Message

ADDRESS = Address("broker.test", 9092)


class Peer:
    """The broker's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, response: Message, version: int, correlation_id: int) -> None:
        header = RequestHeader(response.api_key, version, correlation_id, None, 0)
        self.say(b"".join(encode_response(header, response)))

    def heard(self) -> RequestHeader:
        return self.request()[0]

    def request(self) -> tuple[RequestHeader, Message]:
        size = int.from_bytes(self.sock.recv(4, socket.MSG_WAITALL), "big")
        frame = memoryview(self.sock.recv(size, socket.MSG_WAITALL))
        header = read_request_header(frame)
        return header, decode_request(header, frame)


@contextmanager
def pair(frame_bytes_max: int = FRAME_BYTES_MAX) -> Iterator[tuple[Connection, Peer]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, ADDRESS, client_id="test", frame_bytes_max=frame_bytes_max)
    theirs.settimeout(5)
    try:
        yield connection, Peer(theirs)
    finally:
        connection.close()
        theirs.close()


def soon(seconds: float = 5.0) -> float:
    return SystemClock().monotonic() + seconds


def versions(*known: tuple[int, int, int], error: int = 0) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in known
        ],
    )


def agreed(connection: Connection, peer: Peer, *known: tuple[int, int, int]) -> None:
    peer.answer(versions(*known), served_versions(ApiKey.API_VERSIONS)[1], 0)
    connection.agree_on_versions(soon())
    peer.heard()


def test_the_version_used_is_the_highest_both_sides_have() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9), (ApiKey.FETCH, 0, 99))
        assert connection.version_of(ApiKey.METADATA) == 9
        assert connection.version_of(ApiKey.FETCH) == served_versions(ApiKey.FETCH)[1]


def test_versions_without_a_common_one_are_refused_with_both_ranges() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.PRODUCE, 0, 2))
        with pytest.raises(KafkaError, match="versions 0 to 2 of Produce") as caught:
            connection.version_of(ApiKey.PRODUCE)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(KafkaError, match="does not have Fetch"):
            connection.version_of(ApiKey.FETCH)


def test_a_broker_that_cannot_read_the_first_question_is_asked_an_older_one() -> None:
    with pair() as (connection, peer):
        peer.answer(
            versions((ApiKey.API_VERSIONS, 0, 2), error=ErrorCode.UNSUPPORTED_VERSION), 0, 0
        )
        peer.answer(versions((ApiKey.METADATA, 0, 5)), 2, 1)
        connection.agree_on_versions(soon())
        assert [peer.heard().api_version for _ in range(2)] == [4, 2]
        assert connection.version_of(ApiKey.METADATA) == 5


def test_a_refusal_in_an_unknown_form_leads_to_the_oldest_question() -> None:
    with pair() as (connection, peer):
        # What the mock broker of librdkafka answers to a version that it does not have.
        peer.say(bytes.fromhex("000000110000000000230100120000000200000000"))
        peer.answer(versions((ApiKey.METADATA, 0, 5)), 0, 1)
        connection.agree_on_versions(soon())
        assert [peer.heard().api_version for _ in range(2)] == [4, 0]
        assert connection.version_of(ApiKey.METADATA) == 5


def test_pipelined_requests_are_answered_in_order() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        for _ in range(3):
            connection.send(MetadataRequest(topics=[]), soon())
        assert connection.in_flight == 3
        heard = [peer.heard() for _ in range(3)]
        assert [header.correlation_id for header in heard] == [1, 2, 3]
        assert heard[0].client_id == "test"
        for number, header in enumerate(heard):
            peer.answer(MetadataResponse(controller_id=number), 9, header.correlation_id)
        received = [connection.receive(soon()).controller_id for _ in range(3)]
        assert received == [0, 1, 2]
        assert connection.in_flight == 0


def test_a_request_without_answer_is_not_waited_for() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.PRODUCE, 3, 9), (ApiKey.METADATA, 0, 9))
        connection.send(ProduceRequest(acks=0), soon(), answered=False)
        assert connection.in_flight == 0
        connection.send(MetadataRequest(), soon())
        peer.answer(MetadataResponse(controller_id=5), 9, 2)
        assert connection.receive(soon()).controller_id == 5


def test_a_request_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]
        names = [f"topic-{number:06d}" for number in range(200)]
        connection.send(
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]), soon()
        )
        _, request = peer.request()
        assert isinstance(request, MetadataRequest)
        assert request.topics is not None
        assert [topic.name for topic in request.topics] == names


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "announced an answer of 1213486160 bytes"),
        (b"\xff\xff\xff\xff", "announced an answer of -1 bytes"),
        (b"\x00\x00\x00\x0a" + bytes([0, 0, 0, 1]) + b"\xff" * 6, "cannot be read"),
        (b"\x00\x00\x00\x05" + bytes([0, 0, 0, 7, 0]), "cannot be read"),
    ],
    ids=["http", "negative", "garbage", "short"],
)
def test_an_answer_that_is_none_closes_the_connection(said: bytes, what: str) -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        connection.send(MetadataRequest(), soon())
        peer.say(said)
        with pytest.raises(ConnectionFailed, match=what) as caught:
            connection.receive(soon())
        assert str(caught.value).startswith("broker.test:9092: ")
        assert "Kafka broker" in str(caught.value)
        assert not connection.is_open


def test_an_answer_to_another_request_closes_the_connection() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        connection.send(MetadataRequest(), soon())
        peer.answer(MetadataResponse(), 9, 77)
        with pytest.raises(ConnectionFailed, match="answered 77 instead of 1"):
            connection.receive(soon())


def test_a_frame_over_the_limit_is_not_read() -> None:
    with pair(frame_bytes_max=1000) as (connection, peer):
        peer.say((1001).to_bytes(4, "big"))
        with pytest.raises(ConnectionFailed, match="1001 bytes"):
            connection.agree_on_versions(soon())


def test_a_broker_that_closes_is_reported_and_the_connection_stays_closed() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        connection.send(MetadataRequest(), soon())
        peer.sock.close()
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            connection.receive(soon())
        assert not connection.is_open
        with pytest.raises(ConnectionFailed):
            connection.send(MetadataRequest(), soon())
        with pytest.raises(ConnectionFailed):
            connection.receive(soon())


def test_an_answer_that_has_begun_to_arrive_is_seen_without_waiting() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        connection.send(MetadataRequest(), soon())
        assert not connection.is_answered()
        peer.answer(MetadataResponse(controller_id=3), 9, 1)
        assert connection.is_answered()
        assert connection.receive(soon()).controller_id == 3
        peer.sock.close()
        assert connection.is_answered()
        connection.close()
        assert connection.is_answered()


def test_silence_ends_at_the_deadline() -> None:
    with pair() as (connection, peer):
        agreed(connection, peer, (ApiKey.METADATA, 0, 9))
        connection.send(MetadataRequest(), soon())
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            connection.receive(soon(0.01))


def test_a_refused_connection_says_how_to_start_a_broker() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # Bound and not listening: nobody else gets the port.
        address = Address("127.0.0.1", probe.getsockname()[1])
        with pytest.raises(ConnectionFailed, match="headrace up") as caught:
            Connection.open(address, soon(), clock=SystemClock())
        assert caught.value.address == address
