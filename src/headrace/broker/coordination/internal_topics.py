"""The internal topics of coordinators, created on first use."""

from typing import TYPE_CHECKING

from headrace.broker.coordination.runtime import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.broker.forwarding import request_of_controller
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from headrace.broker.node import Node

# No record may expire by age or size: the last record of a group or a transactional id is valid,
# however old it is.
_COMPACT = {"cleanup.policy": "compact"}


async def create_offsets_topic(node: "Node") -> None:
    """Create `__consumer_offsets` unless it exists; KafkaError if that fails."""
    await _create(node, OFFSETS_TOPIC)


async def create_transactions_topic(node: "Node") -> None:
    """Create `__transaction_state` unless it exists; KafkaError if that fails."""
    await _create(node, TRANSACTIONS_TOPIC)


def creatable_topic(config: BrokerConfig, name: str) -> CreatableTopic:
    """The definition of a topic that brokers create: internal, or with all defaults."""
    if name == OFFSETS_TOPIC:
        return _internal_topic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {
                **_COMPACT,
                "segment.bytes": str(config.offsets_topic_segment_bytes),
                "compression.type": "producer",
            },
        )
    if name == TRANSACTIONS_TOPIC:
        return _internal_topic(
            name,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                **_COMPACT,
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                # A replica out of sync may lack a decision that others have acted upon.
                "unclean.leader.election.enable": "false",
            },
        )
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)


def _internal_topic(
    name: str, partitions: int, replicas: int, settings: dict[str, str]
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=text) for key, text in settings.items()],
    )


async def _create(node: "Node", name: str) -> None:
    topic = creatable_topic(node.config, name)
    created = await request_of_controller(node, CreateTopicsRequest(topics=[topic]))
    code = created.topics[0].error_code
    if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{name} cannot be created: {created.topics[0].error_message}",
        )
