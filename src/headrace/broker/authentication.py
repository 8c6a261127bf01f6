"""Logins at listeners that speak SASL (KIP-43, KIP-152, KIP-368).

Rule: a connection that has not logged in can ask for versions and log in, with one small request at
a time and within a deadline; anything else closes it. A login that was refused is answered late,
in the same words for a user who does not exist, and its connection is closed.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from headrace.broker.credential_store import CredentialStore
from headrace.broker.login_sessions import LoginProof, LoginSessions, own_users
from headrace.broker.node import Node
from headrace.broker.sasl_exchanges import Exchange, ExchangeParts, new_exchange
from headrace.config.sasl import ListenerSasl, listener_sasl
from headrace.errors import ErrorCode, ProtocolError
from headrace.metadata.image import Image
from headrace.metrics import catalog
from headrace.metrics.registry import Family
from headrace.net.server import Reply, Respond, ServerConnection
from headrace.protocol.apis import Api
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse
from headrace.security.authorization import ANONYMOUS
from headrace.security.sasl import SaslFailure, SaslIdentity

if TYPE_CHECKING:
    from headrace.broker.json_web_keys import JsonWebKeys

logger = logging.getLogger(__name__)

_BEFORE_LOGIN: Final = frozenset(
    (int(Api.API_VERSIONS), int(Api.SASL_HANDSHAKE), int(Api.SASL_AUTHENTICATE))
)
_LOGIN: Final = frozenset((int(Api.SASL_HANDSHAKE), int(Api.SASL_AUTHENTICATE)))
# As in Kafka: a client that logs in again and again keeps the broker busy.
_PAUSE_BETWEEN_LOGINS_SECONDS = 1.0
# Version 0 of SaslHandshake is followed by tokens without a request around them.
_BARE_TOKENS_VERSION = 0
_STEPS_MAX = 10
_NEVER = float("inf")


class SaslListener:
    """A listener that serves only clients that have logged in."""

    def __init__(
        self,
        node: Node,
        settings: ListenerSasl,
        parts: ExchangeParts,
        sessions: LoginSessions,
        respond: Respond,
    ) -> None:
        self.node = node
        self.settings = settings
        self.parts = parts
        self.sessions = sessions
        self._respond = respond
        self._now = node.clock.monotonic

    def welcome(self, connection: ServerConnection) -> None:
        """Begin the time in which a new connection must log in."""
        connection.authenticated = False
        connection.login = login = SaslSession(self, connection)
        connection.limit_frames(self.settings.max_receive_bytes, "sasl.server.max.receive.size")
        asyncio.get_running_loop().call_later(self.settings.timeout_ms / 1000, login.check_deadline)

    def respond(
        self, connection: ServerConnection, frame: memoryview
    ) -> "Reply | Awaitable[Reply]":
        """Answer a request of a connection that has logged in; see to its login before that."""
        login: SaslSession = connection.login
        if login.ends_s > self._now():
            return self._respond(connection, frame)
        if login.takes_bare_tokens:
            return login.answer_bare_token(bytes(frame))
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        if connection.authenticated:
            if api_key not in _LOGIN:
                raise ProtocolError(
                    f"the login of {connection.principal} is over (connections.max.reauth.ms)"
                )
        elif api_key not in _BEFORE_LOGIN:
            raise ProtocolError(f"API key {api_key} is asked for before a login")
        elif login.is_busy:
            raise ProtocolError("a request is sent before the login is answered")
        return self._respond(connection, frame)


class SaslSession:
    """The login of one connection, and until when it holds: `ends_s` of the node's clock."""

    __slots__ = (
        "_connection",
        "_exchange",
        "_listener",
        "_logged_in_s",
        "_mechanism",
        "_steps",
        "ends_s",
        "identity",
        "is_busy",
        "proof",
        "takes_bare_tokens",
    )

    def __init__(self, listener: SaslListener, connection: ServerConnection) -> None:
        self._listener = listener
        self._connection = connection
        self._mechanism: str | None = None
        self._exchange: Exchange | None = None
        self._steps = 0
        self._logged_in_s = -_NEVER
        self.identity: SaslIdentity | None = None
        self.proof: LoginProof | None = None
        self.ends_s = -_NEVER
        self.is_busy = False
        self.takes_bare_tokens = False

    def check_deadline(self) -> None:
        """Close the connection if nobody has logged in."""
        if not self._connection.authenticated and not self._connection.closed:
            self._connection.abort(
                f"no login within {self._listener.settings.timeout_ms} ms"
                " (sasl.server.authentication.timeout.ms)"
            )

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """Agree on a mechanism, for the first login or for the next."""
        if self._exchange is not None or self.is_busy:
            return self._refused_handshake(ErrorCode.ILLEGAL_SASL_STATE)
        if self.identity is not None:
            now_s = self._listener.node.clock.monotonic()
            may_repeat = (
                self.ends_s < _NEVER
                and version > _BARE_TOKENS_VERSION
                and mechanism == self._mechanism
                and now_s - self._logged_in_s >= _PAUSE_BETWEEN_LOGINS_SECONDS
            )
            if not may_repeat:
                return self._refused_handshake(ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism not in self._listener.settings.mechanisms:
            return self._refused_handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._mechanism = mechanism
        self._steps = 0
        self._exchange = new_exchange(mechanism, self._listener.parts)
        self.takes_bare_tokens = version == _BARE_TOKENS_VERSION
        return SaslHandshakeResponse(mechanisms=list(self._listener.settings.mechanisms))

    def _refused_handshake(self, code: ErrorCode) -> SaslHandshakeResponse:
        asyncio.get_running_loop().call_soon(self._connection.close)
        return SaslHandshakeResponse(
            error_code=code, mechanisms=list(self._listener.settings.mechanisms)
        )

    async def authenticate(self, message: bytes) -> SaslAuthenticateResponse:
        """Answer a message of the mechanism."""
        if self._exchange is None or self.is_busy:
            asyncio.get_running_loop().call_soon(self._connection.close)
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate is sent without a SaslHandshake before it",
            )
        try:
            answer = await self._step(message)
        except SaslFailure as failure:
            text = await self._refuse(failure)
            # Only now: until the answer is sent nothing else is read.
            self._connection.close()
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text
            )
        return SaslAuthenticateResponse(
            error_message=None, auth_bytes=answer, session_lifetime_ms=self._lifetime_ms()
        )

    async def answer_bare_token(self, message: bytes) -> Reply:
        """Answer a message of the mechanism that comes without a request around it."""
        if self.is_busy:
            raise ProtocolError("a token is sent before the last one is answered")
        try:
            answer = await self._step(message)
        except SaslFailure as failure:
            raise ProtocolError(await self._refuse(failure)) from None
        return [len(answer).to_bytes(4, "big") + answer]

    async def _step(self, message: bytes) -> bytes:
        assert self._exchange is not None
        self._steps += 1
        self.is_busy = True
        try:
            if self._steps > _STEPS_MAX:
                raise SaslFailure("the login takes too many messages")
            step = await self._exchange.step(message)
        finally:
            self.is_busy = False
        if step.identity is not None:
            self._log_in(step.identity, step.proof)
        return step.message

    def _log_in(self, identity: SaslIdentity, proof: LoginProof | None) -> None:
        earlier = self.identity
        if earlier is not None and str(earlier.principal) != str(identity.principal):
            raise SaslFailure(
                f"{earlier.principal} logged in, and wants to go on as {identity.principal}"
            )
        node, settings, connection = self._listener.node, self._listener.settings, self._connection
        if connection.closed:
            return  # While its credential was looked up.
        if proof is not None and not proof.holds(node.store.image):
            raise SaslFailure(f"the credential of {identity.principal} was changed meanwhile")
        assert self._mechanism is not None
        now_s = node.clock.monotonic()
        limits_ms = []
        if settings.max_reauth_ms[self._mechanism] > 0:
            limits_ms.append(settings.max_reauth_ms[self._mechanism])
        if identity.expires_ms is not None:
            limits_ms.append(max(identity.expires_ms - node.clock.now_ms(), 0))
        self.ends_s = now_s + min(limits_ms) / 1000 if limits_ms else _NEVER
        self._logged_in_s = now_s
        self._exchange = None
        self.takes_bare_tokens = False
        self.identity = identity
        self._listener.sessions.discard(self)
        self.proof = proof
        self._listener.sessions.add(self)
        connection.principal = identity.principal
        connection.authenticated = True
        connection.limit_frames(node.config.socket_request_max_bytes)
        self._count(catalog.AUTHENTICATIONS)
        logger.debug("%s logged in from %s", identity.principal, connection.peer)

    def end_by(self, expires_ms: int) -> None:
        """Let the login end at a time, if it does not end before."""
        clock = self._listener.node.clock
        left_s = max(expires_ms - clock.now_ms(), 0) / 1000
        self.ends_s = min(self.ends_s, clock.monotonic() + left_s)

    def revoke(self) -> None:
        """Close the connection, whose credential is no longer valid."""
        principal = self._connection.principal
        self.closed()
        self._connection.abort(f"the credential of {principal} was changed or removed")

    def closed(self) -> None:
        """Forget the login: the connection is gone."""
        self._listener.sessions.discard(self)
        self.proof = None

    def _lifetime_ms(self) -> int:
        """Lifetime of the login in milliseconds, for the client; 0 for none, or for no end."""
        if self._exchange is not None or self.ends_s == _NEVER:
            return 0
        left_s = self.ends_s - self._listener.node.clock.monotonic()
        return max(int(left_s * 1000), 1)

    async def _refuse(self, failure: SaslFailure) -> str:
        """Log why a login is refused, and return the text for its client, after a pause."""
        self._count(catalog.AUTHENTICATION_FAILURES)
        logger.info(
            "refused a login at %s from %s by %s: %s",
            self._listener.settings.listener,
            self._connection.peer,
            self._mechanism,
            failure,
        )
        self._exchange = None
        self.closed()
        self.identity = None
        self.ends_s = -_NEVER
        self._connection.authenticated = False
        self._connection.principal = ANONYMOUS
        self.is_busy = True
        await asyncio.sleep(self._listener.settings.failure_delay_ms / 1000)
        if failure.peer_message is not None:
            return failure.peer_message
        if self._mechanism == "PLAIN":
            return "Authentication failed: Invalid username or password"
        return (
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {self._mechanism}"
        )

    def _count(self, family: Family) -> None:
        """Count a login; its mechanism is among those of the listener."""
        assert self._mechanism is not None
        listener = self._listener.settings.listener
        labels = {"listener": listener, "mechanism": self._mechanism}
        self._listener.node.metrics.counter(family, labels).add()


class NodeLogins:
    """The logins at all listeners of a node; nothing is made for a node without SASL."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._credentials: CredentialStore | None = None
        self._keys: dict[str, JsonWebKeys] = {}
        self._sessions = LoginSessions(own_users(node.config))

    def follow(self, old: Image, new: Image) -> None:
        """Close the connections whose credentials a new image does not have."""
        self._sessions.follow(old, new)

    def listener(self, name: str, respond: Respond) -> SaslListener | None:
        """The listener of that name, in front of `respond`; None if it takes no logins."""
        if not self._node.config.protocol_of(name).uses_sasl:
            return None
        parts = self.exchange_parts(name)
        return SaslListener(self._node, parts.listener, parts, self._sessions, respond)

    def exchange_parts(self, name: str) -> ExchangeParts:
        """What logins at the listener of that name look things up in; it has SASL."""
        node = self._node
        settings = listener_sasl(node.config, name)
        if self._credentials is None:
            self._credentials = CredentialStore(node)
        return ExchangeParts(
            settings,
            self._credentials,
            self._keys_of(settings),
            node.rng.randbytes,
            node.clock.now_ms,
        )

    def _keys_of(self, settings: ListenerSasl) -> "JsonWebKeys | None":
        if "OAUTHBEARER" not in settings.mechanisms or settings.jwks_url is None:
            return None
        # The library is loaded by those who use it only.
        from headrace.broker.json_web_keys import JsonWebKeys  # noqa: PLC0415

        if not settings.audiences:
            logger.warning(
                "listener %s takes tokens for any audience: whatever their issuer made for another"
                " service logs in too; set sasl.oauthbearer.expected.audience",
                settings.listener,
            )
        keys = self._keys.get(settings.jwks_url)
        if keys is None:
            keys = JsonWebKeys(settings.jwks_url, settings.jwks_refresh_ms, self._node.clock)
            self._keys[settings.jwks_url] = keys
        return keys

    def close(self) -> None:
        """End the threads of logins."""
        if self._credentials is not None:
            self._credentials.close()
        for keys in self._keys.values():
            keys.close()
