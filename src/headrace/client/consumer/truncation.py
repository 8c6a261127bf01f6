"""Whether what was read is still there, asked of every new leader before it is read from (KIP-320).

A leader that was elected uncleanly may lack records that consumers have read, and have others at
their offsets. It knows where the epoch of the last batch that was read ended with it: a reader that
is past that goes back to there. A committed offset names the epoch of the record before it, so the
same is asked before a consumer goes on at one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.client.consumer.subscription import PartitionState
from headrace.client.metadata import Partition
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.types import TopicPartition

UNKNOWN = -1

_CONSUMER = -1


class Doubt(NamedTuple):
    """A position under a leader that has not confirmed it, as it was when that was asked."""

    state: PartitionState
    generation: int
    offset: int
    epoch: int
    leader_epoch: int


def doubt_of(state: PartitionState, leader: Partition | None) -> Doubt:
    """What is to be asked about a position."""
    leader_epoch = leader.leader_epoch if leader else UNKNOWN
    return Doubt(state, state.generation, state.fetch_offset, state.fetch_epoch, leader_epoch)


def is_doubtful(state: PartitionState, leader: Partition) -> bool:
    """Whether a leader is newer than the one that brought what was read last."""
    return state.fetch_epoch > UNKNOWN and leader.leader_epoch > state.leader_epoch


def is_newer_than_metadata(doubt: Doubt) -> bool:
    """Whether a record was read of a leader that comes after the one we know."""
    return doubt.epoch > doubt.leader_epoch


def epoch_request(doubts: Iterable[Doubt]) -> OffsetForLeaderEpochRequest:
    """Ask a leader where the epochs ended that were read last."""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for doubt in doubts:
        name, number = doubt.state.tp
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=number,
                current_leader_epoch=doubt.leader_epoch,
                leader_epoch=doubt.epoch,
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))


def answers_of(response: OffsetForLeaderEpochResponse) -> Mapping[TopicPartition, EpochEndOffset]:
    """What the leader says, by partition."""
    return {
        TopicPartition(topic.topic, one.partition): one
        for topic in response.topics
        for one in topic.partitions
    }


class Truncation(NamedTuple):
    """Where the leader's log parts from what was read, and the epoch before that.

    `offset` is None if the leader never heard of the epoch that was read last: its log was cut
    off before it, or is that of a topic which was created again.
    """

    offset: int | None
    epoch: int


def truncation_of(doubt: Doubt, answer: EpochEndOffset) -> Truncation | None:
    """How a leader's log differs from what was read; None if it has all of that."""
    if answer.end_offset == UNKNOWN or answer.leader_epoch == UNKNOWN:
        return Truncation(None, UNKNOWN)
    if answer.end_offset < doubt.offset:
        return Truncation(answer.end_offset, answer.leader_epoch)
    return None
