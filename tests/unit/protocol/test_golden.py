"""Frames of real clients, read with our tables and written again: the bytes must be the same."""

from typing import Any

import pytest

from headrace.protocol.apis import (
    Api,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from headrace.protocol.batch import check_batch, scan_headers
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.records import decode_rows
from tests.golden_frames import CLIENTS, Frame, load_frames

VALUE = b"value " * 50

# Asked for every topic, librdkafka writes the null array in four bytes where one is due. It gets
# what it wants all the same, because brokers ignore what follows a request.
EVERY_TOPIC = MetadataRequest(topics=None, allow_auto_topic_creation=False)
LEFT_OVER = b"\1\0\0"

FRAMES = [frame for client in CLIENTS for frame in load_frames(client)]


def named(frames: list[Frame]) -> list[Any]:
    return [
        pytest.param(frame, id=f"{frame.client}-{frame.api.name}-v{frame.version}-{number}")
        for number, frame in enumerate(frames)
    ]


@pytest.mark.parametrize(
    "frame", named([entry for entry in FRAMES if entry.direction == "request"])
)
def test_a_request_of_a_real_client_is_written_as_it_was_read(frame: Frame) -> None:
    header = read_request_header(memoryview(frame.data))
    assert (header.api_key, header.api_version) == (frame.api, frame.version)
    request = decode_request(header, memoryview(frame.data))
    again = encode_request(request, frame.version, header.correlation_id, header.client_id)
    data = frame.data
    if frame.client == "librdkafka" and request == EVERY_TOPIC:
        data = data.removesuffix(LEFT_OVER)
    assert b"".join(again)[4:] == data


@pytest.mark.parametrize(
    "frame", named([entry for entry in FRAMES if entry.direction == "response"])
)
def test_a_response_that_a_real_client_read_is_written_as_it_was_read(frame: Frame) -> None:
    correlation_id, response = decode_response(frame.api, frame.version, frame.data)
    header = RequestHeader(frame.api, frame.version, correlation_id, None, 0)
    assert b"".join(encode_response(header, response))[4:] == frame.data


@pytest.mark.parametrize("client", CLIENTS)
def test_batches_of_a_real_client_are_sound_in_every_codec(client: str) -> None:
    codecs = set()
    for frame in FRAMES:
        if (frame.client, frame.api, frame.direction) != (client, Api.PRODUCE, "request"):
            continue
        header = read_request_header(memoryview(frame.data))
        request: ProduceRequest = decode_request(header, memoryview(frame.data))
        for topic in request.topic_data:
            for data in topic.partition_data:
                assert data.records is not None
                [batch] = scan_headers(data.records)
                check_batch(data.records, batch)
                codecs.add(batch.compression)
                for row in decode_rows(data.records):
                    assert (row.key, row.value) == (b"key", VALUE)
    # librdkafka takes a broker without group coordinators for one too old to know lz4.
    assert codecs >= ({0, 1, 2, 4} if client in ("kcat", "librdkafka") else {0, 1, 2, 3, 4})


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_real_client_fetched_is_what_it_had_produced(client: str) -> None:
    values = [
        row.value
        for frame in FRAMES
        if (frame.client, frame.api, frame.direction) == (client, Api.FETCH, "response")
        for topic in fetched(frame).responses
        for partition in topic.partitions
        if partition.records
        for header in scan_headers(partition.records)
        if not header.is_control
        for row in decode_rows(partition.records, header)
    ]
    assert values
    assert set(values) == {VALUE}


def fetched(frame: Frame) -> FetchResponse:
    response = decode_response(frame.api, frame.version, frame.data)[1]
    assert isinstance(response, FetchResponse)
    return response


def test_every_client_was_captured_at_work() -> None:
    for client in CLIENTS:
        seen = {frame.api for frame in FRAMES if frame.client == client}
        assert seen >= {
            Api.PRODUCE,
            Api.FETCH,
            Api.LIST_OFFSETS,
            Api.METADATA,
            Api.API_VERSIONS,
        }
