"""Logins by SASL at the client's end of connections, and their renewal before they are over.

Rule: a login that is refused is not tried again by itself: the error says which mechanism and which
user, and never a secret.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headrace.errors import AuthenticationFailed, ErrorCode, HeadraceError, KafkaError, error_code
from headrace.net.addresses import Address
from headrace.protocol.apis import Api
from headrace.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.security.sasl import SaslFailure
from headrace.security.sasl_plain import PlainLogin, encode_login
from headrace.security.scram import ScramClient, ScramMechanism, salted_password, scram_mechanism
from headrace.tasks import TaskScope

if TYPE_CHECKING:
    from headrace.net.client_connection import ClientConnection

logger = logging.getLogger(__name__)

_NONCE_BYTES = 24
# A login is renewed at some point of this part of its life, at random, as Java's clients do it.
_RENEWAL_WINDOW = (0.85, 0.95)
# Brokers refuse a login that follows another one sooner.
_RENEWAL_SECONDS_MIN = 1.1
_HANDSHAKE_VERSION = 1
_SALTED_PASSWORDS_MAX = 16
_TOKEN_CHARACTERS_MAX = 64 * 1024

# A token, or a token and the seconds since the epoch at which it expires.
Token: TypeAlias = str | tuple[str, float]
TokenProvider: TypeAlias = Callable[[], Token | Awaitable[Token]]


class Mechanism(Protocol):
    """A mechanism with the credentials to log in with: it starts an exchange on a connection."""

    name: str
    described: str

    async def log_in(self, send: "Send") -> None:
        """Send the messages of the mechanism; SaslFailure if an answer is not acceptable."""


Send: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class PlainMechanism:
    """PLAIN with a name and a password."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self.described = f"user {username!r}"
        self._login = PlainLogin(username, password)

    async def log_in(self, send: Send) -> None:
        await send(encode_login(self._login))


class ScramClientMechanism:
    """SCRAM with a name and a password, or with a delegation token and its HMAC."""

    def __init__(
        self, mechanism: ScramMechanism, username: str, password: str, *, by_token: bool = False
    ) -> None:
        self.name = mechanism.sasl.value
        self.described = f"{'delegation token' if by_token else 'user'} {username!r}"
        self._mechanism = mechanism
        self._username = username
        self._password = password
        self._by_token = by_token
        # Every broker of a cluster has the same salt: the password is hashed once for all.
        self._salted: dict[tuple[bytes, int], bytes] = {}

    async def log_in(self, send: Send) -> None:
        exchange = ScramClient(
            self._mechanism,
            self._username,
            self._password,
            secrets.token_hex(_NONCE_BYTES),
            by_token=self._by_token,
            hash_password=self._hash_password,
        )
        challenge = await send(exchange.first())
        # On a thread: it takes milliseconds, or as long as the broker wants it to.
        loop = asyncio.get_running_loop()
        final = await loop.run_in_executor(None, exchange.final, challenge)
        exchange.verify(await send(final))

    def _hash_password(
        self, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> bytes:
        salted = self._salted.get((salt, iterations))
        if salted is None:
            salted = salted_password(mechanism, password, salt, iterations)
            if len(self._salted) >= _SALTED_PASSWORDS_MAX:
                self._salted.clear()
            self._salted[salt, iterations] = salted
        return salted


class BearerMechanism:
    """OAUTHBEARER with the tokens of a provider, which is asked at every login."""

    name = "OAUTHBEARER"
    described = "the token"

    def __init__(self, provider: TokenProvider) -> None:
        self._provider = provider

    async def log_in(self, send: Send) -> None:
        from headrace.security.json_web_tokens import (  # noqa: PLC0415 - for those who need it
            REFUSAL_HEARD,
            encode_token,
        )

        answer = await send(encode_token(await self._token()))
        if answer:
            # The broker says why in its answer to this.
            await send(REFUSAL_HEARD)
            raise SaslFailure("the broker refuses the token")

    async def _token(self) -> str:
        # On a thread: it may ask a server, and the connections of this client must not wait.
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(None, self._provider)
            if isawaitable(found):
                found = await found
        except HeadraceError:
            raise
        except Exception as error:
            # Its text may have a part of the token.
            raise SaslFailure(f"the token provider raised {type(error).__name__}") from error
        token = found[0] if isinstance(found, tuple) else found
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise SaslFailure("the token provider returned no token: it must be printable text")
        if not token or " " in token:
            raise SaslFailure("the token provider returned an empty text, or one with spaces")
        return token


def read_token(path: str) -> str:
    """The token in a file, without white space around it."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_TOKEN_CHARACTERS_MAX).strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SaslFailure(f"the token in {path} cannot be read: {reason}") from None


def password_mechanism(
    name: str, username: str, password: str, *, by_token: bool = False
) -> Mechanism:
    """PLAIN or SCRAM, by its name."""
    scram = scram_mechanism(name)
    if scram is None:
        return PlainMechanism(username, password)
    return ScramClientMechanism(scram, username, password, by_token=by_token)


def file_mechanism(path: str) -> Mechanism:
    """OAUTHBEARER with the token in a file, read at every login."""
    return BearerMechanism(partial(read_token, path))


class ClientLogin:
    """Logs connections in by one mechanism, and again before a login is over."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._tasks = TaskScope("logins")

    def __repr__(self) -> str:
        return f"<ClientLogin by {self._mechanism.name}>"

    async def authenticate(self, connection: "ClientConnection", deadline: float) -> None:
        """Log in by `deadline`, an instant of the loop's time; HeadraceError if that fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                lifetime_ms = await self._log_in(connection, deadline)
        except TimeoutError:
            raise _no_answer(connection.address) from None
        if lifetime_ms > 0:
            first, last = (lifetime_ms / 1000 * part for part in _RENEWAL_WINDOW)
            after_s = first + (last - first) * secrets.randbelow(1000) / 1000
            after_s = max(after_s, _RENEWAL_SECONDS_MIN)
            # One that lasts shorter than that ends the connection, and another is opened.
            if after_s < lifetime_ms / 1000:
                loop.call_later(after_s, self._begin_renewal, connection, lifetime_ms / 1000)

    def _begin_renewal(self, connection: "ClientConnection", lifetime_s: float) -> None:
        if connection.is_open:
            self._tasks.start(self._renew(connection, lifetime_s), str(connection.address))

    async def _renew(self, connection: "ClientConnection", lifetime_s: float) -> None:
        # Kafka takes nothing but messages of the login between its first and its last.
        connection.hold_requests()
        try:
            left_s = max(lifetime_s * (1 - _RENEWAL_WINDOW[0]), _RENEWAL_SECONDS_MIN)
            await self.authenticate(connection, asyncio.get_running_loop().time() + left_s)
        except HeadraceError as error:
            logger.warning("the login at %s cannot be renewed: %s", connection.address, error)
            connection.fail(error)
        finally:
            connection.send_held_requests()

    async def _log_in(self, connection: "ClientConnection", deadline: float) -> int:
        """Make the exchange; how long it holds in milliseconds, 0 for ever."""
        loop = asyncio.get_running_loop()
        name = self._mechanism.name

        def left_s() -> float:
            return max(deadline - loop.time(), 0.001)

        handshake: SaslHandshakeResponse = await connection.ask_unheld(
            SaslHandshakeRequest(mechanism=name), left_s(), version_max=_HANDSHAKE_VERSION
        )
        if handshake.error_code:
            raise _handshake_refused(connection.address, name, handshake)
        version = connection.version_of(Api.SASL_AUTHENTICATE)
        lifetime_ms = 0

        async def send(message: bytes) -> bytes:
            nonlocal lifetime_ms
            answer: SaslAuthenticateResponse = await connection.ask_unheld(
                SaslAuthenticateRequest(auth_bytes=message), left_s(), version_max=version
            )
            if answer.error_code:
                raise self._refused(connection.address, answer)
            lifetime_ms = answer.session_lifetime_ms
            return bytes(answer.auth_bytes)

        try:
            await self._mechanism.log_in(send)
        except SaslFailure as failure:
            raise AuthenticationFailed(
                f"cannot log in at {connection.address} by {name}: {failure}"
            ) from failure.__cause__
        return lifetime_ms

    def _refused(self, address: Address, answer: SaslAuthenticateResponse) -> HeadraceError:
        code = error_code(answer.error_code)
        reason = answer.error_message or ""
        if code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
            return KafkaError(code, f"the broker at {address} cannot log this client in: {reason}")
        return AuthenticationFailed(
            f"the broker at {address} refuses {self._mechanism.described} by"
            f" {self._mechanism.name} ({reason})",
            advice="see whether name and secret are right, and known to this cluster for"
            " this mechanism",
        )


def _handshake_refused(address: Address, name: str, answer: SaslHandshakeResponse) -> KafkaError:
    code = error_code(answer.error_code)
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return KafkaError(
            code,
            f"the broker at {address} does not take logins by {name}",
            advice=f"it takes {', '.join(answer.mechanisms) or 'none'}",
        )
    return KafkaError(
        code,
        f"the listener at {address} takes no logins",
        advice="use its security_protocol (PLAINTEXT or SSL), or the port of another listener",
    )


def _no_answer(address: Address) -> HeadraceError:
    from headrace.net.client_connection import NoAnswer  # noqa: PLC0415 - it imports this module

    return NoAnswer(address, "the login was not answered in time", "see whether it is healthy")
