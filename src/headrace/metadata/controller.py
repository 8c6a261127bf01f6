"""Every command on the metadata: an image and a request in, records and a response out.

Rule: a command changes nothing. Its caller appends the records as one batch, waits until they are
durable, applies them to its image, and only then sends the response.
"""

from headrace.metadata.brokers import (
    ProducerIdBlock,
    allocate_producer_ids,
    fence_brokers,
    register_broker,
    unregister_broker,
)
from headrace.metadata.configs import alter_configs, incremental_alter_configs
from headrace.metadata.directories import assign_replicas_to_dirs
from headrace.metadata.feature_updates import bootstrap, update_features
from headrace.metadata.heartbeats import Heartbeats, heartbeat
from headrace.metadata.isr import alter_partition
from headrace.metadata.leadership import balance_leaders, elect_leaders, elect_missing_leaders
from headrace.metadata.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from headrace.metadata.result import Result
from headrace.metadata.topics import create_partitions, create_topics, delete_topics

__all__ = [
    "Heartbeats",
    "ProducerIdBlock",
    "Result",
    "allocate_producer_ids",
    "alter_configs",
    "alter_partition",
    "alter_partition_reassignments",
    "assign_replicas_to_dirs",
    "balance_leaders",
    "bootstrap",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "elect_leaders",
    "elect_missing_leaders",
    "fence_brokers",
    "heartbeat",
    "incremental_alter_configs",
    "list_partition_reassignments",
    "register_broker",
    "unregister_broker",
    "update_features",
]
