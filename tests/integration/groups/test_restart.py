"""What groups know survives the broker: a clean stop and a kill, at rest and in mid-rebalance."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from random import Random

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.protocol.schema import encode_message
from headrace.testing.time_limits import Deadline
from tests.integration.groups.consumers import (
    Group,
    Partition,
    closing,
    describe,
    wait_for,
    wait_settled,
)
from tests.integration.groups.history import check_history
from tests.integration.groups.raw import (
    COMMIT_BY_NAME,
    FETCH_BY_NAME,
    RawMember,
    commit_codes,
    commit_request,
    protocols,
    settle,
    wait_for_coordinator,
)
from tests.integration.groups.stream import Stream
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess

GROUPS = 1000
PIPELINED = 100

Offsets = dict[tuple[str, int], tuple[int, str, int]]


@pytest.fixture(params=["stop", "kill"])
def end(request: pytest.FixtureRequest) -> Callable[[BrokerProcess], None]:
    """How the broker goes down."""
    return BrokerProcess.stop if request.param == "stop" else BrokerProcess.kill


def offsets_of(groups: list[str], wire: Wire) -> dict[str, Offsets] | str:
    """Everything the groups have committed, or why it cannot be told yet."""
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in groups]
    found: dict[str, Offsets] = {}
    for group in wire.ask(OffsetFetchRequest(groups=asked), FETCH_BY_NAME).groups:
        if group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return f"{group.group_id} is being loaded"
        assert group.error_code == ErrorCode.NONE
        found[group.group_id] = {
            (topic.name, partition.partition_index): (
                partition.committed_offset,
                partition.metadata,
                partition.committed_leader_epoch,
            )
            for topic in group.topics
            for partition in topic.partitions
        }
    return found


def commit_all(wire: Wire, wanted: dict[str, Offsets]) -> None:
    """A commit for every partition of every group, many of them under way at a time."""
    requests = [
        commit_request(name, {where: offset}, metadata, epoch)
        for name, offsets in wanted.items()
        for where, (offset, metadata, epoch) in offsets.items()
    ]
    for start in range(0, len(requests), PIPELINED):
        some = requests[start : start + PIPELINED]
        for request in some:
            wire.send(request, COMMIT_BY_NAME)
        for _ in some:
            assert set(commit_codes(wire.receive()).values()) == {ErrorCode.NONE}


def test_a_thousand_groups_have_all_their_offsets_after_a_restart(
    broker: BrokerProcess, end: Callable[[BrokerProcess], None]
) -> None:
    random = Random(7)
    create_topic(broker.address, "here", 3)
    names = [f"group-{number}-{random.getrandbits(32)}" for number in range(GROUPS)]

    def any_offsets() -> dict[str, Offsets]:
        return {
            name: {
                ("here", partition): (random.getrandbits(62), f"é{random.random()}", partition)
                for partition in range(random.randrange(1, 4))
            }
            for name in names
        }

    wait_for_coordinator(broker.address, names[0])
    first, second = any_offsets(), any_offsets()
    with Wire(broker.address) as wire:
        commit_all(wire, first)
        commit_all(wire, second)
        wanted = {name: {**first[name], **second[name]} for name in names}
        assert offsets_of(names, wire) == wanted
    end(broker)
    broker.start()
    with Wire(broker.address) as wire:
        wait_for(lambda: found if isinstance(found := offsets_of(names, wire), str) else None)
        assert offsets_of(names, wire) == wanted


def test_no_commit_that_was_acknowledged_is_lost_to_a_kill_in_the_middle_of_many(
    broker: BrokerProcess,
) -> None:
    create_topic(broker.address, "here")
    wait_for_coordinator(broker.address, "any")
    names = [f"group-{number}" for number in range(50)]
    acknowledged = dict.fromkeys(names, -1)
    sent = [(name, offset) for offset in range(100) for name in names]
    with Wire(broker.address) as wire:
        for name, offset in sent:
            wire.send(commit_request(name, {("here", 0): offset}), COMMIT_BY_NAME)
        for name, offset in sent[:2000]:
            assert commit_codes(wire.receive()) == {("here", 0): ErrorCode.NONE}
            acknowledged[name] = offset
        broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        wait_for(lambda: found if isinstance(found := offsets_of(names, wire), str) else None)
        kept = offsets_of(names, wire)
    assert isinstance(kept, dict)
    for name, offset in acknowledged.items():
        assert offset <= kept[name]["here", 0][0] < 100


def test_members_of_a_group_go_on_after_a_restart_as_if_nothing_had_been(
    broker: BrokerProcess, end: Callable[[BrokerProcess], None]
) -> None:
    create_topic(broker.address, "here")
    wait_for_coordinator(broker.address, "workers")
    with ExitStack() as stack:
        members = [RawMember(broker.address, "workers", instance=name) for name in (None, "two")]
        settle([stack.enter_context(member) for member in members])
        before = describe(broker.address, "workers")
        end(broker)
        broker.start()
        wait_for_coordinator(broker.address, "workers")
        assert describe(broker.address, "workers") == before
        for member in members:
            member.reconnect()
            assert member.ask_heartbeat() == ErrorCode.NONE
            assert member.ask_sync().assignment == member.member_id.encode()
            assert set(member.ask_commit({("here", 0): 5}).values()) == {ErrorCode.NONE}
            generation = member.generation - 1
            assert member.ask_heartbeat(generation_id=generation) == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("end", ["stop", "kill"], indirect=True)
def test_consumers_carry_on_after_a_restart_in_the_middle_of_a_rebalance(
    start_broker: Callable[..., BrokerProcess], end: Callable[[BrokerProcess], None]
) -> None:
    """A member that does not join again keeps the rebalance under way until the broker is gone."""
    broker = start_broker(**{"group.min.session.timeout.ms": "1000"})
    create_topic(broker.address, "here", 4)
    partitions: list[Partition] = [("here", index) for index in range(4)]
    groups = [
        Group(broker.address, f"group-of-{client}", client, topics=["here"])
        for client in ("headrace", "librdkafka", "kafka-python", "aiokafka")
    ]
    silent = [RawMember(broker.address, group.name) for group in groups]
    with ExitStack() as stack:
        stack.enter_context(closing(groups))
        stream = stack.enter_context(Stream(broker.address, partitions))
        for group in groups:
            group.start()
        wait_settled(groups, partitions)
        for member in silent:
            stack.enter_context(member)
            join_beside_consumers(member)
        for group in groups:
            group.start()
        for group in groups:
            wait_for(partial(unless_rebalancing, broker.address, group.name, 3))
        end(broker)
        broker.start()
        for member in silent:
            wait_for_coordinator(broker.address, member.group)
            member.reconnect()
            assert member.ask_leave() == [ErrorCode.NONE]
        wait_settled(groups, partitions)
        stream.wait_read(groups)
        for group in groups:
            group.close(list(group.members))
            check_history(group)


def join_beside_consumers(member: RawMember) -> None:
    """Become a member that wants no partitions, beside a consumer that leads."""
    nothing = b"\0\0" + encode_message(ConsumerProtocolSubscription(topics=[]), 0)
    wants_nothing = protocols({"range": nothing})
    assert member.ask_join(protocols=wants_nothing).error_code == ErrorCode.MEMBER_ID_REQUIRED
    deadline = Deadline(60)
    while True:
        assert member.ask_join(protocols=wants_nothing).error_code == ErrorCode.NONE
        code = member.ask_sync().error_code
        # On a busy machine a consumer may begin another rebalance before this member has synced.
        if code != ErrorCode.REBALANCE_IN_PROGRESS or deadline.has_passed:
            break
    assert code == ErrorCode.NONE
    assert describe(member.address, member.group).group_state == "Stable"


def unless_rebalancing(address: str, group: str, count: int) -> str | None:
    described = describe(address, group)
    is_so = described.group_state == "PreparingRebalance" and len(described.members) == count
    return None if is_so else f"{group} is {described.group_state}"
