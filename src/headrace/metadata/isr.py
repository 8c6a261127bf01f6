"""Commands on replicas: AlterPartition for those in sync, AssignReplicasToDirs for lost ones.

Rule: compare and set. A leader names the state it knows, by leader epoch and partition epoch; if
that is not the newest one it is refused, and learns the newest from the log.
"""

from collections.abc import Sequence

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.brokers import registered
from headrace.metadata.elections import RECOVERED, RECOVERING, Elections
from headrace.metadata.image import Image, PartitionImage, TopicImage
from headrace.metadata.reassignments import finished
from headrace.metadata.records import Result
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
    PartitionData,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.protocol.schema import Message

_ANY_EPOCH = -1


def alter_partition(
    image: Image, request: AlterPartitionRequest, *, unclean_by_default: bool
) -> Result[AlterPartitionResponse]:
    """Give partitions the ISRs their leader asks for; each partition has its own outcome.

    An ISR that has every replica a reassignment waits for also ends the reassignment.
    """
    registered(image, request.broker_id, request.broker_epoch)
    elections = Elections(image, unclean_by_default=unclean_by_default)
    records: list[Message] = []
    altered = set[tuple[bytes, int]]()
    response = AlterPartitionResponse()
    for wanted_topic in request.topics:
        results = AlterPartitionResponseTopicData(topic_id=wanted_topic.topic_id)
        response.topics.append(results)
        for wanted in wanted_topic.partitions:
            result = AlterPartitionResponsePartitionData(partition_index=wanted.partition_index)
            results.partitions.append(result)
            place = (wanted_topic.topic_id, wanted.partition_index)
            try:
                if place in altered:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "the request names the partition more than once"
                    )
                topic = _topic(image, wanted_topic.topic_id)
                partition = _checked(image, request.broker_id, topic, wanted)
                change = _change(elections, topic, partition, wanted)
                if change is not None:
                    altered.add(place)
                    records.append(change)
                    partition = partition.changed(change)
                _tell(result, partition, request.broker_id)
            except KafkaError as error:
                result.error_code = error.code
    return Result(tuple(records), response)


def _topic(image: Image, topic_id: bytes) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


def _wanted_isr(wanted: PartitionData) -> Sequence[BrokerState]:
    """The new ISR; before version 3 it comes without the epochs of its members."""
    return wanted.new_isr_with_epochs or [
        BrokerState(broker_id=one, broker_epoch=_ANY_EPOCH) for one in wanted.new_isr
    ]


def _checked(image: Image, leader: int, topic: TopicImage, wanted: PartitionData) -> PartitionImage:
    """The partition as it is; KafkaError if the leader may not change it so."""
    if not 0 <= wanted.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[wanted.partition_index]
    if (
        wanted.leader_epoch > partition.leader_epoch
        or wanted.partition_epoch > partition.partition_epoch
    ):
        # Somebody else has changed the partition: this is not the active controller any more.
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    if wanted.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if leader != partition.leader:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if wanted.partition_epoch < partition.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)
    _check_isr(image, partition, wanted)
    return partition


def _check_isr(image: Image, partition: PartitionImage, wanted: PartitionData) -> None:
    members = [one.broker_id for one in _wanted_isr(wanted)]
    recovery = wanted.leader_recovery_state
    if (
        len(set(members)) != len(members)
        or not set(members) <= set(partition.replicas)
        or partition.leader not in members
        or recovery not in (RECOVERED, RECOVERING)
        # Until the leader's log is the partition's, nobody can be in sync with it.
        or (recovery == RECOVERING and len(members) > 1)
        or (recovery == RECOVERING and partition.leader_recovery_state == RECOVERED)
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    for member in _wanted_isr(wanted):
        broker = image.brokers.get(member.broker_id)
        # KIP-903: a replica that restarted since the leader saw it in sync may have lost records.
        if (
            broker is None
            or not broker.is_active
            # Its broker lives, and cannot read its log.
            or member.broker_id in partition.lost_replicas
            or member.broker_epoch not in (_ANY_EPOCH, broker.epoch)
        ):
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)


def _change(
    elections: Elections, topic: TopicImage, partition: PartitionImage, wanted: PartitionData
) -> PartitionChangeRecord | None:
    isr: Sequence[int] = [one.broker_id for one in _wanted_isr(wanted)]
    recovery = wanted.leader_recovery_state
    end = finished(partition, isr)
    if end is None:
        return elections.change(
            topic, wanted.partition_index, isr=isr, leader_recovery_state=recovery
        )
    return elections.change(
        topic,
        wanted.partition_index,
        isr=end.isr,
        replicas=end.replicas,
        adding_replicas=(),
        removing_replicas=(),
        leader_recovery_state=recovery,
    )


def _tell(
    result: AlterPartitionResponsePartitionData, partition: PartitionImage, leader: int
) -> None:
    if partition.leader != leader:
        # The end of a reassignment took the leadership away; the log tells the rest.
        result.error_code = ErrorCode.NEW_LEADER_ELECTED
        return
    result.leader_id = partition.leader
    result.leader_epoch = partition.leader_epoch
    result.isr = list(partition.isr)
    result.leader_recovery_state = partition.leader_recovery_state
    result.partition_epoch = partition.partition_epoch


# The command by which brokers tell of replicas that their disks lost: AssignReplicasToDirs.
#
# Unlike Kafka, brokers do not tell of every replica in which directory it is, only of those that
# are lost, that are found again, and that are in a directory which is full.


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
                    topic = _hosted_topic(image, wanted.topic_id, index, broker.broker_id)
                    where = None if lost else directory.id
                    change = _directory_change(elections, topic, index, broker.broker_id, where)
                    if change is not None:
                        changes[wanted.topic_id, index] = change
                except KafkaError as error:
                    result.error_code = error.code
    return Result(tuple(changes.values()), response)


def _hosted_topic(image: Image, topic_id: bytes, index: int, broker_id: int) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if broker_id not in topic.partitions[index].replicas:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return topic


def _directory_change(
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
