"""Access rules of the APIs about groups and their offsets."""

from collections.abc import Sequence
from typing import Any

from headrace.broker.access.rules import (
    EACH_GROUP,
    EACH_PARTITION,
    LEFT_OUT,
    AccessRule,
    may_topic,
    refuse_whole,
    remove_denied,
    right,
    with_refused,
    with_refused_partitions,
)
from headrace.broker.request import Denial, RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.messages import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType

_GROUP, _TOPIC = AclResourceType.GROUP, AclResourceType.TOPIC
_CLUSTER = AclResourceType.CLUSTER
_GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_OFFSET = -1
_FETCH_GROUPS_SINCE = 8


# -- Membership


def _check_member(context: RequestContext, request: Any) -> Denial:
    if context.may(AclOperation.READ, _GROUP, request.group_id):
        return None
    return refuse_whole(context, _GROUP_DENIED)


MEMBER = AccessRule((right(AclOperation.READ, _GROUP),), _check_member)


def _check_consumer_member(
    context: RequestContext, request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest
) -> Denial:
    denial = _check_member(context, request)
    if denial is not None:
        return denial
    # The topics of a pattern are those that its sender sees.
    named = request.subscribed_topic_names or ()
    if all(context.may(AclOperation.DESCRIBE, _TOPIC, topic) for topic in named):
        return None
    return refuse_whole(context, _TOPIC_DENIED)


CONSUMER_MEMBER = AccessRule(
    (
        right(AclOperation.READ, _GROUP),
        right(
            AclOperation.DESCRIBE,
            _TOPIC,
            note="of each topic that is named; without it one that matches a pattern is not read",
        ),
    ),
    _check_consumer_member,
)


# -- Lists and descriptions of groups


def _check_describe(
    context: RequestContext, request: describe_groups.DescribeGroupsRequest
) -> Denial:
    denied = remove_denied(
        request, "groups", lambda group: context.may(AclOperation.DESCRIBE, _GROUP, group)
    )
    refused = [
        describe_groups.DescribedGroup(group_id=group, error_code=_GROUP_DENIED, error_message=None)
        for group in denied
    ]
    return with_refused(context, "groups", refused, anything_left=bool(request.groups))


DESCRIBE_GROUPS = AccessRule((right(AclOperation.DESCRIBE, _GROUP, EACH_GROUP),), _check_describe)


def _check_describe_consumer_groups(
    context: RequestContext, request: consumer_group_describe.ConsumerGroupDescribeRequest
) -> Denial:
    denied = remove_denied(
        request, "group_ids", lambda group: context.may(AclOperation.DESCRIBE, _GROUP, group)
    )
    refused = [
        consumer_group_describe.DescribedGroup(group_id=group, error_code=_GROUP_DENIED)
        for group in denied
    ]

    def hide(response: consumer_group_describe.ConsumerGroupDescribeResponse) -> None:
        for group in response.groups:
            if not all(
                context.sees(AclOperation.DESCRIBE, _TOPIC, topic) for topic in _topics_of(group)
            ):
                group.error_code = _TOPIC_DENIED
                group.error_message = (
                    "The group has described topic(s) that the client is not authorized to"
                    " describe."
                )
                group.members = []
        response.groups += refused

    if request.group_ids:
        return hide
    return consumer_group_describe.ConsumerGroupDescribeResponse(groups=refused)


def _topics_of(group: consumer_group_describe.DescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }


DESCRIBE_CONSUMER_GROUPS = AccessRule(
    (
        right(AclOperation.DESCRIBE, _GROUP, EACH_GROUP),
        right(AclOperation.DESCRIBE, _TOPIC, EACH_GROUP, "of each topic that it is assigned"),
    ),
    _check_describe_consumer_groups,
)


def _check_list(context: RequestContext, request: list_groups.ListGroupsRequest) -> Denial:
    if context.sees(AclOperation.DESCRIBE, _CLUSTER, CLUSTER_NAME):
        return None

    def leave_out(response: list_groups.ListGroupsResponse) -> None:
        response.groups = [
            group
            for group in response.groups
            if context.sees(AclOperation.DESCRIBE, _GROUP, group.group_id)
        ]

    return leave_out


LIST_GROUPS = AccessRule(
    (right(AclOperation.DESCRIBE, _GROUP, LEFT_OUT, instead=(AclOperation.DESCRIBE, _CLUSTER)),),
    _check_list,
)


def _check_delete(context: RequestContext, request: delete_groups.DeleteGroupsRequest) -> Denial:
    denied = remove_denied(
        request, "groups_names", lambda group: context.may(AclOperation.DELETE, _GROUP, group)
    )
    refused = [
        delete_groups.DeletableGroupResult(group_id=group, error_code=_GROUP_DENIED)
        for group in dict.fromkeys(denied)
    ]
    return with_refused(context, "results", refused, anything_left=bool(request.groups_names))


DELETE_GROUPS = AccessRule((right(AclOperation.DELETE, _GROUP, EACH_GROUP),), _check_delete)


# -- Offsets


def _check_commit(context: RequestContext, request: offset_commit.OffsetCommitRequest) -> Denial:
    if context.may(AclOperation.READ, _GROUP, request.group_id):
        code = _TOPIC_DENIED
        denied = remove_denied(
            request, "topics", lambda topic: may_topic(context, AclOperation.READ, topic)
        )
    else:
        code = _GROUP_DENIED
        denied, request.topics = request.topics, []
        if not denied:
            return offset_commit.OffsetCommitResponse()
    return with_refused_partitions(
        context,
        request,
        denied,
        code,
        offset_commit.OffsetCommitResponseTopic,
        offset_commit.OffsetCommitResponsePartition,
    )


OFFSET_COMMIT = AccessRule(
    (
        right(AclOperation.READ, _GROUP, "each partition"),
        right(AclOperation.READ, _TOPIC, EACH_PARTITION),
    ),
    _check_commit,
)


def _check_fetch(context: RequestContext, request: offset_fetch.OffsetFetchRequest) -> Denial:
    if context.version >= _FETCH_GROUPS_SINCE:
        return _check_fetch_of_groups(context, request)
    if not context.may(AclOperation.DESCRIBE, _GROUP, request.group_id):
        response = offset_fetch.OffsetFetchResponse(error_code=_GROUP_DENIED)
        if context.version < 2:  # There is no code for all of them yet.
            response.topics = [
                _refused_offsets(topic, _GROUP_DENIED) for topic in request.topics or ()
            ]
        return response
    if request.topics is None:
        return lambda response: _leave_out(context, response)
    denied = remove_denied(
        request, "topics", lambda topic: may_topic(context, AclOperation.DESCRIBE, topic)
    )
    refused = [_refused_offsets(topic, _TOPIC_DENIED) for topic in denied]
    return with_refused(context, "topics", refused, anything_left=bool(request.topics))


def _refused_offsets(
    topic: offset_fetch.OffsetFetchRequestTopic, code: ErrorCode
) -> offset_fetch.OffsetFetchResponseTopic:
    return offset_fetch.OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            offset_fetch.OffsetFetchResponsePartition(
                partition_index=index, committed_offset=_NO_OFFSET, error_code=code
            )
            for index in topic.partition_indexes
        ],
    )


def _leave_out(context: RequestContext, holder: Any) -> None:
    """Leave the topics out of an answer about all of them that the sender may not describe."""
    holder.topics = [
        topic for topic in holder.topics if context.sees(AclOperation.DESCRIBE, _TOPIC, topic.name)
    ]


def _check_fetch_of_groups(
    context: RequestContext, request: offset_fetch.OffsetFetchRequest
) -> Denial:
    denied = remove_denied(
        request, "groups", lambda group: context.may(AclOperation.DESCRIBE, _GROUP, group.group_id)
    )
    refused_groups = [
        offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=_GROUP_DENIED)
        for group in denied
    ]
    everything: set[str] = set()
    refused_topics: dict[str, Sequence[offset_fetch.OffsetFetchRequestTopics]] = {}
    for group in request.groups:
        if group.topics is None:
            everything.add(group.group_id)
        else:
            refused_topics[group.group_id] = remove_denied(
                group, "topics", lambda topic: may_topic(context, AclOperation.DESCRIBE, topic)
            )

    def add(response: offset_fetch.OffsetFetchResponse) -> None:
        for group in response.groups:
            if group.group_id in everything:
                _leave_out(context, group)
            elif not group.error_code:
                group.topics += [
                    _refused_offsets_of_group(topic)
                    for topic in refused_topics.get(group.group_id, ())
                ]
        response.groups += refused_groups

    if request.groups:
        return add
    return offset_fetch.OffsetFetchResponse(groups=refused_groups)


def _refused_offsets_of_group(
    topic: offset_fetch.OffsetFetchRequestTopics,
) -> offset_fetch.OffsetFetchResponseTopics:
    return offset_fetch.OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            offset_fetch.OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=_NO_OFFSET, error_code=_TOPIC_DENIED
            )
            for index in topic.partition_indexes
        ],
    )


OFFSET_FETCH = AccessRule(
    (
        right(AclOperation.DESCRIBE, _GROUP, EACH_GROUP),
        right(
            AclOperation.DESCRIBE,
            _TOPIC,
            EACH_PARTITION,
            "a topic that was not asked for is left out",
        ),
    ),
    _check_fetch,
)


def _check_offset_delete(
    context: RequestContext, request: offset_delete.OffsetDeleteRequest
) -> Denial:
    if not context.may(AclOperation.DELETE, _GROUP, request.group_id):
        return refuse_whole(context, _GROUP_DENIED)
    denied = remove_denied(
        request, "topics", lambda topic: may_topic(context, AclOperation.READ, topic)
    )
    return with_refused_partitions(
        context,
        request,
        denied,
        _TOPIC_DENIED,
        offset_delete.OffsetDeleteResponseTopic,
        offset_delete.OffsetDeleteResponsePartition,
    )


OFFSET_DELETE = AccessRule(
    (
        right(AclOperation.DELETE, _GROUP),
        right(AclOperation.READ, _TOPIC, EACH_PARTITION),
    ),
    _check_offset_delete,
)


# -- FindCoordinator

_TRANSACTION_KEY, _SHARE_KEY = 1, 2


def _coordinator_right(key_type: int, key: str) -> tuple[AclOperation, AclResourceType, str]:
    if key_type == _TRANSACTION_KEY:
        return AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, key
    if key_type == _SHARE_KEY:
        return AclOperation.CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME
    return AclOperation.DESCRIBE, _GROUP, key


_KEY_DENIED = {
    _TRANSACTION_KEY: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _SHARE_KEY: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def _check_find(
    context: RequestContext, request: find_coordinator.FindCoordinatorRequest
) -> Denial:
    code = _KEY_DENIED.get(request.key_type, _GROUP_DENIED)

    def may_find(key: str) -> bool:
        return context.may(*_coordinator_right(request.key_type, key))

    if context.version < 4:
        if may_find(request.key):
            return None
        return find_coordinator.FindCoordinatorResponse(
            error_code=code, error_message=None, node_id=-1, port=-1
        )
    denied = remove_denied(request, "coordinator_keys", may_find)
    refused = [
        find_coordinator.Coordinator(
            key=key, node_id=-1, port=-1, error_code=code, error_message=None
        )
        for key in denied
    ]
    return with_refused(
        context, "coordinators", refused, anything_left=bool(request.coordinator_keys)
    )


FIND_COORDINATOR = AccessRule(
    (
        right(AclOperation.DESCRIBE, _GROUP, "each such key", "of groups"),
        right(
            AclOperation.DESCRIBE,
            AclResourceType.TRANSACTIONAL_ID,
            "each such key",
            "of transactions",
        ),
        right(AclOperation.CLUSTER_ACTION, _CLUSTER, "each such key", "of share groups"),
    ),
    _check_find,
)
