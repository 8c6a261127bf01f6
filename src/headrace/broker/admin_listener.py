"""The admin listener of a node: `/healthz`, `/readyz` and `/metrics` over HTTP, and its logins.

It listens before the logs are recovered and until they are closed, so that a load balancer always
gets an answer. Health is for everybody. Metrics name topics and groups: where an authorizer is
configured they need the right to describe the cluster, and with it a user: by the certificate of a
client, by a password, or by a token.

Rule: no turn of the event loop spends more than `_TURN_SECONDS` on a scrape.
"""

import asyncio
import binascii
import logging
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import TypeVar

from headrace.broker.authentication import NodeLogins
from headrace.broker.cluster.channels import BrokerChannels
from headrace.broker.group_lag import GroupLags
from headrace.broker.health import NodeState, node_state, unready_reasons
from headrace.broker.node import Node
from headrace.broker.node_metrics import observe_node, observe_process, observe_state
from headrace.broker.node_security import NodeSecurity
from headrace.broker.partition_summary import (
    ClusterSummary,
    PartitionSummary,
    summarize,
    summarize_cluster,
)
from headrace.broker.process_usage import LoopLag, open_files
from headrace.broker.sasl_exchanges import Exchange, ExchangeParts, PlainExchange, new_exchange
from headrace.broker.thread_pools import ThreadPools
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.config.monitoring import ADDRESS_FILE, ADMIN_LISTENER, AdminListener
from headrace.errors import HeadraceError, StorageError
from headrace.metrics import catalog
from headrace.metrics.exposition import accepted_format, exposition
from headrace.metrics.registry import Registry
from headrace.net.http_server import HttpRequest, HttpResponse, HttpServer, text_response
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from headrace.security.authorization import ALLOW_ALL, ANONYMOUS, Principal, Right
from headrace.security.sasl import SaslFailure
from headrace.storage.files import Files

# Logins at the admin listener: the principal of an HTTP request, and its right to read metrics.
#
# Users, passwords and tokens are those of the first listener with SASL. A password is a secret: it
# is taken over TLS, or from this machine, and nowhere else.


logger = logging.getLogger(__name__)

_REALM = 'realm="headrace"'
_BASIC_CHALLENGE = f'Basic {_REALM}, charset="UTF-8"'
_BEARER_CHALLENGE = f"Bearer {_REALM}"
_DESCRIBE_CLUSTER = Right(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME)


class Refused(HeadraceError):
    """A login that is refused, with the status and the challenge of the response."""

    def __init__(self, status: int, text: str, challenge: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.challenge = challenge


class AdminLogins:
    """The logins at the admin listener of a node."""

    def __init__(self, node: Node, logins: NodeLogins) -> None:
        self._node = node
        self._parts = self._exchange_parts(logins)

    def _exchange_parts(self, logins: NodeLogins) -> ExchangeParts | None:
        config = self._node.config
        for listener in config.listeners:
            if config.protocol_of(listener.name).uses_sasl:
                parts = logins.exchange_parts(listener.name)
                settings = parts.listener
                has_scram = any(name.startswith("SCRAM") for name in settings.mechanisms)
                return parts._replace(
                    listener=settings._replace(
                        plain_users=settings.plain_users if "PLAIN" in settings.mechanisms else {},
                        plain_from_scram=settings.plain_from_scram or has_scram,
                    )
                )
        return None

    @property
    def challenge(self) -> str:
        """The `WWW-Authenticate` header for a client without a user and a certificate."""
        if self._parts is None:
            return _BASIC_CHALLENGE
        has_tokens = self._parts.listener.mechanisms == ("OAUTHBEARER",)
        return _BEARER_CHALLENGE if has_tokens else _BASIC_CHALLENGE

    def may_read_metrics(self, principal: Principal, host: str) -> bool:
        """Whether metrics may be shown: to all without an authorizer, else by a right."""
        authorizer = self._node.authorizer
        if authorizer is ALLOW_ALL:
            return True
        return authorizer.decide(principal, host, _DESCRIBE_CLUSTER).allowed

    async def principal_of(self, request: HttpRequest) -> Principal:
        """The sender of a request; Refused if it shows a login that is wrong."""
        if self._node.authorizer is ALLOW_ALL:
            return request.principal
        header = request.headers.get("authorization")
        if header is None:
            return request.principal
        scheme, _, secret = header.partition(" ")
        if self._parts is None:
            raise Refused(403, "no listener of this broker has logins: there are no users here")
        if not request.is_encrypted and not _is_loopback(request.peer_host):
            raise Refused(
                403,
                "passwords and tokens are taken over https only, or from the broker's own machine:"
                " set admin.listener=https://...",
            )
        exchange: Exchange
        if scheme.lower() == "basic":
            exchange, message = PlainExchange(self._parts), _plain_message(secret)
        elif scheme.lower() == "bearer" and "OAUTHBEARER" in self._parts.listener.mechanisms:
            exchange = new_exchange("OAUTHBEARER", self._parts)
            message = b"n,,\x01auth=Bearer " + secret.strip().encode() + b"\x01\x01"
        else:
            raise Refused(401, "this kind of login is not known here", self.challenge)
        return await self._log_in(exchange, message, request)

    async def _log_in(self, exchange: Exchange, message: bytes, request: HttpRequest) -> Principal:
        assert self._parts is not None
        try:
            step = await exchange.step(message)
            if step.identity is not None:
                return step.identity.principal
            failure = "the token is not valid"
        except SaslFailure as error:
            failure = str(error)
        logger.info("refused a login at the admin listener from %s: %s", request.peer_host, failure)
        await asyncio.sleep(self._parts.listener.failure_delay_ms / 1000)
        raise Refused(401, "wrong user, password or token", self.challenge)


def is_anonymous(principal: Principal) -> bool:
    """Whether a principal is that of a client without a login or a certificate."""
    return (principal.kind, principal.name) == (ANONYMOUS.kind, ANONYMOUS.name)


def _plain_message(secret: str) -> bytes:
    """The message of PLAIN with the name and the password of HTTP's Basic."""
    try:
        name, colon, password = b64decode(secret.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        raise Refused(401, "the login is not in base64", _BASIC_CHALLENGE) from None
    if not colon:
        raise Refused(401, "the login is not NAME:PASSWORD", _BASIC_CHALLENGE)
    return b"\0" + name + b"\0" + password


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


T = TypeVar("T")

_TURN_SECONDS = 0.002
# How many steps are made before the clock is read again.
_STEPS = 16
# Summaries of partitions are made again when they are older; many may ask for health at once.
_SUMMARY_SECONDS = 1.0
_SCRAPES_MAX = 2
_PATHS = "/healthz, /readyz and /metrics"


class AdminServer:
    """The HTTP server of the admin listener, and its pages. Used on the loop's thread only."""

    def __init__(
        self, config: BrokerConfig, registry: Registry, clock: Clock, workers: ThreadPools
    ) -> None:
        self._registry = registry
        self._needs_rights = bool(config.authorizer_class_name)
        self._now = clock.monotonic
        self._workers = workers
        self._server = HttpServer(self._respond)
        self._node: Node | None = None
        self._logins: AdminLogins | None = None
        self._stopping = False
        self._summary = PartitionSummary()
        self._cluster = ClusterSummary()
        self._summarized_s = float("-inf")
        self._summarizing = asyncio.Lock()
        self._scrapes_under_way = 0
        self._open_files = -1
        self._loop_lag = LoopLag(registry)
        self._group_lags: GroupLags | None = None
        self._scrapes = registry.counter(catalog.SCRAPES)
        self._turns = registry.histogram(catalog.SCRAPE_TURN)
        began_s = self._now()
        registry.gauge(catalog.UPTIME, lambda: self._now() - began_s)
        registry.gauge(catalog.ADMIN_CONNECTIONS, lambda: self._server.connection_count)
        registry.gauge(catalog.PROCESS_OPEN_FILES, lambda: self._open_files)
        observe_process(registry)
        observe_state(registry, self.state)

    async def listen(self, address: AdminListener, security: NodeSecurity) -> AdminListener:
        """Bind the address; returns it with the port, which is chosen if it was 0."""
        tls = security.add_listener(ADMIN_LISTENER) if address.scheme == "https" else None
        port = await self._server.listen(address.host, address.port, tls)
        self._loop_lag.start()
        self._registry.samples(catalog.CERTIFICATE_EXPIRY, security.certificate_expiries)
        return replace(address, port=port)

    def show(self, node: Node, logins: NodeLogins, leaders: BrokerChannels) -> None:
        """Show a node, whose logs are recovered; `leaders` are asked for the ends of logs."""
        self._node = node
        self._logins = AdminLogins(node, logins)
        observe_node(node, lambda: self._summary, lambda: self._cluster)
        if node.config.is_broker:
            self._group_lags = GroupLags(node, leaders)
            self._group_lags.start()

    def state(self) -> NodeState:
        """The state of the node."""
        return node_state(self._node, stopping=self._stopping)

    def stop_serving(self) -> None:
        """Answer probes from now on that the node stops."""
        self._stopping = True
        if self._group_lags is not None:
            self._group_lags.stop()

    async def close(self) -> None:
        self._loop_lag.stop()
        await self._server.close()

    def abort(self) -> None:
        """Close every socket now."""
        self.stop_serving()
        self._loop_lag.stop()
        self._server.abort()

    # -- resources

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        resources: dict[str, Callable[[HttpRequest], Awaitable[HttpResponse]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
        }
        resource = resources.get(request.path)
        if resource is None:
            return text_response(404, f"there are {_PATHS} here\n")
        return await resource(request)

    async def _health(self, request: HttpRequest) -> HttpResponse:
        # That this is answered is the health: the event loop runs.
        return text_response(200, f"alive: {self.state().value}\n")

    async def _readiness(self, request: HttpRequest) -> HttpResponse:
        if self._node is not None and self._node.config.admin_readiness_checks:
            await self._summarize()
        reasons = unready_reasons(self.state(), self._node, self._summary)
        if not reasons:
            return text_response(200, "ready\n")
        return text_response(503, "".join(f"not ready: {reason}\n" for reason in reasons))

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        refusal = await self._refusal(request)
        if refusal is not None:
            return refusal
        if self._scrapes_under_way >= _SCRAPES_MAX:
            return text_response(429, "others are reading the metrics\n", {"Retry-After": "1"})
        text_format = accepted_format(request.headers.get("accept", ""))
        self._open_files = await self._workers.read(open_files)
        await self._summarize()
        lines = exposition(self._registry, text_format)
        return HttpResponse(200, self._page(lines), text_format.value)

    async def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        """The response to a client that may not read metrics; None if it may."""
        if self._logins is None:
            if not self._needs_rights:
                return None
            # The users and the rules are in the metadata.
            return text_response(503, "the node has not recovered yet\n", {"Retry-After": "1"})
        try:
            principal = await self._logins.principal_of(request)
        except Refused as refused:
            challenges = {"WWW-Authenticate": refused.challenge} if refused.challenge else {}
            return text_response(refused.status, f"{refused}\n", challenges)
        if self._logins.may_read_metrics(principal, request.peer_host):
            return None
        if is_anonymous(principal):
            challenge = self._logins.challenge
            return text_response(401, "metrics need a login\n", {"WWW-Authenticate": challenge})
        return text_response(403, f"{principal} may not describe the cluster\n")

    # -- in turns

    async def _page(self, lines: Iterator[str]) -> AsyncIterator[bytes]:
        self._scrapes_under_way += 1
        try:
            while parts := self._turn(lines):
                yield "".join(parts).encode()
                # Others first, however fast the peer reads.
                await asyncio.sleep(0)
            self._scrapes.add()
        finally:
            self._scrapes_under_way -= 1

    def _turn(self, steps: Iterator[T]) -> list[T]:
        """The results of as many steps as one turn of the loop has time for; none at the end."""
        began_s = now_s = self._now()
        done: list[T] = []
        while now_s - began_s < _TURN_SECONDS:
            before = len(done)
            for _ in range(_STEPS):
                with suppress(StopIteration):
                    done.append(next(steps))
            now_s = self._now()
            if len(done) - before < _STEPS:
                break
        self._turns.observe(now_s - began_s)
        return done

    async def _last(self, steps: Iterable[T]) -> T:
        """The result of the last of some steps, which are made in turns."""
        iterator = iter(steps)
        last = self._turn(iterator)[-1:]
        while done := self._turn(iterator):
            last = done[-1:]
            await asyncio.sleep(0)
        return last[0]

    async def _summarize(self) -> None:
        """Count the partitions again, unless that was done a moment ago."""
        async with self._summarizing:
            node = self._node
            if node is None or self._now() - self._summarized_s < _SUMMARY_SECONDS:
                return
            self._summary = await self._last(summarize(node))
            if node.store.is_active:
                self._cluster = await self._last(summarize_cluster(node.store.image))
            self._summarized_s = self._now()


def write_address_file(files: Files, directory: str, url: str) -> None:
    """Write where the admin listener is to a file in a data directory, for programs to find it."""
    try:
        files.write_atomically(f"{directory}/{ADDRESS_FILE}", f"{url}\n".encode(), sync=False)
    except StorageError as error:
        logger.warning("the address of the admin listener cannot be written: %s", error)
