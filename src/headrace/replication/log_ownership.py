"""Ownership of logs found at startup: whether a log belongs to the topic of its name.

Rule: a damaged topic id is distinguished from the id of another topic. Ids are random, so the ids
of two topics never agree in nearly all characters, while a flipped bit in `partition.metadata`
changes a single character.
"""

from enum import Enum

from headrace.types import uuid_text

# Of 22 characters. Two random ids differ in so few with a probability of about 10 to the -29.
_DAMAGED_CHARACTERS_MAX = 4


class LogOwnership(Enum):
    """The relation of a log to the topic of its name."""

    OWN = "the id is that of the topic"
    DAMAGED_ID = (
        "the id was damaged, and the log agrees with the topic's metadata: it is the topic's"
    )
    DOUBTFUL = "the id was damaged, and the log has epochs that the topic never had"
    FOREIGN = "the log belongs to another topic, which had the name before or was restored"


def ownership(
    found_id: bytes | None, latest_epoch: int, topic_id: bytes, leader_epoch: int
) -> LogOwnership:
    """The ownership of a log whose `partition.metadata` has `found_id` (None if unreadable).

    `latest_epoch` is the newest leader epoch in the log, `leader_epoch` that of the topic's
    partition in the metadata: no leader of the partition has written in a later epoch.
    """
    if found_id == topic_id:
        return LogOwnership.OWN
    if found_id is not None and not _is_nearly(found_id, topic_id):
        return LogOwnership.FOREIGN
    return LogOwnership.DAMAGED_ID if latest_epoch <= leader_epoch else LogOwnership.DOUBTFUL


def _is_nearly(found_id: bytes, topic_id: bytes) -> bool:
    pairs = zip(uuid_text(found_id), uuid_text(topic_id), strict=True)
    return sum(ours != theirs for ours, theirs in pairs) <= _DAMAGED_CHARACTERS_MAX
