"""The client's metadata of a cluster, connections to its brokers, and retries.

Rule: retriable errors are retried, with growing pauses, until the deadline. A cluster that is not
`patient` reports a wrong address at once: until a broker has answered, it tries only once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVar

from headrace.client.backoff import Backoff
from headrace.client.cluster_metadata import (
    BrokerInfo,
    ClusterView,
    PartitionInfo,
    TopicInfo,
    view_of,
)
from headrace.client.errors import TimedOut, Unreachable, check
from headrace.client.metrics import AdminClientMetrics
from headrace.clock import Clock, SystemClock
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    Subject,
    UnknownTopic,
    unknown_partition,
    unknown_topic,
)
from headrace.net.addresses import Address
from headrace.net.client_connection import (
    PLAINTEXT,
    ClientConnection,
    ClientSecurity,
    ConnectionFailed,
    SecurityRefused,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

CONNECT_S_MAX = 10.0
# The time that an automatically created topic has to appear.
CREATION_S_MAX = 5.0
# The lane of requests that are answered at once; long polls have lanes of their own.
COMMON_LANE = ""

_NEVER_ASKED = ClusterView(None, -1, {}, {}, {})

Result = TypeVar("Result")


class NodeEndpoint(Protocol):
    """The address of a broker in a response; Fetch and Produce responses have the same fields."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Connector(Protocol):
    """A function that opens a connection: `ClientConnection.open`, or a test's substitute."""

    async def __call__(
        self, address: Address, timeout_s: float, *, client_id: str
    ) -> ClientConnection: ...


class ClusterClient:
    """Connections to the brokers of one cluster, and its metadata. For one event loop.

    A deadline is an instant of the clock's `monotonic()`; every operation has a deadline.
    Invariant: there is at most one connection for a broker and a lane.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "headrace",
        request_timeout_s: float = 30.0,
        metadata_max_age_s: float = 300.0,
        backoff: Backoff | None = None,
        patient: bool = True,
        clock: Clock | None = None,
        rng: Random | None = None,
        security: ClientSecurity = PLAINTEXT,
        connect: Connector | None = None,
    ) -> None:
        self.client_id = client_id
        self.request_timeout_s = request_timeout_s
        self.backoff = backoff or Backoff()
        self.clock = clock or SystemClock()
        self.rng = rng or Random()
        self._bootstrap = tuple(bootstrap)
        self._metadata_max_age_s = metadata_max_age_s
        self._patient = patient
        self._connect: Connector = connect or partial(ClientConnection.open, security=security)
        self._connections: dict[tuple[Address, str], ClientConnection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[ClientConnection]] = {}
        self._requests = AdminClientMetrics(self.clock)
        self._view = _NEVER_ASKED
        self._topics: dict[str, TopicInfo] = {}
        self._heard: dict[str, float] = {}

    async def close(self) -> None:
        """Close every connection; requests in flight end with ConnectionFailed."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def view(self) -> ClusterView:
        """The brokers and controller from the last metadata; empty before the first response."""
        return self._view

    @property
    def was_reached(self) -> bool:
        """Whether a broker has answered since the start."""
        return self._view is not _NEVER_ASKED

    def deadline(self, timeout_s: float | None = None) -> float:
        """The deadline of an operation that starts now."""
        timeout_s = self.request_timeout_s if timeout_s is None else timeout_s
        return self.clock.monotonic() + timeout_s

    # -- metadata

    def known_topic(self, name: str) -> TopicInfo | None:
        """A topic from the last metadata, however old; None if the topic is unknown."""
        return self._topics.get(name)

    def leader_of(self, tp: TopicPartition) -> PartitionInfo | None:
        """A partition from the last metadata, if its leader is a known broker; else None."""
        topic = self._topics.get(tp.topic)
        if topic is None:
            return None
        partition = topic.partition(tp.partition)
        return partition if partition and partition.leader in self._view.brokers else None

    def hear_brokers(self, endpoints: Iterable[NodeEndpoint]) -> None:
        """Update the broker addresses from a response (KIP-951)."""
        brokers = {
            endpoint.node_id: BrokerInfo(
                endpoint.node_id, Address(endpoint.host, endpoint.port), endpoint.rack
            )
            for endpoint in endpoints
        }
        if brokers:
            self._view = replace(self._view, brokers={**self._view.brokers, **brokers})

    def hear_leader(self, tp: TopicPartition, leader: int, epoch: int, responder: int) -> bool:
        """Update a partition's leader from the response of broker `asked` (KIP-951).

        True if the leader is another broker and the news is not older than the metadata: then a
        request may be sent to that broker at once.
        """
        topic = self._topics.get(tp.topic)
        known = topic and topic.partition(tp.partition)
        if not topic or not known or leader == responder or leader not in self._view.brokers:
            return False
        if epoch > known.leader_epoch:
            led = replace(known, leader=leader, leader_epoch=epoch)
            partitions = tuple(
                led if partition is known else partition for partition in topic.partitions
            )
            self._topics[tp.topic] = replace(topic, partitions=partitions)
            return True
        return epoch == known.leader_epoch and leader == known.leader

    async def heard_view(self, deadline: float | None = None) -> ClusterView:
        """The brokers and controller from the last metadata, requested if there is none yet."""
        if not self.was_reached:
            deadline = self.deadline() if deadline is None else deadline
            await self.retrying(lambda: self.refresh((), deadline), deadline)
        return self._view

    async def refresh(
        self, names: Iterable[str] | None, deadline: float, *, create: bool = False
    ) -> ClusterView:
        """Request the metadata of some topics, or of all with None. One attempt."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        response = await self.call(request, deadline)
        check(response.error_code, subject=Subject("metadata"))
        view = view_of(response)
        self._view = view
        if names is None:
            self.forget()
        for name in view.errors:
            self.forget([name])
        now = self.clock.monotonic()
        self._topics |= view.topics
        self._heard |= dict.fromkeys(view.topics, now)
        return view

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Drop the metadata of some topics, or of all, because it proved to be out of date."""
        for name in list(self._topics) if names is None else names:
            self._topics.pop(name, None)
            self._heard.pop(name, None)

    async def topics(
        self, names: Sequence[str], deadline: float | None = None, *, create: bool = False
    ) -> dict[str, TopicInfo]:
        """The named topics; UnknownTopic if a topic does not exist and is not auto-created."""
        deadline = self.deadline() if deadline is None else deadline
        creation_deadline = min(deadline, self.deadline(CREATION_S_MAX))

        async def attempt() -> dict[str, TopicInfo]:
            missing = [name for name in names if not self._is_fresh(name)]
            view = await self.refresh(missing, deadline, create=create) if missing else self._view
            for name in missing:
                being_created = create and self.clock.monotonic() < creation_deadline
                _check_described(view, name, being_created)
            return {name: self._topics[name] for name in names}

        return await self.retrying(attempt, deadline)

    async def all_topics(self, deadline: float | None = None) -> dict[str, TopicInfo]:
        """Every topic, from a new metadata request."""
        deadline = self.deadline() if deadline is None else deadline
        view = await self.retrying(lambda: self.refresh(None, deadline), deadline)
        return dict(view.topics)

    async def partition(self, tp: TopicPartition, deadline: float | None = None) -> PartitionInfo:
        """A partition that has a leader; LEADER_NOT_AVAILABLE while it has none."""
        topic = (await self.topics([tp.topic], deadline))[tp.topic]
        if topic.partition(tp.partition) is None:
            # It may have been added since the last metadata.
            self.forget([tp.topic])
            topic = (await self.topics([tp.topic], deadline))[tp.topic]
        partition = topic.partition(tp.partition)
        if partition is None:
            raise unknown_partition(tp.topic, tp.partition, len(topic.partitions))
        if partition.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        return partition

    async def by_leader(
        self, partitions: Iterable[TopicPartition], deadline: float | None = None
    ) -> dict[int, list[TopicPartition]]:
        """The partitions grouped by their leader."""
        groups: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            leader = (await self.partition(tp, deadline)).leader
            groups.setdefault(leader, []).append(tp)
        return groups

    async def brokers(self, deadline: float | None = None) -> list[BrokerInfo]:
        """The brokers of the cluster, in order of their ids."""
        brokers = (await self.heard_view(deadline)).brokers
        return [brokers[node_id] for node_id in sorted(brokers)]

    # -- connections and requests

    async def connection(
        self, node_id: int, deadline: float, *, lane: str = COMMON_LANE
    ) -> ClientConnection:
        """The connection to a broker that requests of this lane share."""
        broker = (await self.heard_view(deadline)).brokers.get(node_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} is not part of the cluster now"
            )
        return await self._connection_to(broker.address, deadline, lane)

    async def call(
        self,
        request: Message,
        deadline: float,
        node_id: int | None = None,
        *,
        lane: str = COMMON_LANE,
        version_max: int | None = None,
    ) -> Any:
        """Send a request to one broker, or to any, and return the response. One attempt."""
        if node_id is None:
            connection = await self._any_connection(deadline)
        else:
            connection = await self.connection(node_id, deadline, lane=lane)
        return await self.ask(connection, request, deadline, version_max=version_max)

    async def ask(
        self,
        connection: ClientConnection,
        request: Message,
        deadline: float,
        *,
        version_max: int | None = None,
    ) -> Any:
        """Send a request over a connection and return the response, counted in `metrics`."""
        begun = self.clock.monotonic()
        try:
            response = await connection.ask(
                request, max(deadline - begun, 0.001), version_max=version_max
            )
        except ConnectionFailed:
            self._requests.request_failed()
            raise
        self._requests.request_done(self.clock.monotonic() - begun)
        return response

    def metrics(self) -> dict[str, float]:
        """What `call` and `ask` counted, under Kafka's names. May be called from any thread."""
        # One step for Python: the event loop may be opening a connection meanwhile.
        connections = list(self._connections.values())
        return self._requests.snapshot(sum(connection.is_open for connection in connections))

    async def retrying(self, operation: Callable[[], Awaitable[Result]], deadline: float) -> Result:
        """The result of `operation`, retried after retriable errors until the deadline."""
        begun = self.clock.monotonic()
        reason: HeadraceError | None = None
        for attempts in count():
            try:
                return await operation()
            except (KafkaError, ConnectionFailed, Unreachable) as error:
                if not self.passes(error):
                    raise
                now = self.clock.monotonic()
                # An attempt that the deadline cut short says less than the one before it.
                reason = error if reason is None or now < deadline else reason
                pause_s = self.backoff.delay_s(attempts, self.rng)
                if now + pause_s >= deadline:
                    raise _gave_up(reason, deadline - begun) from None
                self.forget()
            await asyncio.sleep(pause_s)
        raise AssertionError("count() never ends")

    def passes(self, error: HeadraceError) -> bool:
        """Whether an error is retriable."""
        if isinstance(error, UnknownTopic | SecurityRefused):
            return False
        if isinstance(error, KafkaError):
            return error.code.retriable
        if not isinstance(error, ConnectionFailed | Unreachable):
            return False
        return self._patient or self.was_reached

    def _is_fresh(self, name: str) -> bool:
        heard = self._heard.get(name)
        return heard is not None and self.clock.monotonic() - heard < self._metadata_max_age_s

    async def _any_connection(self, deadline: float) -> ClientConnection:
        """A connection to any broker that answers; an open connection is preferred."""
        for (_, lane), connection in self._connections.items():
            if connection.is_open and lane == COMMON_LANE:
                return connection
        failures: list[ConnectionFailed] = []
        for address in self._candidates():
            try:
                return await self._connection_to(address, deadline, COMMON_LANE)
            except ConnectionFailed as error:
                failures.append(error)
        for failure in failures:
            # None of the others is any better, and this one does not pass by itself.
            if isinstance(failure, SecurityRefused):
                raise failure
        raise _unreachable(failures)

    def _candidates(self) -> list[Address]:
        """Every known broker address: first those from the metadata, then the bootstrap servers."""
        known = [broker.address for broker in self._view.brokers.values()]
        self.rng.shuffle(known)
        return list(dict.fromkeys([*known, *self._bootstrap]))

    async def _connection_to(
        self, address: Address, deadline: float, lane: str
    ) -> ClientConnection:
        place = (address, lane)
        connection = self._connections.get(place)
        if connection is not None and connection.is_open:
            return connection
        task = self._opening.get(place)
        if task is None:
            timeout_s = min(CONNECT_S_MAX, max(deadline - self.clock.monotonic(), 0.001))
            task = asyncio.create_task(self._open(place, timeout_s))
            # Retrieved so that asyncio does not complain when no task waits for the connection any
            # more.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._opening[place] = task
        # Shared by all tasks that need the connection: cancelling one must not cancel the others.
        return await asyncio.shield(task)

    async def _open(self, place: tuple[Address, str], timeout_s: float) -> ClientConnection:
        try:
            connection = await self._connect(place[0], timeout_s, client_id=self.client_id)
            self._connections[place] = connection
            self._requests.connection_opened()
            return connection
        finally:
            del self._opening[place]


def _check_described(view: ClusterView, name: str, being_created: bool) -> None:
    code = view.errors.get(name, ErrorCode.NONE)
    if code is ErrorCode.NONE and name not in view.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # A topic that is being created is unknown for a moment.
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not being_created:
        raise unknown_topic(name)
    check(code, subject=Subject("topic", name))


def _gave_up(error: HeadraceError, waited_s: float) -> HeadraceError:
    """The error at a deadline: Unreachable if no broker was reached, else TimedOut; with the last
    error.
    """
    if isinstance(error, Unreachable):
        return Unreachable(f"gave up after {max(waited_s, 0):.3g} s: {error}")
    return TimedOut(f"gave up after {max(waited_s, 0):.3g} s: {error}")


def _unreachable(failures: list[ConnectionFailed]) -> Unreachable:
    assert failures, "a cluster has at least one bootstrap address"
    if len(failures) == 1:
        return Unreachable(f"no broker at {failures[0]}")
    tried = ", ".join(str(failure.address) for failure in failures)
    return Unreachable(f"no broker can be reached, tried {tried}; the last error: {failures[-1]}")
