"""Administration of consumer groups: members, committed offsets, progress, deletion."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.client.admin.admin_requests import by_topic, send_once
from headrace.client.admin.topics import LATEST, OffsetAdmin
from headrace.client.cluster import ClusterClient
from headrace.client.coordinator_lookup import CoordinatorLookup, is_elsewhere_or_later
from headrace.client.errors import check, failure
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, KafkaError, ProtocolError, Subject
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from headrace.protocol.messages.consumer_group_describe import Member as DescribedMember
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
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
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.protocol.schema import RESPONSE_ELEMENTS_MAX, Message, schema_of
from headrace.types import TopicPartition

# The group states without members.
EMPTY, DEAD = "Empty", "Dead"

_CONSUMER = "consumer"
# The end of what DescribeGroups says about a group of another type, in Kafka too.
_NOT_CLASSIC = "is not a classic group."
# An empty assignment: version 0, no topics, no user data.
_NOTHING = bytes(2 + 4) + b"\xff" * 4


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it. State and type are "" if the broker is too old."""

    name: str
    state: str
    kind: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A live member. Subscription and assignment are None if it does not use the consumer protocol.

    The subscription is also None during a rebalance, when the coordinator does not report it. In a
    consumer group a member has an epoch, and may subscribe to the topics that match a pattern.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: tuple[str, ...] | None
    assignment: tuple[TopicPartition, ...] | None
    epoch: int | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members, as its coordinator describes them.

    `kind` is its type: "classic", or "consumer" if its coordinator assigns (KIP-848). `protocol` is
    the way in which partitions are assigned.
    """

    name: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    kind: str = "classic"


class GroupAdmin:
    """Commands about groups. Errors about one of several groups are returned, not raised."""

    def __init__(self, cluster: ClusterClient, coordinators: CoordinatorLookup) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def listed(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> dict[str, GroupListing]:
        """The groups of every broker, by name: all, or those in some states or of some types.

        A broker that is too old to filter lists all its groups.
        """
        deadline = self._cluster.deadline()
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))

        async def attempt() -> dict[str, GroupListing]:
            view = await self._cluster.refresh((), deadline)
            found: dict[str, GroupListing] = {}
            for node in sorted(view.brokers):
                response = await self._cluster.call(request, deadline, node)
                check(response.error_code, subject=Subject("broker", str(node)))
                for group in response.groups:
                    found[group.group_id] = GroupListing(
                        group.group_id,
                        group.group_state,
                        group.group_type,
                        group.protocol_type,
                        node,
                    )
            return {name: found[name] for name in sorted(found)}

        listed = await self._cluster.retrying(attempt, deadline)
        # A broker lists the groups it coordinates, so their coordinators are known now.
        self._coordinators.remember({name: listing.coordinator for name, listing in listed.items()})
        return listed

    async def describe(self, names: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        """The state, protocol and members of groups; GROUP_ID_NOT_FOUND for an unknown group."""

        async def attempt(
            node: int, asked: list[str], deadline: float
        ) -> dict[str, GroupDescription | KafkaError]:
            request = DescribeGroupsRequest(groups=asked)
            response = await self._cluster.call(request, deadline, node)
            found = {group.group_id: _group(group, node) for group in response.groups}
            others = [name for name, group in found.items() if _is_of_another_type(group)]
            if others:
                wanted = ConsumerGroupDescribeRequest(group_ids=others)
                answer = await self._cluster.call(wanted, deadline, node)
                found |= {group.group_id: _consumer_group(group, node) for group in answer.groups}
            return found

        return await self._coordinators.ask(names, attempt)

    async def delete(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Delete groups with all their committed offsets. Only groups without members can be
        deleted.
        """

        async def attempt(
            node: int, asked: list[str], deadline: float
        ) -> dict[str, KafkaError | None]:
            request = DeleteGroupsRequest(groups_names=asked)
            response = await send_once(self._cluster, request, node, deadline)
            return {
                result.group_id: group_failure(result.error_code, None, result.group_id)
                for result in response.results
            }

        return await self._coordinators.ask(names, attempt)


def group_failure(code: int, detail: str | None, group: str) -> KafkaError | None:
    """The KafkaError for an error code about a group, or None."""
    # The broker's text is kept if it says more, such as that the group is of another type.
    if code == ErrorCode.GROUP_ID_NOT_FOUND and "not found" in (detail or "not found"):
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group} does not exist")
    return failure(code, detail, Subject("group", group))


def _group(described: DescribedGroup, node: int) -> GroupDescription | KafkaError:
    # Before version 6 an unknown group is described as dead.
    gone = described.group_state == DEAD and not described.error_code
    code = ErrorCode.GROUP_ID_NOT_FOUND if gone else described.error_code
    error = group_failure(code, described.error_message, described.group_id)
    if error is not None:
        return error
    readable = described.protocol_type == _CONSUMER
    return GroupDescription(
        described.group_id,
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        node,
        tuple(_member(member, readable) for member in described.members),
    )


def _is_of_another_type(found: GroupDescription | KafkaError) -> bool:
    """Whether a group is there, and is described by another request."""
    return isinstance(found, KafkaError) and found.what.endswith(_NOT_CLASSIC)


def _consumer_group(described: DescribedConsumerGroup, node: int) -> GroupDescription | KafkaError:
    error = group_failure(described.error_code, described.error_message, described.group_id)
    if error is not None:
        return error
    return GroupDescription(
        described.group_id,
        described.group_state,
        _CONSUMER,
        described.assignor_name,
        node,
        tuple(_member_of_consumer_group(member) for member in described.members),
        _CONSUMER,
    )


def _member_of_consumer_group(described: DescribedMember) -> MemberDescription:
    assigned = described.assignment.topic_partitions
    return MemberDescription(
        described.member_id,
        described.instance_id,
        described.client_id,
        described.client_host.rpartition("/")[2],
        tuple(sorted(described.subscribed_topic_names)),
        tuple(
            sorted(
                TopicPartition(topic.topic_name, number)
                for topic in assigned
                for number in topic.partitions
            )
        ),
        described.member_epoch,
        described.subscribed_topic_regex or None,
    )


def _member(described: DescribedGroupMember, readable: bool) -> MemberDescription:
    subscription = assignment = None
    if readable:
        # Subscriptions are reported only for a stable group; empty assignment bytes are an empty
        # assignment.
        subscription = _read(ConsumerProtocolSubscription, described.member_metadata)
        assignment = _read(ConsumerProtocolAssignment, described.member_assignment or _NOTHING)
    return MemberDescription(
        described.member_id,
        described.group_instance_id,
        described.client_id,
        # Java prints an address as `hostname/address`, with the hostname often empty.
        described.client_host.rpartition("/")[2],
        None if subscription is None else tuple(sorted(subscription.topics)),
        None
        if assignment is None
        else tuple(
            sorted(
                TopicPartition(topic.topic, number)
                for topic in assignment.assigned_partitions
                for number in topic.partitions
            )
        ),
    )


def _read(kind: type[Message], data: bytes) -> Any:
    """The decoded subscription or assignment of a member; None if it cannot be decoded.

    Versions of the consumer protocol only add fields at the end, so all decode as version 0.
    """
    try:
        return decode(schema_of(kind, 0), data, 2, RESPONSE_ELEMENTS_MAX)[0] if data else None
    except ProtocolError:
        return None


_NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a group in one partition. None means unknown."""

    tp: TopicPartition
    committed_offset: int | None
    end_offset: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """The number of records left to read; 0 if the log ends before the committed offset."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)


class GroupOffsetAdmin:
    """Commands about the committed offsets of groups.

    All of them may be repeated when a response is lost: they are idempotent.
    """

    def __init__(self, cluster: ClusterClient, coordinators: CoordinatorLookup) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._offsets = OffsetAdmin(cluster)

    async def committed(
        self, group: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every committed offset of the group; none for an unknown group.

        With `require_stable` it waits for open transactions that have offsets of the group.
        """
        outcome = (await self.committed_by([group], require_stable=require_stable))[group]
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    async def committed_by(
        self, groups: Sequence[str], *, require_stable: bool = False
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
        """Every committed offset of several groups, in a few requests; each has its own outcome."""
        names: dict[bytes, str] = {}

        async def attempt(
            node: int, asked: list[str], deadline: float
        ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
            answers = await self._fetch(node, asked, deadline, require_stable)
            topics = [topic for answer in answers.values() for topic in answer.topics]
            unknown = [t.topic_id for t in topics if not t.name and t.topic_id not in names]
            if unknown:
                # A deleted topic has no name: it must not be looked up for every request.
                names.update(dict.fromkeys(unknown, ""))
                names.update(await self._names(topics, deadline))
            return {
                group: _committed_offsets(group, answer, names) for group, answer in answers.items()
            }

        return await self._coordinators.ask(groups, attempt)

    async def _fetch(
        self, node: int, asked: Sequence[str], deadline: float, require_stable: bool
    ) -> dict[str, Any]:
        """The answer of a coordinator about each group: about all at once since version 8."""
        answers: dict[str, Any] = {}
        while missing := [group for group in asked if group not in answers]:
            request = OffsetFetchRequest(
                group_id=missing[0],
                topics=None,
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in missing],
                require_stable=require_stable,
            )
            response = await self._cluster.call(request, deadline, node)
            if not response.groups:
                answers[missing[0]] = response
                continue
            answers |= {answer.group_id: answer for answer in response.groups}
            break
        return answers

    async def progress(
        self, groups: Sequence[GroupDescription]
    ) -> dict[str, tuple[GroupProgress, ...]]:
        """The progress of groups in the partitions they have committed or are assigned."""
        found = await self.committed_by([group.name for group in groups])
        for outcome in found.values():
            if isinstance(outcome, KafkaError):
                raise outcome
        offsets = {
            name: outcome for name, outcome in found.items() if not isinstance(outcome, KafkaError)
        }
        owners = {
            group.name: {tp: member for member in group.members for tp in member.assignment or ()}
            for group in groups
        }
        partitions = {name: {*offsets[name], *owned} for name, owned in owners.items()}
        ends = await self._end_offsets({tp for some in partitions.values() for tp in some})

        def progress_of(name: str, tp: TopicPartition) -> GroupProgress:
            committed = offsets[name].get(tp)
            return GroupProgress(
                tp,
                None if committed is None else committed.offset,
                ends.get(tp),
                owners[name].get(tp),
            )

        return {
            name: tuple(progress_of(name, tp) for tp in sorted(some))
            for name, some in partitions.items()
        }

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group without members, as a consumer with assigned partitions does.

        An unknown group is created. A group with members answers UNKNOWN_MEMBER_ID.
        """

        async def attempt(node: int, deadline: float) -> dict[TopicPartition, KafkaError | None]:
            topics = await self._cluster.topics(sorted({tp.topic for tp in offsets}), deadline)
            request = OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=_NO_GENERATION,
                topics=[
                    OffsetCommitRequestTopic(
                        name=name,
                        topic_id=topics[name].topic_id,
                        partitions=[
                            _committed(number, offsets[TopicPartition(name, number)])
                            for number in numbers
                        ],
                    )
                    for name, numbers in by_topic(offsets).items()
                ],
            )
            names = {topic.topic_id: topic.name for topic in topics.values()}
            return _outcomes((await self._cluster.call(request, deadline, node)).topics, names)

        return await self._coordinators.ask_one(group, attempt)

    async def delete(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets of a group in topics that no member subscribes to."""
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
                )
                for name, numbers in by_topic(partitions).items()
            ],
        )

        async def attempt(node: int, deadline: float) -> dict[TopicPartition, KafkaError | None]:
            response = await self._cluster.call(request, deadline, node)
            error = group_failure(response.error_code, None, group)
            if error is not None:
                raise error
            return _outcomes(response.topics, {})

        return await self._coordinators.ask_one(group, attempt)

    async def _names(self, topics: Sequence[Any], deadline: float) -> dict[bytes, str]:
        """The topic names by id, needed if the response's version names topics by id only."""
        if all(topic.name for topic in topics):
            return {}
        view = await self._cluster.refresh(None, deadline)
        return {topic.topic_id: topic.name for topic in view.topics.values()}

    async def _end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offsets of the partitions that still exist and have a leader."""
        led = {
            TopicPartition(topic.name, partition.index)
            for topic in (await self._cluster.all_topics()).values()
            for partition in topic.partitions
            if partition.leader >= 0
        }
        wanted = dict.fromkeys(sorted(led.intersection(partitions)), LATEST)
        return {tp: result.offset for tp, result in (await self._offsets.find(wanted)).items()}


def _committed_offsets(
    group: str, answer: Any, names: Mapping[bytes, str]
) -> dict[TopicPartition, OffsetAndMetadata] | KafkaError:
    """The committed offsets in a coordinator's answer about a group, in order, or its error."""
    error = failure(answer.error_code, subject=Subject("group", group))
    offsets = {}
    for tp, partition in _partitions(answer.topics, names):
        error = error or failure(partition.error_code, subject=Subject("partition", str(tp)))
        if partition.committed_offset >= 0:
            offsets[tp] = OffsetAndMetadata(
                partition.committed_offset,
                partition.metadata or "",
                partition.committed_leader_epoch,
            )
    return error or {tp: offsets[tp] for tp in sorted(offsets)}


def _committed(number: int, committed: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _partitions(
    topics: Sequence[Any], names: Mapping[bytes, str]
) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of a response. A topic id without a name is of a deleted topic."""
    for topic in topics:
        name = topic.name or names.get(topic.topic_id)
        if name:
            for partition in topic.partitions:
                yield TopicPartition(name, partition.partition_index), partition


def _outcomes(
    topics: Sequence[Any], names: Mapping[bytes, str]
) -> dict[TopicPartition, KafkaError | None]:
    """The outcome of each partition; raises an error after which the command is sent again."""
    outcomes = {}
    for tp, partition in _partitions(topics, names):
        error = failure(partition.error_code, subject=Subject("partition", str(tp)))
        if error is not None and is_elsewhere_or_later(error):
            raise error
        outcomes[tp] = error
    return outcomes
