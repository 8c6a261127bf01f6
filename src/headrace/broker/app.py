"""A node as a whole: its parts, their start and their stop, in order."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from random import Random, SystemRandom
from typing import NamedTuple

import uvloop

from headrace import __version__
from headrace.broker.admin_listener import AdminServer, write_address_file
from headrace.broker.apis import SERVED, served_at
from headrace.broker.authentication import NodeLogins
from headrace.broker.cluster.broker_lifecycle import BrokerLifecycle
from headrace.broker.cluster.channels import BrokerChannels, ControllerChannel
from headrace.broker.cluster.controller import ActiveController
from headrace.broker.compactor import Compactor
from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.coordination.runtime import OFFSETS_TOPIC, CoordinatorRuntime
from headrace.broker.coordination.transaction_coordinator import (
    MarkerSender,
    TransactionCoordinator,
)
from headrace.broker.coordination.transaction_verifier import TransactionVerifier
from headrace.broker.credential_store import bootstrap_records
from headrace.broker.dispatch import Dispatcher
from headrace.broker.fetch_purgatory import FetchPurgatory
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.forwarding import answer_locally, begin_locally
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.log_dir_moves import LogDirMoves
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.node import Node
from headrace.broker.node_security import NodeSecurity, follow_acls, start_authorizer, stop_audit
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.pushed_metrics import PushedMetrics
from headrace.broker.quorum.quorum import QuorumNode
from headrace.broker.quotas import ClientQuotas, QuotaSettings
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.isr_proposals import IsrProposer
from headrace.broker.replication.offline_replicas import OfflineReplicaReporter
from headrace.broker.replication.replica_fetchers import ReplicaFetchers
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.broker.scrubber import Scrubber
from headrace.broker.telemetry import ClientTelemetry
from headrace.broker.thread_pools import ThreadPools
from headrace.broker.topic_traffic import BrokerTraffic
from headrace.clock import Clock, SystemClock
from headrace.config import BrokerConfig, Listener, TopicConfig, topic_config
from headrace.config.monitoring import AdminListener
from headrace.config.quotas import limits_by_address
from headrace.config.resources import group_int
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.shard import ConsumerGroupOptions, GroupSettings
from headrace.coordinator.transactions.transaction_metadata import TransactionSettings
from headrace.errors import ConfigError, HeadraceError
from headrace.log_output import WINDOW_S, LogOutput, configure_logging
from headrace.metadata.image import ConfigResourceType, Image
from headrace.metrics.registry import Registry
from headrace.net.connection_limits import ConnectionLimits, ListenerLimits
from headrace.net.server import Respond, Server
from headrace.protocol.codec_build import warn_if_uncompiled
from headrace.security.batch_encryption import BatchEncryption
from headrace.security.keyring import NO_KEYS, Keyring
from headrace.storage.damage import DamagedLog
from headrace.storage.files import Files
from headrace.storage.key_sources import configured_keyring
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.metadata_recovery import DamagedMetadata, prepare_metadata_log
from headrace.tasks import EXIT_BUG, PeriodicTask, TaskScope, stop_on_bugs
from headrace.types import uuid_text


def group_settings(config: BrokerConfig) -> GroupSettings:
    """The settings of a shard of groups, from the configuration of the broker."""
    return GroupSettings(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_bytes_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        record_bytes_max=config.message_max_bytes,
    )


def consumer_group_options(
    config: BrokerConfig, overrides: Mapping[str, str]
) -> ConsumerGroupOptions:
    """The settings of a consumer group: its own, or else the broker's."""

    def number(name: str) -> int:
        return group_int(config, overrides, name)

    return ConsumerGroupOptions(
        session_timeout_ms=number("consumer.session.timeout.ms"),
        heartbeat_interval_ms=number("consumer.heartbeat.interval.ms"),
        assignment_interval_ms=number("consumer.assignment.interval.ms"),
        max_size=config.group_consumer_max_size,
        assignors=config.group_consumer_assignors,
        migration_policy=config.group_consumer_migration_policy,
    )


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """The settings of a shard of transactional ids, from the configuration of the broker."""
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        timeout_check_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        record_bytes_max=config.message_max_bytes,
    )


def quota_settings(config: BrokerConfig) -> QuotaSettings:
    """The settings of client quotas, from the configuration of the broker."""
    return QuotaSettings(
        window_s=config.quota_window_size_seconds,
        windows=config.quota_window_num,
        mutation_window_s=config.controller_quota_window_size_seconds,
        mutation_windows=config.controller_quota_window_num,
        producer_default=config.quota_producer_default,
        consumer_default=config.quota_consumer_default,
    )


# Construction of the parts of a node.
#
# Nothing runs yet when `assemble` returns.


class NodeEnvironment(NamedTuple):
    """The files, clock, randomness, threads, security and metrics of a node.

    All but the last two are real, or of the simulator.
    """

    files: Files
    clock: Clock
    rng: Random
    workers: ThreadPools
    security: NodeSecurity
    metrics: Registry


def assemble(
    config: BrokerConfig,
    outside: NodeEnvironment,
    logs: LogManager,
    metadata_log: Log,
    flusher: FlushQueue,
    on_fatal: Callable[[str], None],
) -> Node:
    """Make a node with open logs; `on_fatal` is called if it must stop."""
    _, clock, rng, workers, security, metrics = outside
    quorum = _quorum(config, outside, logs, metadata_log, on_fatal)
    store = MetadataStore(quorum, config, clock, workers)
    controllers = _controller_channel(config, quorum, store, outside, lambda: node)
    isr = IsrProposer(config, store, controllers, clock)
    checkpoint = partial(workers.flush, logs.checkpoint)
    traffic = _traffic(metrics, store, lambda: node)
    fetchers = ReplicaFetchers(
        config, store, clock, checkpoint, security.broker_link, traffic.replicated
    )
    incarnation_id = rng.randbytes(16)
    replicas = ReplicaManager(config.node_id, logs, flusher, fetchers, isr, clock, incarnation_id)
    membership = BrokerLifecycle(
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
    coordination = _coordination(config, store, producer_ids, outside, lambda: node)
    sessions_max = config.max_incremental_fetch_session_cache_slots
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
        controller=_controller(config, store, outside, logs.cluster_id, lambda: node),
        membership=membership,
        replicas=replicas,
        fetchers=fetchers,
        isr=isr,
        fetch_purgatory=purgatory,
        fetch_sessions=FetchSessions(sessions_max, rng, purgatory),
        producer_ids=producer_ids,
        groups=coordination.groups,
        group_topics=coordination.group_topics,
        transactions=coordination.transactions,
        verifier=coordination.verifier,
        apis={int(row.api): row for row in SERVED},
        metrics=metrics,
        quotas=ClientQuotas(metrics, clock.monotonic),
        traffic=traffic,
        telemetry=_telemetry(outside, lambda: node),
    )
    return node


def _controller_channel(
    config: BrokerConfig,
    quorum: QuorumNode,
    store: MetadataStore,
    outside: NodeEnvironment,
    node: Callable[[], Node],
) -> ControllerChannel:
    return ControllerChannel(
        is_self=lambda: store.is_active,
        answer_here=lambda request: answer_locally(node(), request),
        address_of=quorum.controller_address,
        client_id=f"node-{config.node_id}-controller",
        new_link=outside.security.controller_link,
    )


def _traffic(registry: Registry, store: MetadataStore, node: Callable[[], Node]) -> BrokerTraffic:
    return BrokerTraffic(
        registry, lambda: node().config.metrics_topics_max, lambda name: name in store.image.topics
    )


def _telemetry(outside: NodeEnvironment, node: Callable[[], Node]) -> ClientTelemetry:
    return ClientTelemetry(
        PushedMetrics(
            outside.metrics, outside.clock.monotonic, lambda: node().config.metrics_clients_max
        )
    )


def _quorum(
    config: BrokerConfig,
    outside: NodeEnvironment,
    logs: LogManager,
    metadata_log: Log,
    on_fatal: Callable[[str], None],
) -> QuorumNode:
    directory = logs.directories[0].meta
    assert directory is not None
    return QuorumNode(
        metadata_log,
        outside.files,
        config,
        cluster_id=logs.cluster_id,
        directory_id=directory.directory_id,
        clock=outside.clock,
        rng=outside.rng,
        workers=outside.workers,
        on_fatal=lambda error: on_fatal(str(error)),
        link_factory=outside.security.controller_link,
    )


def _controller(
    config: BrokerConfig,
    store: MetadataStore,
    outside: NodeEnvironment,
    cluster_id: str,
    node: Callable[[], Node],
) -> ActiveController | None:
    if not config.is_controller:
        return None
    brokers = BrokerChannels(
        config,
        store,
        lambda request: begin_locally(node(), request),
        f"node-{config.node_id}-recovery",
        outside.security.broker_link,
    )
    return ActiveController(
        store,
        config,
        outside.clock,
        cluster_id=cluster_id,
        brokers=brokers,
        first_records=lambda: bootstrap_records(config, outside.rng.randbytes),
    )


class _CoordinatorParts(NamedTuple):
    groups: CoordinatorRuntime[GroupShard]
    group_topics: GroupTopics
    transactions: TransactionCoordinator
    verifier: TransactionVerifier


def _coordination(
    config: BrokerConfig,
    store: MetadataStore,
    producer_ids: ProducerIds,
    outside: NodeEnvironment,
    node: Callable[[], Node],
) -> _CoordinatorParts:
    """Make the coordinators of groups and transactions, and the verifier of transactions."""

    clock, rng = outside.clock, outside.rng

    def peers(purpose: str) -> BrokerChannels:
        return BrokerChannels(
            config,
            store,
            lambda request: begin_locally(node(), request),
            f"node-{config.node_id}-{purpose}",
            outside.security.broker_link,
        )

    transactions = TransactionCoordinator(
        clock,
        lambda: transaction_settings(node().config),
        producer_ids,
        MarkerSender(store, peers("markers")),
    )
    group_topics = GroupTopics()
    groups = CoordinatorRuntime(
        OFFSETS_TOPIC,
        clock,
        lambda _: GroupShard(
            group_settings(node().config),
            rng,
            group_topics.id_of,
            topics=group_topics,
            options_of=lambda group_id: consumer_group_options(
                node().config, store.image.config_of(ConfigResourceType.GROUP, group_id)
            ),
        ),
        group_topics.on_change,
    )
    return _CoordinatorParts(
        groups,
        group_topics,
        transactions,
        TransactionVerifier(transactions.shards, store, peers("verifier")),
    )


logger = logging.getLogger(__name__)

# A step that takes longer is logged while it runs.
_STEP_PATIENCE_SECONDS = 1.0
# Steps shorter than this are left out of the report.
_REPORTED_SECONDS_MIN = 0.1


class ShutdownSteps:
    """Runs the steps of a stop, and reports those that took a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: float | None = None
        self._took: list[tuple[str, float]] = []

    def push(
        self, stack: AsyncExitStack, name: str, stop: Callable[..., Awaitable[None]], *args: object
    ) -> None:
        """Schedule a step for when the stack is left; `name` is shown while it runs."""
        stack.push_async_callback(self.run, name, stop, *args)

    async def run(self, name: str, stop: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a step, and log its name if it takes long."""
        began = self._clock.monotonic()
        if self._began is None:
            self._began = began
        loop = asyncio.get_running_loop()
        notice = loop.call_later(
            _STEP_PATIENCE_SECONDS, logger.info, "stopping: waiting for %s", name
        )
        try:
            await stop(*args)
        finally:
            notice.cancel()
            took = self._clock.monotonic() - began
            if took >= _REPORTED_SECONDS_MIN:
                self._took.append((name, took))

    def report(self) -> None:
        """Log the duration of the stop, and its longer steps."""
        if self._began is None:
            return
        steps = ", ".join(f"{took:.1f} s for {name}" for name, took in self._took)
        total = self._clock.monotonic() - self._began
        logger.info("stopped in %.1f s%s", total, f": {steps}" if steps else "")


_GRACE_SECONDS = 5.0
# The time after which a start that waits for other nodes logs that.
_PATIENCE_SECONDS = 10.0
# The time and the steps of applying an image before the loop runs other tasks.
_TURN_SECONDS = 0.002
_STEPS_MAX = 32
# Snapshots replace old records, so nothing may expire. The quorum flushes it after each append.
_METADATA_LOG_CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1)


class StartError(HeadraceError):
    """The broker cannot start; the text says why and what to do."""


class BrokerServer:
    """One running node: `await start()`, and later `await stop()`.

    `on_fatal` is called, once, when the node must stop because it cannot keep its promises.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        workers: ThreadPools | None = None,
        on_fatal: Callable[[str], None] | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        self._config = config
        # Given by the simulator; else read from the source of the settings.
        self._keyring = keyring
        self._files = files or Files()
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRandom()
        self._workers = workers or ThreadPools()
        self._on_fatal = on_fatal
        self._recovered = False
        self._shutdown = ShutdownSteps(self._clock)
        self._serving = asyncio.Event()
        self.metrics = Registry()
        self._admin = AdminServer(config, self.metrics, self._clock, self._workers)
        self.listeners: tuple[Listener, ...] = ()
        self.admin_listener: AdminListener | None = None

    @property
    def node(self) -> Node:
        """The parts of the node, for tests and the simulator."""
        return self._node

    async def start(self) -> None:
        """Recover the logs and begin to serve; a start that fails releases everything."""
        config = self._config
        if config.without_effect:
            logger.warning(
                "settings of Kafka that have no effect here: %s", ", ".join(config.without_effect)
            )
        async with AsyncExitStack() as stack:
            stack.callback(self._workers.close)
            try:
                self._security = NodeSecurity(config, self._clock)
            except ConfigError as error:
                raise StartError(str(error)) from error
            await self._listen_for_admins(stack)
            if self._keyring is None:
                self._keyring = NO_KEYS
                if config.encryption_key_source:
                    self._keyring = await self._workers.read(configured_keyring, config)
            logs = LogManager.open(
                self._files,
                config.data_directories,
                node_id=config.node_id,
                cluster_id=None,
                config_of=lambda _: topic_config(config, {}),
                now_ms=self._clock.now_ms(),
                load_logs=False,
                producer_expiration_ms=config.producer_id_expiration_ms,
                reserved_bytes=config.log_dir_reserved_bytes,
                warn_percent=config.log_dir_usage_warn_percent,
                new_id=lambda: self._rng.randbytes(16),
                new_cluster_id=lambda: _new_cluster_id(config, self._rng),
                prepare=self._prepare_metadata_log,
                encryption=BatchEncryption(
                    self._keyring, self._rng.randbytes, config.encryption_data_key_max_age_ms
                ),
            )
            self._shutdown.push(stack, "logs to be flushed", self._close_logs, logs)
            await self._start(config, logs, stack)
            self._parts = stack.pop_all()

    async def _listen_for_admins(self, stack: AsyncExitStack) -> None:
        """Begin to answer about health and metrics, which ends last of all."""
        address = self._config.admin_listener
        if address is None:
            return
        try:
            self.admin_listener = await self._admin.listen(address, self._security)
        except ConfigError as error:
            raise StartError(str(error)) from error
        except OSError as error:
            raise StartError(
                f"cannot listen on {address} (admin.listener): {error.strerror or error};"
                " stop what uses the address, or choose another one"
            ) from error
        self._shutdown.push(stack, "answers about metrics", self._admin.close)

    def _prepare_metadata_log(self, directories: list[str]) -> None:
        config = self._config
        voters = {voter.node_id for voter in config.controller_quorum_voters}
        try:
            prepare_metadata_log(
                self._files,
                directories,
                node_id=config.node_id,
                has_peers=bool(
                    voters - {config.node_id} or config.controller_quorum_bootstrap_servers
                ),
                new_id=lambda: self._rng.randbytes(8),
            )
        except DamagedMetadata as error:
            raise StartError(str(error)) from error

    async def _start(self, config: BrokerConfig, logs: LogManager, stack: AsyncExitStack) -> None:
        now_ms = self._clock.now_ms()
        metadata_log = logs.open_metadata_log(_METADATA_LOG_CONFIG, now_ms)
        # On a thread, though nothing else can be done meanwhile but to say so.
        await self._workers.read(logs.load_logs, now_ms)
        _report_recovery(logs)
        flusher = FlushQueue(self._workers.flushes, self.metrics)
        security = self._security
        outside = NodeEnvironment(
            self._files, self._clock, self._rng, self._workers, security, self.metrics
        )
        node = assemble(config, outside, logs, metadata_log, flusher, self._fail)
        self._node = node
        self._recovered = True
        if self.admin_listener is not None:
            url = str(self.admin_listener)
            write_address_file(self._files, logs.directories[0].path, url)
        self._server = Server(
            self._limits,
            frame_bytes_max=config.socket_request_max_bytes,
            in_flight_max=config.max_in_flight_requests_per_connection,
            queued_bytes_max=config.queued_max_request_bytes,
            now=self._clock.monotonic,
            listener_limits=self._listener_limits,
            host_rate=node.quotas.connection_rate_of,
            metrics=node.metrics,
        )
        self._housekeeping = Housekeeping(node, flusher, self._server)
        self._compactor = Compactor(node)
        self._scrubber = Scrubber(node)
        self._log_dir_moves = LogDirMoves(node)
        self._lost_replicas = OfflineReplicaReporter(node)
        self._logins = NodeLogins(node)
        if self.admin_listener is not None:
            self._admin.show(node, self._logins, self._lag_channels(node))
        self._push_stops(stack)
        node.store.follow(self._on_image)
        start_authorizer(node, self._files)
        await self._listen()
        await self._server.start_serving()
        self._housekeeping.start()
        self._security.start()
        self._compactor.start()
        self._log_dir_moves.start()
        node.quorum.start(self._controller_endpoints())
        await self._wait_for_metadata()
        if config.is_broker:
            node.isr.start(lambda: node.replicas, lambda: node.membership.broker_epoch)
            # Before it joins: it stays fenced until the controller knows its lost logs.
            self._lost_replicas.start()
            await self._join()
            self._scrubber.start()
        node.ready.set()

    def _lag_channels(self, node: Node) -> BrokerChannels:
        return BrokerChannels(
            self._config,
            node.store,
            lambda request: begin_locally(node, request),
            f"node-{node.node_id}-lag",
            self._security.broker_link,
        )

    async def _wait_for_metadata(self) -> None:
        """Return when the cluster's metadata is known, which takes a leader of the quorum."""
        while True:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    return await self._node.store.ready()
            except TimeoutError:
                if self._node.quorum.is_recovering:
                    logger.warning(
                        "node %d lost its metadata log or its votes and waits for a leader to"
                        " fetch from: start the other controllers. It takes a majority of them that"
                        " kept theirs; if there is none, see `headrace log repair-metadata --help`",
                        self._config.node_id,
                    )
                    continue
                logger.warning(
                    "node %d has not heard of an active controller yet: see that a majority of the"
                    " controllers runs, and that no other process has the same node.id",
                    self._config.node_id,
                )

    def _push_stops(self, stack: AsyncExitStack) -> None:
        """Push the stops of all parts on the stack; the first that is pushed runs last."""
        node, push = self._node, self._shutdown.push
        push(stack, "another controller to lead the quorum", node.quorum.stop)
        push(stack, "changes of the metadata to be committed", node.store.close)
        stack.callback(node.controllers.close)
        stack.callback(stop_audit, node)
        push(stack, "answers to be sent to clients", self._server.close, _GRACE_SECONDS)
        stack.callback(self._logins.close)
        stack.callback(node.replicas.close)
        push(stack, "replicas that are fetched", node.fetchers.stop)
        push(stack, "changes of replicas in sync", node.isr.stop)
        stack.callback(node.groups.close)
        push(stack, "transactions that are looked up", node.verifier.stop)
        push(stack, "markers of transactions", node.transactions.stop)
        push(stack, "housekeeping", self._housekeeping.stop)
        push(stack, "a compaction that is under way", self._compactor.stop)
        push(stack, "a segment that is checked", self._scrubber.stop)
        push(stack, "replicas that move between directories", self._log_dir_moves.stop)
        stack.callback(self._server.stop_accepting)
        stack.callback(self._security.stop)
        push(stack, "the last heartbeat", node.membership.stop)
        stack.callback(self._lost_replicas.stop)
        if node.controller is not None:
            stack.callback(node.controller.resign)

    async def stop(self) -> None:
        """Hand over leaderships, finish requests, flush, and mark the shutdown as clean."""
        leave = self._node.membership.leave
        self._admin.stop_serving()
        await self._shutdown.run("the controller to give our leaderships to others", leave)
        self._node.closing = True
        await self._parts.aclose()
        self._shutdown.report()

    def abandon(self) -> None:
        """Release sockets and directories as the kernel does for a process that was killed.

        For a broker on a thread after a fatal error. It must not be stopped after that.
        """
        self._server.abort("the broker has ended")
        self._admin.abort()
        for directory in self._node.logs.directories:
            directory.release()

    async def _close_logs(self, logs: LogManager) -> None:
        # Only if all logs were recovered may the next start trust them without a scan.
        high_watermarks = self._node.replicas.high_watermarks() if self._recovered else None
        if self._recovered:
            # Several at once: each is a handful of fsyncs, which a disk can do together.
            await asyncio.gather(*(self._workers.flush(logs.close_log, log) for log in logs))
        broker_epoch = self._node.membership.broker_epoch if self._recovered else -1
        await self._workers.flush(
            lambda: logs.close(
                clean=self._recovered, high_watermarks=high_watermarks, broker_epoch=broker_epoch
            )
        )

    async def _listen(self) -> None:
        bound = []
        for listener in self._config.listeners:
            served = served_at(self._config, listener.name)
            respond: Respond = Dispatcher(self._node, listener.name, served).respond
            gate = self._logins.listener(listener.name, respond)
            welcome = None
            if gate is not None:
                respond, welcome = gate.respond, gate.welcome
            try:
                port = await self._server.listen(
                    listener.host,
                    listener.port,
                    respond,
                    listener.name,
                    welcome=welcome,
                    tls=self._security.tls_of(listener.name),
                    authenticated=not self._config.protocol_of(listener.name).uses_sasl,
                )
            except OSError as error:
                raise StartError(
                    f"cannot listen on {listener}: {error.strerror or error};"
                    " stop what uses the address, or choose another one"
                ) from error
            bound.append(listener._replace(port=port))
        self.listeners = tuple(bound)

    def _advertised(self) -> tuple[Listener, ...]:
        return self._config.advertised(self.listeners, socket.gethostname())

    def _controller_endpoints(self) -> list[Listener]:
        """The endpoints at which other nodes reach this node as a controller."""
        names = self._config.controller_listener_names
        return [listener for listener in self._advertised() if not names or listener.name in names]

    async def _join(self) -> None:
        """Register with the controller, and wait until clients may be served."""
        node = self._node
        names = node.config.client_listeners
        await node.membership.join(
            [listener for listener in self._advertised() if listener.name in names],
            [directory.meta.directory_id for directory in node.logs.directories if directory.meta],
            previous_broker_epoch=node.logs.previous_broker_epoch,
            may_unfence=self._lost_replicas.all_reported,
        )
        # Clients are sent here from now on: the partitions led here must be open first.
        await self._serving.wait()

    def _limits(self) -> ConnectionLimits:
        config = self._node.config
        return ConnectionLimits(
            config.max_connections,
            config.max_connections_per_ip,
            config.connections_max_idle_ms,
            limits_by_address(config.max_connections_per_ip_overrides),
            config.max_connection_creation_rate,
            config.connections_first_request_timeout_ms,
            config.request_receive_timeout_ms,
            config.queued_max_response_bytes,
        )

    def _listener_limits(self, name: str) -> ListenerLimits:
        config = self._node.config
        of_the_cluster = (config.inter_broker_listener, *config.controller_listener_names)
        return ListenerLimits(
            config.value_at(name, "max.connections"),
            config.value_at(name, "max.connection.creation.rate"),
            protected=len(config.listeners) > 1 and name in of_the_cluster,
        )

    async def _on_image(self, old: Image, new: Image) -> None:
        node = self._node
        # Before anything that may wait: a right that is taken away is gone now.
        follow_acls(node, old, new)
        self._logins.follow(old, new)
        overrides = new.broker_overrides(node.node_id)
        reconfigured = overrides != old.broker_overrides(node.node_id)
        if not node.config.is_broker:
            if reconfigured:
                node.config = node.config.with_overrides(*overrides)
                self._security.reconfigure(node.config)
            node.quotas.change(new.client_quotas, quota_settings(node.config))
            return
        if new.topics is not old.topics:
            node.traffic.forget_deleted(new.topics)
        if new.brokers is not old.brokers:
            node.isr.brokers_changed()
            node.transactions.brokers_changed()
            node.verifier.brokers_changed()
        steps = node.replicas.apply(new, node.config)
        if reconfigured:
            node.config = node.config.with_overrides(*overrides)
            self._security.reconfigure(node.config)
            steps = chain(
                node.replicas.apply(new, node.config),
                node.replicas.reconfigure(node.config),
            )
        node.quotas.change(new.client_quotas, quota_settings(node.config))
        began = self._clock.monotonic()
        for number, _ in enumerate(steps):
            # A thousand new partitions must not delay heartbeats and elections.
            if (
                number % _STEPS_MAX == _STEPS_MAX - 1
                or self._clock.monotonic() - began > _TURN_SECONDS
            ):
                await asyncio.sleep(0)
                began = self._clock.monotonic()
        self._lead_coordinators(new)
        registered = new.brokers.get(node.node_id)
        if registered is not None and registered.epoch == node.membership.broker_epoch:
            if not registered.fenced:
                self._serving.set()

    def _lead_coordinators(self, image: Image) -> None:
        for coordinators in (self._node.groups, self._node.transactions.shards):
            topic = image.topics.get(coordinators.topic)
            count = 0 if topic is None else len(topic.partitions)
            led = self._node.replicas.led_partitions(coordinators.topic)
            coordinators.lead(count, led)
        # Only now: shards no longer led here were dropped, and must not see newer topics.
        offset = self._node.store.image_offset
        self._node.group_topics.follow(image, offset, self._node.groups)

    def _fail(self, reason: str) -> None:
        """Stop the node before it sends anything that may be false."""
        logger.critical("this node must stop: %s", reason)
        on_fatal, self._on_fatal = self._on_fatal, None
        if on_fatal is not None:
            on_fatal(reason)


def _new_cluster_id(config: BrokerConfig, rng: Random) -> str:
    """The cluster id for new data directories: all nodes of a new cluster derive the same."""
    if config.cluster_id is not None:
        return config.cluster_id
    if config.controller_quorum_voters:
        from hashlib import sha256  # noqa: PLC0415  # Needed once in the life of a cluster.

        voters = ",".join(map(str, sorted(config.controller_quorum_voters)))
        return uuid_text(sha256(voters.encode()).digest()[:16])
    if config.controller_quorum_bootstrap_servers:
        raise StartError(
            "new data directories need cluster.id where only controller.quorum.bootstrap.servers"
            " is given; `headrace brokers list` shows the cluster's"
        )
    return uuid_text(rng.randbytes(16))


def _report_recovery(logs: LogManager) -> None:
    for partition, error in logs.failed.items():
        advice = f"; {error.repair_advice}" if isinstance(error, DamagedLog) else ""
        logger.error("%s is offline: %s%s", partition, error, advice)
    for log in logs:
        report = log.recovery
        if report.truncated_because:
            known = f", at least to {report.truncated_end - 1}" if report.truncated_end > 0 else ""
            logger.warning(
                "%s: a torn tail of %d bytes that were never flushed was cut off, from offset %d"
                " on%s: %s",
                log.topic_partition,
                report.truncated_bytes,
                report.truncated_from,
                known if report.truncated_end > report.truncated_from else "",
                report.truncated_because,
            )
        for text in report.rebuilt:
            logger.warning("%s: %s; made again from the log", log.topic_partition, text)


def run(
    config: BrokerConfig, log_level: int = logging.INFO, hint: str = "", console: str = ""
) -> int:
    """Serve until SIGINT or SIGTERM; returns the process's exit code.

    The ready line has the URL of a console beside it, and the hint follows that line. 0 after a
    clean stop, 1 if the node must not go on. A bug ends the process with 70.
    """
    output = configure_logging(
        log_level,
        config.log_format,
        config.log_repeated_lines_max,
        {"node_id": config.node_id},
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, output, hint, console))


async def _serve(config: BrokerConfig, output: LogOutput, hint: str, console: str) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop_on_bugs(loop, _exit_on_bug)
    tasks = TaskScope("broker")
    failures: list[str] = []

    def fail(reason: str) -> None:
        failures.append(reason)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    broker = BrokerServer(config, on_fatal=fail)
    output.observe(broker.metrics)
    log_reports = PeriodicTask("log", WINDOW_S, output.report_suppressed)
    log_reports.start()
    starting = tasks.start_awaited(broker.start(), "start")
    waiting = tasks.start_awaited(stopping.wait(), "signals")
    # Joining a cluster may take long, because of its other nodes, and can be interrupted.
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        return 1 if failures else 0
    starting.result()
    # Objects made so far live as long as the process: the garbage collector need not visit them.
    gc.freeze()
    where = ", ".join(f"{listener.host}:{listener.port}" for listener in broker.listeners)
    data = ", ".join(config.data_directories)
    admin = f", admin listener at {broker.admin_listener}" if broker.admin_listener else ""
    beside = f", console at {console}" if console else ""
    sys.stdout.write(f"headrace {__version__} ready on {where}, data in {data}{admin}{beside}\n")
    sys.stdout.write(f"{hint}\n" if hint else "")
    sys.stdout.flush()
    # After the ready line, which people and programs expect to be the first.
    warn_if_uncompiled(logger)
    await waiting
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    if failures:
        # A clean stop would mark logs as intact that may not be.
        return 1
    await broker.stop()
    return 0


def _exit_on_bug(where: str, error: BaseException) -> None:
    """End the process at once, as `kill -9` would.

    Its state may be half changed: nothing more may be acknowledged, written or marked as clean.
    """
    sys.stdout.flush()
    logging.shutdown()
    os._exit(EXIT_BUG)
