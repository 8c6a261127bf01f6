"""Heartbeats of members whose coordinator assigns: epochs, fencing, assignments, timeouts."""

import pytest

from headrace.coordinator.groups.consumer_group_protocol import _NAMES_PER_TURN
from headrace.coordinator.shard import ConsumerGroupOptions, CoordinatorRecord, RequestClient
from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.unit.coordinator.consumer_members import (
    REBALANCE_MS,
    VERSION,
    Member,
    Topics,
    described,
    id_of,
    settle,
)
from tests.unit.coordinator.driving import GROUP, OPTIONS, Shell

SESSION_MS = 45_000
NONE = ErrorCode.NONE


def shell_with(options: ConsumerGroupOptions = OPTIONS, /, **sizes: int) -> Shell:
    topics = Topics(**(sizes or {"t": 4}))
    return Shell(topics=topics, options=options)


def topics_of(shell: Shell) -> Topics:
    assert isinstance(shell.catalog, Topics)
    return shell.catalog


def owned(member: Member) -> list[int]:
    return sorted(partition for _, partition in member.owned)


def two_members(**sizes: int) -> tuple[Shell, Member, Member]:
    shell = shell_with(**sizes)
    first, second = Member(shell, "m1"), Member(shell, "m2")
    assert first.join() is second.join() is NONE
    shell.advance(1_000)
    settle(first, second)
    return shell, first, second


# -- joining and being assigned


def test_the_first_member_is_assigned_everything_at_once() -> None:
    shell = shell_with()
    member = Member(shell, "m1")
    assert member.join() is NONE
    assert (member.epoch, owned(member), member.interval_ms) == (1, [0, 1, 2, 3], 5_000)
    group = described(shell)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
    assert group.assignor_name == "uniform"


def test_a_member_without_an_id_gets_one_from_the_coordinator_before_version_1() -> None:
    shell = shell_with()
    member = Member(shell, "")
    token = member.send(member.full_request(), version=0)
    answer = member.heard(token)
    assert answer.member_id and member.error is NONE
    assert described(shell).members[0].member_id == answer.member_id


def test_a_partition_is_assigned_only_once_its_owner_has_given_it_up() -> None:
    shell = shell_with()
    first, second = Member(shell, "m1"), Member(shell, "m2")
    first.join()
    shell.advance(1_000)
    assert second.join() is NONE
    assert (second.epoch, owned(second)) == (2, [])
    assert described(shell).group_state == "Reconciling"
    first.beat()
    assert first.epoch == 1, "it has to revoke first"
    assert first.given == frozenset({("t", 0), ("t", 1)})
    second.beat()
    assert owned(second) == []
    first.beat()
    assert first.epoch == 1, "it still reports the partitions"
    first.owned = frozenset({("t", 0), ("t", 1)})
    first.beat()
    assert first.epoch == 2
    second.beat()
    assert owned(second) == [2, 3]
    assert described(shell).group_state == "Stable"


def test_a_heartbeat_without_news_has_no_assignment_and_writes_nothing() -> None:
    shell, first, second = two_members()
    size = len(shell.log)
    for member in (first, second):
        member.beat(report=False)
        assert member.given is None
    assert len(shell.log) == size
    first.beat(full=True)
    assert first.given == first.owned, "a full heartbeat asks for it"


def test_partitions_that_stay_are_not_taken_away_in_between() -> None:
    shell, first, second = two_members(t=6)
    kept = first.owned, second.owned
    third = Member(shell, "m3")
    third.join()
    for _ in range(6):
        for member in (first, second, third):
            member.step()
    assert {len(member.owned) for member in (first, second, third)} == {2}
    assert first.owned < kept[0] and second.owned < kept[1]


def test_members_that_start_together_are_assigned_to_together() -> None:
    shell = shell_with()
    first, second = Member(shell, "m1"), Member(shell, "m2")
    first.join()
    second.join()
    assert (second.epoch, second.owned) == (1, frozenset())
    assert described(shell).group_state == "Assigning"
    shell.advance(1_000)
    assert described(shell).assignment_epoch == 2
    assert described(shell).group_state == "Reconciling"


def test_a_single_member_that_comes_back_does_not_wait_for_the_interval() -> None:
    shell = shell_with()
    member = Member(shell, "m1")
    member.join()
    member.leave()
    assert member.join() is NONE
    assert owned(member) == [0, 1, 2, 3]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_assignor_that_most_members_ask_for_is_used(assignor: str) -> None:
    shell = shell_with(a=3, b=3)
    members = [Member(shell, f"m{n}", ("a", "b"), assignor=assignor) for n in range(2)]
    for member in members:
        member.join()
        shell.advance(1_000)
    settle(*members)
    assert described(shell).assignor_name == assignor
    sizes = sorted(len(member.owned) for member in members)
    assert sizes == ([2, 4] if assignor == "range" else [3, 3])


# -- what is refused


def refused(request: ConsumerGroupHeartbeatRequest, version: int = VERSION) -> ErrorCode:
    shell = shell_with()
    answer = shell.answers[shell.send(request, version)]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert shell.log == [] and shell.shard.list() == []
    return error_code(answer.error_code)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_id", " "),
        ("member_id", ""),
        ("instance_id", ""),
        ("rack_id", " "),
        ("rebalance_timeout_ms", -1),
        ("topic_partitions", None),
        ("topic_partitions", [TopicPartitions(topic_id=id_of("t"), partitions=[0])]),
        ("subscribed_topic_names", None),
        ("subscribed_topic_names", ["x" * 40_000]),
        ("member_epoch", -3),
        ("member_epoch", -2),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(field: str, value: object) -> None:
    request = Member(shell_with(), "m1").full_request()
    setattr(request, field, value)
    assert refused(request) is ErrorCode.INVALID_REQUEST


def test_an_assignor_that_is_not_there_is_refused() -> None:
    request = Member(shell_with(), "m1", assignor="mine").full_request()
    assert refused(request) is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_member_of_an_unknown_group_is_refused() -> None:
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m1", member_epoch=3)
    assert refused(request) is ErrorCode.GROUP_ID_NOT_FOUND
    request.member_epoch = -1
    assert refused(request) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_takes_only_so_many_members() -> None:
    shell = shell_with(ConsumerGroupOptions(max_size=1))
    first = Member(shell, "m1")
    assert first.join() is NONE
    assert Member(shell, "m2").join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.beat() is NONE


def test_a_member_with_another_epoch_is_fenced() -> None:
    shell, first, _ = two_members()
    assert first.epoch == 2
    first.epoch = 3
    assert first.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    first.epoch = 0
    assert first.beat() is ErrorCode.INVALID_REQUEST
    assert Member(shell, "stranger", epoch=2).beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_epoch_before_is_accepted_from_a_member_that_owns_no_more_than_it_has() -> None:
    _, first, _ = two_members()
    first.epoch = 1
    assert first.beat() is NONE
    assert first.epoch == 2
    first.epoch, before = 1, first.owned
    first.owned |= {("t", 2), ("t", 3)}
    assert first.beat() is ErrorCode.FENCED_MEMBER_EPOCH
    first.owned = before
    assert first.beat(report=False) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_join_whose_response_was_lost_may_be_repeated() -> None:
    shell = shell_with()
    member = Member(shell, "m1")
    member.join()
    assert member.join() is NONE
    assert (member.epoch, owned(member)) == (1, [0, 1, 2, 3])


# -- leaving, and being silent


def test_the_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    shell, first, second = two_members()
    assert first.leave() is NONE
    second.beat()
    assert owned(second) == [0, 1, 2, 3]
    assert second.leave() is NONE
    assert described(shell).group_state == "Empty"


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    shell, first, second = two_members()
    for _ in range(SESSION_MS // 5_000 + 1):
        shell.advance(5_000)
        assert second.beat() is NONE
    assert [member.member_id for member in described(shell).members] == ["m2"]
    assert owned(second) == [0, 1, 2, 3]
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    shell = shell_with()
    first, second = Member(shell, "m1"), Member(shell, "m2")
    first.join()
    shell.advance(1_000)
    second.join()
    for _ in range(REBALANCE_MS // 5_000 + 1):
        first.beat()
        second.beat()
        shell.advance(5_000)
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    second.beat()
    assert owned(second) == [0, 1, 2, 3]


def test_a_member_that_revokes_in_time_stays() -> None:
    shell, first, second = two_members()
    shell.advance(REBALANCE_MS // 2)
    first.beat(), second.beat()
    shell.advance(REBALANCE_MS // 2 + 1)
    assert first.beat() is second.beat() is NONE


# -- static members


def test_a_static_member_that_comes_back_gets_its_partitions_again() -> None:
    shell = shell_with()
    first, second = Member(shell, "m1", instance="a"), Member(shell, "m2", instance="b")
    first.join(), second.join()
    shell.advance(1_000)
    settle(first, second)
    before, epoch = first.owned, described(shell).group_epoch
    assert first.leave(-2) is NONE
    assert first.epoch == -2
    second.beat()
    assert len(second.owned) == 2, "it is expected back"
    again = Member(shell, "m3", instance="a")
    assert again.join() is NONE
    assert (again.owned, described(shell).group_epoch) == (before, epoch)
    assert first.beat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_has_the_subscription_it_names_and_no_other() -> None:
    shell = shell_with()
    member = Member(shell, "m1", None, "t.*", instance="a")
    member.join()
    shell.advance(5_000)
    settle(member)
    assert owned(member) == [0, 1, 2, 3]
    member.leave(-2)
    again = Member(shell, "m2", [], instance="a")
    assert again.join() is NONE
    assert again.owned == frozenset()
    assert described(shell).members[0].subscribed_topic_regex == ""


def test_an_instance_id_that_is_in_use_is_not_released() -> None:
    shell = shell_with()
    Member(shell, "m1", instance="a").join()
    assert Member(shell, "m2", instance="a").join() is ErrorCode.UNRELEASED_INSTANCE_ID
    unknown = Member(shell, "m2", instance="b", epoch=1)
    assert unknown.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_come_back_is_removed_when_its_session_ends() -> None:
    shell = shell_with()
    member = Member(shell, "m1", instance="a")
    member.join()
    member.leave(-2)
    shell.advance(SESSION_MS)
    assert described(shell).group_state == "Empty"
    assert Member(shell, "m2", instance="a").join() is NONE


# -- topics that change


def test_new_partitions_are_assigned_and_deleted_topics_taken_away() -> None:
    shell, first, second = two_members()
    topics_of(shell).set(t=6)
    shell.advance(1_000)
    settle(first, second)
    assert sorted(owned(first) + owned(second)) == [0, 1, 2, 3, 4, 5]
    topics_of(shell).delete("t")
    settle(first, second)
    assert first.owned == second.owned == frozenset()
    topics_of(shell).set(t=2)
    settle(first, second)
    assert sorted(owned(first) + owned(second)) == [0, 1]


def test_a_change_of_other_topics_changes_nothing() -> None:
    shell, first, _ = two_members()
    epoch = described(shell).group_epoch
    topics_of(shell).set(other=3)
    first.beat()
    assert described(shell).group_epoch == epoch


def test_a_member_gives_up_a_topic_that_it_no_longer_subscribes_to() -> None:
    shell = shell_with(a=2, b=2)
    member = Member(shell, "m1", ["a", "b"])
    member.join()
    member.topics = ["b"]
    member.beat(full=True)
    assert member.given == frozenset({("b", 0), ("b", 1)})
    member.give_up()
    member.beat()
    assert described(shell).group_state == "Stable"
    assert described(shell).members[0].assignment.topic_partitions[0].topic_name == "b"


# -- patterns


def test_a_pattern_is_resolved_without_holding_up_the_loop() -> None:
    names = {f"app-{number}": 1 for number in range(3 * _NAMES_PER_TURN)}
    shell = shell_with(other=3, **names)
    member = Member(shell, "m1", None, "app-.*")
    assert member.join() is NONE
    assert member.owned == frozenset()
    turns = 0
    while (due := shell.shard.next_deadline_ms) is not None and due <= shell.now_ms + 10:
        shell.now_ms = max(shell.now_ms, due)
        shell.perform(shell.shard.tick(shell.now_ms))
        turns += 1
    assert turns >= 3
    shell.advance(5_000)
    member.step()
    assert len(member.owned) == len(names)
    assert described(shell).members[0].subscribed_topic_regex == "app-.*"


def test_topics_that_come_later_are_found() -> None:
    shell = shell_with(app=1)
    member = Member(shell, "m1", None, "app.*")
    member.join()
    shell.advance(5_000)
    settle(member)
    assert member.owned == {("app", 0)}
    topics_of(shell).set(app2=1, xapp=1)
    shell.advance(10_000)
    settle(member)
    assert member.owned == {("app", 0), ("app2", 0)}


def test_a_bad_pattern_is_refused_and_leaves_no_trace() -> None:
    request = Member(shell_with(), "m1", None, "(").full_request()
    assert refused(request) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_matches_only_topics_that_the_member_may_see() -> None:
    shell = shell_with(app1=1, app2=1)
    client = RequestClient("c", "h", lambda topic: topic == "app2")
    member = Member(shell, "m1", None, "app.", client=client)
    member.join()
    shell.advance(5_000)
    settle(member)
    assert member.owned == {("app2", 0)}


def test_a_pattern_without_members_is_forgotten() -> None:
    shell = shell_with(app=1)
    member = Member(shell, "m1", None, "app.*")
    member.join()
    shell.advance(5_000)
    settle(member)
    member.pattern, member.topics = "", ["app"]
    member.beat(full=True)
    group = shell.shard._groups[GROUP]
    assert group.is_subscribed_to("app")
    assert not group.patterns  # type: ignore[union-attr]
    assert member.owned == {("app", 0)}


# -- offsets


def test_members_commit_with_their_epoch() -> None:
    shell, first, _ = two_members()
    assert shell.commit("m1", first.epoch, 7) is NONE
    assert shell.commit("m1", first.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert shell.commit("m1", -1) is ErrorCode.STALE_MEMBER_EPOCH
    assert shell.commit("m9", first.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit("m1", first.epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert shell.committed() == {("t", 0): 7}


def test_a_commit_with_an_earlier_epoch_is_accepted_for_partitions_that_stayed() -> None:
    shell, first, second = two_members()
    assert (first.epoch, second.epoch) == (2, 2)
    assert shell.commit("m1", 1, partition=0) is NONE
    assert shell.commit("m1", 1, partition=2) is ErrorCode.STALE_MEMBER_EPOCH
    assert shell.commit("m2", 1, partition=2) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_transaction_commits_offsets_with_the_epoch_of_the_member_it_names() -> None:
    shell, first, _ = two_members()

    def committed(member_id: str, epoch: int, partition: int = 0) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=GROUP,
            producer_id=7,
            producer_epoch=0,
            generation_id=epoch,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=[TxnOffsetCommitRequestPartition(partition_index=partition)],
                )
            ],
        )
        answer = shell.answers[shell.send(request, 5)]
        assert isinstance(answer, TxnOffsetCommitResponse)
        return error_code(answer.topics[0].partitions[0].error_code)

    assert committed("m1", first.epoch) is NONE
    assert committed("m1", 1) is NONE, "it has had the partition since then"
    assert committed("m1", 1, partition=3) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed("m1", first.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed("m9", first.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed("", -1) is NONE, "a producer that names no member always may"


def test_a_pattern_that_this_broker_cannot_read_matches_nothing() -> None:
    shell = shell_with()
    member = Member(shell, "m1", None, "t.*")
    member.join()
    shell.advance(5_000)
    settle(member)
    # As another implementation may have written it: with a pattern that is none here.
    shell.log = [
        CoordinatorRecord(
            record.key.replace(b"t.*", b"t.("),
            None if record.value is None else record.value.replace(b"t.*", b"t.("),
        )
        for record in shell.log
    ]
    again = shell.reload()
    member.shell = again
    topics_of(again).set(t2=1)
    again.advance(11_000)
    settle(member)
    assert member.owned == frozenset()


def test_others_commit_while_the_group_has_no_members() -> None:
    shell, first, second = two_members()
    first.leave(), second.leave()
    assert shell.commit(offset=9) is NONE
    assert shell.committed() == {("t", 0): 9}


def test_offsets_are_fetched_with_the_epoch_of_a_member_or_without_any() -> None:
    shell, first, _ = two_members()

    def fetched(member_id: str | None, epoch: int) -> int:
        request = OffsetFetchRequestGroup(
            group_id=GROUP, topics=None, member_id=member_id, member_epoch=epoch
        )
        return shell.shard.fetch_offsets(request).error_code

    assert fetched(None, -1) == fetched("m1", first.epoch) == NONE
    assert fetched("m1", first.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetched("m9", first.epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    shell, first, second = two_members()
    shell.commit("m1", first.epoch)
    assert shell.delete_offset("t") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    first.leave(), second.leave()
    assert shell.delete_offset("t") is NONE
    assert shell.committed() == {}


# -- lists, deletion and the log


def test_a_consumer_group_is_listed_and_described_as_what_it_is() -> None:
    shell, _, _ = two_members()
    [listed] = shell.shard.list(types=["Consumer"])
    assert (listed.group_type, listed.protocol_type, listed.group_state) == (
        "consumer",
        "consumer",
        "Stable",
    )
    assert shell.shard.list(types=["classic"]) == []
    assert shell.shard.list(states=["stable"]) == [listed]
    assert shell.shard.describe(GROUP, 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described(shell, "other").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_only_a_group_without_members_is_deleted() -> None:
    shell, first, second = two_members()
    assert shell.delete() is ErrorCode.NON_EMPTY_GROUP
    first.leave(), second.leave()
    assert shell.delete() is NONE
    assert shell.shard.list() == []
    again = shell.reload()
    assert again.shard.list() == []
    assert again.delete() is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_without_members_and_offsets_ends_by_itself() -> None:
    shell = shell_with()
    member = Member(shell, "m1")
    member.join()
    shell.commit("m1", member.epoch)
    member.leave()
    shell.advance(604_800_000 - 1)
    assert shell.committed() == {("t", 0): 1}
    shell.advance(1_300_000)
    assert shell.shard.list() == [] and shell.committed() == {}
    assert shell.reload().shard.list() == []


def test_another_coordinator_goes_on_where_the_log_ends() -> None:
    shell, first, second = two_members()
    third = Member(shell, "m3", instance="c", pattern="t.*", topics=None)
    third.join()
    shell.advance(1_000)
    first.beat()
    again = shell.reload()
    assert described(again) == described(shell)
    for member in (first, second, third):
        member.shell = again
    settle(first, second, third)
    assert sorted(owned(first) + owned(second) + owned(third)) == [0, 1, 2, 3]
    again.advance(SESSION_MS)
    assert described(again).group_state == "Empty", "sessions began with the load"


def test_replies_wait_until_the_records_are_committed() -> None:
    shell = shell_with()
    shell.is_holding = True
    member = Member(shell, "m1")
    token = member.send(member.full_request())
    assert shell.waiting == {token}
    shell.release()
    assert member.heard(token).member_epoch == 1


# -- groups of the other protocol


def test_an_empty_group_is_taken_over_by_the_other_protocol_and_keeps_its_offsets() -> None:
    shell = shell_with()
    members = shell.stable_group(1)
    assert shell.commit(members[0], 1, 5) is NONE
    joined = Member(shell, "m1")
    shell.leave((members[0], None))
    assert shell.state() == "Empty"
    assert joined.join() is NONE
    assert shell.committed() == {("t", 0): 5}
    assert [each.group_type for each in shell.reload().shard.list()] == ["consumer"]
    joined.leave()
    shell.stable_group(1)
    assert [each.group_type for each in shell.shard.list()] == ["classic"]
    again = shell.reload()
    assert [each.group_type for each in again.shard.list()] == ["classic"]
    assert again.state() == "Stable"
    assert again.committed() == {("t", 0): 5}


def test_offsets_without_a_group_become_those_of_the_group_that_is_joined() -> None:
    shell = shell_with()
    shell.commit(offset=4)
    assert Member(shell, "m1").join() is NONE
    assert shell.committed() == {("t", 0): 4}


def test_ends_that_are_committed_late_end_no_later_group() -> None:
    shell = shell_with()
    shell.commit(offset=4)
    shell.is_holding = True
    member = Member(shell, "m1")
    member.send(member.full_request())
    member.epoch = -1
    member.send(ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m1", member_epoch=-1))
    shell.join()
    shell.release()
    assert [each.group_type for each in shell.shard.list()] == ["classic"]
