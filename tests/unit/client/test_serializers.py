"""Serializers: what becomes bytes and back, and what is said of what does not."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import SerializationFailed
from headrace.client.serializers import (
    DESERIALIZERS,
    SERIALIZERS,
    Part,
    decode_all,
    encoder,
)

each_part = pytest.mark.parametrize("part", ["key", "value"])


@dataclass
class Record:
    """What is deserialized."""

    key: Any
    value: Any
    offset: int = 0
    topic: str = "orders"
    partition: int = 3


@given(text=st.text())
def test_text_survives(text: str) -> None:
    assert DESERIALIZERS["string"](SERIALIZERS["string"](text)) == text


@given(value=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none()))
def test_json_survives(value: Any) -> None:
    assert DESERIALIZERS["json"](SERIALIZERS["json"](value)) == value


def test_json_is_compact_and_readable() -> None:
    assert SERIALIZERS["json"]({"a": [1, 2], "ö": None}) == '{"a":[1,2],"ö":null}'.encode()


@each_part
@pytest.mark.parametrize(
    ("given_value", "data"),
    [
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"array"), b"array"),
        (memoryview(b"view"), b"view"),
        ("text ö", "text ö".encode()),
        ("", b""),
    ],
)
def test_bytes_and_text_need_no_serializer(part: Part, given_value: Any, data: Any) -> None:
    encoded = encoder(None, part)("orders", given_value)
    assert encoded == data
    assert encoded is None or type(encoded) is bytes


@each_part
def test_other_types_need_one_and_are_told_so(part: Part) -> None:
    with pytest.raises(TypeError) as caught:
        encoder(None, part)("orders", {"id": 1})
    assert str(caught.value) == (
        f"topic orders: a {part} must be bytes, str or None, not dict;"
        f' give {part}_serializer=..., for example {part}_serializer="json"'
    )


@each_part
def test_none_is_never_serialized(part: Part) -> None:
    assert encoder(SERIALIZERS["json"], part)("orders", None) is None


@each_part
def test_a_serializer_may_return_any_buffer(part: Part) -> None:
    encode = encoder(lambda value: memoryview(value), part)  # type: ignore[arg-type, return-value]
    assert encode("orders", b"abc") == b"abc"


@each_part
def test_failing_serializer_is_named_with_topic_and_type(part: Part) -> None:
    with pytest.raises(SerializationFailed) as caught:
        encoder(SERIALIZERS["json"], part)("orders", {1, 2})
    assert str(caught.value) == (
        f"topic orders: {part}_serializer failed on a {part} of type set:"
        " TypeError: Object of type set is not JSON serializable"
    )
    assert isinstance(caught.value.__cause__, TypeError)


@each_part
def test_serializer_that_returns_text_is_named(part: Part) -> None:
    with pytest.raises(SerializationFailed) as caught:
        encoder(str, part)("orders", 5)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"topic orders: {part}_serializer made str of a {part} of type int; it must return bytes"
    )


def test_string_serializer_refuses_what_is_no_text() -> None:
    with pytest.raises(SerializationFailed, match="it is int, and the string serializer takes str"):
        encoder(SERIALIZERS["string"], "value")("orders", 5)


def test_numbers_json_does_not_have_are_refused() -> None:
    with pytest.raises(SerializationFailed, match="ValueError"):
        encoder(SERIALIZERS["json"], "value")("orders", float("nan"))


def test_records_are_deserialized_in_place() -> None:
    records = [Record(b"k", b"[1]"), Record(None, b'"x"'), Record(b"k", None)]
    decode_all(records, DESERIALIZERS["string"], DESERIALIZERS["json"])
    assert records == [Record("k", [1]), Record(None, "x"), Record("k", None)]


def test_only_what_has_a_deserializer_is_touched() -> None:
    records = [Record(b"k", b"v")]
    decode_all(records, None, None)
    assert records == [Record(b"k", b"v")]
    decode_all(records, None, DESERIALIZERS["string"])
    assert records == [Record(b"k", "v")]
    decode_all(records, DESERIALIZERS["string"], None)
    assert records == [Record("k", "v")]


def test_failing_deserializer_is_named_with_the_record() -> None:
    records = [Record(b"a", b"1", 10), Record(b"b", b"{", 11), Record(b"c", b"3", 12)]
    with pytest.raises(SerializationFailed) as caught:
        decode_all(records, DESERIALIZERS["string"], DESERIALIZERS["json"])
    message = str(caught.value)
    assert message.startswith("orders-3 offset 11: value_deserializer failed: JSONDecodeError: ")
    assert message.endswith("; seek past the record to skip it")
    assert records == [Record("a", 1, 10), Record(b"b", b"{", 11), Record(b"c", b"3", 12)]
    with pytest.raises(SerializationFailed, match="offset 7: key_deserializer failed"):
        decode_all([Record(b"\xff", b"1", 7)], DESERIALIZERS["string"], None)
