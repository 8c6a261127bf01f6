"""Settings of the group and transaction coordinators, which are broker settings too."""

from dataclasses import dataclass

from headrace.config.topic import MIB
from headrace.options import INT_MAX, Bool, Int, ListOf, Long, Short, one_of, setting

ASSIGNORS = ("uniform", "range")
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
_REBALANCE_PROTOCOLS = ("classic", "consumer", "share", "streams")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class CoordinatorConfig:
    """Settings of the group coordinator: groups, sessions and committed offsets."""

    group_consumer_assignment_interval_ms: int = setting(
        Int(0),
        1000,
        dynamic=True,
        doc="The shortest time between two assignments of a consumer group, so that members that"
        " start together are assigned to together.",
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ListOf(choices=ASSIGNORS),
        ASSIGNORS,
        doc="The assignors that members of consumer groups may ask for. The first is used for"
        " those that ask for none.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        Int(1),
        5000,
        doc="The time between two heartbeats of a member of a consumer group.",
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        Int(0),
        15_000,
        doc="The largest `consumer.assignment.interval.ms` of a group.",
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        Int(1),
        15_000,
        doc="The largest `consumer.heartbeat.interval.ms` of a group.",
    )
    group_consumer_max_session_timeout_ms: int = setting(
        Int(1),
        60_000,
        doc="The largest `consumer.session.timeout.ms` of a group.",
    )
    group_consumer_max_size: int = setting(
        Int(1),
        INT_MAX,
        doc="The most members of one consumer group; a further one is refused.",
    )
    group_consumer_migration_policy: str = setting(
        one_of(*MIGRATION_POLICIES, fold_case=True),
        "bidirectional",
        doc="Whether a group with members may change from the classic protocol to the consumer"
        " protocol (`upgrade`), back (`downgrade`), both, or neither (`disabled`). A group without"
        " members always may.",
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        Int(0),
        0,
        doc="The smallest `consumer.assignment.interval.ms` of a group.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        Int(1),
        5000,
        doc="The smallest `consumer.heartbeat.interval.ms` of a group.",
    )
    group_consumer_min_session_timeout_ms: int = setting(
        Int(1),
        45_000,
        doc="The smallest `consumer.session.timeout.ms` of a group.",
    )
    group_consumer_session_timeout_ms: int = setting(
        Int(1),
        45_000,
        doc="The silence after which a member leaves its consumer group.",
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = setting(
        ListOf(choices=_REBALANCE_PROTOCOLS),
        ("classic", "consumer", "streams"),
        doc="The group protocols that are enabled. Only leaving `consumer` out has an effect.",
    )
    group_initial_rebalance_delay_ms: int = setting(
        Int(0),
        3000,
        doc="How long the first rebalance of an empty group waits for more members to join."
        " `headrace up` sets 0.",
    )
    group_max_session_timeout_ms: int = setting(
        Int(1),
        1_800_000,
        doc="The longest session timeout a group member may ask for.",
    )
    group_max_size: int = setting(
        Int(1),
        INT_MAX,
        doc="The most members of one group; a further one is refused.",
    )
    group_min_session_timeout_ms: int = setting(
        Int(1),
        6000,
        doc="The shortest session timeout a group member may ask for.",
    )
    offset_metadata_max_bytes: int = setting(
        Int(0),
        4096,
        doc="The most bytes of metadata a commit may carry for one partition.",
    )
    offsets_retention_check_interval_ms: int = setting(
        Long(1),
        600_000,
        doc="How often committed offsets are looked through for expired ones.",
    )
    offsets_retention_minutes: int = setting(
        Int(1),
        10_080,
        doc="How long the offsets of a group without members are kept.",
    )
    offsets_topic_num_partitions: int = setting(
        Int(1),
        50,
        doc="Partitions of `__consumer_offsets`. It must not change once the topic exists.",
    )
    offsets_topic_replication_factor: int = setting(
        Short(1),
        1,
        doc="Replicas of `__consumer_offsets`. Kafka's default is 3.",
    )
    offsets_topic_segment_bytes: int = setting(
        Int(MIB),
        100 * MIB,
        doc="Segment size of `__consumer_offsets`.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class TransactionConfig:
    """Settings of the transaction coordinator."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        Int(1),
        10_000,
        doc="How often a coordinator looks for transactions that are open for longer than their"
        " timeout, and aborts them. One may be open for as much longer than its timeout.",
    )
    transaction_max_timeout_ms: int = setting(
        Int(1),
        900_000,
        doc="The longest transaction timeout a producer may ask for. Consumers that read only what"
        " is committed wait as long for a producer that has died.",
    )
    transaction_partition_verification_enable: bool = setting(
        Bool(),
        True,
        dynamic=True,
        doc="Whether the first batch of a transaction in a partition is checked with its"
        " coordinator, so that one that was delayed cannot begin a transaction that nobody ends.",
    )
    transaction_state_log_min_isr: int = setting(
        Int(1),
        2,
        doc="`min.insync.replicas` of `__transaction_state`.",
    )
    transaction_state_log_num_partitions: int = setting(
        Int(1),
        50,
        doc="Partitions of `__transaction_state`. It must not change once the topic exists.",
    )
    transaction_state_log_replication_factor: int = setting(
        Short(1),
        1,
        doc="Replicas of `__transaction_state`. Kafka's default is 3.",
    )
    transaction_state_log_segment_bytes: int = setting(
        Int(MIB),
        100 * MIB,
        doc="Segment size of `__transaction_state`.",
    )
    transactional_id_expiration_ms: int = setting(
        Int(1),
        604_800_000,
        doc="How long a transactional id is kept after its last transaction.",
    )
