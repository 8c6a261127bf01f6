"""A broker from its parts: the order in which they start and stop."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from itertools import chain
from random import Random, SystemRandom

import uvloop

from headrace import __version__
from headrace.broker import handlers
from headrace.broker.coordinators import OFFSETS_TOPIC, Coordinators, group_settings
from headrace.broker.dispatch import Dispatcher
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.flusher import Flusher
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.node import Node
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.replicas import Replicas
from headrace.broker.workers import Workers
from headrace.clock import Clock, SteadyClock, SystemClock
from headrace.config import BrokerConfig, Listener, TopicConfig, topic_config
from headrace.coordinator.groups import GroupShard
from headrace.errors import HeadraceError
from headrace.metadata.controller import register_broker
from headrace.metadata.image import Image, ResourceType
from headrace.net.server import ConnectionLimits, Server
from headrace.storage.files import Files
from headrace.storage.manager import LogManager
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

# Importing the package is what registers the handlers.
assert handlers.__all__

_GRACE_SECONDS = 5.0
_STEPS_PER_TURN = 8
# All of it is replayed at every start, so nothing may expire; it is flushed by its one writer.
_METADATA_LOG_CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1)


class StartError(HeadraceError):
    """The broker cannot start; the text says why and what to do."""


class Broker:
    """One running broker: `await start()`, and later `await stop()`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._config = config
        self._files = files or Files()
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRandom()
        self._workers = Workers()
        self._recovered = False
        self.listeners: tuple[Listener, ...] = ()

    async def start(self) -> None:
        """Recover what is on disk and begin to serve; what fails leaves nothing held."""
        config = self._config
        logs = LogManager.open(
            self._files,
            config.data_directories,
            node_id=config.node_id,
            cluster_id=None,
            config_of=self._config_of,
            now_ms=self._clock.now_ms(),
            load_logs=False,
            producer_expiration_ms=config.producer_id_expiration_ms,
            new_id=lambda: self._rng.randbytes(16),
        )
        try:
            await self._start(config, logs)
        except BaseException:
            # Only logs that were all recovered may be believed without a scan the next time.
            logs.close(clean=self._recovered)
            self._workers.close()
            raise

    async def _start(self, config: BrokerConfig, logs: LogManager) -> None:
        now_ms = self._clock.now_ms()
        metadata_log = logs.open_metadata_log(_METADATA_LOG_CONFIG, now_ms)
        store = MetadataStore(metadata_log, self._clock, self._workers)
        config = config.with_overrides(*store.image.broker_overrides(config.node_id))
        flusher = Flusher(self._workers.flushes)
        replicas = Replicas(config.node_id, logs, flusher, self._clock)
        self._node = Node(
            node_id=config.node_id,
            cluster_id=logs.cluster_id,
            config=config,
            clock=self._clock,
            rng=self._rng,
            workers=self._workers,
            logs=logs,
            store=store,
            replicas=replicas,
            fetch_sessions=FetchSessions(
                config.max_incremental_fetch_session_cache_slots, self._rng
            ),
            producer_ids=ProducerIds(store, config.node_id, -1),
            coordinators=Coordinators(SteadyClock(self._clock), self._new_shard),
        )
        logs.load_logs(now_ms)
        self._recovered = True
        _report_recovery(logs)
        if logs.logs and metadata_log.log_end_offset == 0:
            raise StartError(
                f"{logs.directories[0].path} has topics but no metadata log;"
                f" restore {metadata_log.directory}, or move the topics away"
            )
        replicas.load(store.image, config)
        replicas.delete_strays()
        self._lead_coordinators(store.image)
        store.follow(self._on_image)
        await self._listen()
        await self._register()
        await self._server.start_serving()
        self._housekeeping = Housekeeping(self._node, flusher, self._server)
        self._housekeeping.start()

    async def stop(self) -> None:
        """Finish what was begun, flush, and mark the shutdown as clean."""
        node = self._node
        node.closing = True
        self._server.stop_accepting()
        await self._housekeeping.stop()
        node.coordinators.close()
        node.replicas.close()
        await self._server.close(_GRACE_SECONDS)
        await node.store.close()
        await self._workers.flush(node.logs.close)
        self._workers.close()

    async def _listen(self) -> None:
        node, config = self._node, self._node.config
        self._server = Server(
            Dispatcher(node).respond,
            self._limits,
            frame_bytes_max=config.socket_request_max_bytes,
            in_flight_max=config.max_in_flight_requests_per_connection,
            queued_bytes_max=config.queued_max_request_bytes,
        )
        bound = []
        for listener in config.listeners:
            try:
                port = await self._server.listen(listener.host, listener.port)
            except OSError as error:
                raise StartError(
                    f"cannot listen on {listener}: {error.strerror or error};"
                    " stop what uses the address, or choose another one"
                ) from error
            bound.append(listener._replace(port=port))
        self.listeners = tuple(bound)

    def _config_of(self, name: TopicPartition) -> TopicConfig:
        overrides = self._node.store.image.config_of(ResourceType.TOPIC, name.topic)
        return topic_config(self._node.config, overrides)

    def _limits(self) -> ConnectionLimits:
        config = self._node.config
        return ConnectionLimits(
            config.max_connections, config.max_connections_per_ip, config.connections_max_idle_ms
        )

    async def _register(self) -> None:
        node = self._node
        advertised = node.config.advertised(self.listeners, socket.gethostname())
        epoch = await node.store.submit(
            lambda image, offset: register_broker(
                image,
                broker_id=node.node_id,
                incarnation_id=self._rng.randbytes(16),
                endpoints=advertised,
                rack=node.config.broker_rack,
                log_dirs=[one.meta.directory_id for one in node.logs.directories if one.meta],
                offset=offset,
            )
        )
        node.producer_ids = ProducerIds(node.store, node.node_id, epoch)

    async def _on_image(self, old: Image, new: Image) -> None:
        node = self._node
        overrides = new.broker_overrides(node.node_id)
        steps = node.replicas.apply(old, new, node.config)
        if overrides != old.broker_overrides(node.node_id):
            node.config = node.config.with_overrides(*overrides)
            steps = chain(
                node.replicas.apply(old, new, node.config),
                node.replicas.reconfigure(new, node.config),
            )
        for number, _ in enumerate(steps):
            if number % _STEPS_PER_TURN == _STEPS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._lead_coordinators(new)

    def _lead_coordinators(self, image: Image) -> None:
        topic = image.topics.get(OFFSETS_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
        self._node.coordinators.lead(count, self._node.replicas.led_partitions(OFFSETS_TOPIC))

    def _new_shard(self) -> GroupShard:
        return GroupShard(group_settings(self._node.config), self._rng)


def _report_recovery(logs: LogManager) -> None:
    for log in logs:
        if log.recovery.truncated_bytes:
            logger.warning(
                "%s: %d bytes after offset %d were cut off: %s",
                log.topic_partition,
                log.recovery.truncated_bytes,
                log.log_end_offset,
                log.recovery.truncated_because,
            )


def run(config: BrokerConfig) -> int:
    """Serve until SIGINT or SIGTERM; returns the process's exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(config)
    await broker.start()
    # What lives now lives as long as the process: collections need not look at it again.
    gc.freeze()
    where = ", ".join(f"{listener.host}:{listener.port}" for listener in broker.listeners)
    data = ", ".join(config.data_directories)
    sys.stdout.write(f"headrace {__version__} ready on {where}, data in {data}\n")
    sys.stdout.flush()
    await stopping.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    await broker.stop()
    return 0
