"""Settings of log compaction that belong to a broker."""

from dataclasses import dataclass
from sys import float_info

from headrace.config.settings import INT_MAX, LONG_MAX, ConfigType, setting
from headrace.config.topic import DAY_MS, MIB


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class CompactionConfig:
    """How much a broker compacts at once, and the defaults of its compacted topics."""

    log_cleaner_backoff_ms: int = setting(
        ConfigType.LONG,
        15_000,
        minimum=0,
        dynamic=True,
        doc="How long the broker waits before it looks again for logs to compact when there was"
        " nothing to do.",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        ConfigType.LONG,
        128 * MIB,
        minimum=MIB,
        maximum=INT_MAX,
        dynamic=True,
        doc="Bytes of the table of keys that a compaction uses, 24 for each key. What it cannot"
        " hold is compacted in the next round.",
    )
    log_cleaner_delete_retention_ms: int = setting(
        ConfigType.LONG,
        DAY_MS,
        minimum=0,
        dynamic=True,
        doc="Default of the topic setting `delete.retention.ms`.",
    )
    log_cleaner_enable: bool = setting(
        ConfigType.BOOLEAN,
        True,
        doc="Whether this broker compacts its logs at all.",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        ConfigType.DOUBLE,
        0.75,
        minimum=0.1,
        maximum=0.95,
        dynamic=True,
        doc="How full the table of keys may get; a fuller one holds more keys and finds them more"
        " slowly. Kafka's default is 0.9.",
    )
    log_cleaner_io_buffer_size: int = setting(
        ConfigType.INT,
        512 * 1024,
        minimum=64 * 1024,
        dynamic=True,
        doc="Bytes that a compaction reads and writes at once; a larger batch is read whole.",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        ConfigType.DOUBLE,
        float_info.max,
        minimum=1.0,
        dynamic=True,
        doc="The rate that compaction is held to, reading and writing together.",
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=1,
        dynamic=True,
        doc="Default of the topic setting `max.compaction.lag.ms`.",
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        ConfigType.DOUBLE,
        0.5,
        minimum=0.0,
        maximum=1.0,
        dynamic=True,
        doc="Default of the topic setting `min.cleanable.dirty.ratio`.",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        ConfigType.LONG,
        0,
        minimum=0,
        dynamic=True,
        doc="Default of the topic setting `min.compaction.lag.ms`.",
    )
