"""Members of consumer groups as their clients are: they own, give up and report partitions."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.coordinator.groups.topic_catalog import CatalogTopic
from headrace.coordinator.shard import RequestClient
from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.consumer_group_describe import DescribedGroup
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    TopicPartitions,
)
from tests.unit.coordinator.driving import CLIENT, GROUP, Shell

VERSION = 1
REBALANCE_MS = 60_000


def id_of(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


class Topics:
    """A catalog that tests change."""

    def __init__(self, **sizes: int) -> None:
        self.version = 1
        self.names_version = 1
        self._topics: dict[str, CatalogTopic] = {}
        self.set(**sizes)

    def set(self, **sizes: int) -> None:
        self.version += 1
        for name, size in sizes.items():
            if name not in self._topics:
                self.names_version = self.version
            self._topics[name] = CatalogTopic(id_of(name), name, size)

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def by_name(self, name: str) -> CatalogTopic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: bytes) -> CatalogTopic | None:
        return next((each for each in self._topics.values() if each.topic_id == topic_id), None)

    def names(self) -> Collection[str]:
        return self._topics.keys()


Owned = frozenset[tuple[str, int]]


def owned_of(partitions: Iterable[ConsumerGroupHeartbeatResponseTopicPartitions]) -> Owned:
    return frozenset(
        (topic.topic_id.lstrip(b"\0").decode(), partition)
        for topic in partitions
        for partition in topic.partitions
    )


def as_request(owned: Owned) -> list[TopicPartitions]:
    names = sorted({name for name, _ in owned})
    return [
        TopicPartitions(
            topic_id=id_of(name),
            partitions=sorted(partition for topic, partition in owned if topic == name),
        )
        for name in names
    ]


@dataclass
class Member:
    """A client that is a member of a group."""

    shell: Shell
    member_id: str
    topics: Sequence[str] | None = ("t",)
    pattern: str | None = None
    instance: str | None = None
    assignor: str | None = None
    rebalance_ms: int = REBALANCE_MS
    client: RequestClient = CLIENT
    group: str = GROUP
    epoch: int = 0
    owned: Owned = frozenset()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    interval_ms: int = 0
    given: Owned | None = field(default=None)

    def send(self, request: ConsumerGroupHeartbeatRequest, version: int = VERSION) -> int:
        return self.shell.send(request, version, self.client)

    def heard(self, token: int) -> ConsumerGroupHeartbeatResponse:
        """Take over what a response says, but do not give anything up."""
        answer = self.shell.answers[token]
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.error = error_code(answer.error_code)
        self.message = answer.error_message
        self.given = None
        if self.error is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            self.interval_ms = answer.heartbeat_interval_ms
            if answer.assignment is not None:
                self.given = owned_of(answer.assignment.topic_partitions)
                self.owned |= self.given
        return answer

    def full_request(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=self.rebalance_ms,
            subscribed_topic_names=None if self.topics is None else list(self.topics),
            subscribed_topic_regex=self.pattern,
            server_assignor=self.assignor,
            topic_partitions=as_request(self.owned),
        )

    def join(self) -> ErrorCode:
        self.epoch, self.owned = 0, frozenset()
        self.heard(self.send(self.full_request()))
        return self.error

    def beat(self, *, report: bool = True, full: bool = False) -> ErrorCode:
        """A heartbeat; partitions that it takes away are given up, and reported next time."""
        request = self.full_request()
        if not full:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance,
                topic_partitions=as_request(self.owned) if report else None,
            )
        self.heard(self.send(request))
        return self.error

    def give_up(self) -> None:
        """Stop reading what the last response did not assign."""
        if self.given is not None:
            self.owned = self.given

    def step(self) -> ErrorCode:
        """A heartbeat, and what a client does with its response; it joins again if it is fenced."""
        code = self.beat()
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            return self.join()
        self.give_up()
        return code

    def leave(self, epoch: int = -1) -> ErrorCode:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance,
        )
        self.heard(self.send(request))
        self.owned = frozenset()
        return self.error


def described(shell: Shell, group: str = GROUP) -> DescribedGroup:
    return shell.shard.describe_consumer_group(group)


def settle(*members: Member, rounds: int = 6) -> None:
    """Let all members send heartbeats until nothing moves."""
    for _ in range(rounds):
        for member in members:
            assert member.step() is ErrorCode.NONE, member
        members[0].shell.advance(5_000)
