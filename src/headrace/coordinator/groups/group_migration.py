"""The move of a group with members from one protocol to the other (KIP-848).

A classic group is *upgraded* when a member joins it by the consumer protocol: its members stay,
with the partitions that their leader assigned them, and go on in the classic protocol. A consumer
group is *downgraded* when its last member of the consumer protocol is gone, and the others join
again.
"""

from collections.abc import Collection
from typing import NamedTuple

from headrace.coordinator.groups.classic_group import ClassicGroup
from headrace.coordinator.groups.classic_members import (
    CONSUMER,
    read_assignment,
    read_subscription,
    write_assignment,
)
from headrace.coordinator.groups.classic_protocol import ClassicProtocol
from headrace.coordinator.groups.consumer_group import (
    ConsumerGroup,
    assignment_record,
    epoch_record,
    metadata_record,
    target_epoch_record,
    target_record,
)
from headrace.coordinator.groups.consumer_group_protocol import ConsumerGroupProtocol
from headrace.coordinator.groups.reconciliation import (
    ClassicSession,
    ConsumerMember,
    Partitions,
)
from headrace.coordinator.groups.topic_catalog import TopicCatalog, hash_of_topics
from headrace.coordinator.records import group_record
from headrace.coordinator.shard import ConsumerGroupOptions, GroupCall, GroupSettings
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.offsets_records import GroupMetadataValue, MemberMetadata

_UPGRADING = frozenset(("bidirectional", "upgrade"))
_DOWNGRADING = frozenset(("bidirectional", "downgrade"))


class UpgradedMember(NamedTuple):
    """A member of a classic group as one of a consumer group, and its target."""

    member: ConsumerMember
    target: Partitions


class GroupMigration:
    """Moves groups between the protocols of a shard."""

    def __init__(
        self,
        settings: GroupSettings,
        classic: ClassicProtocol,
        consumer: ConsumerGroupProtocol,
        topics: TopicCatalog,
    ) -> None:
        self._settings = settings
        self._classic = classic
        self._consumer = consumer
        self._topics = topics

    def upgraded_members(
        self, group: ClassicGroup, options: ConsumerGroupOptions
    ) -> list[UpgradedMember]:
        """The members of a group that may be upgraded; KafkaError if it may not."""
        problem = None
        if options.migration_policy not in _UPGRADING:
            problem = "online upgrade is disabled"
        elif group.protocol_type != CONSUMER:
            problem = "the group does not use the consumer embedded protocol"
        elif len(group.members) > options.max_size:
            problem = "the group size exceeds the consumer group maximum size"
        if problem is not None:
            raise _not_upgraded(group, problem)
        name = group.protocol_name or group.select_protocol()
        members = []
        for member in group.members.values():
            if name not in member.protocols:
                raise _not_upgraded(group, f"a member has no {name}")
            subscription = read_subscription(member.protocols[name], self._topics)
            assigned = read_assignment(member.assignment, self._topics)
            upgraded = ConsumerMember(
                member.member_id,
                member.instance_id,
                subscription.rack_id,
                member.client.client_id,
                member.client.host,
                member.rebalance_timeout_ms,
                subscription.topics,
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned={
                    topic_id: dict.fromkeys(partitions, group.generation)
                    for topic_id, partitions in assigned.items()
                },
                classic=ClassicSession(member.session_timeout_ms, tuple(member.protocols.items())),
            )
            members.append(UpgradedMember(upgraded, assigned))
        return members

    def upgrade(
        self, call: GroupCall, group: ClassicGroup, members: Collection[UpgradedMember]
    ) -> ConsumerGroup:
        """Write the end of a classic group, and a consumer group with these members of it."""
        self._classic.hand_over(call, group)
        call.out.records.append(group_record(group.group_id, None))
        group_id = group.group_id
        upgraded = self._consumer.new_group(group_id)
        self._consumer.write(
            call, upgraded, *(metadata_record(group_id, each.member) for each in members)
        )
        topics_hash = hash_of_topics(upgraded.subscribed_topics(), self._topics)
        self._consumer.write(
            call,
            upgraded,
            epoch_record(group_id, group.generation, topics_hash),
            *(target_record(group_id, each.member.member_id, each.target) for each in members),
            target_epoch_record(group_id, group.generation, 0),
            *(assignment_record(group_id, each.member) for each in members),
        )
        upgraded.topics_version = self._topics.version
        for each in members:
            self._consumer.renew_session(call, upgraded, each.member.member_id)
        return upgraded

    def may_downgrade(self, group: ConsumerGroup, options: ConsumerGroupOptions) -> bool:
        """Whether a group has only members of the classic protocol left, and may become classic."""
        return (
            bool(group.members)
            and all(member.classic is not None for member in group.members.values())
            and options.migration_policy in _DOWNGRADING
            and len(group.members) <= self._settings.max_size
        )

    def downgrade(self, call: GroupCall, group: ConsumerGroup) -> ClassicGroup:
        """Write the end of a consumer group, and a classic group that begins to rebalance."""
        value = self._classic_value(call, group)
        self._consumer.end_group(call, group)
        classic = self._classic.restore_group(group.group_id, value)
        classic.state_timestamp_ms = call.now_ms
        call.out.records.append(group_record(group.group_id, value))
        self._classic.start_sessions(call, classic)
        self._classic.rebalance(call, classic)
        return classic

    def _classic_value(self, call: GroupCall, group: ConsumerGroup) -> GroupMetadataValue:
        """The record of a classic group with the members, and the targets, of a consumer group."""
        supported = [
            [name for name, _ in member.classic.protocols]
            for member in group.members.values()
            if member.classic is not None
        ]
        # All of them support one at least, which joins have been refused for otherwise.
        protocol = next(name for name in supported[0] if all(name in names for names in supported))
        members = []
        for member in group.members.values():
            assert member.classic is not None
            metadata = dict(member.classic.protocols)[protocol]
            target = group.target.get(member.member_id, {})
            members.append(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.classic.session_timeout_ms,
                    subscription=metadata,
                    assignment=write_assignment(target, metadata, self._topics),
                )
            )
        return GroupMetadataValue(
            protocol_type=CONSUMER,
            generation=group.epoch,
            protocol=protocol,
            leader=members[0].member_id,
            current_state_timestamp=call.wall_ms,
            members=members,
        )


def _not_upgraded(group: ClassicGroup, problem: str) -> KafkaError:
    detail = f"Cannot upgrade classic group {group.group_id} to consumer group because {problem}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
