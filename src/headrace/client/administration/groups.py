"""Consumer groups from outside: which there are, who is in them, and deleting them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.client.administration.commands import send_once
from headrace.client.outcomes import check, failure
from headrace.client.transport.cluster import Cluster
from headrace.client.transport.coordinators import Coordinators
from headrace.errors import ErrorCode, KafkaError, ProtocolError
from headrace.protocol.decoder import decode
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
from headrace.protocol.schema import RESPONSE_ELEMENTS_MAX, Message, schema_of
from headrace.types import TopicPartition

# The states in which a group has no members.
EMPTY, DEAD = "Empty", "Dead"

_CONSUMER = "consumer"
# Version 0, no topics, no user data.
_NOTHING = bytes(2 + 4) + b"\xff" * 4


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it. State and type are "" where a broker is too old."""

    name: str
    state: str
    kind: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A live member. What it subscribes to and owns is None if it does not speak as consumers do.

    While a group rebalances nobody tells what its members subscribe to, so that is None too.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: tuple[str, ...] | None
    assignment: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members, as its coordinator describes them."""

    name: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[MemberDescription, ...]


class Groups:
    """Commands about groups. Errors that concern one of several are returned, not raised."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def listed(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> dict[str, GroupListing]:
        """The groups of every broker, by name: all, or those in some states or of some types.

        A broker too old to choose lists all it has.
        """
        deadline = self._cluster.deadline()
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))

        async def ask() -> dict[str, GroupListing]:
            view = await self._cluster.refresh((), deadline)
            found: dict[str, GroupListing] = {}
            for node in sorted(view.brokers):
                response = await self._cluster.call(request, deadline, node)
                check(response.error_code, subject=f"broker {node}")
                for one in response.groups:
                    found[one.group_id] = GroupListing(
                        one.group_id, one.group_state, one.group_type, one.protocol_type, node
                    )
            return {name: found[name] for name in sorted(found)}

        listed = await self._cluster.retrying(ask, deadline)
        # Whoever lists a group coordinates it, so nobody need be asked for that again.
        self._coordinators.remember({name: one.coordinator for name, one in listed.items()})
        return listed

    async def describe(self, names: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        """State, protocol and members of groups; GROUP_ID_NOT_FOUND for one that is not there."""

        async def ask(
            node: int, asked: list[str], deadline: float
        ) -> dict[str, GroupDescription | KafkaError]:
            request = DescribeGroupsRequest(groups=asked)
            response = await self._cluster.call(request, deadline, node)
            return {one.group_id: _group(one, node) for one in response.groups}

        return await self._coordinators.ask(names, ask)

    async def delete(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Delete groups with all they have committed. Only groups without members can be."""

        async def ask(node: int, asked: list[str], deadline: float) -> dict[str, KafkaError | None]:
            request = DeleteGroupsRequest(groups_names=asked)
            response = await send_once(self._cluster, request, node, deadline)
            return {
                one.group_id: group_failure(one.error_code, None, one.group_id)
                for one in response.results
            }

        return await self._coordinators.ask(names, ask)


def group_failure(code: int, detail: str | None, group: str) -> KafkaError | None:
    """The error a code about a group stands for, or None."""
    # Kafka's words are kept where they say more, as of a group that is of another type.
    if code == ErrorCode.GROUP_ID_NOT_FOUND and "not found" in (detail or "not found"):
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group} does not exist")
    return failure(code, detail, f"group {group}")


def _group(described: DescribedGroup, node: int) -> GroupDescription | KafkaError:
    # Before version 6 a group that is not there is described as dead.
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
        tuple(_member(one, readable) for one in described.members),
    )


def _member(described: DescribedGroupMember, readable: bool) -> MemberDescription:
    subscription = assignment = None
    if readable:
        # A subscription is told only of a group that is stable; an empty assignment is one.
        subscription = _read(ConsumerProtocolSubscription, described.member_metadata)
        assignment = _read(ConsumerProtocolAssignment, described.member_assignment or _NOTHING)
    return MemberDescription(
        described.member_id,
        described.group_instance_id,
        described.client_id,
        # Java prints an address behind a slash, before which a name may stand.
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
    """What a member told the group, or was told; None if it cannot be read.

    Versions of the consumer protocol only add fields at the end, so all can be read as the first.
    """
    try:
        return decode(schema_of(kind, 0), data, 2, RESPONSE_ELEMENTS_MAX)[0] if data else None
    except ProtocolError:
        return None
