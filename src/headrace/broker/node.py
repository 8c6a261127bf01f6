"""The parts of a running node."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.coordination.producer_queue import ProducerQueue
from headrace.broker.coordination.runtime import CoordinatorRuntime
from headrace.broker.coordination.transaction_coordinator import TransactionCoordinator
from headrace.broker.coordination.transaction_verifier import TransactionVerifier
from headrace.broker.fetch_purgatory import FetchMemory, FetchPurgatory
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.quotas import ClientQuotas
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.broker.telemetry import ClientTelemetry
from headrace.broker.thread_pools import ThreadPools
from headrace.broker.topic_traffic import BrokerTraffic
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.metrics.registry import Registry
from headrace.options import LONG_MAX
from headrace.protocol.markers import Marker
from headrace.replication.throttle import Throttle
from headrace.security.authorization import ALLOW_ALL, Authorizer
from headrace.storage.data_directory import DataDirectory
from headrace.storage.log_manager import LogManager
from headrace.storage.scrubbing import ScrubProgress
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.apis import ServedApi
    from headrace.broker.audit_log import AuditLog
    from headrace.broker.cluster.broker_lifecycle import BrokerLifecycle
    from headrace.broker.cluster.channels import ControllerChannel
    from headrace.broker.cluster.controller import ActiveController
    from headrace.broker.quorum.quorum import QuorumNode
    from headrace.broker.replication.isr_proposals import IsrProposer
    from headrace.broker.replication.replica_fetchers import ReplicaFetchers

# A marker in a partition, with the leader epoch in which it was written.
UncommittedMarker: TypeAlias = tuple[TopicPartition, int, Marker]


@dataclass(slots=True)
class Node:
    """The parts of one node. `config` is replaced when a dynamic setting changes.

    `controller` acts only while `store.is_active`, and is None without that role.
    """

    node_id: int
    cluster_id: str
    config: BrokerConfig
    clock: Clock
    rng: Random
    workers: ThreadPools
    logs: LogManager
    quorum: "QuorumNode"
    store: MetadataStore
    controllers: "ControllerChannel"
    controller: "ActiveController | None"
    membership: "BrokerLifecycle"
    replicas: ReplicaManager
    fetchers: "ReplicaFetchers"
    isr: "IsrProposer"
    fetch_purgatory: FetchPurgatory
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    groups: CoordinatorRuntime[GroupShard]
    group_topics: GroupTopics
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    # All APIs by key: for requests that arrive without a listener.
    apis: "Mapping[int, ServedApi]"
    metrics: Registry
    quotas: ClientQuotas
    traffic: BrokerTraffic
    telemetry: ClientTelemetry
    authorizer: Authorizer = ALLOW_ALL
    audit: "AuditLog | None" = None
    producer_queue: ProducerQueue = field(default_factory=ProducerQueue)
    outgoing: FetchMemory = field(default_factory=FetchMemory)
    # Markers written by leaders here, until they are committed or leadership ends.
    uncommitted_markers: "dict[UncommittedMarker, asyncio.Future[Any]]" = field(
        default_factory=dict
    )
    leader_throttle: Throttle = field(default_factory=lambda: Throttle(LONG_MAX))
    # Set once clients may be answered: from an image that is up to date, with all logs open.
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    closing: bool = False
    # The progress of scrubbing in each data directory, kept by `Scrubber`.
    scrub_progress: dict[DataDirectory, ScrubProgress] = field(default_factory=dict)
    # Set when a replica should move to another data directory; wakes `LogDirMoves`.
    move_requested: asyncio.Event = field(default_factory=asyncio.Event)
