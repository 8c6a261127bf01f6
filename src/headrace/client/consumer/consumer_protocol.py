"""The consumer protocol: subscriptions and assignments in JoinGroup and SyncGroup requests."""

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.errors import ProtocolError
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from headrace.protocol.messages.consumer_protocol import TopicPartition as AssignedTopic
from headrace.protocol.schema import RESPONSE_ELEMENTS_MAX, Message, encode_message, schema_of
from headrace.types import TopicPartition

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription that a member sends when it joins.

    `owned` are the partitions it keeps reading during the rebalance, `generation` is the one in
    which they were assigned.
    """

    topics: Collection[str]
    owned: Collection[TopicPartition] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str | None = None
    instance_id: str | None = None


# The opaque bytes of JoinGroup and SyncGroup, in the format of Kafka's consumer protocol.
#
# Rule: undecodable bytes of another client count as none, except an assignment, without which a
# member cannot continue.


_VERSION = struct.Struct(">h")
_GENERATION = struct.Struct(">i")


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partition numbers grouped by topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """A subscription in the newest version, of which members of older versions read a prefix."""
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in numbers_by_topic(subscription.owned).items()
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _encode(message)


def decode_subscription(data: bytes, instance_id: str | None = None) -> MemberSubscription:
    """The subscription of another member; an undecodable one has no topics."""
    message = _decode(ConsumerProtocolSubscription, data)
    if message is None:
        return MemberSubscription((), instance_id=instance_id)
    return MemberSubscription(
        tuple(message.topics),
        _partitions(message.owned_partitions),
        message.generation_id,
        message.user_data,
        message.rack_id,
        instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The encoded assignment of a member, as the leader of the group sends it."""
    return _encode(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                AssignedTopic(topic=topic, partitions=numbers)
                for topic, numbers in numbers_by_topic(partitions).items()
            ]
        )
    )


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The assigned partitions, in order; empty bytes are none. Raises ProtocolError."""
    if not data:
        return []
    message = _decode(ConsumerProtocolAssignment, data)
    if message is None:
        raise ProtocolError("the leader of the group sent an assignment that cannot be read")
    return sorted(_partitions(message.assigned_partitions))


def encode_previous(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """User data of `sticky` members, version 1: their previous partitions and generation.

    The format is that of an assignment's partitions, without a version number.
    """
    listed = ConsumerProtocolAssignment(
        assigned_partitions=[
            AssignedTopic(topic=topic, partitions=numbers)
            for topic, numbers in numbers_by_topic(partitions).items()
        ],
        user_data=None,
    )
    # An assignment ends in user data, here null: a length of four bytes.
    return encode_message(listed, 0)[: -_GENERATION.size] + _GENERATION.pack(generation)


def decode_previous(data: bytes | None) -> tuple[Collection[TopicPartition], int] | None:
    """The inverse of `encode_previous`; None if undecodable. Version 0 has no generation."""
    if not data:
        return None
    schema = schema_of(ConsumerProtocolAssignment, 0)
    for tail in (data[-_GENERATION.size :], b""):
        listed = data[: len(data) - len(tail)]
        try:
            message, end = decode(schema, listed + b"\xff" * 4, 0, RESPONSE_ELEMENTS_MAX)
        except ProtocolError:
            continue
        if end == len(listed) + 4 and message.user_data is None:
            generation = _GENERATION.unpack(tail)[0] if tail else NO_GENERATION
            return _partitions(message.assigned_partitions), generation
    return None


def encode_generation(generation: int) -> bytes:
    """User data of `cooperative-sticky` members."""
    return _GENERATION.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """The inverse of `encode_generation`; NO_GENERATION for any other data."""
    if data is None or len(data) != _GENERATION.size:
        return NO_GENERATION
    generation: int = _GENERATION.unpack(data)[0]
    return generation


def _encode(message: Message) -> bytes:
    version = message.versions[1]
    return _VERSION.pack(version) + encode_message(message, version)


def _decode(kind: type[Message], data: bytes) -> Any:
    """A message after its version number; None if it cannot be decoded.

    Versions only add fields at the end, so a newer version decodes as the newest known one, and any
    version as the first.
    """
    if len(data) < _VERSION.size:
        return None
    version = min(_VERSION.unpack_from(data)[0], kind.versions[1])
    for attempt in dict.fromkeys((version, 0)):
        try:
            return decode(schema_of(kind, attempt), data, _VERSION.size, RESPONSE_ELEMENTS_MAX)[0]
        except ProtocolError:
            continue
    return None


def _partitions(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions]
