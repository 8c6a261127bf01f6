"""The server's end of each SASL mechanism, message by message."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.credential_store import CredentialStore
from headrace.broker.login_sessions import LoginProof
from headrace.config.sasl import ListenerSasl
from headrace.security.sasl import SaslFailure, SaslIdentity
from headrace.security.sasl_plain import read_login
from headrace.security.scram import ScramMechanism, ScramServer, read_client_first, scram_mechanism

if TYPE_CHECKING:
    from headrace.broker.json_web_keys import JsonWebKeys

_NONCE_BYTES = 24


class ExchangeStep(NamedTuple):
    """The message to send, and the identity once there is nothing left to ask.

    `proof` is the credential of the metadata log that it was proven with, if it was.
    """

    message: bytes
    identity: SaslIdentity | None = None
    proof: LoginProof | None = None


class Exchange(Protocol):
    """One login under way at a server: a message in, a step out."""

    async def step(self, message: bytes) -> ExchangeStep:
        """The answer to a message; SaslFailure if the login is refused."""
        ...


class ExchangeParts(NamedTuple):
    """Users, tokens and keys that exchanges verify credentials against."""

    listener: ListenerSasl
    credentials: CredentialStore
    keys: "JsonWebKeys | None"
    randbytes: Callable[[int], bytes]
    now_ms: Callable[[], int]


def new_exchange(mechanism: str, parts: ExchangeParts) -> Exchange:
    """The exchange of an enabled mechanism."""
    scram = scram_mechanism(mechanism)
    if scram is not None:
        return ScramExchange(scram, parts)
    return PlainExchange(parts) if mechanism == "PLAIN" else BearerExchange(parts)


class PlainExchange:
    """PLAIN: one message."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._parts = parts

    async def step(self, message: bytes) -> ExchangeStep:
        login = read_login(message)
        checked = await self._parts.credentials.check_password(login, self._parts.listener)
        return ExchangeStep(b"", checked.identity, checked.proof)


class ScramExchange:
    """SCRAM: two messages."""

    def __init__(self, mechanism: ScramMechanism, parts: ExchangeParts) -> None:
        self._mechanism = mechanism
        self._parts = parts
        self._server: ScramServer | None = None
        self._identity: SaslIdentity | None = None
        self._proof: LoginProof | None = None

    async def step(self, message: bytes) -> ExchangeStep:
        if self._server is None:
            return ExchangeStep(await self._challenge(message))
        answer = self._server.verify(message)
        assert self._identity is not None, "a made-up credential fits no password"
        return ExchangeStep(answer, self._identity, self._proof)

    async def _challenge(self, message: bytes) -> bytes:
        login = read_client_first(message)
        credentials = self._parts.credentials
        find = credentials.token_credential if login.by_token else credentials.scram_credential
        found = await find(self._mechanism, login.name)
        self._identity, self._proof = found.identity, found.proof
        self._server = ScramServer(
            self._mechanism,
            login,
            found.credential,
            self._parts.randbytes(_NONCE_BYTES).hex(),
            exists=found.identity is not None,
        )
        return self._server.challenge


class BearerExchange:
    """OAUTHBEARER: one message; after a bad token a second one, by which the client has heard."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._parts = parts
        self._refusal: SaslFailure | None = None

    async def step(self, message: bytes) -> ExchangeStep:
        # The library is loaded by those who use it only.
        from headrace.security.json_web_tokens import (  # noqa: PLC0415
            INVALID_TOKEN,
            read_bearer_message,
        )

        if self._refusal is not None:
            raise self._refusal
        bearer = read_bearer_message(message)
        try:
            identity = await self._verified(bearer.token)
            if bearer.authzid not in (None, identity.principal.name):
                raise SaslFailure("the client wants to act as somebody else, which nobody may")
        except SaslFailure as failure:
            failure.peer_message = INVALID_TOKEN.decode()
            self._refusal = failure
            return ExchangeStep(INVALID_TOKEN)
        return ExchangeStep(b"", identity)

    async def _verified(self, token: str) -> SaslIdentity:
        from headrace.security.json_web_tokens import (  # noqa: PLC0415
            TokenRules,
            UnknownKey,
            verify_token,
        )

        listener, keys = self._parts.listener, self._parts.keys
        assert keys is not None, "a listener with OAUTHBEARER has keys"
        rules = TokenRules(
            listener.issuer,
            listener.audiences,
            listener.clock_skew_s,
            listener.subject_claim,
            listener.scope_claim,
            listener.groups_claim,
        )
        known = await keys.current()
        try:
            return verify_token(token, known, rules, self._parts.now_ms() / 1000)
        except UnknownKey:
            renewed = await keys.renewed()
            if renewed is known:
                raise
            return verify_token(token, renewed, rules, self._parts.now_ms() / 1000)
