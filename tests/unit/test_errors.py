"""Errors: fields make the text, and a text from the wire becomes fields again."""

import pytest

from headrace.client.errors import failure
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    Subject,
    UnknownTopic,
    unknown_partition,
    unknown_topic,
)


def test_the_text_of_an_error_is_what_happened_and_the_advice() -> None:
    error = HeadraceError("the disk is full", advice="delete topics")
    assert (error.what, error.advice, str(error)) == (
        "the disk is full",
        "delete topics",
        "the disk is full; delete topics",
    )
    assert str(HeadraceError("the disk is full")) == "the disk is full"


def test_the_text_of_a_kafka_error_begins_with_its_code_and_the_wire_carries_the_rest() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "no value", advice="give one")
    assert str(error) == "INVALID_CONFIG: no value; give one"
    assert error.detail == "no value; give one"
    assert str(KafkaError(ErrorCode.INVALID_CONFIG)) == "INVALID_CONFIG"


def test_an_unknown_topic_and_partition_have_one_wording() -> None:
    assert unknown_topic("orders").what == "topic orders does not exist"
    assert unknown_topic("orders").subject == Subject("topic", "orders")
    error = unknown_partition("orders", 7, 2)
    assert error.detail == "topic orders has no partition 7; it has 2, numbered from 0 to 1"
    assert isinstance(error, UnknownTopic)
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", "a\nb", "a\0"])
def test_a_name_that_would_break_a_line_is_quoted(name: str) -> None:
    assert str(Subject("topic", name)) == f"topic {name!r}"


def test_a_broker_s_answer_becomes_fields() -> None:
    assert failure(0) is None
    error = failure(
        ErrorCode.INVALID_CONFIG, "a has no value; give one", Subject("topic", "orders")
    )
    assert error is not None
    assert (error.what, error.advice) == ("topic orders: a has no value", "give one")
    assert error.subject == Subject("topic", "orders")


@pytest.mark.parametrize(
    "detail", ["Topic 'orders' already exists.", "topic orders does not exist"]
)
def test_a_broker_s_text_that_names_the_thing_is_left_as_it_is(detail: str) -> None:
    error = failure(ErrorCode.TOPIC_ALREADY_EXISTS, detail, Subject("topic", "orders"))
    assert error is not None
    assert error.what == detail


def test_an_answer_without_a_text_has_the_words_of_its_code() -> None:
    error = failure(ErrorCode.INVALID_TOPIC_EXCEPTION, None, Subject("topic", "a b"))
    assert error is not None
    assert error.what == "topic a b: invalid topic"
