"""The command by which brokers tell of replicas that their disks lost: AssignReplicasToDirs.

Unlike Kafka, brokers do not tell of every replica in which directory it is, only of those that are
lost, that are found again, and that are in a directory which is full.
"""

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.brokers import registered
from headrace.metadata.elections import Elections
from headrace.metadata.image import Image, TopicImage
from headrace.metadata.result import Result
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord


def assign_replicas_to_dirs(
    image: Image, request: AssignReplicasToDirsRequest, *, unclean_by_default: bool
) -> Result[AssignReplicasToDirsResponse]:
    """Note which replicas of a broker are lost or found; each has its own outcome.

    A lost replica leaves the ISR, the eligible replicas and the leadership, though its broker
    lives, even as the last one: then the others are asked for what they have. The only replica of a
    partition stays, and nobody leads until its broker has found it again.
    """
    broker = registered(image, request.broker_id, request.broker_epoch)
    elections = Elections(image, unclean_by_default=unclean_by_default)
    changes: dict[tuple[bytes, int], PartitionChangeRecord] = {}
    response = AssignReplicasToDirsResponse()
    for directory in request.directories:
        lost = directory.id not in broker.log_dirs
        told = AssignReplicasToDirsResponseDirectoryData(id=directory.id)
        response.directories.append(told)
        for wanted in directory.topics:
            results = AssignReplicasToDirsResponseTopicData(topic_id=wanted.topic_id)
            told.topics.append(results)
            for index in (one.partition_index for one in wanted.partitions):
                result = AssignReplicasToDirsResponsePartitionData(partition_index=index)
                results.partitions.append(result)
                try:
                    topic = _topic(image, wanted.topic_id, index, broker.broker_id)
                    where = None if lost else directory.id
                    change = _change(elections, topic, index, broker.broker_id, where)
                    if change is not None:
                        changes[wanted.topic_id, index] = change
                except KafkaError as error:
                    result.error_code = error.code
    return Result(tuple(changes.values()), response)


def _topic(image: Image, topic_id: bytes, index: int, broker_id: int) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if broker_id not in topic.partitions[index].replicas:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return topic


def _change(
    elections: Elections, topic: TopicImage, index: int, broker_id: int, directory: bytes | None
) -> PartitionChangeRecord | None:
    """The record of a replica that is in a directory, or lost if that is None."""
    partition = topic.partitions[index]
    lost = directory is None
    others = [one for one in partition.directories if one[0] != broker_id]
    known = others if directory is None else [*others, (broker_id, directory)]
    return elections.change(
        topic,
        index,
        isr=[one for one in partition.isr if one != broker_id] if lost else None,
        lost_replicas=[
            one
            for one in partition.replicas
            if (lost if one == broker_id else one in partition.lost_replicas)
        ],
        directories=sorted(known, key=lambda one: partition.replicas.index(one[0])),
    )
