"""An image as the fewest records that replay into it."""

from collections.abc import Iterator

from headrace.metadata.features import METADATA_VERSION
from headrace.metadata.image import BrokerImage, Image, PartitionImage, directories_of
from headrace.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace.protocol.schema import Message


def image_records(image: Image) -> Iterator[Message]:
    """The records of a snapshot: `Image().apply(image_records(image)) == image`."""
    # `metadata.version` first: Kafka's readers take the others by it.
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for broker in image.brokers.values():
        yield _broker_record(broker)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for partition_id, partition in enumerate(topic.partitions):
            yield _partition_record(topic.topic_id, partition_id, partition)
    for resource, settings in image.configs.items():
        for name, value in settings.items():
            yield ConfigRecord(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                name=name,
                value=value,
            )
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id)


def _broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in broker.endpoints
        ],
        features=[
            BrokerFeature(
                name=name,
                min_supported_version=supported.min,
                max_supported_version=supported.max,
            )
            for name, supported in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=list(broker.cordoned_log_dirs) or None,
    )


def _partition_record(
    topic_id: bytes, partition_id: int, partition: PartitionImage
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition_id,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=directories_of(partition)
        if partition.lost_replicas or partition.directories
        else [],
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
