"""Coordinators of consumer groups in memory, beside the brokers of `fake_brokers`."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from headrace.protocol.messages.consumer_protocol import TopicPartition as AssignedTopic
from headrace.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from headrace.protocol.messages.list_offsets import ListOffsetsResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.protocol.schema import Message, encode_message
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeBrokers


def versioned(message: Message, version: int) -> bytes:
    """A message of the consumer protocol as members write it, after its version."""
    return version.to_bytes(2, "big", signed=True) + encode_message(message, version)


def member(
    name: str,
    topics: Mapping[str, Sequence[int]],
    *,
    instance: str | None = None,
    version: int = 3,
) -> DescribedGroupMember:
    """A consumer that subscribes to topics and owns some of their partitions."""
    assigned = [AssignedTopic(topic=topic, partitions=list(n)) for topic, n in topics.items()]
    return DescribedGroupMember(
        member_id=f"{name}-1",
        group_instance_id=instance,
        client_id=name,
        client_host="/10.0.0.9",
        member_metadata=versioned(ConsumerProtocolSubscription(topics=list(topics)), version),
        member_assignment=versioned(
            ConsumerProtocolAssignment(assigned_partitions=assigned), version
        ),
    )


@dataclass
class FakeGroup:
    """A group on the node that coordinates it."""

    node: int = 1
    state: str = "Empty"
    kind: str = "classic"
    protocol_type: str = "consumer"
    protocol: str = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)


class FakeGroups(FakeBrokers):
    """Brokers that coordinate groups.

    Each of `group_faults` is the answer to one request about groups, `partition_faults` that of one
    partition.
    """

    def __init__(self, nodes: int = 1, *, versions: dict[int, int] | None = None) -> None:
        super().__init__(nodes, versions=versions)
        self.groups: dict[str, FakeGroup] = {}
        self.group_faults: deque[ErrorCode] = deque()
        self.finding_faults: deque[ErrorCode] = deque()
        self.partition_faults: deque[ErrorCode] = deque()
        # The offset of the first record that is not older than a timestamp.
        self.timed: dict[tuple[TopicPartition, int], int] = {}

    def _ListOffsets(self, node: int, request: Any) -> ListOffsetsResponse:
        answer = super()._ListOffsets(node, request)
        for topic, asked in zip(answer.topics, request.topics, strict=True):
            for partition, wanted in zip(topic.partitions, asked.partitions, strict=True):
                tp = TopicPartition(topic.name, wanted.partition_index)
                partition.offset = self.timed.get((tp, wanted.timestamp), partition.offset)
        return answer

    def _fault(self, faults: deque[ErrorCode]) -> ErrorCode:
        return faults.popleft() if faults else ErrorCode.NONE

    def _refusal(self, node: int, name: str, *, create: bool = False) -> ErrorCode:
        fault = self._fault(self.group_faults)
        if fault is not ErrorCode.NONE:
            return fault
        if name not in self.groups:
            return ErrorCode.NONE if create else ErrorCode.GROUP_ID_NOT_FOUND
        right = self.groups[name].node == node
        return ErrorCode.NONE if right else ErrorCode.NOT_COORDINATOR

    def _FindCoordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        found = []
        for key in request.coordinator_keys or [request.key]:
            fault = self._fault(self.finding_faults)
            coordinator = self.groups[key].node if key in self.groups else 1
            found.append(Coordinator(key=key, node_id=coordinator, error_code=fault))
        return FindCoordinatorResponse(
            coordinators=found, node_id=found[0].node_id, error_code=found[0].error_code
        )

    def _ListGroups(self, node: int, request: Any) -> ListGroupsResponse:
        listed = [
            ListedGroup(
                group_id=name,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.kind,
            )
            for name, group in self.groups.items()
            if group.node == node
            and (not request.states_filter or group.state in request.states_filter)
            and (not request.types_filter or group.kind in request.types_filter)
        ]
        return ListGroupsResponse(error_code=self._fault(self.group_faults), groups=listed)

    def _DescribeGroups(self, node: int, request: Any) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=[self._described(node, n) for n in request.groups])

    def _described(self, node: int, name: str) -> DescribedGroup:
        refusal = self._refusal(node, name)
        group = self.groups.get(name, FakeGroup(state="Dead"))
        # Kafka describes groups of other types as none of its own.
        if group.kind != "classic":
            refusal = ErrorCode.GROUP_ID_NOT_FOUND
        if refusal is ErrorCode.GROUP_ID_NOT_FOUND and self.version(15) < 6:
            refusal = ErrorCode.NONE
        if refusal is not ErrorCode.NONE or name not in self.groups:
            return DescribedGroup(
                group_id=name,
                error_code=refusal,
                error_message=f"Group {name} not found." if refusal == 69 else None,
                group_state="Dead",
            )
        return DescribedGroup(
            group_id=name,
            group_state=group.state,
            protocol_type=group.protocol_type,
            protocol_data=group.protocol,
            members=group.members,
        )

    def _DeleteGroups(self, node: int, request: Any) -> DeleteGroupsResponse:
        results = []
        for name in request.groups_names:
            code = self._refusal(node, name)
            if code is ErrorCode.NONE and self.groups[name].members:
                code = ErrorCode.NON_EMPTY_GROUP
            if code is ErrorCode.NONE:
                del self.groups[name]
            results.append(DeletableGroupResult(group_id=name, error_code=code))
        return DeleteGroupsResponse(results=results)

    def _OffsetFetch(self, node: int, request: Any) -> OffsetFetchResponse:
        names = [group.group_id for group in request.groups] or [request.group_id]
        codes = {name: self._refusal(node, name, create=True) for name in names}
        groups = [
            OffsetFetchResponseGroup(
                group_id=name,
                topics=[
                    OffsetFetchResponseTopics(
                        name=topic,
                        topic_id=self.topics.get(topic, bytes(16)),
                        partitions=[
                            OffsetFetchResponsePartitions(
                                partition_index=number, committed_offset=offset
                            )
                            for number, offset in offsets
                        ],
                    )
                    for topic, offsets in self._offsets(name, codes[name]).items()
                ],
                error_code=codes[name],
            )
            for name in names
        ]
        # Before version 8 the answer is about one group, outside the list.
        old = [
            OffsetFetchResponseTopic(
                name=topic,
                partitions=[
                    OffsetFetchResponsePartition(partition_index=number, committed_offset=offset)
                    for number, offset in offsets
                ],
            )
            for topic, offsets in self._offsets(names[0], codes[names[0]]).items()
        ]
        return OffsetFetchResponse(topics=old, error_code=codes[names[0]], groups=groups)

    def _offsets(self, name: str, code: ErrorCode) -> dict[str, list[tuple[int, int]]]:
        """The committed offsets of a group by topic; none where it is refused or unknown."""
        topics: dict[str, list[tuple[int, int]]] = {}
        if code is ErrorCode.NONE and name in self.groups:
            for tp, offset in self.groups[name].offsets.items():
                topics.setdefault(tp.topic, []).append((tp.partition, offset))
        return topics

    def _OffsetCommit(self, node: int, request: Any) -> OffsetCommitResponse:
        names = {topic_id: name for name, topic_id in self.topics.items()}
        code = self._refusal(node, request.group_id, create=True)
        group = self.groups.setdefault(request.group_id, FakeGroup(protocol_type=""))
        if code is ErrorCode.NONE and group.members:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        answered = []
        for topic in request.topics:
            name = topic.name or names[topic.topic_id]
            partitions = []
            for partition in topic.partitions:
                outcome = code or self._fault(self.partition_faults)
                if not outcome:
                    tp = TopicPartition(name, partition.partition_index)
                    group.offsets[tp] = partition.committed_offset
                partitions.append(
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=outcome
                    )
                )
            answered.append(
                OffsetCommitResponseTopic(
                    name=name, topic_id=self.topics[name], partitions=partitions
                )
            )
        return OffsetCommitResponse(topics=answered)

    def _OffsetDelete(self, node: int, request: Any) -> OffsetDeleteResponse:
        code = self._refusal(node, request.group_id)
        if code is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=code)
        group = self.groups[request.group_id]
        answered = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                outcome = self._fault(self.partition_faults)
                if not outcome:
                    group.offsets.pop(TopicPartition(topic.name, partition.partition_index), None)
                partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=outcome
                    )
                )
            answered.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return OffsetDeleteResponse(topics=answered)
