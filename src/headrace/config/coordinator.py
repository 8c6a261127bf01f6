"""Settings of the group coordinator, which are broker settings too."""

from dataclasses import dataclass

from headrace.config.settings import INT_MAX, ConfigType, setting
from headrace.config.topic import MIB


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class CoordinatorConfig:
    """How consumer groups and their offsets are kept."""

    group_initial_rebalance_delay_ms: int = setting(
        ConfigType.INT,
        3000,
        minimum=0,
        doc="How long the first rebalance of an empty group waits for more members to join."
        " `headrace up` sets 0.",
    )
    group_max_session_timeout_ms: int = setting(
        ConfigType.INT,
        1_800_000,
        minimum=1,
        doc="The longest session timeout a group member may ask for.",
    )
    group_max_size: int = setting(
        ConfigType.INT,
        INT_MAX,
        minimum=1,
        doc="The most members of one group; a further one is refused.",
    )
    group_min_session_timeout_ms: int = setting(
        ConfigType.INT,
        6000,
        minimum=1,
        doc="The shortest session timeout a group member may ask for.",
    )
    offset_metadata_max_bytes: int = setting(
        ConfigType.INT,
        4096,
        minimum=0,
        doc="The most bytes of metadata a commit may carry for one partition.",
    )
    offsets_retention_check_interval_ms: int = setting(
        ConfigType.LONG,
        600_000,
        minimum=1,
        doc="How often committed offsets are looked through for expired ones.",
    )
    offsets_retention_minutes: int = setting(
        ConfigType.INT,
        10_080,
        minimum=1,
        doc="How long the offsets of a group without members are kept.",
    )
    offsets_topic_num_partitions: int = setting(
        ConfigType.INT,
        50,
        minimum=1,
        doc="Partitions of `__consumer_offsets`. It must not change once the topic exists.",
    )
    offsets_topic_replication_factor: int = setting(
        ConfigType.SHORT,
        1,
        minimum=1,
        doc="Replicas of `__consumer_offsets`. Kafka's default is 3.",
    )
    offsets_topic_segment_bytes: int = setting(
        ConfigType.INT,
        100 * MIB,
        minimum=MIB,
        doc="Segment size of `__consumer_offsets`.",
    )
