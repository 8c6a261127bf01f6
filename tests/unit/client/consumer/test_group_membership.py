"""What a member of a group sends, and what it makes of the answers."""

from collections.abc import Iterable
from typing import Any

import pytest

from headrace.client.consumer.assignors import ASSIGNORS
from headrace.client.consumer.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.consumer.group_membership import (
    AssignmentChanges,
    GroupMembership,
    JoinOutcome,
    JoinPhase,
    MembershipIdentity,
    MembershipSettings,
)
from headrace.errors import ErrorCode, KafkaError, ProtocolError
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def member(*strategies: str, **settings: Any) -> GroupMembership:
    chosen = tuple(ASSIGNORS[name] for name in strategies or ("range",))
    return GroupMembership(MembershipSettings("group", chosen, 10_000, 60_000, **settings))


def let_in(generation: int = 1, **fields: Any) -> JoinGroupResponse:
    return JoinGroupResponse(
        **{
            "generation_id": generation,
            "protocol_name": "range",
            "leader": "other",
            "member_id": "me",
            **fields,
        }
    )


def refused(code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id="me")


def given_part(partitions: Iterable[TopicPartition] = ()) -> SyncGroupResponse:
    return SyncGroupResponse(assignment=encode_assignment(partitions))


def settle(
    membership: GroupMembership, partitions: Iterable[TopicPartition] = (A,), **fields: Any
) -> GroupMembership:
    """Take a member through a whole rebalance."""
    membership.join({"a"}, [])
    fields.setdefault("protocol_name", membership._settings.strategies[0].name)
    assert membership.joined(let_in(**fields)) is JoinOutcome.DONE
    membership.sync({})
    assert membership.synced(given_part(partitions)) is JoinOutcome.DONE
    assert membership.is_stable
    return membership


def test_a_new_member_joins_again_with_the_id_it_is_given() -> None:
    membership = member()
    assert membership.join({"a"}, []).member_id == ""
    answer = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me")
    assert membership.joined(answer) is JoinOutcome.AGAIN
    assert membership.join({"a"}, []).member_id == "me"


def test_a_join_tells_timeouts_strategies_and_why() -> None:
    membership = member("range", "sticky", instance_id="static", rack="r1")
    request = membership.join({"b", "a"}, [])
    assert (request.group_id, request.protocol_type) == ("group", "consumer")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (10_000, 60_000)
    assert request.group_instance_id == "static"
    assert request.reason == "the consumer starts"
    assert [protocol.name for protocol in request.protocols] == ["range", "sticky"]
    for protocol in request.protocols:
        said = decode_subscription(protocol.metadata)
        assert (said.topics, said.owned, said.generation) == (("a", "b"), [], -1)
        assert said.rack == "r1"


def test_a_follower_syncs_with_nothing_and_takes_what_it_is_given() -> None:
    membership = member()
    membership.join({"a"}, [])
    assert membership.joined(let_in(generation=4)) is JoinOutcome.DONE
    assert not membership.is_leader
    request = membership.sync({"a": 9})
    assert (request.member_id, request.generation_id) == ("me", 4)
    assert (request.protocol_type, request.protocol_name) == ("consumer", "range")
    assert request.assignments == []
    assert membership.synced(given_part([B, A])) is JoinOutcome.DONE
    assert membership.assignment == [A, B]
    assert membership.identity == MembershipIdentity("me", 4)
    assert membership.is_stable


def test_a_leader_shares_out_what_everybody_subscribes_to() -> None:
    membership = member()
    membership.join({"a"}, [])
    members = [
        JoinGroupResponseMember(
            member_id=name, metadata=encode_subscription(MemberSubscription(topics))
        )
        for name, topics in (("me", ["a"]), ("you", ["a", "b"]))
    ]
    membership.joined(let_in(leader="me", members=members))
    assert membership.is_leader
    assert membership.group_topics == {"a", "b"}
    request = membership.sync({"a": 2, "b": 1})
    shares = {
        assignment.member_id: decode_assignment(assignment.assignment)
        for assignment in request.assignments
    }
    assert shares == {"me": [A], "you": [TopicPartition("a", 1), B]}


def test_a_leader_that_is_told_so_leaves_the_assignment_as_it_is() -> None:
    membership = member(instance_id="static")
    membership.join({"a"}, [])
    members = [
        JoinGroupResponseMember(
            member_id="me", metadata=encode_subscription(MemberSubscription(["a"]))
        )
    ]
    membership.joined(let_in(leader="me", skip_assignment=True, members=members))
    assert membership.sync({"a": 1}).assignments == []
    # It still has to watch the topics (KIP-814).
    assert membership.is_leader
    assert membership.group_topics == {"a"}


def test_eager_members_give_up_everything_before_they_join() -> None:
    assert member("range").to_revoke([B, A], {"a", "b"}) == [A, B]
    assert member("range", "cooperative-sticky").to_revoke([A], {"a"}) == [A]


def test_cooperative_members_give_up_what_they_do_not_want_any_more() -> None:
    membership = settle(member("cooperative-sticky"), [A, B])
    assert membership.to_revoke([A, B], {"a"}) == [B]
    said = decode_subscription(membership.join({"a"}, [A]).protocols[0].metadata)
    assert (said.owned, said.generation) == ([A], 1)


def test_sticky_members_tell_what_they_had_in_their_user_data() -> None:
    membership = settle(member("sticky"), [A])
    said = decode_subscription(membership.join({"a"}, []).protocols[0].metadata)
    assert said.owned == []
    assert said.user_data == ASSIGNORS["sticky"].user_data([A], 1)


def test_an_assignment_is_told_as_what_it_changes() -> None:
    membership = settle(member("cooperative-sticky"), [A])
    assert membership.changes([B]) == AssignmentChanges([B], [A])
    assert membership.changes([A]) == AssignmentChanges([], [])


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, JoinOutcome.LATER),
        (ErrorCode.REBALANCE_IN_PROGRESS, JoinOutcome.LATER),
        (ErrorCode.NOT_COORDINATOR, JoinOutcome.ELSEWHERE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, JoinOutcome.ELSEWHERE),
    ],
    ids=lambda value: value.name,
)
def test_a_join_that_comes_at_the_wrong_time_or_place_keeps_the_member(
    code: ErrorCode, verdict: JoinOutcome
) -> None:
    membership = settle(member())
    membership.join({"a"}, [])
    assert membership.joined(refused(code)) is verdict
    assert membership.phase is JoinPhase.JOINING
    assert membership.join({"a"}, []).member_id == "me"


@pytest.mark.parametrize(
    ("code", "kept"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "me")],
    ids=lambda value: str(value),
)
def test_a_member_the_coordinator_does_not_know_is_outside(code: ErrorCode, kept: str) -> None:
    for phase in (JoinPhase.JOINING, JoinPhase.SYNCING, JoinPhase.STABLE):
        membership = settle(member())
        if phase is JoinPhase.STABLE:
            verdict = membership.heard(membership.identity, code)
        else:
            membership.join({"a"}, [])
            if phase is JoinPhase.JOINING:
                verdict = membership.joined(refused(code))
            else:
                membership.joined(let_in(2))
                verdict = membership.synced(SyncGroupResponse(error_code=code))
        assert verdict is JoinOutcome.LOST
        assert membership.phase is JoinPhase.OUTSIDE
        assert membership.identity == MembershipIdentity(kept, -1)
        assert membership.assignment == []
        assert not membership.is_stable


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, "group_instance_id='static'"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "partition_assignment_strategy"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "session_timeout_ms=10000"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "group"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_cannot_be_mended_is_raised_with_advice(code: ErrorCode, words: str) -> None:
    membership = member(instance_id="static")
    membership.join({"a"}, [])
    with pytest.raises(KafkaError, match=words) as caught:
        membership.joined(refused(code))
    assert caught.value.code is code


def test_a_protocol_nobody_offered_is_an_error() -> None:
    membership = member("range")
    membership.join({"a"}, [])
    with pytest.raises(KafkaError, match="range"):
        membership.joined(let_in(protocol_name="sticky"))


def test_a_rebalance_while_syncing_sends_a_member_back_to_join() -> None:
    membership = member()
    membership.join({"a"}, [])
    membership.joined(let_in())
    answer = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert membership.synced(answer) is JoinOutcome.AGAIN
    assert not membership.is_stable
    assert membership.join({"a"}, []).member_id == "me"


def test_an_assignment_that_cannot_be_read_does_not_make_a_member_stable() -> None:
    membership = member()
    membership.join({"a"}, [])
    membership.joined(let_in())
    with pytest.raises(ProtocolError):
        membership.synced(SyncGroupResponse(assignment=b"\0"))
    assert not membership.is_stable


def test_heartbeats_are_sent_only_when_nothing_else_is_waited_for() -> None:
    membership = member()
    assert not membership.beats
    membership.join({"a"}, [])
    assert not membership.beats
    membership.joined(let_in())
    assert not membership.beats
    membership.synced(given_part())
    assert membership.beats
    request = membership.heartbeat()
    assert (request.member_id, request.generation_id) == ("me", 1)


def test_a_rebalance_is_heard_of_and_heartbeats_go_on_until_the_join() -> None:
    membership = settle(member())
    assert (
        membership.heard(membership.identity, ErrorCode.REBALANCE_IN_PROGRESS) is JoinOutcome.DONE
    )
    assert not membership.is_stable
    assert membership.beats
    assert membership.join({"a"}, []).reason == "the group rebalances"


def test_a_late_answer_of_an_earlier_generation_tells_nothing() -> None:
    membership = settle(member())
    before = membership.identity
    membership.join({"a"}, [])
    assert membership.heard(before, ErrorCode.ILLEGAL_GENERATION) is JoinOutcome.DONE
    assert membership.heard(before, ErrorCode.NOT_COORDINATOR) is JoinOutcome.ELSEWHERE
    membership.joined(let_in(2))
    membership.sync({})
    membership.synced(given_part())
    assert membership.heard(before, ErrorCode.FENCED_INSTANCE_ID) is JoinOutcome.DONE
    assert membership.is_stable


def test_a_fenced_heartbeat_is_an_error() -> None:
    membership = settle(member(instance_id="static"))
    with pytest.raises(KafkaError, match="give every consumer its own"):
        membership.heard(membership.identity, ErrorCode.FENCED_INSTANCE_ID)


def test_a_dynamic_member_leaves_and_a_static_one_does_not() -> None:
    membership = settle(member())
    request = membership.leave("done")
    assert request is not None
    assert [entry.member_id for entry in request.members] == ["me"]
    membership.lose("done")
    assert membership.leave("done") is None
    assert settle(member(instance_id="static")).leave("done") is None


def test_a_member_that_was_given_an_id_leaves_even_before_it_is_let_in() -> None:
    membership = member()
    membership.join({"a"}, [])
    membership.joined(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    assert membership.leave("done") is not None
