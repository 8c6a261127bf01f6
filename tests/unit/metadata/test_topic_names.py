"""Topic names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.topic_names import check_topic_name, collision_key, is_internal


@pytest.mark.parametrize("name", ["a", "A-1", "...", "_", "orders.eu_1", "x" * 249, "__internal"])
def test_legal_names_are_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the topic name is empty"),
        (".", "is not a topic name"),
        ("..", "is not a topic name"),
        ("a b", "is not a topic name"),
        ("a/b", "is not a topic name"),
        ("../../etc", "is not a topic name"),
        ("naïve", "is not a topic name"),
        ("a\n", "is not a topic name"),
        ("a\x00", "is not a topic name"),
        ("١", "is not a topic name"),
        ("x" * 250, "has 250 characters; at most 249 are allowed"),
    ],
)
def test_illegal_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(KafkaError, match=reason) as caught:
        check_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_metadata_logs_own_name_is_refused() -> None:
    with pytest.raises(KafkaError, match="kept by the cluster itself") as caught:
        check_topic_name("__cluster_metadata")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@given(st.text("ab._", min_size=1, max_size=6), st.text("ab._", min_size=1, max_size=6))
def test_two_names_share_a_key_exactly_when_dots_and_underscores_make_the_difference(
    one: str, other: str
) -> None:
    same = one.replace(".", "_") == other.replace(".", "_")
    ambiguous = "." in one or "_" in one
    assert (collision_key(one) is not None and collision_key(one) == collision_key(other)) == (
        same and ambiguous
    )


def test_internal_topics_are_the_ones_coordinators_write() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__consumer_offsets2")
