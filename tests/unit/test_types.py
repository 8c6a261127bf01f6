"""Ids as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.types import ZERO_UUID, TopicPartition, parse_uuid, uuid_text


@given(st.binary(min_size=16, max_size=16))
def test_an_id_survives_its_text(raw: bytes) -> None:
    text = uuid_text(raw)
    assert len(text) == 22 and "=" not in text
    assert parse_uuid(text) == raw


@pytest.mark.parametrize(
    "text", ["", "abc", "!" * 22, "A" * 23, "A" * 44, "AAAAAAAAAAAAAAAAAAAA A"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_uuid(text)


def test_names_are_written_as_kafka_writes_them() -> None:
    assert str(TopicPartition("orders", 3)) == "orders-3"
    assert uuid_text(ZERO_UUID) == "A" * 22
