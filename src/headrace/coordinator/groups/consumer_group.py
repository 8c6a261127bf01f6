"""A consumer group whose coordinator assigns (KIP-848): epochs, members, target and patterns.

    Empty        -- a member joins -->                                  Assigning
    Assigning    -- the target of the group's epoch is computed -->     Reconciling
    Reconciling  -- every member has reached the target's epoch -->     Stable
    any of them  -- a member or a topic changes -->                     Assigning

A group changes by its records alone, through `apply`: those of its log while the shard is loading,
and those that `ConsumerGroupProtocol` has just written. Requests are decided there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, TypeAlias

from headrace.coordinator.deadlines import Timer
from headrace.coordinator.groups.reconciliation import (
    LEAVING,
    NOTHING,
    AssignedPartitions,
    ClassicSession,
    ConsumerMember,
    MemberState,
    Partitions,
)
from headrace.coordinator.groups.topic_catalog import TopicCatalog
from headrace.coordinator.records import ConsumerGroupKey, ConsumerGroupValue, RecordError
from headrace.errors import ErrorCode
from headrace.protocol.messages import consumer_group_describe as described
from headrace.protocol.messages import consumer_group_records as records
from headrace.protocol.messages.list_groups import ListedGroup
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

CONSUMER_GROUP_TYPE = "consumer"
_PROTOCOL_TYPE = "consumer"
# The first version of OffsetCommit with a member epoch in place of a generation.
_MEMBER_EPOCH_SINCE = 9

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1

_Record: TypeAlias = tuple[ConsumerGroupKey, ConsumerGroupValue | None]


class ConsumerGroupState(Enum):
    """The state of a consumer group; the values are Kafka's names on the wire."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ResolvedPattern(NamedTuple):
    """The topics that matched a pattern: as of a version of the metadata, and at a time of day."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class MemberTimers:
    """The timers of a member: its session, and the time it has to give partitions up."""

    __slots__ = ("rebalance", "session")

    def __init__(self) -> None:
        self.session = Timer()
        self.rebalance = Timer()


class ConsumerGroup:
    """The members of a group, its target assignment and its epochs.

    Invariants: `epoch` never decreases, and `assignment_epoch` is never ahead of it. `static` maps
    an instance id to the id of the member that holds it. No partition is `assigned` to, or still to
    be revoked by, more than one member: `owner_of` names it.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}
        self.target: dict[str, Partitions] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        # Subscriptions: how many members name a topic, a pattern, an assignor.
        self.topic_counts: dict[str, int] = {}
        self.pattern_counts: dict[str, int] = {}
        self.assignor_counts: dict[str, int] = {}
        # A record of topics as Kafka 4.0 wrote it, which a hash has replaced since.
        self.has_topics_record = False
        self.is_dead = False
        # Soft state: timers, the version of the topics that the hash was compared with, and when
        # the last member left.
        self.timers: dict[str, MemberTimers] = {}
        self.assignment_timer = Timer()
        self.pattern_timer = Timer()
        self.expiry_timer = Timer()
        self.topics_version = -1
        self.emptied_ms: int | None = None
        # Since this coordinator loaded the group, for metrics.
        self.rebalance_count = 0
        self.commit_count = 0
        self._owners: dict[bytes, dict[int, str]] = {}

    # -- what is known

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled(epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def owner_of(self, topic_id: bytes, partition: int) -> str | None:
        """The member that has a partition, None if it is free."""
        return self._owners.get(topic_id, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The member that holds an instance id."""
        member_id = self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def subscribed_topics(self) -> set[str]:
        """The topics that members name, or that match their patterns."""
        topics = set(self.topic_counts)
        for resolved in self.patterns.values():
            topics |= resolved.topics
        return topics

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics a member is subscribed to; a pattern that is not resolved matches none."""
        resolved = self.patterns.get(member.pattern) if member.pattern else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def preferred_assignor(self) -> str | None:
        """The assignor that most members ask for, None if none does."""
        counts = self.assignor_counts
        return max(sorted(counts), key=counts.__getitem__) if counts else None

    # -- as the owner of offsets

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_counts or any(
            topic in resolved.topics for resolved in self.patterns.values()
        )

    @property
    def may_expire_offsets(self) -> bool:
        return True

    @property
    def empty_since_ms(self) -> int | None:
        return None if self.members else self.emptied_ms

    def check_commit(self, request: OffsetCommitRequest, version: int) -> ErrorCode:
        """NONE if a commit is permitted; partitions are checked by `may_commit`."""
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and version < _MEMBER_EPOCH_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        return _check_epoch(member, epoch)

    def check_txn_commit(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        """NONE if a transaction may commit offsets; a producer that names no member always may."""
        epoch, member_id = request.generation_id, request.member_id
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if epoch < 0 and not member_id and request.group_instance_id is None:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return _check_epoch(member, epoch)

    def may_commit(self, member_id: str, epoch: int, topic_id: bytes, partition: int) -> bool:
        """Whether a member with an epoch may commit an offset: it has the partition since then.

        An epoch behind the coordinator's is that of a member that has not heard of its new one
        yet (KIP-1251).
        """
        member = self.members.get(member_id)
        if member is None or epoch < 0 or epoch == member.epoch:
            return True
        since = member.assigned.get(topic_id, {}).get(partition)
        return since is not None and since <= epoch

    def check_fetch(self, request: OffsetFetchRequestGroup) -> ErrorCode:
        """NONE if offsets may be fetched: by everybody, and by a member of the present epoch."""
        if request.member_id is None and request.member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(request.member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if request.member_epoch == member.epoch else _stale(member)

    def check_offset_delete(self) -> ErrorCode:
        """NONE: `OffsetStore.delete` refuses those of subscribed topics."""
        return ErrorCode.NONE

    # -- records

    def apply(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Apply a record; that of the group's end only makes it Dead."""
        match key, value:
            case records.ConsumerGroupMetadataKey(), records.ConsumerGroupMetadataValue():
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case records.ConsumerGroupMetadataKey(), None:
                self.is_dead = True
            case records.ConsumerGroupPartitionMetadataKey(), _:
                self.has_topics_record = value is not None
            case (
                records.ConsumerGroupTargetAssignmentMetadataKey(),
                records.ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                self.assignment_epoch = value.assignment_epoch
                self.assignment_timestamp_ms = value.assignment_timestamp
            case records.ConsumerGroupTargetAssignmentMetadataKey(), None:
                self.assignment_epoch = -1
            case records.ConsumerGroupRegularExpressionKey(), _:
                self._apply_pattern(key.regular_expression, value)
            case _:
                self._apply_to_member(key, value)

    def _apply_pattern(self, pattern: str, value: ConsumerGroupValue | None) -> None:
        if value is None:
            self.patterns.pop(pattern, None)
        else:
            assert isinstance(value, records.ConsumerGroupRegularExpressionValue)
            self.patterns[pattern] = ResolvedPattern(
                frozenset(value.topics), value.version, value.timestamp
            )

    def _apply_to_member(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        match key, value:
            case (
                records.ConsumerGroupMemberMetadataKey(),
                records.ConsumerGroupMemberMetadataValue(),
            ):
                self._set_member(_with_metadata(self._member_or_new(key.member_id), value))
            case records.ConsumerGroupMemberMetadataKey(), None:
                self._remove_member(key.member_id)
            case (
                records.ConsumerGroupCurrentMemberAssignmentKey(),
                records.ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                self._set_member(_with_assignment(self._member_or_new(key.member_id), value))
            case records.ConsumerGroupCurrentMemberAssignmentKey(), None:
                member = self.members.get(key.member_id)
                if member is not None:
                    self._set_member(
                        replace(
                            member,
                            epoch=LEAVING,
                            previous_epoch=LEAVING,
                            assigned=NOTHING,
                            revoking=NOTHING,
                        )
                    )
            case (
                records.ConsumerGroupTargetAssignmentMemberKey(),
                records.ConsumerGroupTargetAssignmentMemberValue(),
            ):
                self.target[key.member_id] = {
                    topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
                }
            case records.ConsumerGroupTargetAssignmentMemberKey(), None:
                self.target.pop(key.member_id, None)
            case _:
                raise AssertionError((key, value))

    def _member_or_new(self, member_id: str) -> ConsumerMember:
        return self.members.get(member_id) or ConsumerMember(member_id)

    def _set_member(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        self._count(old, -1)
        self._release(old)
        self.members[member.member_id] = member
        self._count(member, 1)
        for topic_id, partition in _all_partitions(member):
            self._owners.setdefault(topic_id, {})[partition] = member.member_id
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def _remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        self._release(member)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]

    def _release(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for topic_id, partition in _all_partitions(member):
            owners = self._owners.get(topic_id, {})
            if owners.get(partition) == member.member_id:
                del owners[partition]
                if not owners:
                    del self._owners[topic_id]

    def _count(self, member: ConsumerMember | None, step: int) -> None:
        if member is None:
            return
        for topic in member.topics:
            _add(self.topic_counts, topic, step)
        if member.pattern:
            _add(self.pattern_counts, member.pattern, step)
        if member.assignor is not None:
            _add(self.assignor_counts, member.assignor, step)

    def end_records(self) -> list[_Record]:
        """Tombstones for all that the group has in the log, the group's own at last."""
        group = self.group_id
        found: list[_Record] = [
            (records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group, member_id=each), None)
            for each in self.members
        ]
        found += [
            (records.ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id=each), None)
            for each in self.target
        ]
        found.append((records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group), None))
        found += [
            (records.ConsumerGroupMemberMetadataKey(group_id=group, member_id=each), None)
            for each in self.members
        ]
        found += [
            (
                records.ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=each),
                None,
            )
            for each in self.patterns
        ]
        if self.has_topics_record:
            found.append((records.ConsumerGroupPartitionMetadataKey(group_id=group), None))
        found.append((records.ConsumerGroupMetadataKey(group_id=group), None))
        return found

    def state_records(self) -> list[_Record]:
        """All that the group is, as records in the order in which they are written."""
        found: list[_Record] = [
            metadata_record(self.group_id, member) for member in self.members.values()
        ]
        found.append(epoch_record(self.group_id, self.epoch, self.metadata_hash))
        found += [
            target_record(self.group_id, member, self.target.get(member, {}))
            for member in self.members
        ]
        found.append(
            target_epoch_record(self.group_id, self.assignment_epoch, self.assignment_timestamp_ms)
        )
        found += [assignment_record(self.group_id, member) for member in self.members.values()]
        return found

    # -- descriptions

    def describe(self, topics: TopicCatalog, default_assignor: str) -> described.DescribedGroup:
        """The group as ConsumerGroupDescribe shows it, without the authorized operations."""
        return described.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            group_epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor_name=self.preferred_assignor() or default_assignor,
            members=[
                described.Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=sorted(member.topics),
                    subscribed_topic_regex=member.pattern,
                    assignment=_described(member.assigned, topics),
                    target_assignment=_described(self.target.get(member.member_id, {}), topics),
                    member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
                )
                for member in self.members.values()
            ],
        )

    def list_entry(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=_PROTOCOL_TYPE,
            group_state=self.state.value,
            group_type=CONSUMER_GROUP_TYPE,
        )


def _check_epoch(member: ConsumerMember, epoch: int) -> ErrorCode:
    """NONE for the epoch of a member, or an earlier one, which its partitions decide about."""
    if member.classic is not None:
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE if 0 <= epoch <= member.epoch else ErrorCode.STALE_MEMBER_EPOCH


def _stale(member: ConsumerMember) -> ErrorCode:
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def _add(counts: dict[str, int], name: str, step: int) -> None:
    count = counts.get(name, 0) + step
    if count:
        counts[name] = count
    else:
        del counts[name]


def _all_partitions(member: ConsumerMember) -> Iterator[tuple[bytes, int]]:
    for partitions in (member.assigned, member.revoking):
        for topic_id, found in partitions.items():
            for partition in found:
                yield topic_id, partition


def _described(partitions: Partitions, topics: TopicCatalog) -> described.Assignment:
    """Partitions with the names of their topics, without deleted topics."""
    found = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            found.append(
                described.TopicPartitions(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes)
                )
            )
    return described.Assignment(topic_partitions=found)


# -- records of a group and of its members


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> _Record:
    """The epoch of a group."""
    value = records.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return records.ConsumerGroupMetadataKey(group_id=group_id), value


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> _Record:
    """The epoch for which the target assignment was computed, and when."""
    value = records.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target_record(group_id: str, member_id: str, partitions: Partitions) -> _Record:
    """The target assignment of a member."""
    key = records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    value = records.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            records.TopicPartition(topic_id=topic_id, partitions=sorted(found))
            for topic_id, found in partitions.items()
        ]
    )
    return key, value


def metadata_record(group_id: str, member: ConsumerMember) -> _Record:
    """The subscription of a member."""
    classic = None
    if member.classic is not None:
        classic = records.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[
                records.ClassicProtocol(name=name, metadata=data)
                for name, data in member.classic.protocols
            ],
        )
    value = records.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    )
    key = records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return key, value


def assignment_record(group_id: str, member: ConsumerMember) -> _Record:
    """The epoch, the state and the partitions of a member."""
    value = records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_stored(member.assigned),
        partitions_pending_revocation=_stored(member.revoking),
    )
    key = records.ConsumerGroupCurrentMemberAssignmentKey(
        group_id=group_id, member_id=member.member_id
    )
    return key, value


def pattern_record(group_id: str, pattern: str, resolved: ResolvedPattern | None) -> _Record:
    """The topics that match a pattern, or the tombstone of a pattern."""
    key = records.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    if resolved is None:
        return key, None
    value = records.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics),
        version=resolved.version,
        timestamp=resolved.timestamp_ms,
    )
    return key, value


def member_tombstones(group_id: str, member_id: str) -> Iterable[_Record]:
    """The tombstones of all that the log has of a member."""
    return (
        (
            records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            None,
        ),
        (
            records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            None,
        ),
        (records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    )


def _stored(partitions: AssignedPartitions) -> list[records.TopicPartitions]:
    return [
        records.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(found),
            assignment_epochs=[found[partition] for partition in sorted(found)],
        )
        for topic_id, found in partitions.items()
    ]


def _restored(stored: Iterable[records.TopicPartitions], epoch: int) -> AssignedPartitions:
    """The partitions of a record; without epochs, as Kafka wrote it before 4.3, with `epoch`."""
    found: dict[bytes, Mapping[int, int]] = {}
    for topic in stored:
        epochs = topic.assignment_epochs or [epoch] * len(topic.partitions)
        if len(epochs) != len(topic.partitions):
            raise RecordError("a member has partitions without epochs")
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def _with_metadata(
    member: ConsumerMember, value: records.ConsumerGroupMemberMetadataValue
) -> ConsumerMember:
    classic = None
    if value.classic_member_metadata is not None:
        stored = value.classic_member_metadata
        classic = ClassicSession(
            stored.session_timeout_ms,
            tuple((each.name, each.metadata) for each in stored.supported_protocols),
        )
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topics=frozenset(value.subscribed_topic_names),
        pattern=value.subscribed_topic_regex or "",
        assignor=value.server_assignor,
        classic=classic,
    )


def _with_assignment(
    member: ConsumerMember, value: records.ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerMember:
    try:
        state = MemberState(value.state)
    except ValueError:
        # Of a later version: nothing of what it may own is given away before it says so.
        state = MemberState.UNREVOKED
    epoch = value.member_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=_restored(value.assigned_partitions, epoch),
        revoking=_restored(value.partitions_pending_revocation, epoch),
    )
