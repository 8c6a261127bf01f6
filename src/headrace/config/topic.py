"""Settings of a topic, each of which inherits from a broker setting."""

import re
from dataclasses import dataclass

from headrace.options import (
    LONG_MAX,
    Bool,
    Float,
    Int,
    ListOf,
    Long,
    Scope,
    one_of,
    options_of,
    setting,
)

DAY_MS = 86_400_000
MIB = 1_048_576

CLEANUP_POLICIES = ("delete", "compact")
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

# The levels that the codecs of Java's Kafka have.
GZIP_LEVELS = (-1, 9)
LZ4_LEVELS = (1, 17)
ZSTD_LEVELS = (-131_072, 22)


def check_gzip_level(level: int) -> int:
    """Refuse gzip's level 0, which is no compression."""
    if level == 0:
        raise ValueError("use -1 for gzip's default, or a level from 1 to 9")
    return level


_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def _throttled_replicas(items: tuple[str, ...]) -> tuple[str, ...]:
    """Replicas to throttle, in Kafka's form; ValueError for any other text."""
    if items != ("*",) and not all(map(_REPLICA.fullmatch, items)):
        raise ValueError("it must be * or a list of partition:broker")
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of the logs of a topic's partitions.

    The constructor takes values as they are; `topic_config` is where text from users is checked.
    """

    cleanup_policy: tuple[str, ...] = setting(
        ListOf(choices=CLEANUP_POLICIES, may_be_empty=True),
        ("delete",),
        inherits="log.cleanup.policy",
        doc="What happens to old segments: `delete` drops those past the retention limits,"
        " `compact` keeps the latest record of every key, and `compact,delete` does both. Without"
        " a value everything is kept for ever.",
    )
    compression_gzip_level: int = setting(
        Int(GZIP_LEVELS[0], GZIP_LEVELS[1]),
        -1,
        convert=check_gzip_level,
        inherits="compression.gzip.level",
        doc="The level of batches that are recompressed with `compression.type=gzip`. -1 is gzip's"
        " default.",
    )
    compression_lz4_level: int = setting(
        Int(LZ4_LEVELS[0], LZ4_LEVELS[1]),
        9,
        inherits="compression.lz4.level",
        doc="The level of batches that are recompressed with `compression.type=lz4`.",
    )
    compression_type: str = setting(
        one_of(*COMPRESSION_TYPES),
        "producer",
        inherits="compression.type",
        doc="The codec batches are stored with. `producer` keeps what the producer sent, and is the"
        " only choice that never recompresses.",
    )
    compression_zstd_level: int = setting(
        Int(ZSTD_LEVELS[0], ZSTD_LEVELS[1]),
        3,
        inherits="compression.zstd.level",
        doc="The level of batches that are recompressed with `compression.type=zstd`.",
    )
    delete_retention_ms: int = setting(
        Long(0),
        DAY_MS,
        inherits="log.cleaner.delete.retention.ms",
        doc="How long compaction keeps a tombstone, so that a reader who began before it sees it.",
    )
    encryption_enable: bool = setting(
        Bool(),
        False,
        inherits="encryption.enable",
        doc="Whether records are encrypted on disk, under a key of `encryption.key.source`. A"
        " change concerns records that come after it. Internal topics never are. A setting of"
        " headrace's own: [design page 27](design/0027-encryption-at-rest.md).",
    )
    file_delete_delay_ms: int = setting(
        Long(0),
        60_000,
        inherits="log.segment.delete.delay.ms",
        doc="How long a file marked as deleted stays on disk, so that readers can finish.",
    )
    flush_messages: int = setting(
        Long(1),
        LONG_MAX,
        inherits="log.flush.interval.messages",
        doc="Records after which a log is fsynced. 1 means an acknowledged record survives a power"
        " failure.",
    )
    flush_ms: int = setting(
        Long(0),
        LONG_MAX,
        inherits="log.flush.interval.ms",
        doc="The longest time a record stays in memory before its log is fsynced.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        ListOf(may_be_empty=True, may_repeat=True),
        (),
        convert=_throttled_replicas,
        doc="Replicas held to their broker's `follower.replication.throttled.rate`, as"
        " `partition:broker`, or `*`.",
    )
    index_interval_bytes: int = setting(
        Int(0),
        4096,
        inherits="log.index.interval.bytes",
        doc="Bytes of records between two entries of the offset index.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        ListOf(may_be_empty=True, may_repeat=True),
        (),
        convert=_throttled_replicas,
        doc="Replicas held to their broker's `leader.replication.throttled.rate`, as"
        " `partition:broker`, or `*`.",
    )
    max_compaction_lag_ms: int = setting(
        Long(1),
        LONG_MAX,
        inherits="log.cleaner.max.compaction.lag.ms",
        doc="The longest a record stays out of compaction; its segment is closed by then, and"
        " compacted however little of the log is not.",
    )
    max_message_bytes: int = setting(
        Int(0),
        MIB + 12,
        inherits="message.max.bytes",
        doc="The largest record batch accepted, after compression.",
    )
    message_timestamp_after_max_ms: int = setting(
        Long(0),
        3_600_000,
        inherits="log.message.timestamp.after.max.ms",
        doc="How far a record's timestamp may lie in the future; later ones are refused. Ignored"
        " with LogAppendTime.",
    )
    message_timestamp_before_max_ms: int = setting(
        Long(0),
        LONG_MAX,
        inherits="log.message.timestamp.before.max.ms",
        doc="How far a record's timestamp may lie in the past; earlier ones are refused. Ignored"
        " with LogAppendTime.",
    )
    message_timestamp_type: str = setting(
        one_of(*TIMESTAMP_TYPES),
        "CreateTime",
        inherits="log.message.timestamp.type",
        doc="Whether a record's time is the producer's (CreateTime) or that of its arrival"
        " (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = setting(
        Float(0.0, 1.0),
        0.5,
        inherits="log.cleaner.min.cleanable.ratio",
        doc="A log is compacted when more than this part of it was not compacted before.",
    )
    min_compaction_lag_ms: int = setting(
        Long(0),
        0,
        inherits="log.cleaner.min.compaction.lag.ms",
        doc="The shortest a record stays out of compaction.",
    )
    min_insync_replicas: int = setting(
        Int(1),
        1,
        inherits="min.insync.replicas",
        doc="In-sync replicas a write with acks=all needs; with fewer it is refused.",
    )
    retention_bytes: int = setting(
        Long(-1),
        -1,
        inherits="log.retention.bytes",
        doc="Bytes a partition keeps before its oldest segments are deleted. -1 is no limit.",
    )
    retention_ms: int = setting(
        Long(-1),
        7 * DAY_MS,
        inherits="log.retention.ms",
        doc="How long a record is kept before its segment is deleted. -1 is no limit.",
    )
    segment_bytes: int = setting(
        Int(MIB),
        1024 * MIB,
        inherits="log.segment.bytes",
        doc="The size at which a segment file is closed and the next one begun.",
    )
    segment_index_bytes: int = setting(
        Int(4),
        10 * MIB,
        inherits="log.index.size.max.bytes",
        doc="The largest offset index; a segment whose index is full is closed.",
    )
    segment_jitter_ms: int = setting(
        Long(0),
        0,
        inherits="log.roll.jitter.ms",
        doc="The most that is taken at random from `segment.ms`, so that many logs do not roll at"
        " once.",
    )
    segment_ms: int = setting(
        Long(1),
        7 * DAY_MS,
        inherits="log.roll.ms",
        doc="The age at which a segment is closed even if it is not full, so that retention can"
        " delete it.",
    )
    unclean_leader_election_enable: bool = setting(
        Bool(),
        False,
        inherits="unclean.leader.election.enable",
        doc="Whether a replica that is not in sync may become leader when no other is left, at the"
        " price of lost records.",
    )


TOPIC_SETTINGS = options_of(TopicConfig, Scope.TOPIC)
