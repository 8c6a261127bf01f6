"""Random members that join, sync, commit, leave, restart and crash, while time passes.

The invariants are those a group promises: one leader, generations that only grow, assignments that
reach who they are for, zombies that change nothing, an answer for everybody who waits, and a log
that gives back what was promised.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from headrace.coordinator.groups.classic_group import ClassicGroup, GroupState
from headrace.coordinator.groups.classic_protocol import NEW_MEMBER_TIMEOUT_MS
from headrace.coordinator.groups.consumer_group import ConsumerGroup
from headrace.coordinator.shard import GroupSettings
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.sync_group import SyncGroupResponse
from tests.unit.coordinator.driving import GROUP, Shell, subscription

SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=3_000,
    max_size=4,
    offsets_retention_ms=400_000,
    offsets_retention_check_interval_ms=60_000,
)
SESSION_MS = 10_000
REBALANCE_MS = 30_000
CALM_MS = 2 * (NEW_MEMBER_TIMEOUT_MS + REBALANCE_MS + SESSION_MS)

PROTOCOLS = {
    "range": [("range", subscription("t"))],
    "both": [("range", subscription("t")), ("sticky", subscription("t"))],
    "sticky first": [("sticky", subscription("t")), ("range", subscription("t"))],
    "more topics": [("range", subscription("t", "u"))],
}
protocol_names = st.sampled_from(sorted(PROTOCOLS))


def classic(shell: Shell) -> ClassicGroup | None:
    group = shell.shard._groups.get(GROUP)
    assert not isinstance(group, ConsumerGroup)
    return group


@dataclass(eq=False)
class Consumer:
    """A client as it sees itself: an id and a generation, and a request that may be waiting."""

    instance: str | None
    version: int
    protocols: str
    member_id: str = ""
    generation: int = -1
    leads: list[str] = field(default_factory=list)
    joining: int | None = None
    syncing: int | None = None


class GroupModel(RuleBasedStateMachine):
    consumers = Bundle("consumers")

    @initialize()
    def start(self) -> None:
        self.shell = Shell(SETTINGS)
        self.reloads = 0
        self.crowd: list[Consumer] = []
        self.lost: set[int] = set()
        # What leaders assigned, by generation and member; generations of one life of the group.
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.life: ClassicGroup | None = None
        self.generation = 0
        self.offset = 0
        self.commits: dict[int, int] = {}
        self.promised = 0

    @rule(
        target=consumers,
        instance=st.sampled_from([None, None, "i", "j"]),
        version=st.sampled_from([3, 5, 8, 9]),
        protocols=protocol_names,
    )
    def appear(self, instance: str | None, version: int, protocols: str) -> Consumer:
        consumer = Consumer(instance if version >= 5 else None, version, protocols)
        self.crowd.append(consumer)
        self.join(consumer)
        return consumer

    @rule(consumer=consumers)
    def join(self, consumer: Consumer) -> None:
        if consumer.joining is None:
            consumer.joining = self.shell.join(
                consumer.member_id,
                version=consumer.version,
                instance=consumer.instance,
                protocols=PROTOCOLS[consumer.protocols],
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
            )
            self._hear()

    @rule(consumer=consumers, protocols=protocol_names)
    def join_changed(self, consumer: Consumer, protocols: str) -> None:
        consumer.protocols = protocols
        self.join(consumer)

    @rule()
    def join_all(self) -> None:
        """What a rebalance asks for."""
        for consumer in self.crowd:
            self.join(consumer)

    @rule()
    def settle(self) -> None:
        """Everybody does its part until the group is stable, or would be but for the commit."""
        for _ in range(3):
            self.join_all()
            self.wait(3_000)
        self.sync_all()

    @rule()
    def sync_all(self) -> None:
        for consumer in self.crowd:
            self.sync(consumer)

    @rule(consumer=consumers)
    def sync(self, consumer: Consumer) -> None:
        if consumer.syncing is not None or consumer.generation < 0:
            return
        plan: dict[str, bytes] = {}
        if consumer.leads:
            plan = {lead: f"{consumer.generation} {lead}".encode() for lead in consumer.leads}
        group = self._group()
        is_decisive = (
            group is not None
            and group.state is GroupState.COMPLETING_REBALANCE
            and group.storing_generation is None
            and group.leader == consumer.member_id
            and group.generation == consumer.generation
        )
        consumer.syncing = self.shell.sync_request(
            consumer.member_id, consumer.generation, plan, instance=consumer.instance
        )
        if is_decisive and group is not None:
            for member_id in group.members:
                self.assigned[consumer.generation, member_id] = plan.get(member_id, b"")
        self._hear()

    @rule(consumer=consumers)
    def heartbeat(self, consumer: Consumer) -> None:
        code = self.shell.heartbeat(
            consumer.member_id, consumer.generation, instance=consumer.instance
        )
        if code is ErrorCode.NONE:
            self._must_be_current(consumer)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            assert self.shell.state() == "PreparingRebalance"
        elif code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            consumer.member_id, consumer.generation, consumer.leads = "", -1, []

    @rule(consumer=consumers)
    def commit(self, consumer: Consumer) -> None:
        self.offset += 1
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=consumer.generation,
            member_id=consumer.member_id,
            group_instance_id=consumer.instance,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[OffsetCommitRequestPartition(committed_offset=self.offset)],
                )
            ],
        )
        group = self._group()
        is_empty = group is None or group.state is GroupState.EMPTY
        token = self.shell.send(request, 9)
        accepted = token not in self.shell.answers
        if not accepted:
            answer = self.shell.answers[token]
            assert isinstance(answer, OffsetCommitResponse)
            accepted = answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        if accepted:
            self.commits[token] = self.offset
            # A simple consumer may commit while nobody is a member.
            if not (is_empty and consumer.generation < 0):
                self._must_be_current(consumer)
        self._hear()

    @rule(consumer=consumers)
    def leave(self, consumer: Consumer) -> None:
        if consumer.member_id and not self.shell.is_holding:
            self.shell.leave((consumer.member_id, consumer.instance))
            consumer.member_id, consumer.generation, consumer.leads = "", -1, []
            self._hear()

    @rule(consumer=consumers)
    def restart(self, consumer: Consumer) -> None:
        """The process is new; its old connections are gone, and it knows no id."""
        self._disconnect(consumer)
        consumer.member_id, consumer.generation, consumer.leads = "", -1, []

    @rule(consumer=consumers)
    def reconnect(self, consumer: Consumer) -> None:
        self._disconnect(consumer)

    @rule(consumer=consumes(consumers))
    def crash(self, consumer: Consumer) -> None:
        self._disconnect(consumer)
        self.crowd.remove(consumer)

    @rule(duration_ms=st.sampled_from([0, 1, 2_999, 3_000, 9_999, 10_000, 30_000]))
    def wait(self, duration_ms: int) -> None:
        self.shell.advance(duration_ms)
        self._hear()

    @rule()
    def wait_and_heartbeat(self) -> None:
        self.shell.advance(SESSION_MS - 1)
        self._hear()
        for consumer in self.crowd:
            self.heartbeat(consumer)

    @rule()
    def hold(self) -> None:
        self.shell.is_holding = True

    @rule()
    def release(self) -> None:
        self.shell.release()
        self._hear()

    @rule()
    def delete(self) -> None:
        if self.shell.delete() is ErrorCode.NONE:
            self.promised = 0
            self.commits.clear()

    @rule()
    def reload(self) -> None:
        """The coordinator crashes. What it had not answered yet is lost; the log is not."""
        if self.shell.held:
            return
        log, now_ms = self.shell.log, self.shell.now_ms
        offsets = self.shell.committed()
        self.reloads += 1
        self.shell = Shell(SETTINGS, log, now_ms, seed=self.reloads)
        assert self.shell.committed() == offsets
        self.lost.clear()
        self.commits.clear()
        self.life = None
        for consumer in self.crowd:
            consumer.joining = consumer.syncing = None

    @invariant()
    def groups_are_consistent(self) -> None:
        group = self._group()
        if group is None:
            return
        if group is not self.life:
            self.life, self.generation = group, group.generation
        assert group.generation >= self.generation
        self.generation = group.generation
        assert (group.leader in group.members) == bool(group.members)
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.staying_count <= SETTINGS.max_size
        else:
            assert len(group.members) <= SETTINGS.max_size
        assert group.joined_count == sum(value.is_joined for value in group.members.values())
        assert group.pending.keys().isdisjoint(group.members)
        assert group.pending_sync <= group.members.keys()
        holders = {value.instance_id: value.member_id for value in group.members.values()}
        holders.pop(None, None)
        assert group.static == holders
        if group.state in {GroupState.EMPTY, GroupState.DEAD}:
            assert not group.members

    @invariant()
    def nobody_is_waited_for_without_a_timer(self) -> None:
        group = self._group()
        if group is None:
            return
        is_preparing = group.state is GroupState.PREPARING_REBALANCE
        assert (group.join_timer.deadline_ms is not None) == is_preparing
        assert (group.sync_timer.deadline_ms is not None) == bool(group.pending_sync)
        if group.state is GroupState.COMPLETING_REBALANCE and not group.pending_sync:
            assert group.storing_generation == group.generation
        for member in group.members.values():
            has_session = member.session.deadline_ms is not None
            has_synced = (
                group.state is GroupState.COMPLETING_REBALANCE
                and member.member_id not in group.pending_sync
            )
            assert has_session or member.is_joined or has_synced
        assert len(self.shell.shard._deadlines) < 200

    @invariant()
    def log_gives_back_what_was_promised(self) -> None:
        if self.shell.held:
            return
        other = Shell(SETTINGS, self.shell.log, self.shell.now_ms)
        assert other.committed() == self.shell.committed()
        live, stored = self._group(), classic(other)
        if live is not None and live.state is GroupState.STABLE:
            assert other.shard.describe(GROUP, 6) == self.shell.shard.describe(GROUP, 6)
        if live is not None and stored is not None:
            assert stored.generation <= live.generation

    def teardown(self) -> None:
        """Everybody who waits is answered in the end, and silent members are gone."""
        if not hasattr(self, "shell"):
            return
        self.release()
        self.shell.advance(CALM_MS)
        self._hear()
        assert self.shell.waiting <= self.lost
        assert self.shell.members() == set()

    def _group(self) -> ClassicGroup | None:
        return classic(self.shell)

    def _must_be_current(self, consumer: Consumer) -> None:
        group = self._group()
        assert group is not None
        assert consumer.generation == group.generation
        assert consumer.member_id in group.members
        if consumer.instance is not None:
            assert group.static[consumer.instance] == consumer.member_id

    def _disconnect(self, consumer: Consumer) -> None:
        for token in (consumer.joining, consumer.syncing):
            if token is not None:
                self.shell.shard.cancel(token)
                self.lost.add(token)
        consumer.joining = consumer.syncing = None

    def _hear(self) -> None:
        """Let consumers take note of what they were answered."""
        answers = self.shell.answers
        for consumer in self.crowd:
            if consumer.joining in answers:
                answer = answers[consumer.joining]
                consumer.joining = None
                assert isinstance(answer, JoinGroupResponse)
                self._on_joined(consumer, answer)
            if consumer.syncing in answers:
                synced = answers[consumer.syncing]
                consumer.syncing = None
                assert isinstance(synced, SyncGroupResponse)
                if synced.error_code == ErrorCode.NONE:
                    key = consumer.generation, consumer.member_id
                    assert synced.assignment == self.assigned[key]
        for token in self.commits.keys() & answers.keys():
            self.promised = max(self.promised, self.commits.pop(token))
            assert self.shell.committed_at("t", 0) >= self.promised

    def _on_joined(self, consumer: Consumer, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            consumer.member_id = answer.member_id
            return
        if answer.error_code != ErrorCode.NONE:
            if answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                consumer.member_id, consumer.generation = "", -1
            consumer.leads = []
            return
        assert bool(answer.members) == (answer.leader == answer.member_id)
        members = [member.member_id for member in answer.members]
        assert len(set(members)) == len(members)
        group = self._group()
        if answer.skip_assignment or (group is not None and group.state is GroupState.STABLE):
            # A static member took its old place: what it had is now known under its new id.
            described = self.shell.assignments()
            if answer.member_id in described:
                self.assigned[answer.generation_id, answer.member_id] = described[answer.member_id]
        consumer.member_id = answer.member_id
        consumer.generation = answer.generation_id
        consumer.leads = members


TestGroups = GroupModel.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
