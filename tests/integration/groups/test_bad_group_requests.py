"""Members that are late, lost, lying or loud: each gets the Kafka error it deserves.

After every test a group that has nothing to do with it is as it was: its members, generation,
assignment and offsets.
"""

import time
from collections.abc import Iterator
from itertools import count

import psutil
import pytest

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api, decode_response, encode_request
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
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
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.testing.time_limits import scaled
from tests.integration.groups.consumers import describe, wait_for
from tests.integration.groups.raw import (
    RANGE,
    RawMember,
    commit_codes,
    commit_request,
    committed,
    fetch_request,
    fetched,
    latest,
    protocols,
    settle,
    wait_for_coordinator,
)
from tests.integration.wire import Wire, create_topic, every_version
from tests.support import BrokerProcess

MB = 1_000_000
GROWTH_BYTES_MAX = 150 * MB
PARTITIONS = 3
OFFSETS = {("here", 0): 10, ("here", 1): 20}

_numbers = count(1)


class LiveGroup:
    """Two members that are in the middle of their work, and must stay so."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.address = broker.address
        self.name = name
        self.members = [RawMember(broker.address, name) for _ in range(2)]
        settle(self.members)
        codes = self.members[0].ask_commit(OFFSETS, "kept")
        assert set(codes.values()) == {ErrorCode.NONE}
        self._described = describe(self.address, name)
        assert self._described.group_state == "Stable"

    def check(self) -> None:
        assert describe(self.address, self.name) == self._described
        for member in self.members:
            assert member.ask_heartbeat() == ErrorCode.NONE
        kept = {where: (offset, "kept", -1) for where, offset in OFFSETS.items()}
        assert committed(self.address, self.name) == kept

    def close(self) -> None:
        for member in self.members:
            member.wire.close()


@pytest.fixture(scope="module")
def bystanders(shared_broker: BrokerProcess) -> Iterator[LiveGroup]:
    create_topic(shared_broker.address, "here", PARTITIONS)
    wait_for_coordinator(shared_broker.address, "bystanders")
    group = LiveGroup(shared_broker, "bystanders")
    yield group
    group.close()


@pytest.fixture
def live(bystanders: LiveGroup) -> Iterator[LiveGroup]:
    """A group of the test's own, which must survive it as well as one that nobody talks to."""
    process = psutil.Process(bystanders.broker.pid)
    memory = process.memory_info().rss
    group = LiveGroup(bystanders.broker, f"live-{next(_numbers)}")
    yield group
    group.check()
    bystanders.check()
    growth = process.memory_info().rss - memory
    assert growth < GROWTH_BYTES_MAX, f"the broker grew by {growth / MB:.0f} MB"
    assert "internal error" not in bystanders.broker.log_text
    group.close()


@pytest.mark.parametrize("step", [-1, 1, 1000])
def test_a_request_of_another_generation_is_refused(live: LiveGroup, step: int) -> None:
    member = live.members[0]
    generation = member.generation + step
    assert member.ask_heartbeat(generation_id=generation) == ErrorCode.ILLEGAL_GENERATION
    assert member.ask_sync(generation_id=generation).error_code == ErrorCode.ILLEGAL_GENERATION
    codes = member.ask_commit({("here", 0): 99}, generation_id_or_member_epoch=generation)
    assert codes == {("here", 0): ErrorCode.ILLEGAL_GENERATION}


def test_nobody_but_a_member_of_the_group_is_answered(live: LiveGroup) -> None:
    member = live.members[0]
    stranger = f"{member.member_id}x"
    assert member.ask_heartbeat(member_id=stranger) == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.ask_sync(member_id=stranger).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.ask_join(member_id=stranger).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    codes = member.ask_commit({("here", 0): 99}, member_id=stranger)
    assert codes == {("here", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert member.ask_leave(MemberIdentity(member_id=stranger)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_consumer_without_a_group_cannot_commit_for_one_that_has_members(
    live: LiveGroup,
) -> None:
    with Wire(live.address) as wire:
        answer = wire.ask(commit_request(live.name, {("here", 0): 99}), 9)
    assert commit_codes(answer) == {("here", 0): ErrorCode.UNKNOWN_MEMBER_ID}


def test_a_member_of_one_group_means_nothing_to_another(live: LiveGroup) -> None:
    """Whoever wants to remove others has to know their ids, and the group they are in."""
    with RawMember(live.address, f"{live.name}-other") as other:
        settle([other])
        victims = [MemberIdentity(member_id=member.member_id) for member in live.members]
        assert other.ask_leave(*victims) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        assert other.ask_heartbeat(group_id=live.name) == ErrorCode.UNKNOWN_MEMBER_ID
        assert other.ask_leave() == [ErrorCode.NONE]


def test_a_leave_that_names_the_wrong_instance_removes_nobody(live: LiveGroup) -> None:
    with RawMember(live.address, f"{live.name}-static", instance="one") as member:
        settle([member])
        wrong = [
            MemberIdentity(member_id=member.member_id, group_instance_id="two"),
            MemberIdentity(member_id="not it", group_instance_id="one"),
            MemberIdentity(member_id="", group_instance_id="two"),
            MemberIdentity(),
        ]
        assert member.ask_leave(*wrong) == [
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        assert member.ask_heartbeat() == ErrorCode.NONE


def test_a_member_that_shares_no_protocol_with_the_group_is_not_let_in(live: LiveGroup) -> None:
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with RawMember(live.address, live.name) as other:
        assert other.ask_join(protocol_type="connect").error_code == refused
        assert other.ask_join(protocols=protocols({"sticky": b""})).error_code == refused
        assert other.ask_join(protocols=[]).error_code == refused
        assert other.ask_join(protocol_type="").error_code == refused
    member = live.members[0]
    assert member.ask_sync(protocol_name="sticky").error_code == refused
    assert member.ask_sync(protocol_type="connect").error_code == refused
    assert member.ask_join(protocols=protocols({"sticky": b""})).error_code == refused


def test_a_first_member_without_protocols_makes_no_group(live: LiveGroup) -> None:
    name = f"{live.name}-empty"
    with RawMember(live.address, name) as member:
        answers = [member.ask_join(protocols=[]), member.ask_join(protocol_type="")]
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert [answer.error_code for answer in answers] == [refused, refused]
    assert describe(live.address, name).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_metadata_too_large_is_refused_and_the_rest_of_the_commit_stands(live: LiveGroup) -> None:
    name = f"{live.name}-large"
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=7, committed_metadata="m" * size
        )
        for index, size in enumerate([4096, 4097, 1 * MB])
    ]
    request = OffsetCommitRequest(
        group_id=name,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="here", partitions=partitions)],
    )
    with Wire(live.address) as wire:
        codes = commit_codes(wire.ask(request, 9))
    assert list(codes.values()) == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    assert committed(live.address, name) == {("here", 0): (7, "m" * 4096, -1)}


def test_commits_for_what_does_not_exist_are_refused_one_by_one(live: LiveGroup) -> None:
    name = f"{live.name}-unknown"
    wanted = {
        ("here", 0): ErrorCode.NONE,
        ("here", PARTITIONS): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("here", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    with Wire(live.address) as wire:
        for version in every_version(Api.OFFSET_COMMIT):
            if version > 9:
                break
            request = commit_request(name, dict.fromkeys(wanted, version))
            assert commit_codes(wire.ask(request, version)) == wanted
            assert committed(live.address, name) == {("here", 0): (version, "", -1)}


def test_commits_and_fetches_by_an_unknown_topic_id_are_refused(live: LiveGroup) -> None:
    name = f"{live.name}-ids"
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id=name,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(topic_id=b"\7" * 16, partitions=[partition])],
    )
    topic = OffsetFetchRequestTopics(topic_id=b"\7" * 16, partition_indexes=[0])
    with Wire(live.address) as wire:
        [refused] = wire.ask(request, 10).topics
        [group] = wire.ask(
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=[topic])]), 10
        ).groups
    assert refused.topic_id == b"\7" * 16
    assert [partition.error_code for partition in refused.partitions] == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]
    [answered] = group.topics
    assert [partition.error_code for partition in answered.partitions] == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]


def test_a_group_needs_a_name(live: LiveGroup) -> None:
    with RawMember(live.address, "") as member:
        assert member.ask_join().error_code == ErrorCode.INVALID_GROUP_ID
        assert member.ask_join(member_id="x").error_code == ErrorCode.INVALID_GROUP_ID
        assert member.ask_sync().error_code == ErrorCode.INVALID_GROUP_ID
        assert member.ask_heartbeat() == ErrorCode.INVALID_GROUP_ID
        left = member.wire.ask(LeaveGroupRequest(members=[MemberIdentity(member_id="x")]))
        assert left.error_code == ErrorCode.INVALID_GROUP_ID


def test_a_name_too_long_for_the_log_is_refused(live: LiveGroup) -> None:
    """Requests of newer versions can carry names that records of the log cannot."""
    name = "n" * 40_000
    with RawMember(live.address, name) as member:
        assert member.ask_join().error_code == ErrorCode.INVALID_GROUP_ID
        codes = member.ask_commit({("here", 0): 1}, generation_id_or_member_epoch=-1)
        assert codes == {("here", 0): ErrorCode.INVALID_GROUP_ID}
    with RawMember(live.address, f"{live.name}-texts", instance=name) as member:
        assert member.ask_join().error_code == ErrorCode.INVALID_REQUEST
    with RawMember(live.address, f"{live.name}-texts") as member:
        assert member.ask_join(protocol_type=name).error_code == ErrorCode.INVALID_REQUEST
        answer = member.ask_join(protocols=protocols({name: b""}))
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, 0, -1, 2**31 - 1, -(2**31)])
def test_a_session_timeout_outside_the_bounds_is_refused(live: LiveGroup, timeout_ms: int) -> None:
    with RawMember(live.address, live.name) as member:
        answer = member.ask_join(session_timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_a_member_that_gives_no_time_to_rebalance_harms_only_itself(
    live: LiveGroup, timeout_ms: int
) -> None:
    with RawMember(live.address, f"{live.name}-impatient") as member:
        member.get_id()
        assert member.ask_join(rebalance_timeout_ms=timeout_ms).error_code == ErrorCode.NONE
        wait_for(lambda: _unless(describe(live.address, member.group).group_state, "Empty"))
        assert member.ask_sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_ten_thousand_heartbeats_a_second_leave_the_broker_responsive(live: LiveGroup) -> None:
    """Valid ones and wrong ones, from one connection, as fast as ten thousand a second for 3 s."""
    member = live.members[0]
    stale = member.heartbeat_request(generation_id=member.generation + 1)
    unknown = member.heartbeat_request(member_id="nobody")
    version = latest(Api.HEARTBEAT)
    wanted = [ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    turn = [member.heartbeat_request(), stale, unknown, member.heartbeat_request()]
    burst = b"".join(
        b"".join(encode_request(request, version, number, "loud"))
        for number, request in enumerate(turn * 250)
    )
    slowest = 0.0
    with Wire(live.address) as loud, Wire(live.address) as other:
        for _ in range(30):
            sent = time.monotonic()
            loud.send_bytes(burst)
            asked = time.monotonic()
            other.ask(DescribeGroupsRequest(groups=[live.name]))
            slowest = max(slowest, time.monotonic() - asked)
            for number in range(1000):
                frame = loud.read_frame()
                assert frame is not None
                correlation_id, response = decode_response(Api.HEARTBEAT, version, frame)
                assert correlation_id == number
                assert response.error_code == wanted[number % 4]
            time.sleep(max(0.0, sent + 0.1 - time.monotonic()))
    assert slowest < scaled(2), f"another client had to wait {slowest:.1f} s"


def test_two_connections_that_use_one_member_id_are_one_member(live: LiveGroup) -> None:
    with (
        RawMember(live.address, f"{live.name}-twins") as first,
        RawMember(live.address, f"{live.name}-twins") as third,
        RawMember(live.address, f"{live.name}-twins") as second,
    ):
        settle([first, third])
        second.member_id, second.generation = first.member_id, first.generation
        assert second.ask_heartbeat() == ErrorCode.NONE
        # Both ask to join the next generation: the later one is the member's word.
        newer = protocols({**RANGE, "newer": b""})
        first.send_join(protocols=newer)
        wait_for(lambda: _unless(describe(live.address, first.group).group_state, "Preparing"))
        second.send_join(protocols=newer)
        assert first.receive_join().error_code == ErrorCode.REBALANCE_IN_PROGRESS
        third.send_join()
        joined = [second.receive_join(), third.receive_join()]
        assert [result.error_code for result in joined] == [ErrorCode.NONE] * 2
        assert len(describe(live.address, first.group).members) == 2
        first.generation = second.generation
        assert first.ask_leave() == [ErrorCode.NONE]
        assert second.ask_heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def _unless(state: str, wanted: str) -> str | None:
    return None if state.startswith(wanted) else f"the group is {state}"


def test_thousands_of_protocols_are_counted_like_one(live: LiveGroup) -> None:
    many = {f"protocol-{number}": b"" for number in range(5_000)}
    with (
        RawMember(live.address, f"{live.name}-many") as first,
        RawMember(live.address, f"{live.name}-many") as second,
    ):
        settle([first], protocols=protocols({**RANGE, **many}))
        second.get_id()
        second.send_join()
        first.send_join(protocols=protocols({**many, **RANGE}))
        assert first.receive_join().protocol_name == "range"
        assert second.receive_join().protocol_name == "range"
    with RawMember(live.address, live.name) as other:
        answer = other.ask_join(protocols=protocols(many))
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_tells_megabytes_about_itself_is_not_let_in(live: LiveGroup) -> None:
    name = f"{live.name}-heavy"
    with RawMember(live.address, name) as member:
        for size in (2 * MB, 90 * MB):
            answer = member.ask_join(protocols=protocols({"range": bytes(size)}))
            assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert describe(live.address, name).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_assignment_of_megabytes_is_refused_and_the_group_can_try_again(live: LiveGroup) -> None:
    with RawMember(live.address, f"{live.name}-heavy") as member:
        settle([member])
        for size in (2 * MB, 90 * MB):
            assert member.ask_join().error_code == ErrorCode.NONE
            answer = member.ask_sync({member.member_id: bytes(size)})
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert member.ask_join().error_code == ErrorCode.NONE
        answer = member.ask_sync({member.member_id: b"less"})
        assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"less")


def test_a_commit_larger_than_a_segment_is_taken_and_the_coordinator_lives_on(
    live: LiveGroup,
) -> None:
    """The same partition again and again, each time with all the metadata it may have."""
    name = f"{live.name}-endless-{'n' * 20_000}"
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=0, committed_offset=number, committed_metadata="m" * 4096
        )
        for number in range(5_000)
    ]
    request = OffsetCommitRequest(
        group_id=name,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="here", partitions=partitions)],
    )
    with Wire(live.address) as wire:
        [topic] = wire.ask(request, 9).topics
    assert {partition.error_code for partition in topic.partitions} == {ErrorCode.NONE}
    assert committed(live.address, name) == {("here", 0): (4_999, "m" * 4096, -1)}


def test_offsets_of_groups_that_nobody_knows_are_minus_one(live: LiveGroup) -> None:
    with Wire(live.address) as wire:
        for version in every_version(Api.OFFSET_FETCH):
            if version > 9:
                break
            request = fetch_request("nobody's", {"here": [0, 77], "nowhere": [0]}, version)
            found = fetched(wire.ask(request, version), version)
            assert {where: entry.committed_offset for where, entry in found.items()} == {
                ("here", 0): -1,
                ("here", 77): -1,
                ("nowhere", 0): -1,
            }
            if version >= 2:
                assert not fetched(
                    wire.ask(fetch_request("nobody's", None, version), version), version
                )
    assert describe(live.address, "nobody's").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_that_live_or_never_were_cannot_be_deleted(live: LiveGroup) -> None:
    names = [live.name, "nobody's", "", live.name]
    with Wire(live.address) as wire:
        results = wire.ask(DeleteGroupsRequest(groups_names=names)).results
    assert {result.group_id: result.error_code for result in results} == {
        live.name: ErrorCode.NON_EMPTY_GROUP,
        "nobody's": ErrorCode.GROUP_ID_NOT_FOUND,
        "": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_offsets_of_a_topic_that_members_read_cannot_be_deleted(live: LiveGroup) -> None:
    topic = OffsetDeleteRequestTopic(
        name="here", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    with Wire(live.address) as wire:
        answer = wire.ask(OffsetDeleteRequest(group_id=live.name, topics=[topic]))
        unknown = wire.ask(OffsetDeleteRequest(group_id="nobody's", topics=[topic]))
    [partition] = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_there_are_no_coordinators_of_a_kind_that_does_not_exist(live: LiveGroup) -> None:
    with Wire(live.address) as wire:
        for version in every_version(Api.FIND_COORDINATOR):
            if version == 0:
                continue
            answer = wire.ask(
                FindCoordinatorRequest(key="x", key_type=9, coordinator_keys=["x"]), version
            )
            found = answer.coordinators[0] if version >= 4 else answer
            assert found.error_code == ErrorCode.INVALID_REQUEST
