"""Group members over bare sockets, which do exactly what a test tells them."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api, served_versions
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.integration.groups.consumers import describe, wait_for
from tests.integration.wire import Wire

# So long that a member needs no heartbeats while a test lasts.
SESSION_MS = 1_800_000
RANGE = {"range": b"\0\0\0\0\0\1\0\4here\xff\xff\xff\xff"}

# Topics have names in these versions; later ones want ids.
COMMIT_BY_NAME = 9
FETCH_BY_NAME = 9


class RawMember:
    """A member with a connection of its own."""

    def __init__(self, address: str, group: str, *, instance: str | None = None) -> None:
        self.address = address
        self.wire = Wire(address)
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.instance = instance

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wire.close()

    def reconnect(self) -> None:
        """Talk to the broker that has come back."""
        self.wire.close()
        self.wire = Wire(self.address)

    def join_request(self, **changes: Any) -> JoinGroupRequest:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=protocols(RANGE),
        )
        return changed(request, changes)

    def ask_join(self, version: int | None = None, **changes: Any) -> Any:
        """One JoinGroup and its answer, remembering the id and the generation it gives."""
        self.send_join(version, **changes)
        return self.receive_join()

    def send_join(self, version: int | None = None, **changes: Any) -> None:
        self.wire.send(self.join_request(**changes), version)

    def receive_join(self) -> Any:
        joined = self.wire.receive()
        if joined.error_code in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            self.member_id = joined.member_id
        if joined.error_code == ErrorCode.NONE:
            self.generation = joined.generation_id
        return joined

    def get_id(self) -> None:
        """Ask for a member id, as everybody has to who is new."""
        assert self.ask_join().error_code == ErrorCode.MEMBER_ID_REQUIRED

    def sync_request(
        self, assignments: Mapping[str, bytes] | None = None, **changes: Any
    ) -> SyncGroupRequest:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in (assignments or {}).items()
            ],
        )
        return changed(request, changes)

    def ask_sync(self, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> Any:
        return self.wire.ask(self.sync_request(assignments, **changes))

    def heartbeat_request(self, **changes: Any) -> HeartbeatRequest:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return changed(request, changes)

    def ask_heartbeat(self, **changes: Any) -> int:
        code: int = self.wire.ask(self.heartbeat_request(**changes)).error_code
        return code

    def ask_leave(self, *identities: MemberIdentity) -> list[int]:
        """Let members go, this one if none is named; an error code for each."""
        members = list(identities) or [
            MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        ]
        response = self.wire.ask(LeaveGroupRequest(group_id=self.group, members=members))
        assert response.error_code == ErrorCode.NONE
        return [member.error_code for member in response.members]

    def ask_commit(
        self, offsets: Mapping[tuple[str, int], int], metadata: str = "", **changes: Any
    ) -> dict[tuple[str, int], int]:
        """Commit offsets by topic and partition; an error code for each."""
        request = changed(
            commit_request(self.group, offsets, metadata),
            {
                "generation_id_or_member_epoch": self.generation,
                "member_id": self.member_id,
                "group_instance_id": self.instance,
                **changes,
            },
        )
        return commit_codes(self.wire.ask(request, COMMIT_BY_NAME))


def changed(message: Any, changes: Mapping[str, Any]) -> Any:
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def protocols(named: Mapping[str, bytes]) -> list[JoinGroupRequestProtocol]:
    return [JoinGroupRequestProtocol(name=name, metadata=data) for name, data in named.items()]


def settle(members: Sequence[RawMember], **changes: Any) -> None:
    """Let members make a new group; each is assigned its own id."""
    first, *others = members
    for member in members:
        if member.instance is None:
            member.get_id()
    # With no delay for the first rebalance it is over before anybody else can come.
    assert first.ask_join(**changes).error_code == ErrorCode.NONE
    for member in others:
        member.send_join(**changes)
    if others:
        wait_for(lambda: _lacks(first, len(members)))
        first.send_join(**changes)
        for member in members:
            joined = member.receive_join()
            assert joined.error_code == ErrorCode.NONE, joined
    ids = {member.member_id: member.member_id.encode() for member in members}
    first.wire.send(first.sync_request(ids))
    for member in others:
        member.wire.send(member.sync_request())
    for member in members:
        synced = member.wire.receive()
        assert synced.error_code == ErrorCode.NONE, synced
        assert synced.assignment == member.member_id.encode()


def _lacks(member: RawMember, count: int) -> str | None:
    there = len(describe(member.address, member.group).members)
    return None if there == count else f"{member.group} has {there} of {count} members"


def wait_for_coordinator(address: str, group: str) -> None:
    """Wait until the group's coordinator can be asked; the first question creates it."""

    def problem() -> str | None:
        with Wire(address) as wire:
            found = wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))
            if found.coordinators[0].error_code != ErrorCode.NONE:
                return f"no coordinator: {found.coordinators[0]}"
            request = HeartbeatRequest(group_id=group, member_id="nobody")
            code = wire.ask(request).error_code
        return None if code == ErrorCode.UNKNOWN_MEMBER_ID else f"error {code}"

    wait_for(problem)


def commit_request(
    group: str, offsets: Mapping[tuple[str, int], int], metadata: str = "", leader_epoch: int = -1
) -> OffsetCommitRequest:
    """A commit as it comes from a consumer that is in no group."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, partition), offset in offsets.items():
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, topics=list(topics.values())
    )


def commit_codes(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


def fetch_request(
    group: str, topics: Mapping[str, Sequence[int]] | None, version: int = FETCH_BY_NAME
) -> OffsetFetchRequest:
    """Ask for the offsets of a group: of some partitions, or of all it has."""
    if version >= 8:
        wanted = None
        if topics is not None:
            wanted = [
                OffsetFetchRequestTopics(name=name, partition_indexes=list(partitions))
                for name, partitions in topics.items()
            ]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
    return OffsetFetchRequest(
        group_id=group,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestTopic(name=name, partition_indexes=list(partitions))
            for name, partitions in topics.items()
        ],
    )


def fetched(response: Any, version: int = FETCH_BY_NAME) -> dict[tuple[str, int], Any]:
    """The partitions of an answer; none may be an error."""
    answer = response
    if version >= 8:
        [answer] = response.groups
    assert answer.error_code == ErrorCode.NONE, answer
    found = {
        (topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }
    assert all(value.error_code == ErrorCode.NONE for value in found.values())
    return found


def committed(
    address: str, group: str, topics: Mapping[str, Sequence[int]] | None = None
) -> dict[tuple[str, int], tuple[int, str, int]]:
    """Offset, metadata and leader epoch of every partition asked for."""
    with Wire(address) as wire:
        answer = wire.ask(fetch_request(group, topics), FETCH_BY_NAME)
    return {
        where: (entry.committed_offset, entry.metadata, entry.committed_leader_epoch)
        for where, entry in fetched(answer).items()
    }


def latest(api_key: Api) -> int:
    return served_versions(api_key)[1]
