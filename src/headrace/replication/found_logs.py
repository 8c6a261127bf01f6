"""What a log that a start finds under the name of a partition is to the topic of that name.

Rule: an id that was damaged is told from one of another topic. Ids are random, so two topics never
have ids that agree in nearly all characters; one flipped bit in `partition.metadata` changes one.
"""

from enum import Enum

from headrace.types import uuid_text

# Of 22 characters. Two random ids agree in so many with a probability of about 10 to the -29.
_DAMAGED_CHARACTERS_MAX = 4


class Ownership(Enum):
    """Whose a log is."""

    OWN = "the id is that of the topic"
    DAMAGED_ID = (
        "the id was damaged, and the log agrees with the topic's metadata: it is the topic's"
    )
    DOUBTFUL = "the id was damaged, and the log has epochs that the topic never had"
    FOREIGN = "the log belongs to another topic, which had the name before or was restored"


def ownership(
    found_id: bytes | None, latest_epoch: int, topic_id: bytes, leader_epoch: int
) -> Ownership:
    """Whose a log is that says `found_id` (None if unreadable) and was last written in an epoch.

    `leader_epoch` is the newest of the topic's partition: nobody can have written in a later one.
    """
    if found_id == topic_id:
        return Ownership.OWN
    if found_id is not None and not _is_nearly(found_id, topic_id):
        return Ownership.FOREIGN
    return Ownership.DAMAGED_ID if latest_epoch <= leader_epoch else Ownership.DOUBTFUL


def _is_nearly(found_id: bytes, topic_id: bytes) -> bool:
    pairs = zip(uuid_text(found_id), uuid_text(topic_id), strict=True)
    return sum(ours != theirs for ours, theirs in pairs) <= _DAMAGED_CHARACTERS_MAX
