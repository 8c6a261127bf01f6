"""Partition reassignments: begin, change, cancel and list them.

During a reassignment `replicas` is the target, in its order, followed by the replicas that will be
removed. `adding_replicas` are replicas that the partition did not have before, `removing_replicas`
those that it will not have after. So the original replicas are `replicas` without
`adding_replicas`, and the target is `replicas` without `removing_replicas`.

Rule: a replica is removed only when every replica of the target is in sync (KIP-455), so there are
never fewer copies than before or after the reassignment, whichever is fewer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import Elections, partition_indexes, topic_with_partition
from headrace.metadata.image import Image, PartitionImage, TopicImage
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.protocol.schema import Message


class FinishedReassignment(NamedTuple):
    """The replicas and the ISR of a partition when its reassignment ends.

    A leader that is not in `isr` is replaced by a member of `isr`, the first in the order of
    `replicas`. The record names the leader even if it stays: the new leader epoch fences the
    removed replicas.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def is_moving(partition: PartitionImage) -> bool:
    """Whether a reassignment of the partition is under way."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas after the reassignment ends; without a reassignment, the present replicas."""
    return _without(partition.replicas, partition.removing_replicas)


def origin_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas before the reassignment; without a reassignment, the present replicas."""
    return _without(partition.replicas, partition.adding_replicas)


def finished_reassignment(
    partition: PartitionImage, isr: Sequence[int]
) -> FinishedReassignment | None:
    """The end of a partition's reassignment if `isr` is in sync; None if it must go on.

    For commands that change an ISR: `isr` is the new ISR, and the result goes into the same record.
    """
    if not is_moving(partition):
        return None
    target = target_of(partition)
    if not target or not set(target) <= set(isr):
        return None
    return FinishedReassignment(target, _without(isr, partition.removing_replicas))


def alter_partition_reassignments(
    image: Image, request: AlterPartitionReassignmentsRequest, *, unclean_by_default: bool = False
) -> CommandResult[AlterPartitionReassignmentsResponse]:
    """Begin, change or (replicas null) cancel reassignments; each partition has its own result."""
    elections = Elections(image, unclean_by_default=unclean_by_default)
    changes: dict[tuple[str, int], PartitionChangeRecord | None] = {}
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    for wanted_topic in request.topics:
        results = ReassignableTopicResponse(name=wanted_topic.name)
        response.responses.append(results)
        for wanted in wanted_topic.partitions:
            result = ReassignablePartitionResponse(
                partition_index=wanted.partition_index, error_message=None
            )
            results.partitions.append(result)
            key = (wanted_topic.name, wanted.partition_index)
            try:
                if key in changes:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "the request names the partition more than once"
                    )
                topic = topic_with_partition(image, *key)
                partition = topic.partitions[wanted.partition_index]
                if wanted.replicas is None:
                    new = _cancelled(partition)
                else:
                    target = tuple(wanted.replicas)
                    _check_target(image, partition, target, request.allow_replication_factor_change)
                    new = _moved(partition, target)
                changes[key] = _change(elections, topic, wanted.partition_index, new)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.detail
    records: list[Message] = [change for change in changes.values() if change is not None]
    return CommandResult(tuple(records), response)


def list_partition_reassignments(
    image: Image, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The reassignments under way: all, or those of the requested partitions."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    for name, indexes in _requested_partitions(image, request):
        partitions = image.topics[name].partitions if name in image.topics else ()
        ongoing = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partitions[index].replicas),
                adding_replicas=list(partitions[index].adding_replicas),
                removing_replicas=list(partitions[index].removing_replicas),
            )
            for index in indexes
            if 0 <= index < len(partitions) and is_moving(partitions[index])
        ]
        if ongoing:
            response.topics.append(OngoingTopicReassignment(name=name, partitions=ongoing))
    return response


def _requested_partitions(
    image: Image, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topics is None:
        return partition_indexes(image)
    return ((wanted.name, wanted.partition_indexes) for wanted in request.topics)


def _check_target(
    image: Image,
    partition: PartitionImage,
    target: tuple[int, ...],
    may_change_replication_factor: bool,
) -> None:
    """Refuse a target with unknown or repeated brokers, or a forbidden replica count."""
    unknown = [broker_id for broker_id in target if broker_id not in image.brokers]
    if not target:
        reason = "the new assignment has no replicas"
    elif len(set(target)) != len(target):
        reason = "the new assignment names a broker more than once"
    elif unknown:
        reason = f"the new assignment names broker {unknown[0]}, which is not registered"
    else:
        present = len(target_of(partition))
        if len(target) != present and not may_change_replication_factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the partition has {present} replicas, the new assignment {len(target)}, and the"
                " request forbids that",
            )
        return
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _moved(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """The partition during a reassignment to `target`; unchanged if that is its target already.

    A new target replaces an earlier target: replicas that were being added and are not in the new
    target are removed at once.
    """
    if target == target_of(partition):
        return partition
    origin = origin_of(partition)
    removing = _without(origin, target)
    return replace(
        partition,
        replicas=target + removing,
        isr=_kept_isr(partition, target + removing),
        adding_replicas=_without(target, origin),
        removing_replicas=removing,
    )


def _cancelled(partition: PartitionImage) -> PartitionImage:
    if not is_moving(partition):
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned"
        )
    origin = origin_of(partition)
    isr = _kept_isr(partition, origin)
    return replace(partition, replicas=origin, isr=isr, adding_replicas=(), removing_replicas=())


def _kept_isr(partition: PartitionImage, replicas: Sequence[int]) -> tuple[int, ...]:
    eligible = partition.isr or partition.elr or partition.last_known_elr
    if eligible and set(eligible).isdisjoint(replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"only {', '.join(map(str, eligible))}, which would go, is in sync: records would"
            " be lost",
        )
    return tuple(broker_id for broker_id in partition.isr if broker_id in replicas)


def _change(
    elections: Elections, topic: TopicImage, partition_id: int, new: PartitionImage
) -> PartitionChangeRecord | None:
    """The record that begins a reassignment, or ends it at once if there is nothing to copy."""
    end = finished_reassignment(new, new.isr)
    replicas, isr = end or (new.replicas, new.isr)
    return elections.change(
        topic,
        partition_id,
        replicas=replicas,
        isr=isr,
        adding_replicas=() if end else new.adding_replicas,
        removing_replicas=() if end else new.removing_replicas,
    )


def _without(replicas: Sequence[int], gone: Sequence[int]) -> tuple[int, ...]:
    return tuple(broker_id for broker_id in replicas if broker_id not in gone)
