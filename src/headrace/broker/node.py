"""The parts of a running node."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.coordination.producer_queue import Turns
from headrace.broker.coordination.runtime import Coordinators
from headrace.broker.coordination.transaction_coordinator import Transactions
from headrace.broker.coordination.transaction_verifier import Verifier
from headrace.broker.fetch_purgatory import FetchPurgatory, Outgoing
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.replication.replica_manager import Replicas
from headrace.broker.telemetry import ClientTelemetry
from headrace.broker.thread_pools import Workers
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.config.settings import LONG_MAX
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.metrics.registry import Registry
from headrace.protocol.markers import Marker
from headrace.replication.throttle import Throttle
from headrace.security.authorization import ALLOW_ALL, Authorizer
from headrace.storage.data_directory import DataDirectory
from headrace.storage.log_manager import LogManager
from headrace.storage.scrubbing import Progress
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.apis import ServedApi
    from headrace.broker.cluster.broker_lifecycle import Membership
    from headrace.broker.cluster.channels import ControllerLink
    from headrace.broker.cluster.controller import Controller
    from headrace.broker.quorum.quorum import Quorum
    from headrace.broker.replication.isr_proposals import IsrKeeper
    from headrace.broker.replication.replica_fetchers import Fetchers

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
    # Every API, by its key: for requests that come through no listener.
    apis: "Mapping[int, ServedApi]"
    authorizer: Authorizer = ALLOW_ALL
    metrics: Registry = field(default_factory=Registry)
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
