"""Real consumers in groups whose coordinator assigns: static members, patterns, restarts."""

from collections.abc import Callable

import pytest

from tests.integration.groups.consumers import (
    ASSIGNED_SETTINGS,
    Group,
    Member,
    Partition,
    Report,
    closing,
    wait_for,
    wait_settled,
)
from tests.integration.groups.history import check_history
from tests.integration.groups.stream import Stream
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

PARTITIONS: list[Partition] = [("here", index) for index in range(4)]


@pytest.fixture
def group_broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = start_broker(**{"group.min.session.timeout.ms": "1000"}, **ASSIGNED_SETTINGS)
    create_topic(broker.address, "here", 4)
    return broker


def assigned_group(broker: BrokerProcess, **options: object) -> Group:
    options = {"strategy": "uniform", "topics": ["here"], **options}
    return Group(broker.address, "assigned", "librdkafka-assigned", **options)


def changes_of(member: Member) -> list[Report]:
    return [report for report in member.reports if report.kind in {"assigned", "revoked"}]


def test_a_static_member_that_restarts_has_its_partitions_and_nobody_notices(
    group_broker: BrokerProcess,
) -> None:
    group = assigned_group(group_broker)
    with closing([group]), Stream(group_broker.address, PARTITIONS) as stream:
        [left] = group.start(instance="left")
        [right] = group.start(instance="right")
        wait_settled([group], PARTITIONS)
        stream.wait_read([group])
        owned, changes = left.owned, changes_of(right)
        group.close([left])
        [again] = group.start(instance="left")
        wait_settled([group], PARTITIONS)
        stream.wait_read([group])
        assert again.owned == owned
        assert changes_of(right) == changes
        group.kill(again)
        wait_settled([group], PARTITIONS)
        assert right.owned == set(PARTITIONS)
        stream.wait_read([group])
        check_history(group)


def test_members_read_the_topics_that_match_their_pattern_and_come_later(
    group_broker: BrokerProcess,
) -> None:
    address = group_broker.address
    create_topic(address, "app-1", 2)
    group = assigned_group(group_broker, topics=[], pattern="^app-.*")
    with closing([group]):
        group.start(2)
        wait_settled([group], [("app-1", 0), ("app-1", 1)])
        create_topic(address, "app-2", 2)
        create_topic(address, "other-app-3", 2)
        wait_settled([group], [(name, n) for name in ("app-1", "app-2") for n in range(2)])
        group.close(list(group.members))


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_members_go_on_after_a_restart_of_the_broker(
    group_broker: BrokerProcess, is_clean: bool
) -> None:
    group = assigned_group(group_broker)
    with closing([group]), Stream(group_broker.address, PARTITIONS) as stream:
        group.start(2)
        wait_settled([group], PARTITIONS)
        stream.wait_read([group])
        before = group.assignment
        if is_clean:
            group_broker.stop()
        else:
            group_broker.kill()
        group_broker.start()
        wait_for(lambda: group.unsettled(PARTITIONS))
        stream.wait_read([group])
        assert group.assignment == before
        group.close(list(group.members))
        check_history(group)


def test_a_group_moves_to_the_protocol_and_back_member_by_member(
    group_broker: BrokerProcess,
) -> None:
    # After a rebalance librdkafka's cooperative-sticky leaves data of its own in assignments, which
    # the group would lose: it is not moved then, as in Kafka.
    classic = {"client": "librdkafka", "strategy": "range"}
    assigned = {"client": "librdkafka-assigned", "strategy": "uniform"}
    group = assigned_group(group_broker)
    with closing([group]), Stream(group_broker.address, PARTITIONS) as stream:
        for options in (classic, classic, assigned, assigned, classic, classic):
            if len(group.members) == 2:
                group.close(group.members[:1])
            group.start(1, **options)
            wait_settled([group], PARTITIONS)
            stream.wait_read([group])
        group.close(list(group.members))
        check_history(group)
