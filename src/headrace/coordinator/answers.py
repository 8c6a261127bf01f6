"""Answers to members of classic groups, in the form each version of them has."""

from headrace.coordinator.classic import ClassicGroup, Member
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from headrace.protocol.messages.sync_group import SyncGroupResponse

_NULL_PROTOCOL_NAME = 7
_MANY_MEMBERS = 3


def join_error(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    """A join that is refused. Versions before 7 cannot say that there is no protocol."""
    name = None if version >= _NULL_PROTOCOL_NAME else ""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=name)


def join_response(group: ClassicGroup, member: Member, version: int) -> JoinGroupResponse:
    """The current generation; only its leader learns of the other members."""
    is_leader = group.leader == member.member_id
    assert group.leader is not None
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name(group, version),
        leader=group.leader,
        member_id=member.member_id,
        members=group.members_for_leader() if is_leader else [],
    )


def protocol_name(group: ClassicGroup, version: int) -> str | None:
    """The group's protocol as a version of JoinGroup writes it: none is null since version 7."""
    return group.protocol_name or (None if version >= _NULL_PROTOCOL_NAME else "")


def assignment_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """What a member of the current generation works on."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def leave_response(
    request: LeaveGroupRequest, codes: list[ErrorCode], version: int
) -> LeaveGroupResponse:
    """How each member of a request has left; before version 3 there was one, without its id."""
    if version < _MANY_MEMBERS:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=code,
            )
            for member, code in zip(request.members, codes, strict=True)
        ]
    )
