"""Every command on the metadata: an image and a request in, records and a response out.

Rule: a command changes nothing. Its caller appends the records as one batch, waits until they are
durable, applies them to its image, and only then sends the response.
"""

from headrace.metadata.brokers import ProducerIdBlock, allocate_producer_ids, register_broker
from headrace.metadata.configs import alter_configs, incremental_alter_configs
from headrace.metadata.result import Result
from headrace.metadata.topics import create_partitions, create_topics, delete_topics

__all__ = [
    "ProducerIdBlock",
    "Result",
    "allocate_producer_ids",
    "alter_configs",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "incremental_alter_configs",
    "register_broker",
]
