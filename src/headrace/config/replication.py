"""Settings of replication between brokers, which are broker settings too."""

from dataclasses import dataclass

from headrace.config.settings import LONG_MAX, ConfigType, setting
from headrace.config.topic import MIB

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class ReplicationConfig:
    """How followers copy their leaders, and when they are no longer in sync."""

    follower_replication_throttled_rate: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=1,
        dynamic=True,
        doc="Bytes a second that this broker takes as a follower of throttled replicas"
        " (`follower.replication.throttled.replicas` of a topic).",
    )
    leader_replication_throttled_rate: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=1,
        dynamic=True,
        doc="Bytes a second that this broker gives as a leader to throttled replicas"
        " (`leader.replication.throttled.replicas` of a topic).",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        ConfigType.LONG,
        LONG_MAX,
        minimum=1,
        dynamic=True,
        doc="Bytes a second that this broker copies for replicas which move from one of its"
        " `log.dirs` to another.",
    )
    replica_fetch_backoff_ms: int = setting(
        ConfigType.INT,
        100,
        minimum=1,
        doc="How long a follower waits before it asks a leader again that failed. Kafka's default"
        " is 1000.",
    )
    replica_fetch_max_bytes: int = setting(
        ConfigType.INT,
        MIB,
        minimum=1,
        doc="Bytes a follower asks for from each partition at once; one batch always fits.",
    )
    replica_fetch_min_bytes: int = setting(
        ConfigType.INT,
        1,
        minimum=1,
        doc="Bytes a leader collects before it answers a follower, within"
        " `replica.fetch.wait.max.ms`.",
    )
    replica_fetch_response_max_bytes: int = setting(
        ConfigType.INT,
        10 * MIB,
        minimum=1,
        doc="Bytes a follower asks for from all partitions of a leader at once.",
    )
    replica_fetch_wait_max_ms: int = setting(
        ConfigType.INT,
        500,
        minimum=0,
        doc="How long a leader may keep a follower's fetch that finds nothing new.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        ConfigType.LONG,
        5000,
        minimum=1,
        doc="How often high watermarks are written to disk.",
    )
    replica_lag_time_max_ms: int = setting(
        ConfigType.LONG,
        10_000,
        minimum=1,
        doc="A follower that has not caught up with its leader for so long leaves the in-sync"
        " replicas. Kafka's default is 30000.",
    )
    replica_selector_class: str | None = setting(
        ConfigType.STRING,
        None,
        choices=(RACK_AWARE,),
        doc="Which replica consumers read: without it the leader, with"
        f" `{RACK_AWARE}` one in their `client.rack`.",
    )
    replica_socket_timeout_ms: int = setting(
        ConfigType.INT,
        5000,
        minimum=1,
        doc="How long a request from broker to broker may take, beyond what it may wait. Kafka's"
        " default is 30000.",
    )
    unclean_recovery_timeout_ms: int = setting(
        ConfigType.LONG,
        300_000,
        minimum=0,
        doc="When no replica of a partition is sure to have every acknowledged record, because all"
        " that did restarted uncleanly or lost their logs: how long the controller waits for the"
        " missing ones, after the first is back, before the longest of the logs that are there"
        " leads. Of KIP-966; not in Kafka 4.3.",
    )
