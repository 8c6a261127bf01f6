"""Every version of every message we serve, against an independent codec and against bad bytes."""

import io
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import Any

import kio.index
import kio.serial
import pytest

from headrace.errors import ProtocolError
from headrace.protocol import messages
from headrace.protocol.apis import Api
from headrace.protocol.message_codec import decode, encode_frame
from headrace.protocol.messages import metadata_records
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.schema import (
    Message,
    decode_message,
    encode_message,
    schema_of,
)
from tests.random_messages import random_struct

INSTANCES = 25
VERSIONS = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for api in Api
    for cls in (api.request, api.response)
    for version in range(cls.versions[0], cls.versions[1] + 1)
]
RECORDS = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls in vars(metadata_records).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
    for version in range(cls.versions[0], cls.versions[1] + 1)
]


@pytest.mark.parametrize(("cls", "version"), VERSIONS + RECORDS)
def test_a_message_reads_back_as_it_was_written(cls: type[Message], version: int) -> None:
    rng = Random(f"{cls.__name__}{version}")
    for _ in range(INSTANCES):
        message = random_struct(rng, cls, version)
        assert decode_message(cls, version, encode_message(message, version)) == message


@pytest.mark.parametrize(("cls", "version"), VERSIONS)
def test_bytes_are_those_of_an_independent_codec(cls: type[Message], version: int) -> None:
    load = (
        kio.index.load_request_schema
        if cls.__name__.endswith("Request")
        else kio.index.load_response_schema
    )
    theirs: Any = load(cls.api_key, version)
    read: Any = kio.serial.entity_reader(theirs)
    write = kio.serial.entity_writer(theirs)
    rng = Random(f"kio{cls.__name__}{version}")
    for _ in range(INSTANCES):
        ours = encode_message(random_struct(rng, cls, version, is_kafkas=True), version)
        value, size = read(ours, 0)
        assert size == len(ours)
        sink = io.BytesIO()
        write(sink, value)
        assert sink.getvalue() == ours


@pytest.mark.parametrize(("cls", "version"), VERSIONS)
def test_a_message_cut_short_anywhere_is_refused(cls: type[Message], version: int) -> None:
    rng = Random(f"cut{cls.__name__}{version}")
    data = encode_message(random_struct(rng, cls, version), version)
    for end in range(min(len(data), 400)):
        with pytest.raises(ProtocolError):
            decode_message(cls, version, data[:end])


def test_an_unknown_tagged_field_is_skipped() -> None:
    plain = encode_message(MetadataRequest(topics=None), 12)
    assert plain[-1:] == b"\0"
    tagged = plain[:-1] + b"\x01" + b"\x63" + b"\x03" + b"abc"
    assert decode_message(MetadataRequest, 12, tagged) == MetadataRequest(topics=None)


def test_an_array_that_claims_more_than_the_frame_costs_nothing() -> None:
    with pytest.raises(ProtocolError, match="more than the frame holds"):
        decode_message(MetadataRequest, 8, b"\x7f\xff\xff\xff\0\0\0")


def test_a_frame_full_of_tiny_elements_is_refused_before_they_are_made() -> None:
    count = 300_000
    body = count.to_bytes(4, "big") + b"\0\0" * count + b"\0\0\0"
    with pytest.raises(ProtocolError, match="too many array elements"):
        decode(schema_of(MetadataRequest, 8), body, 0, 250_000)


def test_negative_and_overlong_lengths_are_refused() -> None:
    with pytest.raises(ProtocolError, match="negative length"):
        decode_message(MetadataRequest, 8, b"\x80\0\0\0\0\0\0")
    with pytest.raises(ProtocolError, match="varint"):
        decode_message(MetadataRequest, 12, b"\xff" * 12)


def test_a_string_that_is_not_utf8_is_refused() -> None:
    data = encode_message(MetadataRequest(topics=[MetadataRequestTopic(name="abc")]), 8)
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_message(MetadataRequest, 8, data.replace(b"abc", b"\xff\xfe\xfd"))


def test_records_are_handed_on_without_a_copy() -> None:
    payload = bytes(10_000)
    data = PartitionProduceData(index=0, records=payload)
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[data])])
    buffers = encode_frame(schema_of(ProduceRequest, 9), request, b"")
    assert any(buffer is payload for buffer in buffers)
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read, _ = decode(schema_of(ProduceRequest, 9), memoryview(frame)[4:], 0, 10)
    assert read.topic_data[0].partition_data[0].records.obj is frame


def test_values_that_do_not_fit_their_field_are_refused() -> None:
    with pytest.raises(OverflowError):
        encode_message(ProduceRequest(acks=40_000), 9)
    with pytest.raises(ValueError, match="null"):
        encode_message(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 8)


def test_lists_of_a_default_are_not_shared_between_messages() -> None:
    first = MetadataRequest()
    first.topics = first.topics or []
    first.topics.append(MetadataRequestTopic(name="a"))
    assert MetadataRequest().topics == []


def test_every_api_key_has_its_tables() -> None:
    assert {api.request.api_key for api in Api} == set(Api)
    for api in Api:
        request, response = api.request, api.response
        assert (request.api_key, request.versions) == (response.api_key, response.versions)


def test_every_table_of_an_api_has_its_row() -> None:
    modules = [
        import_module(f"{messages.__name__}.{iter_module.name}")
        for iter_module in iter_modules(messages.__path__)
    ]
    tables = {
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Message) and cls.__module__ == module.__name__
        if cls.__name__.endswith(("Request", "Response"))
    }
    assert tables == {cls for api in Api for cls in (api.request, api.response)}
