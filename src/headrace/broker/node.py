"""What handlers work with: the parts of a running node, and one request's circumstances."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.coordination.coordinators import Coordinators
from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.coordination.transactions import Transactions
from headrace.broker.coordination.turns import Turns
from headrace.broker.coordination.verifier import Verifier
from headrace.broker.fetch_purgatory import FetchPurgatory
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.outgoing import Outgoing
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.replication.replicas import Replicas
from headrace.broker.telemetry import ClientTelemetry
from headrace.broker.workers import Workers
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.config.settings import LONG_MAX
from headrace.coordinator.groups import GroupShard
from headrace.net.connection import Connection
from headrace.protocol.api import RequestHeader
from headrace.protocol.markers import Marker
from headrace.protocol.messages.api_versions import ApiVersion
from headrace.replication.throttle import Throttle
from headrace.storage.directory import DataDirectory
from headrace.storage.manager import LogManager
from headrace.storage.scrubbing import Progress
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.cluster.controller import Controller
    from headrace.broker.cluster.controller_link import ControllerLink
    from headrace.broker.cluster.membership import Membership
    from headrace.broker.quorum.quorum import Quorum
    from headrace.broker.replication.fetchers import Fetchers
    from headrace.broker.replication.isr import IsrKeeper

# A marker in a partition, with the leader epoch in which it was written.
UncommittedMarker: TypeAlias = tuple[TopicPartition, int, Marker]


@dataclass(slots=True)
class Node:
    """The parts of one node. `config` is replaced when a dynamic setting changes.

    `controller` decides things only while `store.is_active`, and is None without that role.
    """

    node_id: int
    cluster_id: str
    config: BrokerConfig
    clock: Clock
    rng: Random
    workers: Workers
    logs: LogManager
    quorum: "Quorum"
    store: MetadataStore
    controllers: "ControllerLink"
    controller: "Controller | None"
    membership: "Membership"
    replicas: Replicas
    fetchers: "Fetchers"
    isr: "IsrKeeper"
    fetch_purgatory: FetchPurgatory
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    groups: Coordinators[GroupShard]
    group_topics: GroupTopics
    transactions: Transactions
    verifier: Verifier
    producer_turns: Turns = field(default_factory=Turns)
    outgoing: Outgoing = field(default_factory=Outgoing)
    telemetry: ClientTelemetry = field(default_factory=ClientTelemetry)
    # Markers that leaders here have written, until they are committed or leadership ends.
    uncommitted_markers: "dict[UncommittedMarker, asyncio.Future[Any]]" = field(
        default_factory=dict
    )
    leader_throttle: Throttle = field(default_factory=lambda: Throttle(LONG_MAX))
    # Set once clients may be answered: from an image that is up to date, with all logs open.
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    closing: bool = False
    # How far each data directory has been read again to find damage, as `Scrubber` keeps it.
    scrub_progress: dict[DataDirectory, Progress] = field(default_factory=dict)
    # Set when a replica is to move to another data directory, for who copies it.
    move_wanted: asyncio.Event = field(default_factory=asyncio.Event)


class RequestContext:
    """One request: who is asked, the header it came with, and the address it came from.

    `listener` names where it came in, and `announced` are the APIs that may be asked there.
    `connection` is None for requests of this node's own and for those that another node passed on.
    """

    __slots__ = ("announced", "connection", "header", "host", "listener", "node")

    def __init__(
        self,
        node: Node,
        header: RequestHeader,
        host: str,
        listener: str | None = None,
        announced: list[ApiVersion] | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.node = node
        self.header = header
        self.host = host
        self.listener = listener
        self.announced = announced or []
        self.connection = connection

    @property
    def version(self) -> int:
        return self.header.api_version
