"""A shard with the shell's part played by the test: a clock, a log, and who was told what."""

from collections.abc import Iterable, Sequence
from itertools import count
from random import Random
from typing import Any

from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.groups.topic_catalog import TopicCatalog
from headrace.coordinator.shard import (
    ConsumerGroupOptions,
    CoordinatorRecord,
    GroupSettings,
    Reply,
    RequestClient,
    ShardEffects,
)
from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace.protocol.schema import Message, encode_message

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
# The first rebalance of members that join together: they extend it once.
SETTLE_MS = 2 * DELAY_MS
START_MS = 1_700_000_000_000
CLIENT = RequestClient("app", "/10.0.0.7")

SETTINGS = GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
OPTIONS = ConsumerGroupOptions()


def subscription(*topics: str, version: int = 3) -> bytes:
    message = ConsumerProtocolSubscription(topics=list(topics), generation_id=4, rack_id="r1")
    return version.to_bytes(2, "big") + encode_message(message, version)


class Shell:
    """Runs one shard. Records are committed at once unless `is_holding`."""

    def __init__(
        self,
        settings: GroupSettings = SETTINGS,
        log: Iterable[CoordinatorRecord] = (),
        now_ms: int = START_MS,
        seed: int = 0,
        topics: TopicCatalog | None = None,
        options: ConsumerGroupOptions = OPTIONS,
    ) -> None:
        self.catalog = topics
        self.options = options
        self.shard = GroupShard(
            settings, Random(seed), topics=topics, options_of=lambda _: self.options
        )
        self.log = list(log)
        for record in self.log:
            self.shard.replay(record)
        self.now_ms = now_ms
        self.shard.loaded(now_ms)
        self.is_holding = False
        self.held: list[ShardEffects] = []
        self.answers: dict[int, Message] = {}
        self.asked: set[int] = set()
        self._tokens = count(1)

    def send(self, request: Message, version: int, client: RequestClient = CLIENT) -> int:
        """Handle a request; its answer will be in `answers` under the token returned here."""
        token = next(self._tokens)
        self.asked.add(token)
        self.perform(self.shard.handle(request, version, token, client, self.now_ms))
        return token

    def perform(self, effects: ShardEffects) -> None:
        self.log += effects.records
        if effects.records and self.is_holding:
            self.held.append(effects)
        else:
            self._tell(self.shard.commit(effects, self.now_ms))

    def release(self) -> None:
        """Commit what was held."""
        self.is_holding = False
        while self.held:
            self._tell(self.shard.commit(self.held.pop(0), self.now_ms))

    def advance(self, duration_ms: int) -> None:
        """Let time pass, waking the shard exactly when it asks to be woken."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.shard.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.perform(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    def reload(self) -> "Shell":
        """Another shard that knows what this one has written."""
        return Shell(
            log=self.log, now_ms=self.now_ms, seed=1, topics=self.catalog, options=self.options
        )

    @property
    def waiting(self) -> set[int]:
        return self.asked - self.answers.keys()

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        group: str = GROUP,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", subscription("t")),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client: RequestClient = CLIENT,
    ) -> int:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols
            ],
        )
        return self.send(request, version, client)

    def joined(self, token: int) -> JoinGroupResponse:
        answer = self.answers[token]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def refused(self, token: int) -> ErrorCode:
        return error_code(self.joined(token).error_code)

    def enter(self, **options: Any) -> tuple[str, int]:
        """Join as a new dynamic client does: ask for an id, then join with it."""
        required = self.joined(self.join(**options))
        assert required.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return required.member_id, self.join(required.member_id, **options)

    def sync_request(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=entry, assignment=data)
                for entry, data in (assignments or {}).items()
            ],
        )
        return self.send(request, 5)

    def synced(self, token: int) -> SyncGroupResponse:
        answer = self.answers[token]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def sync_error(self, *args: Any, **options: Any) -> ErrorCode:
        token = self.sync_request(*args, **options)
        return error_code(self.synced(token).error_code)

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        answer = self.answers[self.send(request, 4)]
        assert isinstance(answer, HeartbeatResponse)
        return error_code(answer.error_code)

    def leave(
        self, *members: tuple[str, str | None], group: str = GROUP
    ) -> list[tuple[str, str | None, ErrorCode]]:
        request = LeaveGroupRequest(
            group_id=group,
            members=[
                MemberIdentity(member_id=member, group_instance_id=two) for member, two in members
            ],
        )
        answer = self.answers[self.send(request, 5)]
        assert isinstance(answer, LeaveGroupResponse)
        assert answer.error_code == ErrorCode.NONE
        return [
            (member.member_id, member.group_instance_id, error_code(member.error_code))
            for member in answer.members
        ]

    def commit(
        self,
        member_id: str = "",
        generation: int = -1,
        offset: int = 1,
        *,
        topic: str = "t",
        partition: int = 0,
        group: str = GROUP,
        instance: str | None = None,
        version: int = 9,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset
                        )
                    ],
                )
            ],
        )
        answer = self.answers[self.send(request, version)]
        assert isinstance(answer, OffsetCommitResponse)
        [answered] = answer.topics
        assert answered.name == topic
        [done] = answered.partitions
        assert done.partition_index == partition
        return error_code(done.error_code)

    def committed(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        """Every committed offset of a group."""
        answer = self.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None))
        assert answer.error_code == ErrorCode.NONE
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in answer.topics
            for partition in topic.partitions
        }

    def committed_at(self, topic: str, partition: int, group: str = GROUP) -> int:
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        answer = self.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=[wanted]))
        [[found]] = [topic.partitions for topic in answer.topics]
        assert found.error_code == ErrorCode.NONE
        return found.committed_offset

    def delete_offset(self, topic: str, partition: int = 0, group: str = GROUP) -> ErrorCode:
        """Delete one offset: the error of the group, or of the partition."""
        wanted = OffsetDeleteRequestPartition(partition_index=partition)
        request = OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=[wanted])]
        )
        answer = self.answers[self.send(request, 0)]
        assert isinstance(answer, OffsetDeleteResponse)
        if answer.error_code:
            assert answer.topics == []
            return error_code(answer.error_code)
        [[done]] = [topic.partitions for topic in answer.topics]
        return error_code(done.error_code)

    def delete(self, group: str = GROUP) -> ErrorCode:
        records, code = self.shard.delete(group)
        self.perform(ShardEffects(records))
        return code

    def state(self, group: str = GROUP) -> str:
        return self.shard.describe(group, 5).group_state

    def members(self, group: str = GROUP) -> set[str]:
        return {member.member_id for member in self.shard.describe(group, 5).members}

    def assignments(self, group: str = GROUP) -> dict[str, bytes]:
        described = self.shard.describe(group, 5)
        return {member.member_id: member.member_assignment for member in described.members}

    def stable_group(self, size: int, **options: Any) -> list[str]:
        """A group of dynamic members in its first generation; the leader is the first."""
        entered = [self.enter(**options) for _ in range(size)]
        self.advance(SETTLE_MS)
        members = [member_id for member_id, _ in entered]
        for _, token in entered:
            assert self.joined(token).generation_id == 1
        self.finish_rebalance(members, 1)
        return members

    def finish_rebalance(self, members: Sequence[str], generation: int) -> None:
        """Sync every member; each is assigned its own id in upper case. The first one leads."""
        assigned = {member_id: member_id.upper().encode() for member_id in members}
        tokens = [self.sync_request(member, generation) for member in members[1:]]
        tokens.append(self.sync_request(members[0], generation, assigned))
        for token, member_id in zip(tokens, [*members[1:], members[0]], strict=True):
            answer = self.synced(token)
            assert (answer.error_code, answer.assignment) == (0, assigned[member_id])
        assert self.state() == "Stable"

    def _tell(self, replies: Iterable[Reply]) -> None:
        for token, response in replies:
            assert isinstance(token, int)
            assert token in self.asked
            assert token not in self.answers, f"{token} was answered twice"
            self.answers[token] = response
