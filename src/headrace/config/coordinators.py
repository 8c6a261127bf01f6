"""Settings of the group and transaction coordinators, which are broker settings too."""

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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class TransactionConfig:
    """How transactions and transactional ids are kept."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        ConfigType.INT,
        10_000,
        minimum=1,
        doc="How often a coordinator looks for transactions that are open for longer than their"
        " timeout, and aborts them. One may be open for as much longer than its timeout.",
    )
    transaction_max_timeout_ms: int = setting(
        ConfigType.INT,
        900_000,
        minimum=1,
        doc="The longest transaction timeout a producer may ask for. Consumers that read only what"
        " is committed wait as long for a producer that has died.",
    )
    transaction_partition_verification_enable: bool = setting(
        ConfigType.BOOLEAN,
        True,
        dynamic=True,
        doc="Whether the first batch of a transaction in a partition is checked with its"
        " coordinator, so that one that was delayed cannot begin a transaction that nobody ends.",
    )
    transaction_state_log_min_isr: int = setting(
        ConfigType.INT,
        2,
        minimum=1,
        doc="`min.insync.replicas` of `__transaction_state`.",
    )
    transaction_state_log_num_partitions: int = setting(
        ConfigType.INT,
        50,
        minimum=1,
        doc="Partitions of `__transaction_state`. It must not change once the topic exists.",
    )
    transaction_state_log_replication_factor: int = setting(
        ConfigType.SHORT,
        1,
        minimum=1,
        doc="Replicas of `__transaction_state`. Kafka's default is 3.",
    )
    transaction_state_log_segment_bytes: int = setting(
        ConfigType.INT,
        100 * MIB,
        minimum=MIB,
        doc="Segment size of `__transaction_state`.",
    )
    transactional_id_expiration_ms: int = setting(
        ConfigType.INT,
        604_800_000,
        minimum=1,
        doc="How long a transactional id is kept after its last transaction.",
    )
