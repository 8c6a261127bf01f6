"""What shards need to know of a broker's settings."""

from headrace.config import BrokerConfig
from headrace.coordinator.shard import GroupSettings
from headrace.coordinator.transactions.values import TransactionSettings


def group_settings(config: BrokerConfig) -> GroupSettings:
    """What a shard of groups needs to know."""
    return GroupSettings(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_bytes_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        record_bytes_max=config.message_max_bytes,
    )


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """What a shard of transactional ids needs to know."""
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        timeout_check_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        record_bytes_max=config.message_max_bytes,
    )
