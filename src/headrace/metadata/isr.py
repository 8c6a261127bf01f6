"""AlterPartition, which changes ISRs, and AssignReplicasToDirs, which reports lost replicas.

Rule: compare and set. A leader names the leader epoch and partition epoch that it knows; if they
are not the newest the change is refused, and the leader learns the newest from the log.
"""

from collections.abc import Sequence

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.brokers import registered_broker
from headrace.metadata.elections import RECOVERED, RECOVERING, Elections
from headrace.metadata.image import Image, PartitionImage, TopicImage
from headrace.metadata.reassignments import finished_reassignment
from headrace.metadata.records import CommandResult
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
) -> CommandResult[AlterPartitionResponse]:
    """Give partitions the ISRs that their leader asks for; each partition has its own result.

    An ISR with every target replica of a reassignment also ends the reassignment.
    """
    registered_broker(image, request.broker_id, request.broker_epoch)
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
                partition = _partition_to_alter(image, request.broker_id, topic, wanted)
                change = _change(elections, topic, partition, wanted)
                if change is not None:
                    altered.add(place)
                    records.append(change)
                    partition = partition.changed(change)
                _fill_result(result, partition, request.broker_id)
            except KafkaError as error:
                result.error_code = error.code
    return CommandResult(tuple(records), response)


def _topic(image: Image, topic_id: bytes) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


def _wanted_isr(wanted: PartitionData) -> Sequence[BrokerState]:
    """The requested ISR; before version 3 its members have no broker epochs."""
    return wanted.new_isr_with_epochs or [
        BrokerState(broker_id=broker_id, broker_epoch=_ANY_EPOCH) for broker_id in wanted.new_isr
    ]


def _partition_to_alter(
    image: Image, leader: int, topic: TopicImage, wanted: PartitionData
) -> PartitionImage:
    """The partition to alter; KafkaError if the sender may not make this change."""
    if not 0 <= wanted.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[wanted.partition_index]
    if (
        wanted.leader_epoch > partition.leader_epoch
        or wanted.partition_epoch > partition.partition_epoch
    ):
        # A newer controller has changed the partition: this is not the active controller any more.
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
    members = [member.broker_id for member in _wanted_isr(wanted)]
    recovery = wanted.leader_recovery_state
    if (
        len(set(members)) != len(members)
        or not set(members) <= set(partition.replicas)
        or partition.leader not in members
        or recovery not in (RECOVERED, RECOVERING)
        # Until the leader's log is recovered, no follower can be in sync with it.
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
            # Its broker is active, but cannot read the log.
            or member.broker_id in partition.lost_replicas
            or member.broker_epoch not in (_ANY_EPOCH, broker.epoch)
        ):
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)


def _change(
    elections: Elections, topic: TopicImage, partition: PartitionImage, wanted: PartitionData
) -> PartitionChangeRecord | None:
    isr: Sequence[int] = [member.broker_id for member in _wanted_isr(wanted)]
    recovery = wanted.leader_recovery_state
    end = finished_reassignment(partition, isr)
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


def _fill_result(
    result: AlterPartitionResponsePartitionData, partition: PartitionImage, leader: int
) -> None:
    if partition.leader != leader:
        # The end of a reassignment moved the leadership; the sender learns the rest from the log.
        result.error_code = ErrorCode.NEW_LEADER_ELECTED
        return
    result.leader_id = partition.leader
    result.leader_epoch = partition.leader_epoch
    result.isr = list(partition.isr)
    result.leader_recovery_state = partition.leader_recovery_state
    result.partition_epoch = partition.partition_epoch


# AssignReplicasToDirs: brokers report replicas on failed disks.
#
# Unlike Kafka, brokers do not report the directory of every replica, only of replicas that are
# lost, that are found again, and that are in a full directory.


def assign_replicas_to_dirs(
    image: Image, request: AssignReplicasToDirsRequest, *, unclean_by_default: bool
) -> CommandResult[AssignReplicasToDirsResponse]:
    """Note which replicas of a broker are lost or found again; each has its own result.

    A lost replica leaves the ISR, the ELR and the leadership though its broker is active, even if
    it is the last in the ISR: then a recovery election is held among the other replicas. The only
    replica of a partition stays in the ISR, and there is no leader until it is found again.
    """
    broker = registered_broker(image, request.broker_id, request.broker_epoch)
    elections = Elections(image, unclean_by_default=unclean_by_default)
    changes: dict[tuple[bytes, int], PartitionChangeRecord] = {}
    response = AssignReplicasToDirsResponse()
    for directory in request.directories:
        lost = directory.id not in broker.log_dirs
        directory_result = AssignReplicasToDirsResponseDirectoryData(id=directory.id)
        response.directories.append(directory_result)
        for wanted in directory.topics:
            results = AssignReplicasToDirsResponseTopicData(topic_id=wanted.topic_id)
            directory_result.topics.append(results)
            for index in (partition.partition_index for partition in wanted.partitions):
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
    return CommandResult(tuple(changes.values()), response)


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
    """The record of a replica in `directory`, or of a lost replica if that is None."""
    partition = topic.partitions[index]
    lost = directory is None
    others = [(replica, place) for replica, place in partition.directories if replica != broker_id]
    known = others if directory is None else [*others, (broker_id, directory)]
    return elections.change(
        topic,
        index,
        isr=[replica for replica in partition.isr if replica != broker_id] if lost else None,
        lost_replicas=[
            replica
            for replica in partition.replicas
            if (lost if replica == broker_id else replica in partition.lost_replicas)
        ],
        directories=sorted(known, key=lambda known: partition.replicas.index(known[0])),
    )
