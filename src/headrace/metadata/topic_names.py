"""Rules for topic names."""

import re

from headrace.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249

# The metadata log is in a directory of this name, beside those of the partitions.
METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_topic_name(name: str) -> None:
    """Refuse a name that is not a legal directory and metric name everywhere, as Kafka does."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic name is empty")
    if len(name) > NAME_LENGTH_MAX:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"the topic name has {len(name)} characters",
            advice=f"at most {NAME_LENGTH_MAX} are allowed",
        )
    if name in (".", "..") or not _LEGAL.match(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name!r} is not a topic name: use letters of a-z, digits, '.', '_' and '-',"
            " and not '.' or '..' alone",
        )
    if name == METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name} is kept by the cluster itself",
            advice="use another name",
        )


def collision_key(name: str) -> str | None:
    """The name with '_' for '.', as metrics have it: equal keys collide. None without either."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def is_internal(name: str) -> bool:
    """Whether Metadata responses mark a topic as internal: it holds state of the brokers."""
    return name in INTERNAL_TOPICS
