"""Commands that move replicas: reassignments begun, changed, cancelled and listed.

While a partition moves, its `replicas` are the target, in its order, and behind it the replicas
that are to go. `adding_replicas` are those it did not have before, `removing_replicas` those it
will not have after, so what it had is `replicas` without the former, and the target is `replicas`
without the latter.

Rule: a replica goes only when every replica of the target is in sync (KIP-455), so a move never
leaves fewer copies than the fewer of before and after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import Elections
from headrace.metadata.image import Image, PartitionImage, TopicImage
from headrace.metadata.records import Result
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


class Finished(NamedTuple):
    """What a partition is when its reassignment ends; it adds and removes nothing any more.

    A leader that is not in `isr` is to be replaced by one of `isr`, the first of `replicas` first.
    The record names the leader even if it stays: a new leader epoch shuts out the replicas that
    went.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def is_moving(partition: PartitionImage) -> bool:
    """Whether a reassignment of the partition is under way."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas the partition has, or will have when its reassignment ends."""
    return _without(partition.replicas, partition.removing_replicas)


def origin_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas the partition has, or had when its reassignment began, but for their order."""
    return _without(partition.replicas, partition.adding_replicas)


def finished(partition: PartitionImage, isr: Sequence[int]) -> Finished | None:
    """How the reassignment of a partition ends if `isr` is in sync; None if there is more to do.

    For whoever changes an ISR: `isr` is the new one, and the result goes into the same record.
    """
    if not is_moving(partition):
        return None
    target = target_of(partition)
    if not target or not set(target) <= set(isr):
        return None
    return Finished(target, _without(isr, partition.removing_replicas))


def alter_partition_reassignments(
    image: Image, request: AlterPartitionReassignmentsRequest, *, unclean_by_default: bool = False
) -> Result[AlterPartitionReassignmentsResponse]:
    """Begin, change or (replicas null) cancel reassignments; each partition has its own outcome."""
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
                topic, partition = _partition(image, *key)
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
    return Result(tuple(records), response)


def list_partition_reassignments(
    image: Image, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The reassignments under way: all, or those of the partitions asked for."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    for name, indexes in _asked(image, request):
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


def _asked(
    image: Image, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topics is None:
        for name, topic in sorted(image.topics.items()):
            yield name, range(len(topic.partitions))
    else:
        for wanted in request.topics:
            yield wanted.name, wanted.partition_indexes


def _partition(image: Image, name: str, index: int) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {name!r} has {len(topic.partitions)} partitions, and no partition {index}",
        )
    return topic, topic.partitions[index]


def _check_target(
    image: Image,
    partition: PartitionImage,
    target: tuple[int, ...],
    may_change_replication_factor: bool,
) -> None:
    """Refuse replicas that cannot be served."""
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
    """The partition on its way to `target`, or as it is if it is there or on that way.

    A new target replaces an earlier one as if that had never been: replicas that it was adding and
    that are no longer wanted go at once.
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
    """The record that makes a partition so, or what it ends as if there is nothing to copy."""
    end = finished(new, new.isr)
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
