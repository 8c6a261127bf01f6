"""Groups of real consumers that grow, shrink, crash and stand still, while records keep coming.

Each client is tried with every way of assigning partitions that it offers, one group for each, all
groups on the same topics at the same time.
"""

from collections.abc import Callable, Sequence

import pytest

from tests.integration.groups.consumers import (
    ASSIGNED_SETTINGS,
    Group,
    Member,
    Partition,
    closing,
    partitions_of,
    wait_settled,
)
from tests.integration.groups.history import check_history
from tests.integration.groups.stream import Stream
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

STRATEGIES = {
    "headrace": ["range", "roundrobin", "sticky", "cooperative-sticky"],
    "librdkafka": ["range", "roundrobin", "cooperative-sticky"],
    # Groups whose coordinator assigns.
    "librdkafka-assigned": ["uniform", "range"],
    "kafka-python": ["range", "roundrobin", "sticky", "cooperative-sticky"],
    "aiokafka": ["range", "roundrobin", "sticky"],
}
# Two topics, each with a number of partitions that does not divide evenly.
PARTITIONS: list[Partition] = [
    (topic, index) for topic in ("apples", "pears") for index in range(5)
]


TOPICS = ["apples", "pears"]


class Cast:
    """Groups that go through the same steps side by side, and what is true after each step."""

    def __init__(self, groups: Sequence[Group], stream: Stream) -> None:
        self.groups = groups
        self._stream = stream

    def step(self, change: Callable[[Group], object], *, is_calm: bool = True) -> None:
        """Change every group; all settle, lose nothing and move nothing without need.

        If it is not calm, a cooperative group may let go partitions and take them up again.
        """
        before = {group: group.assignment for group in self.groups}
        marks = {member: len(member.reports) for group in self.groups for member in group.members}
        for group in self.groups:
            change(group)
        wait_settled(self.groups, PARTITIONS)
        self._stream.wait_read(self.groups)
        for group in self.groups:
            if "sticky" in group.strategy:
                check_moves(before[group], group.assignment)
            # Members that leave one after the other have `range` move a partition and move it back.
            if group.is_cooperative and is_calm and group.strategy != "range":
                check_revocations(before[group], group.assignment, marks)

    def end(self) -> None:
        for group in self.groups:
            group.close(list(group.members))
            check_history(group)


def check_moves(
    before: dict[Member, frozenset[Partition]], after: dict[Member, frozenset[Partition]]
) -> None:
    """Who has stayed only gained partitions, or only lost some to those who came."""
    stayed = before.keys() & after.keys()
    for member in stayed:
        kept, had, has = before[member] & after[member], before[member], after[member]
        assert kept in {had, has}, f"{member.name} had {sorted(had)} and got {sorted(has)}"
    if after.keys() <= before.keys():
        for member in stayed:
            assert before[member] <= after[member], f"{member.name} lost partitions for nothing"


def check_revocations(
    before: dict[Member, frozenset[Partition]],
    after: dict[Member, frozenset[Partition]],
    marks: dict[Member, int],
) -> None:
    """Members have given up what they do not have any more, once, and never let go the rest."""
    for member in before.keys() & after.keys():
        revoked = [
            partition
            for report in member.reports[marks[member] :]
            if report.kind == "revoked"
            for partition in partitions_of(report)
        ]
        assert sorted(revoked) == sorted(before[member] - after[member]), member.name


def pause_one(group: Group) -> None:
    """One member stands still for longer than it may, and its group goes on without it."""
    group.pause(group.members[0])


def resume_one(group: Group) -> None:
    group.resume(group.paused[0])


@pytest.fixture
def group_broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = start_broker(**{"group.min.session.timeout.ms": "1000"}, **ASSIGNED_SETTINGS)
    for topic in TOPICS:
        create_topic(broker.address, topic, 5)
    return broker


@pytest.mark.parametrize("client", STRATEGIES)
def test_every_record_is_read_and_every_partition_has_one_owner_whatever_members_do(
    group_broker: BrokerProcess, client: str
) -> None:
    address = group_broker.address
    groups = [
        Group(address, f"{client}-{strategy}", client, strategy=strategy, topics=TOPICS)
        for strategy in STRATEGIES[client]
    ]
    with closing(groups), Stream(address, PARTITIONS) as stream:
        cast = Cast(groups, stream)
        cast.step(lambda group: group.start())
        cast.step(lambda group: group.start(3))
        cast.step(lambda group: group.close(group.members[:1] + group.members[2:3]))
        cast.step(lambda group: group.kill(group.members[0]))
        cast.step(lambda group: group.start())
        cast.step(pause_one)
        # kafka-python comes back claiming what it had, and takes a partition that two claim from
        # both: it does not say in which generation it had it.
        cast.step(resume_one, is_calm=client != "kafka-python")
        cast.end()


def test_a_member_that_hung_past_its_session_changes_nothing_when_it_comes_back(
    group_broker: BrokerProcess,
) -> None:
    """It still believes in its partitions, and commits for them: others have them by now."""
    address = group_broker.address
    groups = [Group(address, f"{client}-hung", client, topics=TOPICS) for client in STRATEGIES]
    with closing(groups), Stream(address, PARTITIONS) as stream:
        cast = Cast(groups, stream)
        cast.step(lambda group: group.start(2))
        cast.step(lambda group: group.freeze(group.members[0]))
        cast.step(lambda group: group.thaw(group.paused[0]))
        cast.end()
