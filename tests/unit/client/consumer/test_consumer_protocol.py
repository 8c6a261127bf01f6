"""The bytes members exchange through the coordinator, in the form Java and librdkafka have."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.consumer.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_generation,
    decode_previous,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_previous,
    encode_subscription,
)
from headrace.errors import ProtocolError
from headrace.types import TopicPartition

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
partitions = st.lists(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), unique=True)
generations = st.integers(-1, 2**31 - 1)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def one_topic(topic: str, *numbers: int) -> bytes:
    return (
        struct.pack(">i", 1)
        + string(topic)
        + struct.pack(f">{1 + len(numbers)}i", len(numbers), *numbers)
    )


@given(
    topics=st.lists(names, unique=True).map(sorted),
    owned=partitions,
    generation=generations,
    user_data=st.none() | st.binary(),
    rack=st.none() | names,
)
def test_a_subscription_is_read_as_it_was_written(
    topics: list[str],
    owned: list[TopicPartition],
    generation: int,
    user_data: bytes | None,
    rack: str | None,
) -> None:
    said = MemberSubscription(tuple(topics), sorted(owned), generation, user_data, rack)
    assert decode_subscription(encode_subscription(said)) == said


def test_a_subscription_has_the_form_of_version_3() -> None:
    said = MemberSubscription(("t",), [TopicPartition("t", 4)], 9, b"u", "r")
    assert encode_subscription(said) == (
        struct.pack(">hi", 3, 1) + string("t")
        + struct.pack(">i", 1) + b"u"
        + one_topic("t", 4)
        + struct.pack(">i", 9) + string("r")
    )  # fmt: skip


def test_subscriptions_of_older_and_newer_versions_are_read() -> None:
    start = struct.pack(">i", 1) + string("t") + struct.pack(">i", 0)
    oldest = decode_subscription(struct.pack(">h", 0) + start)
    assert (oldest.topics, oldest.owned, oldest.generation) == (("t",), [], -1)
    second = decode_subscription(struct.pack(">h", 1) + start + one_topic("t", 7))
    assert second.owned == [TopicPartition("t", 7)]
    newest = struct.pack(">h", 9) + start + one_topic("t", 7) + struct.pack(">ih", 3, -1) + b"more"
    assert decode_subscription(newest).generation == 3


def test_a_subscription_that_lacks_the_fields_of_its_version_is_read_as_the_first() -> None:
    data = struct.pack(">hi", 1, 1) + string("t") + struct.pack(">i", -1)
    assert decode_subscription(data).topics == ("t",)


@given(data=st.binary(max_size=40))
def test_a_subscription_of_any_bytes_is_read_somehow(data: bytes) -> None:
    assert isinstance(decode_subscription(data), MemberSubscription)


@given(assigned=partitions)
def test_an_assignment_is_read_as_it_was_written(assigned: list[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(assigned)) == sorted(assigned)


def test_no_bytes_are_an_assignment_of_nothing() -> None:
    assert decode_assignment(b"") == []


def test_an_assignment_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="leader of the group"):
        decode_assignment(b"\0\1\0\0")


@given(previous=partitions, generation=generations)
def test_user_data_of_sticky_members_is_read_as_it_was_written(
    previous: list[TopicPartition], generation: int
) -> None:
    assert decode_previous(encode_previous(previous, generation)) == (sorted(previous), generation)


def test_user_data_of_sticky_members_has_javas_form() -> None:
    data = one_topic("t", 1, 2) + struct.pack(">i", 5)
    had = [TopicPartition("t", 1), TopicPartition("t", 2)]
    assert encode_previous(had, 5) == data
    # Before generations were told, it ended with the partitions.
    assert decode_previous(one_topic("t", 1, 2)) == (had, -1)


@pytest.mark.parametrize("data", [None, b"", b"\0", b"not user data at all", b"\xff" * 12])
def test_user_data_that_is_no_assignment_is_as_good_as_none(data: bytes | None) -> None:
    assert decode_previous(data) is None


def test_user_data_of_cooperative_members_is_their_generation() -> None:
    assert encode_generation(258) == b"\0\0\1\2"
    assert decode_generation(b"\0\0\1\2") == 258
    assert decode_generation(b"\0\1") == decode_generation(None) == -1
