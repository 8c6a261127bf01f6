"""The parts of a node, made and told of each other. Nothing runs when they come out of here."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from headrace.broker.cluster.controller import Controller
from headrace.broker.cluster.controller_link import ControllerLink
from headrace.broker.cluster.membership import Membership
from headrace.broker.coordination.coordinators import OFFSETS_TOPIC, Coordinators
from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.coordination.markers import MarkerSender
from headrace.broker.coordination.peers import Peers
from headrace.broker.coordination.settings import group_settings, transaction_settings
from headrace.broker.coordination.transactions import Transactions
from headrace.broker.coordination.verifier import Verifier
from headrace.broker.dispatch import answer_locally, begin_locally
from headrace.broker.fetch_purgatory import FetchPurgatory
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.node import Node
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.quorum.quorum import Quorum
from headrace.broker.replication.fetchers import Fetchers
from headrace.broker.replication.flusher import Flusher
from headrace.broker.replication.isr import IsrKeeper
from headrace.broker.replication.replicas import Replicas
from headrace.broker.workers import Workers
from headrace.clock import Clock, SteadyClock
from headrace.config import BrokerConfig
from headrace.coordinator.groups import GroupShard
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.manager import LogManager


class Outside(NamedTuple):
    """What a node has from the machine it runs on, or from the simulator."""

    files: Files
    clock: Clock
    rng: Random
    workers: Workers


def assemble(
    config: BrokerConfig,
    outside: Outside,
    logs: LogManager,
    metadata_log: Log,
    flusher: Flusher,
    on_fatal: Callable[[str], None],
) -> Node:
    """A node whose logs are open; `on_fatal` is called if it must not go on."""
    _, clock, rng, workers = outside
    quorum = _quorum(config, outside, logs, metadata_log, on_fatal)
    store = MetadataStore(quorum, config, clock, workers)
    controllers = ControllerLink(
        is_self=lambda: store.is_active,
        answer_here=lambda request: answer_locally(node, request),
        address_of=quorum.controller_address,
        client_id=f"node-{config.node_id}-controller",
    )
    fetchers, isr = Fetchers(config, store, clock), IsrKeeper(config, store, controllers, clock)
    incarnation_id = rng.randbytes(16)
    replicas = Replicas(config.node_id, logs, flusher, fetchers, isr, clock, incarnation_id)
    membership = Membership(
        config,
        cluster_id=logs.cluster_id,
        incarnation_id=incarnation_id,
        store=store,
        controllers=controllers,
        clock=clock,
        offline_directories=replicas.offline_directories,
        full_directories=replicas.full_directories,
        on_expelled=on_fatal,
    )
    producer_ids = ProducerIds(controllers, config.node_id, lambda: membership.broker_epoch)
    purgatory = FetchPurgatory()
    coordination = _coordination(config, store, producer_ids, clock, rng, lambda: node)
    node = Node(
        node_id=config.node_id,
        cluster_id=logs.cluster_id,
        config=config,
        clock=clock,
        rng=rng,
        workers=workers,
        logs=logs,
        quorum=quorum,
        store=store,
        controllers=controllers,
        controller=_controller(config, store, clock, logs.cluster_id, lambda: node),
        membership=membership,
        replicas=replicas,
        fetchers=fetchers,
        isr=isr,
        fetch_purgatory=purgatory,
        fetch_sessions=FetchSessions(
            config.max_incremental_fetch_session_cache_slots, rng, purgatory
        ),
        producer_ids=producer_ids,
        groups=coordination.groups,
        group_topics=coordination.group_topics,
        transactions=coordination.transactions,
        verifier=coordination.verifier,
    )
    return node


def _quorum(
    config: BrokerConfig,
    outside: Outside,
    logs: LogManager,
    metadata_log: Log,
    on_fatal: Callable[[str], None],
) -> Quorum:
    files, clock, rng, workers = outside
    directory = logs.directories[0].meta
    assert directory is not None
    return Quorum(
        metadata_log,
        files,
        config,
        cluster_id=logs.cluster_id,
        directory_id=directory.directory_id,
        clock=clock,
        rng=rng,
        workers=workers,
        on_fatal=lambda error: on_fatal(str(error)),
    )


def _controller(
    config: BrokerConfig,
    store: MetadataStore,
    clock: Clock,
    cluster_id: str,
    node: Callable[[], Node],
) -> Controller | None:
    if not config.is_controller:
        return None
    brokers = Peers(
        config,
        store,
        lambda request: begin_locally(node(), request),
        f"node-{config.node_id}-recovery",
    )
    return Controller(store, config, SteadyClock(clock), cluster_id=cluster_id, brokers=brokers)


class _Coordination(NamedTuple):
    groups: Coordinators[GroupShard]
    group_topics: GroupTopics
    transactions: Transactions
    verifier: Verifier


def _coordination(
    config: BrokerConfig,
    store: MetadataStore,
    producer_ids: ProducerIds,
    clock: Clock,
    rng: Random,
    node: Callable[[], Node],
) -> _Coordination:
    """The coordinators of groups and transactions, and what has to do with them."""

    def peers(purpose: str) -> Peers:
        client_id = f"node-{config.node_id}-{purpose}"
        return Peers(config, store, lambda request: begin_locally(node(), request), client_id)

    transactions = Transactions(
        clock,
        lambda: transaction_settings(node().config),
        producer_ids,
        MarkerSender(store, peers("markers")),
    )
    group_topics = GroupTopics()
    groups = Coordinators(
        OFFSETS_TOPIC,
        clock,
        lambda _: GroupShard(group_settings(node().config), rng, group_topics.id_of),
        group_topics.on_change,
    )
    return _Coordination(
        groups,
        group_topics,
        transactions,
        Verifier(transactions.shards, store, peers("verifier")),
    )
