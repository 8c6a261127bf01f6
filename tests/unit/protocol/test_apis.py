"""Headers and frames: which version has which header, and what bad ones come to."""

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.apis import (
    APIS,
    Api,
    announced_versions,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.schema import Message, encode_message

FLEXIBLE_METADATA = 9


def frame_of(request: Message, version: int, client_id: str | None = "me") -> memoryview:
    """A whole request without its length."""
    frame = b"".join(encode_request(request, version, 77, client_id))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return memoryview(frame)[4:]


@pytest.mark.parametrize("client_id", [None, "", "me", "имя"])
@pytest.mark.parametrize("version", [1, FLEXIBLE_METADATA])
def test_a_header_reads_back_as_it_was_written(client_id: str | None, version: int) -> None:
    request = MetadataRequest(topics=None)
    frame = frame_of(request, version, client_id)
    header = read_request_header(frame)
    assert header[:4] == (Api.METADATA, version, 77, client_id)
    assert decode_request(header, frame) == request


def test_a_flexible_request_has_tagged_fields_in_its_header_and_an_older_one_has_none() -> None:
    old = frame_of(MetadataRequest(topics=None), FLEXIBLE_METADATA - 1)
    new = frame_of(MetadataRequest(topics=None), FLEXIBLE_METADATA)
    assert read_request_header(old).body == 12
    assert read_request_header(new).body == 13


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    frame = bytes(frame_of(MetadataRequest(topics=None), FLEXIBLE_METADATA))
    tags = b"\2" + b"\0\3abc" + b"\xac\2\1z"
    tagged = memoryview(frame[:12] + tags + frame[13:])
    header = read_request_header(tagged)
    assert header.body == 12 + len(tags)
    assert decode_request(header, tagged) == MetadataRequest(topics=None)


def test_an_unknown_api_is_read_as_far_as_its_header_goes() -> None:
    header = read_request_header(memoryview(pack(">hhih", 999, 3, 5, -1) + b"whatever"))
    assert header[:4] == (999, 3, 5, None)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "no header"),
        (bytes(7), "no header"),
        (bytes(8), "without a client id"),
        (bytes(9), "without a client id"),
        (pack(">hhih", 3, 1, 0, 5) + b"abcd", "client id of 5 bytes"),
        (pack(">hhih", 3, 1, 0, 2) + b"\xff\xff", "not UTF-8"),
        (pack(">hhih", 3, 12, 0, -1), "cut short"),
        (pack(">hhih", 3, 12, 0, -1) + b"\1", "cut short"),
        (pack(">hhih", 3, 12, 0, -1) + b"\1\0\5abc", "cut short"),
        (pack(">hhih", 3, 12, 0, -1) + b"\xff" * 9, "more than five bytes"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read_request_header(memoryview(frame))


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_protocol_error(data: bytes) -> None:
    frame = memoryview(data)
    with suppress(ProtocolError):
        header = read_request_header(frame)
        if header.api_key in APIS:
            decode_request(header, frame)


@given(api_key=st.sampled_from(Api), body=st.binary(max_size=200), data=st.data())
def test_any_body_is_a_request_or_a_protocol_error(
    api_key: Api, body: bytes, data: st.DataObject
) -> None:
    version = data.draw(st.integers(*served_versions(api_key)))
    frame = memoryview(pack(">hhih", api_key, version, 0, -1) + b"\0" + body)
    with suppress(ProtocolError):
        decode_request(read_request_header(frame), frame)


def test_bytes_after_a_message_are_ignored_as_kafka_ignores_them() -> None:
    request = memoryview(bytes(frame_of(MetadataRequest(topics=None), 12)) + b"more")
    assert decode_request(read_request_header(request), request) == MetadataRequest(topics=None)
    header = read_request_header(request)
    response = b"".join(encode_response(header, MetadataResponse()))[4:]
    for received in (response, response + b"more"):
        assert decode_response(Api.METADATA, 12, received) == (77, MetadataResponse())


def test_the_answer_to_api_versions_has_the_oldest_header_in_every_version() -> None:
    for version in range(served_versions(Api.API_VERSIONS)[1] + 1):
        header = read_request_header(frame_of(ApiVersionsRequest(), version))
        response = b"".join(encode_response(header, ApiVersionsResponse(error_code=35)))[4:]
        # A client that does not know the version yet finds the error code in the same place.
        assert response[:6] == pack(">ih", 77, 35)
        assert response[4:] == encode_message(ApiVersionsResponse(error_code=35), version)


@pytest.mark.parametrize("frame", [b"", bytes(4)])
def test_a_response_too_short_for_its_header_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="a response of"):
        decode_response(Api.METADATA, 1, frame)


def test_announced_versions_are_those_that_are_served_but_for_produce() -> None:
    announced = {
        announced_version.api_key: announced_version
        for announced_version in announced_versions(Api)
    }
    assert list(announced) == sorted(Api)
    for key, entry in announced.items():
        first, last = served_versions(key)
        assert entry.max_version == last
        # Old librdkafka gives up on a broker that does not announce Produce from 0 on.
        assert entry.min_version == (0 if key == Api.PRODUCE else first)


def test_versions_that_kafka_hides_are_not_served() -> None:
    assert APIS[Api.INIT_PRODUCER_ID].request.versions[1] == 6
    assert served_versions(Api.INIT_PRODUCER_ID)[1] == 5
