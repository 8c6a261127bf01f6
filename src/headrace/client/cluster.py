"""A cluster as a client sees it: which broker leads what, connections to them, and retries.

Rule: the first contact is tried once, so that a wrong address is reported at once. After it, errors
that pass by themselves are retried, with growing pauses, until the deadline.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from headrace.client.addresses import Address
from headrace.client.backoff import delay_s
from headrace.client.connection import Connection
from headrace.client.failures import ConnectionFailed, TimedOut, UnknownTopic, Unreachable
from headrace.client.metadata import Broker, Partition, Topic, View, view_of
from headrace.client.outcomes import check
from headrace.clock import Clock, SystemClock
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

CONNECT_S_MAX = 10.0
# How long an automatically created topic may take to appear.
CREATION_S_MAX = 5.0

_NEVER_ASKED = View(None, -1, {}, {}, {})

Result = TypeVar("Result")


class Connector(Protocol):
    """How to open a connection; `Connection.open`, or what a test puts in its place."""

    def __call__(
        self, address: Address, deadline: float, *, client_id: str, clock: Clock
    ) -> Connection: ...


class Cluster:
    """Connections to the brokers of one cluster, and its metadata. Not thread-safe.

    A deadline is an instant of the clock's `monotonic()`; every operation has one.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "headrace",
        timeout_s: float = 30.0,
        clock: Clock | None = None,
        rng: Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
        connect: Connector = Connection.open,
    ) -> None:
        self.timeout_s = timeout_s
        self.clock = clock or SystemClock()
        self.rng = rng or Random()
        self.sleep = sleep
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._connect = connect
        self._connections: dict[Address, list[Connection]] = {}
        self._view = _NEVER_ASKED
        self._topics: dict[str, Topic] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for pool in self._connections.values():
            for connection in pool:
                connection.close()
        self._connections.clear()

    @property
    def was_reached(self) -> bool:
        """Whether a broker has answered since the start."""
        return self._view is not _NEVER_ASKED

    def deadline(self, timeout_s: float | None = None) -> float:
        """The instant at which an operation that starts now must be done."""
        return self.clock.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)

    def view(self, deadline: float | None = None) -> View:
        """Brokers and controller as last heard, asked for if never heard."""
        if not self.was_reached:
            self.refresh((), self.deadline() if deadline is None else deadline)
        return self._view

    def refresh(
        self, names: Iterable[str] | None, deadline: float, *, create: bool = False
    ) -> View:
        """Ask for the metadata of some topics, or of all with None. Asks once."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        response = self.any_connection(deadline).call(request, deadline)
        check(response.error_code, subject="metadata")
        view = view_of(response)
        self._view = view
        for name in view.errors:
            self._topics.pop(name, None)
        self._topics |= view.topics
        return view

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Drop what is known of some topics, or of all: it proved to be out of date."""
        if names is None:
            self._topics.clear()
        else:
            for name in names:
                self._topics.pop(name, None)

    def topics(
        self, names: Sequence[str], deadline: float | None = None, *, create: bool = False
    ) -> dict[str, Topic]:
        """The named topics; UnknownTopic if one does not exist and is not created by asking."""
        deadline = self.deadline() if deadline is None else deadline
        creation_deadline = min(deadline, self.deadline(CREATION_S_MAX))

        def ask() -> dict[str, Topic]:
            missing = [name for name in names if name not in self._topics]
            view = self.refresh(missing, deadline, create=create) if missing else self._view
            for name in missing:
                self._check_described(
                    view, name, create and self.clock.monotonic() < creation_deadline
                )
            return {name: self._topics[name] for name in names}

        return self.retrying(ask, deadline)

    def _check_described(self, view: View, name: str, being_created: bool) -> None:
        code = view.errors.get(name, ErrorCode.NONE)
        if code is ErrorCode.NONE and name not in view.topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # A topic that is just being created is unknown for a moment.
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not being_created:
            raise UnknownTopic(f"topic {name} does not exist")
        check(code, subject=f"topic {name}")

    def partition(self, tp: TopicPartition, deadline: float | None = None) -> Partition:
        """Where a partition is; LEADER_NOT_AVAILABLE while nobody leads it."""
        topic = self.topics([tp.topic], deadline)[tp.topic]
        for partition in topic.partitions:
            if partition.index == tp.partition:
                if partition.leader < 0:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
                return partition
        count = len(topic.partitions)
        raise UnknownTopic(
            f"topic {tp.topic} has no partition {tp.partition};"
            f" it has {count}, numbered from 0 to {count - 1}"
        )

    def by_leader(
        self, partitions: Iterable[TopicPartition], deadline: float | None = None
    ) -> dict[int, list[TopicPartition]]:
        """The partitions grouped by the broker that leads them."""
        groups: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            groups.setdefault(self.partition(tp, deadline).leader, []).append(tp)
        return groups

    def connection(self, node_id: int, deadline: float, *, idle: bool = False) -> Connection:
        """The connection to one broker, for pipelining; with `idle`, one with nothing in flight."""
        broker = self.view(deadline).brokers.get(node_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} is not part of the cluster now"
            )
        return self._connection_to(broker.address, deadline, idle)

    def any_connection(self, deadline: float) -> Connection:
        """An idle connection to whichever broker answers; an open one if there is one."""
        for pool in self._connections.values():
            for connection in pool:
                if connection.is_open and not connection.in_flight:
                    return connection
        failures: list[ConnectionFailed] = []
        for address in self._candidates():
            try:
                return self._connection_to(address, deadline, True)
            except ConnectionFailed as error:
                failures.append(error)
        raise _unreachable(failures)

    def call(self, request: Message, deadline: float, node_id: int | None = None) -> Any:
        """Ask one broker, or any, once."""
        if node_id is None:
            connection = self.any_connection(deadline)
        else:
            connection = self.connection(node_id, deadline, idle=True)
        return connection.call(request, deadline)

    def retrying(self, operation: Callable[[], Result], deadline: float) -> Result:
        """What `operation` returns, tried again after errors that pass by themselves."""
        for attempts in count():
            try:
                return operation()
            except (KafkaError, ConnectionFailed, Unreachable) as error:
                if not self.passes(error):
                    raise
                pause_s = delay_s(attempts, self.rng)
                if self.clock.monotonic() + pause_s >= deadline:
                    raise TimedOut(f"gave up after {self.timeout_s:g} s: {error}") from None
                self.forget()
            self.sleep(pause_s)
        raise AssertionError("count() never ends")

    def passes(self, error: HeadraceError) -> bool:
        """Whether an error may be gone at the next attempt."""
        if isinstance(error, UnknownTopic):
            return False
        if isinstance(error, KafkaError):
            return error.code.retriable
        return isinstance(error, ConnectionFailed | Unreachable) and self.was_reached

    def brokers(self, deadline: float | None = None) -> list[Broker]:
        """The brokers of the cluster, by their ids."""
        brokers = self.view(deadline).brokers
        return [brokers[node_id] for node_id in sorted(brokers)]

    def _candidates(self) -> list[Address]:
        """Every address a broker may be at, those the cluster told us first."""
        known = [broker.address for broker in self._view.brokers.values()]
        self.rng.shuffle(known)
        return list(dict.fromkeys([*known, *self._bootstrap]))

    def _connection_to(self, address: Address, deadline: float, idle: bool) -> Connection:
        pool = [one for one in self._connections.get(address, ()) if one.is_open]
        self._connections[address] = pool
        for connection in pool:
            if not idle or not connection.in_flight:
                return connection
        connect_deadline = min(deadline, self.deadline(CONNECT_S_MAX))
        connection = self._connect(
            address, connect_deadline, client_id=self._client_id, clock=self.clock
        )
        pool.append(connection)
        return connection


def _unreachable(failures: list[ConnectionFailed]) -> Unreachable:
    assert failures, "a cluster has at least one bootstrap address"
    if len(failures) == 1:
        return Unreachable(f"no broker at {failures[0]}")
    tried = ", ".join(str(failure.address) for failure in failures)
    return Unreachable(f"no broker can be reached, tried {tried}; the last error: {failures[-1]}")
