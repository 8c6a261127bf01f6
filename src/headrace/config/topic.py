"""Settings of a topic. A topic that does not give one takes the broker's, by its `synonym`."""

import re
from dataclasses import dataclass

from headrace.config.settings import LONG_MAX, ConfigType, Scope, setting, settings_of

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
    """A level of gzip, where 0 would be no compression at all."""
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
    """How the log of a topic's partitions behaves.

    The constructor takes values as they are; `topic_config` is where text from users is checked.
    """

    cleanup_policy: tuple[str, ...] = setting(
        ConfigType.LIST,
        ("delete",),
        choices=CLEANUP_POLICIES,
        may_be_empty=True,
        synonym="log.cleanup.policy",
        doc="What happens to old segments: `delete` drops those past the retention limits,"
        " `compact` keeps the latest record of every key, and `compact,delete` does both. Without"
        " a value everything is kept for ever.",
    )
    compression_gzip_level: int = setting(
        ConfigType.INT,
        -1,
        minimum=GZIP_LEVELS[0],
        maximum=GZIP_LEVELS[1],
        convert=check_gzip_level,
        synonym="compression.gzip.level",
        doc="The level of batches that are recompressed with `compression.type=gzip`. -1 is gzip's"
        " default.",
    )
    compression_lz4_level: int = setting(
        ConfigType.INT,
        9,
        minimum=LZ4_LEVELS[0],
        maximum=LZ4_LEVELS[1],
        synonym="compression.lz4.level",
        doc="The level of batches that are recompressed with `compression.type=lz4`.",
    )
    compression_type: str = setting(
        ConfigType.STRING,
        "producer",
        choices=COMPRESSION_TYPES,
        synonym="compression.type",
        doc="The codec batches are stored with. `producer` keeps what the producer sent, and is the"
        " only choice that never recompresses.",
    )
    compression_zstd_level: int = setting(
        ConfigType.INT,
        3,
        minimum=ZSTD_LEVELS[0],
        maximum=ZSTD_LEVELS[1],
        synonym="compression.zstd.level",
        doc="The level of batches that are recompressed with `compression.type=zstd`.",
    )
    delete_retention_ms: int = setting(
        ConfigType.LONG,
        DAY_MS,
        minimum=0,
        synonym="log.cleaner.delete.retention.ms",
        doc="How long compaction keeps a tombstone, so that a reader who began before it sees it.",
    )
    file_delete_delay_ms: int = setting(
        ConfigType.LONG,
        60_000,
        minimum=0,
        synonym="log.segment.delete.delay.ms",
        doc="How long a file marked as deleted stays on disk, so that readers can finish.",
    )
    flush_messages: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=1,
        synonym="log.flush.interval.messages",
        doc="Records after which a log is fsynced. 1 means an acknowledged record survives a power"
        " failure.",
    )
    flush_ms: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=0,
        synonym="log.flush.interval.ms",
        doc="The longest time a record stays in memory before its log is fsynced.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        ConfigType.LIST,
        (),
        may_repeat=True,
        convert=_throttled_replicas,
        doc="Replicas held to their broker's `follower.replication.throttled.rate`, as"
        " `partition:broker`, or `*`.",
    )
    index_interval_bytes: int = setting(
        ConfigType.INT,
        4096,
        minimum=0,
        synonym="log.index.interval.bytes",
        doc="Bytes of records between two entries of the offset index.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        ConfigType.LIST,
        (),
        may_repeat=True,
        convert=_throttled_replicas,
        doc="Replicas held to their broker's `leader.replication.throttled.rate`, as"
        " `partition:broker`, or `*`.",
    )
    max_compaction_lag_ms: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=1,
        synonym="log.cleaner.max.compaction.lag.ms",
        doc="The longest a record stays out of compaction; its segment is closed by then, and"
        " compacted however little of the log is not.",
    )
    max_message_bytes: int = setting(
        ConfigType.INT,
        MIB + 12,
        minimum=0,
        synonym="message.max.bytes",
        doc="The largest record batch accepted, after compression.",
    )
    message_timestamp_after_max_ms: int = setting(
        ConfigType.LONG,
        3_600_000,
        minimum=0,
        synonym="log.message.timestamp.after.max.ms",
        doc="How far a record's timestamp may lie in the future; later ones are refused. Ignored"
        " with LogAppendTime.",
    )
    message_timestamp_before_max_ms: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=0,
        synonym="log.message.timestamp.before.max.ms",
        doc="How far a record's timestamp may lie in the past; earlier ones are refused. Ignored"
        " with LogAppendTime.",
    )
    message_timestamp_type: str = setting(
        ConfigType.STRING,
        "CreateTime",
        choices=TIMESTAMP_TYPES,
        synonym="log.message.timestamp.type",
        doc="Whether a record's time is the producer's (CreateTime) or that of its arrival"
        " (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = setting(
        ConfigType.DOUBLE,
        0.5,
        minimum=0.0,
        maximum=1.0,
        synonym="log.cleaner.min.cleanable.ratio",
        doc="A log is compacted when more than this part of it was not compacted before.",
    )
    min_compaction_lag_ms: int = setting(
        ConfigType.LONG,
        0,
        minimum=0,
        synonym="log.cleaner.min.compaction.lag.ms",
        doc="The shortest a record stays out of compaction.",
    )
    min_insync_replicas: int = setting(
        ConfigType.INT,
        1,
        minimum=1,
        synonym="min.insync.replicas",
        doc="In-sync replicas a write with acks=all needs; with fewer it is refused.",
    )
    retention_bytes: int = setting(
        ConfigType.LONG,
        -1,
        minimum=-1,
        synonym="log.retention.bytes",
        doc="Bytes a partition keeps before its oldest segments are deleted. -1 is no limit.",
    )
    retention_ms: int = setting(
        ConfigType.LONG,
        7 * DAY_MS,
        minimum=-1,
        synonym="log.retention.ms",
        doc="How long a record is kept before its segment is deleted. -1 is no limit.",
    )
    segment_bytes: int = setting(
        ConfigType.INT,
        1024 * MIB,
        minimum=MIB,
        synonym="log.segment.bytes",
        doc="The size at which a segment file is closed and the next one begun.",
    )
    segment_index_bytes: int = setting(
        ConfigType.INT,
        10 * MIB,
        minimum=4,
        synonym="log.index.size.max.bytes",
        doc="The largest offset index; a segment whose index is full is closed.",
    )
    segment_jitter_ms: int = setting(
        ConfigType.LONG,
        0,
        minimum=0,
        synonym="log.roll.jitter.ms",
        doc="The most that is taken at random from `segment.ms`, so that many logs do not roll at"
        " once.",
    )
    segment_ms: int = setting(
        ConfigType.LONG,
        7 * DAY_MS,
        minimum=1,
        synonym="log.roll.ms",
        doc="The age at which a segment is closed even if it is not full, so that retention can"
        " delete it.",
    )
    unclean_leader_election_enable: bool = setting(
        ConfigType.BOOLEAN,
        False,
        synonym="unclean.leader.election.enable",
        doc="Whether a replica that is not in sync may become leader when no other is left, at the"
        " price of lost records.",
    )


TOPIC_SETTINGS = settings_of(TopicConfig, Scope.TOPIC)
