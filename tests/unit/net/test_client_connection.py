import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.net.addresses import Address
from headrace.net.client_connection import ClientConnection, ConnectionFailed
from headrace.net.framing import FRAME_BYTES_MAX
from headrace.protocol.apis import (
    Api,
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

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def answer(self, response: Message, version: int, correlation_id: int) -> None:
        header = RequestHeader(response.api_key, version, correlation_id, None, 0)
        self.say(b"".join(encode_response(header, response)))

    async def heard(self) -> RequestHeader:
        return (await self.request())[0]

    async def request(self) -> tuple[RequestHeader, Message]:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = memoryview(await self._reader.readexactly(size))
        header = read_request_header(frame)
        return header, decode_request(header, frame)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def pair(
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> AsyncIterator[tuple[ClientConnection, Peer]]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: ClientConnection(ADDRESS, client_id="test", frame_bytes_max=frame_bytes_max),
        sock=ours,
    )
    try:
        yield connection, Peer(reader, writer)
    finally:
        connection.close()
        writer.close()
        await writer.wait_closed()


def versions(*known: tuple[int, int, int], error: int = 0) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in known
        ],
    )


@asynccontextmanager
async def agreed(*known: tuple[int, int, int]) -> AsyncIterator[tuple[ClientConnection, Peer]]:
    async with pair() as (connection, peer):
        peer.answer(versions(*known), served_versions(Api.API_VERSIONS)[1], 0)
        # The answer must not be there before the question.
        await asyncio.gather(connection.agree_on_versions(5), peer.heard())
        yield connection, peer


def test_the_version_used_is_the_highest_both_sides_have() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9), (Api.FETCH, 0, 99)) as (connection, _):
            assert connection.version_of(Api.METADATA) == 9
            assert connection.version_of(Api.FETCH) == served_versions(Api.FETCH)[1]

    asyncio.run(scenario())


def test_versions_without_a_common_one_are_refused_with_both_ranges() -> None:
    async def scenario() -> None:
        async with agreed((Api.PRODUCE, 0, 2)) as (connection, _):
            with pytest.raises(KafkaError, match="versions 0 to 2 of Produce") as caught:
                connection.version_of(Api.PRODUCE)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
            with pytest.raises(KafkaError, match="does not have Fetch"):
                connection.version_of(Api.FETCH)

    asyncio.run(scenario())


def test_a_broker_that_cannot_read_the_first_question_is_asked_an_older_one() -> None:
    async def scenario() -> None:
        async with pair() as (connection, peer):
            asking = asyncio.create_task(connection.agree_on_versions(5))
            assert (await peer.heard()).api_version == 4
            refusal = versions((Api.API_VERSIONS, 0, 2), error=ErrorCode.UNSUPPORTED_VERSION)
            peer.answer(refusal, 0, 0)
            assert (await peer.heard()).api_version == 2
            peer.answer(versions((Api.METADATA, 0, 5)), 2, 1)
            await asking
            assert connection.version_of(Api.METADATA) == 5

    asyncio.run(scenario())


def test_a_refusal_in_an_unknown_form_leads_to_the_oldest_question() -> None:
    async def scenario() -> None:
        async with pair() as (connection, peer):
            asking = asyncio.create_task(connection.agree_on_versions(5))
            await peer.heard()
            # What the mock broker of librdkafka answers to a version that it does not have.
            peer.say(bytes.fromhex("000000110000000000230100120000000200000000"))
            assert (await peer.heard()).api_version == 0
            peer.answer(versions((Api.METADATA, 0, 5)), 0, 1)
            await asking
            assert connection.version_of(Api.METADATA) == 5

    asyncio.run(scenario())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, peer):
            asked = [connection.ask(MetadataRequest(topics=[]), 5) for _ in range(3)]
            assert connection.in_flight == 3
            heard = [await peer.heard() for _ in range(3)]
            assert [header.correlation_id for header in heard] == [1, 2, 3]
            assert heard[0].client_id == "test"
            for number, header in enumerate(heard):
                peer.answer(MetadataResponse(controller_id=number), 9, header.correlation_id)
            answers = await asyncio.gather(*asked)
            assert [answer.controller_id for answer in answers] == [0, 1, 2]
            assert connection.in_flight == 0

    asyncio.run(scenario())


def test_the_answer_to_a_question_that_was_cancelled_is_not_taken_for_another_ones() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, peer):
            first, second = (connection.ask(MetadataRequest(), 5) for _ in range(2))
            first.cancel()
            peer.answer(MetadataResponse(controller_id=1), 9, 1)
            peer.answer(MetadataResponse(controller_id=2), 9, 2)
            assert (await second).controller_id == 2

    asyncio.run(scenario())


def test_a_request_without_answer_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with agreed((Api.PRODUCE, 3, 9), (Api.METADATA, 0, 9)) as (connection, peer):
            connection.tell(ProduceRequest(acks=0))
            assert connection.in_flight == 0
            asked = connection.ask(MetadataRequest(), 5)
            peer.answer(MetadataResponse(controller_id=5), 9, 2)
            assert (await asked).controller_id == 5

    asyncio.run(scenario())


def test_back_pressure_ends_when_the_broker_reads_on() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, peer):
            await connection.drained()
            topics = [MetadataRequestTopic(name="x" * 30_000) for _ in range(200)]
            connection.tell(MetadataRequest(topics=topics))
            waiting = asyncio.create_task(connection.drained())
            await asyncio.sleep(0)
            assert not waiting.done()
            _, request = await peer.request()
            assert isinstance(request, MetadataRequest)
            assert request.topics is not None
            assert len(request.topics) == 200
            await waiting

    asyncio.run(scenario())


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
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, peer):
            asked = connection.ask(MetadataRequest(), 5)
            peer.say(said)
            with pytest.raises(ConnectionFailed, match=what) as caught:
                await asked
            assert str(caught.value).startswith("broker.test:9092: ")
            assert "Kafka broker" in str(caught.value)
            assert not connection.is_open

    asyncio.run(scenario())


def test_an_answer_to_another_request_or_to_none_closes_the_connection() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, peer):
            asked = connection.ask(MetadataRequest(), 5)
            peer.answer(MetadataResponse(), 9, 77)
            with pytest.raises(ConnectionFailed, match="answered 77 instead of 1"):
                await asked

    asyncio.run(scenario())


def test_a_frame_over_the_limit_is_not_read() -> None:
    async def scenario() -> None:
        async with pair(frame_bytes_max=1000) as (connection, peer):
            peer.say((1001).to_bytes(4, "big"))
            with pytest.raises(ConnectionFailed, match="1001 bytes"):
                await connection.agree_on_versions(5)

    asyncio.run(scenario())


def test_a_broker_that_closes_is_reported_and_the_connection_stays_closed() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, peer):
            asked = connection.ask(MetadataRequest(), 5)
            peer.close()
            with pytest.raises(ConnectionFailed, match="closed the connection"):
                await asked
            assert not connection.is_open
            assert connection.in_flight == 0
            with pytest.raises(ConnectionFailed, match="is closed"):
                connection.ask(MetadataRequest(), 5)

    asyncio.run(scenario())


def test_silence_ends_in_time_for_the_most_impatient() -> None:
    async def scenario() -> None:
        async with agreed((Api.METADATA, 0, 9)) as (connection, _):
            patient = connection.ask(MetadataRequest(), 60)
            with pytest.raises(ConnectionFailed, match="no answer in time"):
                await connection.ask(MetadataRequest(), 0.01)
            with pytest.raises(ConnectionFailed, match="no answer in time"):
                await patient

    asyncio.run(scenario())


def test_a_refused_connection_says_how_to_start_a_broker() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # Bound and not listening: nobody else gets the port.
        address = Address("127.0.0.1", probe.getsockname()[1])
        with pytest.raises(ConnectionFailed, match="headrace up") as caught:
            asyncio.run(ClientConnection.open(address, 5))
        assert caught.value.address == address


def test_a_host_without_address_is_named() -> None:
    with pytest.raises(ConnectionFailed, match=r"nowhere\.invalid:9092: the host name has no"):
        asyncio.run(ClientConnection.open(Address("nowhere.invalid", 9092), 20))


def test_nothing_is_sent_for_the_time_that_the_broker_asks_to_wait() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with agreed((Api.METADATA, 9, 9), (Api.PRODUCE, 9, 9)) as (connection, peer):
            first = connection.ask(MetadataRequest(topics=[]), 0.05)
            # In flight, with a deadline that would pass during the wait.
            second = connection.ask(MetadataRequest(topics=[]), 0.05)
            await peer.heard()
            await peer.heard()
            peer.answer(MetadataResponse(throttle_time_ms=200), 9, 1)
            await first
            began = loop.time()
            third = connection.ask(MetadataRequest(topics=[]), 0.05)
            fourth = connection.ask(MetadataRequest(topics=[]), 0.05)
            drained = asyncio.create_task(connection.drained())
            await peer.heard()
            assert loop.time() - began > 0.19
            await peer.heard()
            await drained
            for number in (2, 3, 4):
                peer.answer(MetadataResponse(), 9, number)
            await asyncio.gather(second, third, fourth)

    asyncio.run(scenario())


def test_a_shorter_wait_does_not_end_a_longer_and_closing_ends_both() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with agreed((Api.METADATA, 9, 9)) as (connection, peer):
            asked = [connection.ask(MetadataRequest(topics=[]), 5) for _ in range(2)]
            peer.answer(MetadataResponse(throttle_time_ms=60_000), 9, 1)
            peer.answer(MetadataResponse(throttle_time_ms=1), 9, 2)
            await asyncio.gather(*asked)
            drained = asyncio.create_task(connection.drained())
            held = connection.ask(MetadataRequest(topics=[]), 5)
            await asyncio.wait((held, drained), timeout=0.05)
            assert not held.done()
            assert not drained.done()
            began = loop.time()
            connection.close()
            with pytest.raises(ConnectionFailed):
                await held
            await drained
            assert loop.time() - began < 5

    asyncio.run(scenario())
