"""Static membership: who comes back in time has its partitions, and nobody else moves."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.testing.time_limits import scaled
from tests.integration.groups.consumers import (
    Group,
    Member,
    Partition,
    closing,
    describe,
    wait_for,
    wait_settled,
)
from tests.integration.groups.history import check_history
from tests.integration.groups.member import FENCED
from tests.integration.groups.stream import Stream
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess

PARTITIONS: list[Partition] = [("here", index) for index in range(4)]
SESSION_MS = 4000

_numbers = count(1)


class Pair:
    """Two static members, settled, with records coming in."""

    def __init__(self, group: Group, stream: Stream) -> None:
        self.group = group
        self.stream = stream
        [self.left] = group.start(instance="left")
        [self.right] = group.start(instance="right")
        wait_settled([group], PARTITIONS)
        stream.wait_read([group])

    def generation(self) -> int:
        """The group's generation: the one for which a heartbeat is accepted."""
        member_id = describe(self.group.address, self.group.name).members[0].member_id
        with Wire(self.group.address) as wire:
            for generation in range(1, 100):
                request = HeartbeatRequest(
                    group_id=self.group.name, generation_id=generation, member_id=member_id
                )
                if wire.ask(request).error_code != ErrorCode.ILLEGAL_GENERATION:
                    return generation
        raise AssertionError("no generation is the current one")


def changes_of(member: Member) -> int:
    return sum(report.kind in {"assigned", "revoked"} for report in member.reports)


@pytest.fixture(params=["headrace", "librdkafka"])
def pair(
    request: pytest.FixtureRequest, start_broker: Callable[..., BrokerProcess]
) -> Iterator[Pair]:
    broker = start_broker(**{"group.min.session.timeout.ms": "1000"})
    create_topic(broker.address, "here", 4)
    group = Group(
        broker.address,
        "static",
        request.param,
        topics=["here"],
        # A member that restarts must be back within its session, however slow the machine is.
        session_ms=int(scaled(SESSION_MS)),
        poll_interval_ms=int(scaled(10_000)),
    )
    with closing([group]), Stream(broker.address, PARTITIONS) as stream:
        yield Pair(group, stream)


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_a_static_member_that_restarts_in_time_has_its_partitions_and_nobody_notices(
    pair: Pair, is_clean: bool
) -> None:
    group = pair.group
    generation, owned = pair.generation(), pair.left.owned
    changes = changes_of(pair.right)
    if is_clean:
        group.close([pair.left])
    else:
        group.kill(pair.left)
    [again] = group.start(instance="left")
    wait_settled([group], PARTITIONS)
    pair.stream.wait_read([group])
    assert again.owned == owned
    assert pair.generation() == generation
    assert changes_of(pair.right) == changes
    check_history(group)


def test_a_static_member_that_stays_away_for_longer_than_its_session_is_replaced(
    pair: Pair,
) -> None:
    pair.group.close([pair.left])
    wait_settled([pair.group], PARTITIONS)
    pair.stream.wait_read([pair.group])
    assert pair.right.owned == set(PARTITIONS)
    check_history(pair.group)


def test_a_second_consumer_with_the_same_instance_id_fences_the_first(pair: Pair) -> None:
    group = pair.group
    owned, changes = pair.left.owned, changes_of(pair.right)
    described = describe(group.address, group.name)
    [old_id] = [
        member.member_id for member in described.members if member.group_instance_id == "left"
    ]
    [usurper] = group.start(instance="left")
    group.members.remove(pair.left)
    wait_for(lambda: None if pair.left.said("failed") else "the first is not fenced")
    failed = pair.left.said("failed")
    assert failed is not None
    assert failed.details in FENCED
    wait_settled([group], PARTITIONS)
    pair.stream.wait_read([group])
    assert usurper.owned == owned
    assert changes_of(pair.right) == changes
    request = HeartbeatRequest(
        group_id=group.name,
        generation_id=pair.generation(),
        member_id=old_id,
        group_instance_id="left",
    )
    with Wire(group.address) as wire:
        assert wire.ask(request).error_code == ErrorCode.FENCED_INSTANCE_ID
