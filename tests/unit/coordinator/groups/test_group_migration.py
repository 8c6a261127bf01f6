"""Groups that move from one protocol to the other while they have members."""

from dataclasses import dataclass, field

import pytest

from headrace.coordinator.shard import ConsumerGroupOptions
from headrace.errors import ErrorCode, error_code
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
    TopicPartition,
)
from headrace.protocol.schema import encode_message, schema_of
from tests.unit.coordinator.consumer_members import Member, Owned, Topics, described
from tests.unit.coordinator.driving import OPTIONS, SETTLE_MS, Shell

NONE = ErrorCode.NONE
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS
VERSION = 3


def shell_with(options: ConsumerGroupOptions = OPTIONS) -> Shell:
    return Shell(topics=Topics(t=4), options=options)


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="t", partitions=list(partitions))],
        user_data=user_data,
    )
    return VERSION.to_bytes(2, "big") + encode_message(message, VERSION)


def read(data: bytes) -> Owned:
    message, _ = decode(schema_of(ConsumerProtocolAssignment, VERSION), data, 2, 1_000)
    assert isinstance(message, ConsumerProtocolAssignment)
    return frozenset(
        (topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in topic.partitions
    )


@dataclass
class ClassicClient:
    """A member of the classic protocol that keeps its partitions over a rebalance."""

    shell: Shell
    member_id: str = ""
    generation: int = -1
    owned: Owned = field(default_factory=frozenset)
    instance: str | None = None
    # Whether it gives everything up before it joins, as with the eager assignors.
    is_eager: bool = False

    def protocols(self) -> list[tuple[str, bytes]]:
        if self.is_eager:
            self.owned = frozenset()
        message = ConsumerProtocolSubscription(
            topics=["t"],
            owned_partitions=[
                ConsumerProtocolSubscriptionTopicPartition(
                    topic="t", partitions=sorted(index for _, index in self.owned)
                )
            ],
            generation_id=self.generation,
        )
        data = VERSION.to_bytes(2, "big") + encode_message(message, VERSION)
        return [("cooperative-sticky", data)]

    def ask_join(self) -> int:
        return self.shell.join(self.member_id, protocols=self.protocols(), instance=self.instance)

    def join(self) -> ErrorCode:
        """Join a group that answers at once."""
        answer = self.shell.joined(self.ask_join())
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.shell.joined(self.ask_join())
        if answer.error_code == NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return error_code(answer.error_code)

    def sync(self) -> ErrorCode:
        answer = self.shell.synced(
            self.shell.sync_request(
                self.member_id, self.generation, protocol_name="cooperative-sticky"
            )
        )
        if answer.error_code == NONE:
            self.owned = read(answer.assignment)
        return error_code(answer.error_code)

    def beat(self) -> ErrorCode:
        return self.shell.heartbeat(self.member_id, self.generation, instance=self.instance)

    def step(self) -> None:
        """What a client does at a heartbeat: it joins again when it is asked to."""
        if self.beat() is AGAIN and self.join() is NONE:
            self.sync()


def classic_pair(shell: Shell, *, is_eager: bool = False) -> tuple[ClassicClient, ClassicClient]:
    """Two members of a classic group, each with two partitions."""
    clients = [ClassicClient(shell, is_eager=is_eager) for _ in range(2)]
    tokens = []
    for client in clients:
        client.member_id = shell.joined(client.ask_join()).member_id
        tokens.append(client.ask_join())
    shell.advance(SETTLE_MS)
    for client, token in zip(clients, tokens, strict=True):
        client.generation = shell.joined(token).generation_id
    [leader] = {shell.joined(token).leader for token in tokens}
    given = {clients[0].member_id: assignment(0, 1), clients[1].member_id: assignment(2, 3)}
    syncs = {
        client.member_id: shell.sync_request(
            client.member_id, client.generation, given if client.member_id == leader else None
        )
        for client in sorted(clients, key=lambda each: each.member_id == leader)
    }
    for client in clients:
        client.owned = read(shell.synced(syncs[client.member_id]).assignment)
    return clients[0], clients[1]


def settle(shell: Shell, *clients: ClassicClient | Member) -> None:
    for _ in range(8):
        for client in clients:
            client.step()
        shell.advance(2_000)


def check_shared(*clients: ClassicClient | Member) -> None:
    owned = sorted(partition for client in clients for partition in client.owned)
    assert owned == [("t", index) for index in range(4)]


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_group_moves_member_by_member_and_back(is_eager: bool) -> None:
    shell = shell_with()
    first, second = classic_pair(shell, is_eager=is_eager)
    assert shell.commit(first.member_id, first.generation, 7) is NONE
    generation = first.generation
    new = Member(shell, "new")
    assert new.join() is NONE
    group = described(shell)
    assert (group.group_epoch, len(group.members)) == (generation + 1, 3)
    assert sorted(member.member_type for member in group.members) == [0, 0, 1]
    assert first.beat() is second.beat() is AGAIN
    settle(shell, first, second, new)
    check_shared(first, second, new)
    assert described(shell).group_state == "Stable"
    assert shell.commit(first.member_id, first.generation, 8) is NONE
    assert shell.commit(first.member_id, first.generation - 1, 9) is ErrorCode.ILLEGAL_GENERATION
    assert shell.leave((first.member_id, None)) == [(first.member_id, None, NONE)]
    settle(shell, second, new)
    check_shared(second, new)
    # Back: the last member of the consumer protocol leaves.
    assert new.leave() is NONE
    assert shell.state() == "PreparingRebalance"
    assert second.beat() is AGAIN
    joined = shell.joined(second.ask_join())
    assert joined.generation_id > second.generation
    assert joined.leader == second.member_id
    assert shell.committed()["t", 0] == 8
    assert [each.group_type for each in shell.reload().shard.list()] == ["classic"]


def test_who_waits_for_a_rebalance_of_the_classic_group_joins_again() -> None:
    shell = shell_with()
    first, second = classic_pair(shell)
    third = ClassicClient(shell)
    third.member_id = shell.joined(third.ask_join()).member_id
    waiting = third.ask_join()
    assert waiting in shell.waiting
    assert Member(shell, "new").join() is NONE
    assert shell.refused(waiting) is AGAIN
    assert third.join() is NONE
    assert len(described(shell).members) == 4
    del first, second


def test_a_coordinator_that_comes_later_knows_both_kinds_of_members() -> None:
    shell = shell_with()
    first, second = classic_pair(shell)
    new = Member(shell, "new")
    new.join()
    settle(shell, first, second, new)
    again = shell.reload()
    assert described(again) == described(shell)
    for client in (first, second, new):
        client.shell = again
    settle(again, first, second, new)
    check_shared(first, second, new)


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        ("disabled", False, False),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_the_policy_says_which_way_a_group_may_go(
    policy: str, upgrades: bool, downgrades: bool
) -> None:
    shell = shell_with()
    first, second = classic_pair(shell)
    shell.options = ConsumerGroupOptions(migration_policy=policy)
    new = Member(shell, "new")
    assert (new.join() is NONE) == upgrades
    if not upgrades:
        assert new.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert shell.state() == "Stable"
        shell.options = OPTIONS
        assert new.join() is NONE
        shell.options = ConsumerGroupOptions(migration_policy=policy)
    settle(shell, first, second, new)
    new.leave()
    [listed] = shell.shard.list()
    assert (listed.group_type == "classic") == downgrades
    if not downgrades:
        settle(shell, first, second)
        check_shared(first, second)


def test_a_refused_join_leaves_the_classic_group_as_it_is() -> None:
    shell = shell_with()
    first, _ = classic_pair(shell)
    size = len(shell.log)
    assert Member(shell, "new", None, "(").join() is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert Member(shell, first.member_id).join() is ErrorCode.FENCED_MEMBER_EPOCH
    shell.options = ConsumerGroupOptions(max_size=2)
    assert Member(shell, "new").join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    shell.options = ConsumerGroupOptions(max_size=1)
    assert Member(shell, "new").join() is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(shell.log) == size and shell.state() == "Stable"
    assert first.beat() is NONE


def test_a_group_whose_assignor_keeps_data_of_its_own_is_not_upgraded() -> None:
    shell = shell_with()
    [member_id] = shell.stable_group(1)
    shell.join(member_id)
    shell.sync_request(member_id, 2, {member_id: assignment(0, user_data=b"mine")})
    assert Member(shell, "new").join() is ErrorCode.GROUP_ID_NOT_FOUND


def test_classic_members_are_checked_as_in_a_classic_group() -> None:
    shell = shell_with()
    first, _ = classic_pair(shell)
    assert Member(shell, "new").join() is NONE
    stranger = ClassicClient(shell, "stranger", 5)
    assert stranger.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.sync() is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat("new", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(first.member_id, 9) is ErrorCode.ILLEGAL_GENERATION
    assert first.sync() is AGAIN
    other = shell.join("x", protocols=[("other", b"\x00\x00\x00\x00\x00\x00")])
    assert shell.refused(other) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broken = shell.join("x", protocols=[("cooperative-sticky", b"\x00")])
    assert shell.refused(broken) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shell.leave(("x", None), ("", "i")) == [
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


def test_a_classic_member_that_does_not_join_again_in_time_is_removed() -> None:
    shell = shell_with()
    first, second = classic_pair(shell)
    new = Member(shell, "new")
    new.join()
    for _ in range(14):
        assert first.beat() in {AGAIN, ErrorCode.UNKNOWN_MEMBER_ID}
        second.step()
        new.step()
        shell.advance(5_000)
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(shell, second, new)
    check_shared(second, new)


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    shell = shell_with()
    old = ClassicClient(shell, instance="a")
    token = old.ask_join()
    shell.advance(SETTLE_MS)
    answer = shell.joined(token)
    old.member_id, old.generation = answer.member_id, answer.generation_id
    shell.sync_request(old.member_id, 1, {old.member_id: assignment(0, 1, 2, 3)}, instance="a")
    new = Member(shell, "new", instance="a")
    assert new.join() is NONE
    check_shared(new)
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID
    # And back: the group is one of the classic protocol again.
    new.leave(-2)
    back = ClassicClient(shell, instance="a")
    assert back.join() is NONE
    assert [each.group_type for each in shell.shard.list()] == ["classic"]
    assert back.beat() is AGAIN
