"""What applications give: understood in every sensible form, and refused by name otherwise."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace.client.consumer.arguments import (
    count_of,
    group_of,
    offset_of,
    offsets_of,
    partition_of,
    partitions_of,
    pattern_of,
    seconds_of,
    times_of,
    topics_of,
)
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.errors import ConfigError
from headrace.types import TopicPartition
from tests.unit.client.consumer.batches import OTHER, TP


@pytest.mark.parametrize(
    "given",
    [
        (TP, OTHER),
        ([TP, OTHER],),
        ([TP], [OTHER, TP]),
        (("orders", 0), OTHER),
        (iter((TP, OTHER)),),
    ],
)
def test_partitions_may_be_given_one_by_one_or_together(given: Any) -> None:
    assert partitions_of(given) == [TP, OTHER]
    assert all(isinstance(tp, TopicPartition) for tp in partitions_of(given))


@pytest.mark.parametrize("given", ["orders", ("orders", "0"), ("orders", True), 7, ["orders"]])
def test_what_is_no_partition_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"no partition; give TopicPartition\(topic, number\)"):
        partitions_of([given])
    with pytest.raises(TypeError, match="no partition"):
        partition_of(given)


def test_topics_may_be_one_or_many() -> None:
    assert topics_of("orders") == {"orders"}
    assert topics_of(("orders", "payments", "orders")) == {"orders", "payments"}


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ([], ConfigError, "no topic is given; call unsubscribe"),
        ([""], ConfigError, "cannot be empty"),
        ([b"orders"], TypeError, "by its name, not as b'orders'"),
        (7, TypeError, "a list of names, not 7"),
    ],
)
def test_what_is_no_topic_is_refused(given: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        topics_of(given)


def test_patterns_are_compiled() -> None:
    assert pattern_of("a.*") is not None
    compiled = re.compile("b")
    assert pattern_of(compiled) is compiled
    with pytest.raises(ConfigError, match=r"'\(' is no regular expression: "):
        pattern_of("(")
    with pytest.raises(TypeError, match="as text, not 7"):
        pattern_of(7)


def test_offsets_may_be_numbers() -> None:
    with_note = OffsetAndMetadata(3, "note")
    assert offsets_of({TP: 5, OTHER: with_note}) == {TP: OffsetAndMetadata(5), OTHER: with_note}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: offset_of(-1), ConfigError, "offset is at least 0, .* not -1"),
        (lambda: offset_of(2**63), ConfigError, "at most 9223372036854775807, not"),
        (lambda: partitions_of([("orders", -1)]), ConfigError, "numbered from 0 on"),
        (lambda: offset_of("3"), TypeError, "a whole number, not '3'"),
        (lambda: offsets_of([TP]), TypeError, "a dict of partitions"),
        (lambda: offsets_of({TP: OffsetAndMetadata(-1)}), ConfigError, "at least 0"),
        (lambda: offsets_of({"orders": 1}), TypeError, "no partition"),
        (lambda: group_of(None), TypeError, r"as consumer.group_metadata\(\), or by its name"),
        (lambda: group_of(""), ConfigError, "cannot be empty"),
        (lambda: times_of({TP: -1}), ConfigError, "a time in ms is at least 0"),
        (lambda: times_of(TP), TypeError, "a dict of partitions"),
        (lambda: count_of(0, "max_records"), ConfigError, "max_records is at least 1, not 0"),
        (lambda: count_of(1.5, "max_records"), TypeError, "a whole number"),
        (lambda: seconds_of(-1), ConfigError, "timeout_ms is at least 0, not -1"),
        (lambda: seconds_of(float("nan")), ConfigError, "at least 0"),
        (lambda: seconds_of("1s"), TypeError, "a number of milliseconds, not '1s'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    call: Callable[[], object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_a_group_may_be_a_name() -> None:
    member = ConsumerGroupMetadata("readers", 3, "member")
    assert group_of(member) is member
    assert group_of("readers") == ConsumerGroupMetadata("readers", -1, "", None)


def test_timeouts_are_told_in_milliseconds() -> None:
    assert seconds_of(1500) == 1.5
    assert seconds_of(0) == 0
    assert seconds_of(None) is None
    assert times_of({TP: 5}) == {TP: 5}
