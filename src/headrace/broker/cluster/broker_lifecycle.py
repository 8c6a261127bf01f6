"""Registration and heartbeats of this broker, and its lease to accept records.

An answered heartbeat is a lease to accept records until `broker.session.timeout.ms` after it was
*sent*. The controller waits that long after it *arrived* before it lets others lead, so a broker
that is cut off or was suspended refuses records before another broker leads in its place.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.broker.cluster.channels import ControllerChannel
from headrace.broker.metadata_store import MetadataStore
from headrace.clock import Clock
from headrace.config import BrokerConfig, Listener
from headrace.errors import ErrorCode, HeadraceError, KafkaError, error_code
from headrace.metadata.features import REGISTERED_RANGES
from headrace.protocol.messages import broker_registration as registration
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.tasks import TaskScope

logger = logging.getLogger(__name__)

_REQUEST_S_MAX = 10.0
_DUPLICATE_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0
_SILENT_SECONDS = 1.0
_CATCHING_UP_SECONDS = 0.01
# Another process has this broker's id, or the broker was unregistered.
_ENDS_MEMBERSHIP = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
# The reason why a registration is refused for good, and the advice. The response only has a code.
_REFUSALS = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "its directories are those of the cluster {cluster_id}, and"
    " the controllers are those of another: see controller.quorum.voters and log.dirs",
    ErrorCode.UNSUPPORTED_VERSION: "the cluster uses features that this version does not have:"
    " install the version of headrace that the others have",
    ErrorCode.INVALID_REGISTRATION: "a directory in log.dirs is a copy of another broker's, or it"
    " has no listener; the controller's log says which",
}
_OTHER_REFUSAL = "the controller's log says why"


class BrokerLifecycle:
    """Registration, heartbeats and the lease. Used on the event loop's thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        cluster_id: str,
        incarnation_id: bytes,
        store: MetadataStore,
        controllers: ControllerChannel,
        clock: Clock,
        offline_directories: Callable[[], list[bytes]],
        full_directories: Callable[[], list[bytes]],
        on_expelled: Callable[[str], None],
    ) -> None:
        self.broker_epoch = -1
        self._config = config
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._store = store
        self._controllers = controllers
        self._clock = clock
        self._offline_directories = offline_directories
        self._full_directories = full_directories
        self._on_expelled = on_expelled
        self._may_unfence: Callable[[], bool] = lambda: True
        self._lease_until = self._answered_at = float("-inf")
        self._lease_until_wall_ms = 0
        self._tasks = TaskScope("heartbeats")
        self._task: asyncio.Task[None] | None = None
        self._wants_shut_down = False
        self._heartbeat_due = asyncio.Event()
        self._consented = asyncio.Event()
        self._unfenced = asyncio.Event()

    @property
    def may_write(self) -> bool:
        """Whether records may be accepted now: no other broker can lead in place of this one yet.

        The lease ends by either clock: the monotonic clock stands still while the machine is
        suspended, and the wall clock may be set back. The only voter elects leaders itself, however
        long it has been too busy to renew its lease.
        """
        clock = self._clock
        leased = (
            clock.monotonic() < self._lease_until and clock.now_ms() < self._lease_until_wall_ms
        )
        return leased or (self._store.is_alone and self._unfenced.is_set())

    async def join(
        self,
        endpoints: Sequence[Listener],
        log_dirs: Sequence[bytes],
        previous_broker_epoch: int = -1,
        may_unfence: Callable[[], bool] = lambda: True,
    ) -> None:
        """Register, and return when the controller has unfenced this broker.

        `previous_broker_epoch` is that of the run before if it shut down cleanly, or -1. The broker
        asks to stay fenced until it `may_unfence`.
        """
        self._may_unfence = may_unfence
        request = registration.BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                registration.Listener(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=self._config.protocol_of(endpoint.name),
                )
                for endpoint in endpoints
            ],
            features=[
                registration.Feature(
                    name=name,
                    min_supported_version=supported.min,
                    max_supported_version=supported.max,
                )
                for name, supported in REGISTERED_RANGES.items()
            ],
            rack=self._config.broker_rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=previous_broker_epoch,
        )
        self.broker_epoch = await self._register(request)
        self._task = self._tasks.start(self._heartbeat_loop())
        await self._unfenced.wait()

    async def _register(self, request: registration.BrokerRegistrationRequest) -> int:
        """Register this run, and return its epoch; waits while no controller is available."""
        duplicate_until: float | None = None
        logged: ErrorCode | None = None
        while True:
            try:
                answer: registration.BrokerRegistrationResponse = await self._controllers.ask(
                    request, _REQUEST_S_MAX
                )
            except KafkaError as error:
                logger.warning("waiting for an active controller: %s", error.detail)
                continue
            if not answer.error_code:
                return answer.broker_epoch
            code = error_code(answer.error_code)
            if code.retriable:
                if code is not logged:
                    logged = code
                    logger.warning("%s", self._retry_text(code))
                await asyncio.sleep(self._config.broker_heartbeat_interval_ms / 1000)
                continue
            if code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                reason = _REFUSALS.get(code, _OTHER_REFUSAL).format(cluster_id=self._cluster_id)
                raise KafkaError(code, f"broker {self._config.node_id} cannot register: {reason}")
            now = self._clock.monotonic()
            if duplicate_until is None:
                # The session of this broker's last run may not be over yet, although it is dead.
                patience = max(
                    _DUPLICATE_SECONDS, 2 * self._config.broker_session_timeout_ms / 1000
                )
                duplicate_until = now + patience
                logger.warning(
                    "%s; trying again for %.0f s, in case that it is dead and its session ends",
                    self._duplicate_text(),
                    patience,
                )
            if now > duplicate_until:
                raise KafkaError(code, self._duplicate_text())
            await asyncio.sleep(self._config.broker_heartbeat_interval_ms / 1000)

    def _retry_text(self, code: ErrorCode) -> str:
        """The log text for a registration that the controller refuses for now."""
        cause = code.name
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            cause += ": its disk is full or fails"
        return (
            f"the active controller cannot register broker {self._config.node_id} now ({cause});"
            " trying again. Its own log says more"
        )

    def _duplicate_text(self) -> str:
        """The error text about another process with this node's id, and the advice."""
        node_id = self._config.node_id
        other = self._store.image.brokers.get(node_id)
        endpoints = other.endpoints if other is not None else ()
        where = (
            ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)
            or "an unknown address"
        )
        return (
            f"another process runs as broker {node_id} ({where}) with other log directories: stop"
            " it, or give this one a node.id of its own"
        )

    def heartbeat_now(self) -> None:
        """Send the next heartbeat at once, with news for the controller."""
        self._heartbeat_due.set()

    async def leave(self) -> None:
        """Move leaderships to other brokers, if possible soon, and send no more heartbeats."""
        if self._task is None:
            return
        orderly = self._config.controlled_shutdown_enable and self._has_peers()
        if orderly and not self._task.done():
            self._wants_shut_down = True
            self._heartbeat_due.set()
            if not await self._wait_for_consent():
                logger.warning("stopping without the controller's consent")
        await self.stop()

    def _has_peers(self) -> bool:
        """Whether there is another active broker to move leaderships to."""
        brokers = self._store.image.brokers.values()
        return any(
            broker.is_active and broker.broker_id != self._config.node_id for broker in brokers
        )

    async def _wait_for_consent(self) -> bool:
        """Wait for the controller to let this broker stop; False if it is silent or too late."""
        began = self._clock.monotonic()
        while not self._consented.is_set():
            silent_since = max(began, self._answered_at)
            due = min(began + _SHUTDOWN_SECONDS, silent_since + _SILENT_SECONDS)
            left = due - self._clock.monotonic()
            if left <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._consented.wait()
        return True

    async def stop(self) -> None:
        """Send no more heartbeats."""
        await self._tasks.close()

    async def _heartbeat_loop(self) -> None:
        while True:
            pause = self._config.broker_heartbeat_interval_ms / 1000
            self._heartbeat_due.clear()
            try:
                answer = await self._send_heartbeat()
                if answer.error_code:
                    code = error_code(answer.error_code)
                    if code in _ENDS_MEMBERSHIP:
                        self._on_expelled(f"broker {self._config.node_id}: {code.name}")
                        return
                    logger.warning("a heartbeat was refused: %s", code.name)
                elif answer.is_fenced or self._wants_shut_down:
                    pause = min(pause, _CATCHING_UP_SECONDS)
            except HeadraceError as error:
                logger.warning("no heartbeat was answered: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._heartbeat_due.wait()

    async def _send_heartbeat(self) -> BrokerHeartbeatResponse:
        sent, sent_wall_ms = self._clock.monotonic(), self._clock.now_ms()
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            # Kafka means the last offset that was applied.
            current_metadata_offset=self._store.image_offset - 1,
            # A broker that lost logs must not lead before the controller knows of them.
            want_fence=not self._unfenced.is_set() and not self._may_unfence(),
            want_shut_down=self._wants_shut_down,
            offline_log_dirs=self._offline_directories(),
            cordoned_log_dirs=self._full_directories(),
        )
        session = self._config.broker_session_timeout_ms / 1000
        answer: BrokerHeartbeatResponse = await self._controllers.ask(request, session)
        if not answer.error_code:
            self._answered_at = self._clock.monotonic()
            if answer.should_shut_down:
                self._consented.set()
            if not answer.is_fenced:
                self._lease_until = max(self._lease_until, sent + session)
                self._lease_until_wall_ms = sent_wall_ms + self._config.broker_session_timeout_ms
                self._unfenced.set()
        return answer
