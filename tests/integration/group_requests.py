"""A plain request of every group API, in every version, about a group without members."""

from collections.abc import Callable

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.protocol.schema import Message

# What a group without members answers, where that is not success.
GROUP_ANSWERS: dict[Api, set[int]] = {
    Api.JOIN_GROUP: {0, ErrorCode.MEMBER_ID_REQUIRED},
    Api.SYNC_GROUP: {ErrorCode.UNKNOWN_MEMBER_ID},
    Api.HEARTBEAT: {ErrorCode.UNKNOWN_MEMBER_ID},
    Api.LEAVE_GROUP: {0, ErrorCode.UNKNOWN_MEMBER_ID},
    Api.DESCRIBE_GROUPS: {0, ErrorCode.GROUP_ID_NOT_FOUND},
    Api.CONSUMER_GROUP_DESCRIBE: {ErrorCode.GROUP_ID_NOT_FOUND},
    Api.DELETE_GROUPS: {ErrorCode.GROUP_ID_NOT_FOUND},
    Api.OFFSET_DELETE: {0, ErrorCode.GROUP_ID_NOT_FOUND},
}


def group_requests_of(topic: str, topic_id: bytes) -> dict[Api, Callable[[int], Message]]:
    group = f"group-of-{topic}"
    return {
        Api.OFFSET_COMMIT: lambda version: OffsetCommitRequest(
            group_id=f"{group}-simple",
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[OffsetCommitRequestPartition(committed_offset=7)],
                )
            ],
        ),
        Api.OFFSET_FETCH: lambda version: _offset_fetch(group, topic, topic_id, version),
        Api.FIND_COORDINATOR: lambda version: find_coordinator(group, version),
        Api.JOIN_GROUP: lambda version: JoinGroupRequest(
            group_id=f"{group}-{version}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        Api.CONSUMER_GROUP_HEARTBEAT: lambda version: ConsumerGroupHeartbeatRequest(
            group_id=f"{group}-assigned-{version}",
            member_id="somebody" if version >= 1 else "",
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[topic],
            subscribed_topic_regex=topic if version >= 1 else None,
            topic_partitions=[],
        ),
        Api.CONSUMER_GROUP_DESCRIBE: lambda version: ConsumerGroupDescribeRequest(
            group_ids=[group], include_authorized_operations=True
        ),
        Api.HEARTBEAT: lambda version: HeartbeatRequest(group_id=group, member_id="nobody"),
        Api.LEAVE_GROUP: lambda version: LeaveGroupRequest(
            group_id=group,
            member_id="nobody" if version < 3 else "",
            members=[MemberIdentity(member_id="nobody")] if version >= 3 else [],
        ),
        Api.SYNC_GROUP: lambda version: SyncGroupRequest(
            group_id=group,
            member_id="nobody",
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
        ),
        Api.DESCRIBE_GROUPS: lambda version: DescribeGroupsRequest(
            groups=[group], include_authorized_operations=version >= 3
        ),
        Api.LIST_GROUPS: lambda version: ListGroupsRequest(),
        Api.DELETE_GROUPS: lambda version: DeleteGroupsRequest(groups_names=[group]),
        Api.OFFSET_DELETE: lambda version: OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition()])
            ],
        ),
    }


def find_coordinator(group: str, version: int) -> FindCoordinatorRequest:
    if version >= 4:
        return FindCoordinatorRequest(coordinator_keys=[group])
    return FindCoordinatorRequest(key=group)


def _offset_fetch(group: str, topic: str, topic_id: bytes, version: int) -> OffsetFetchRequest:
    if version < 8:
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        return OffsetFetchRequest(group_id=group, topics=topics)
    wanted = OffsetFetchRequestTopics(
        name=topic if version < 10 else "", topic_id=topic_id, partition_indexes=[0]
    )
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
