"""Credentials that users log in with at this node: of the settings, and of the metadata log.

A node that starts does not know the metadata log yet. Until it has read anything of it, the
credentials of `scram.bootstrap.credentials` count, with which controllers can log in at each other
before they have a log; a user that is found nowhere is looked for again once the node is ready.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from headrace.broker.login_sessions import LoginProof, TokenKey
from headrace.broker.node import Node
from headrace.broker.thread_pools import run_in
from headrace.config import BrokerConfig
from headrace.config.sasl import BootstrapCredential, ListenerSasl
from headrace.errors import ProtocolError
from headrace.metadata.delegation_tokens import DelegationTokenImage, token_credential, token_hmac
from headrace.metadata.image import Image
from headrace.metadata.scram_credentials import (
    SECRET_BYTES,
    ScramKey,
    credential_record,
    secret_of,
    secret_records,
    usual_iterations,
)
from headrace.protocol.schema import Message
from headrace.security.sasl import SaslFailure, SaslIdentity, user
from headrace.security.sasl_plain import PlainLogin, is_known
from headrace.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    made_up_credential,
    password_matches,
    salted_password,
)

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_HASHING_THREADS = 2
# Waiting hashes, of a few milliseconds each: who comes later is turned away, and tries again.
_HASHES_WAITING_MAX = 500
_TOKEN_CREDENTIALS_MAX = 1000
_SALT_BYTES = 24


class FoundCredential(NamedTuple):
    """A credential to log in with, and the identity and proof it gives; None if it is made up."""

    credential: ScramCredential
    identity: SaslIdentity | None
    proof: LoginProof | None = None


class CheckedPassword(NamedTuple):
    """The identity of a name and a password; the proof is None for users of the settings."""

    identity: SaslIdentity
    proof: LoginProof | None


def bootstrap_credential(
    item: BootstrapCredential, new_salt: Callable[[int], bytes]
) -> tuple[ScramKey, ScramCredential]:
    """The credential of an item of `scram.bootstrap.credentials`."""
    mechanism = ScramMechanism[item.mechanism.replace("-", "_")]
    if item.password is None:
        assert item.salt is not None and item.salted_password is not None
        salt, salted = item.salt, item.salted_password
    else:
        salt = new_salt(_SALT_BYTES)
        salted = salted_password(mechanism, item.password, salt, item.iterations)
    return (
        ScramKey(item.name, mechanism),
        credential_of(mechanism, salted, salt, item.iterations),
    )


def bootstrap_records(
    config: BrokerConfig, randbytes: Callable[[int], bytes]
) -> tuple[Message, ...]:
    """The records of the first users of a new cluster."""
    found = [bootstrap_credential(item, randbytes) for item in config.bootstrap_credentials]
    if not found:
        return ()
    return (
        *secret_records({}, randbytes(SECRET_BYTES)),
        *(credential_record(*key, credential) for key, credential in found),
    )


class CredentialStore:
    """Lookups and checks of credentials at this node. Used on the event loop's thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._threads = ThreadPoolExecutor(_HASHING_THREADS, thread_name_prefix="login")
        self._hashing = 0
        # Of a node that knows no users yet: there is nobody whose absence could be told.
        self._first_secret = node.rng.randbytes(32)
        self._bootstrap: dict[ScramKey, ScramCredential] | None = None
        self._token_credentials: OrderedDict[tuple[str, ScramMechanism], ScramCredential] = (
            OrderedDict()
        )
        self._usual: tuple[Image | None, dict[ScramMechanism, int]] = (None, {})

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def scram_credential(self, mechanism: ScramMechanism, name: str) -> FoundCredential:
        """The credential of a user, made up if the user has none."""
        key = ScramKey(name, mechanism)
        found = await self._looked_up(key)
        # Made up for those who have one, too: a fifth of the time of an answer tells them apart.
        made_up = self._made_up(mechanism, name)
        if found is None:
            return FoundCredential(made_up, None)
        # A bootstrap credential has another salt here than in the metadata log.
        is_known = self._image.scram_credentials.get(key) == found
        proof = LoginProof(key, found if is_known else None)
        return FoundCredential(found, SaslIdentity(user(name)), proof)

    async def token_credential(self, mechanism: ScramMechanism, token_id: str) -> FoundCredential:
        """The credential of a delegation token, made up if there is no such token now."""
        token = self._image.delegation_tokens.get(token_id)
        if token is None and not self._node.ready.is_set():
            await self._node.ready.wait()
            token = self._image.delegation_tokens.get(token_id)
        secret_key = self._node.config.delegation_token_secret_key
        if not secret_key or token is None or token.has_ended(self._node.clock.now_ms()):
            return FoundCredential(self._made_up(mechanism, token_id), None)
        credential = await self._token_credential(mechanism, token, secret_key)
        return FoundCredential(credential, _identity_of(token), LoginProof(TokenKey(token_id)))

    async def check_password(self, login: PlainLogin, listener: ListenerSasl) -> CheckedPassword:
        """The identity of a name and a password by PLAIN; SaslFailure if they do not fit."""
        known = is_known(login, listener.plain_users)
        proof = None
        if not known and listener.plain_from_scram:
            # Of users in the settings too, so that they cannot be told from others by the time.
            proof = await self._scram_proof(login)
            known = proof is not None and login.name not in listener.plain_users
        if not known:
            raise SaslFailure(f"wrong password, or no user {login.name!r}")
        return CheckedPassword(SaslIdentity(user(login.name)), proof)

    async def _scram_proof(self, login: PlainLogin) -> LoginProof | None:
        """The proof of a password that a user has by SCRAM; without the user it takes as long."""
        # Every mechanism is tried, whichever the user has: the time tells nothing of it.
        tried = [
            (mechanism, await self.scram_credential(mechanism, login.name))
            for mechanism in ScramMechanism
        ]
        proofs = [
            found.proof
            for mechanism, found in tried
            if await self._hash(password_matches, mechanism, login.password, found.credential)
        ]
        return next((proof for proof in proofs if proof is not None), None)

    async def _looked_up(self, key: ScramKey) -> ScramCredential | None:
        """The credential under a key; None if nobody has one."""
        found = self._image.scram_credentials.get(key)
        if found is None and not self._image.features:
            found = (await self._bootstrap_credentials()).get(key)
        if found is None and not self._node.ready.is_set():
            await self._node.ready.wait()
            found = self._image.scram_credentials.get(key)
        return found

    async def _bootstrap_credentials(self) -> dict[ScramKey, ScramCredential]:
        if self._bootstrap is None:
            items = self._node.config.bootstrap_credentials
            new_salt = self._node.rng.randbytes
            self._bootstrap = await self._hash(
                lambda: dict(bootstrap_credential(item, new_salt) for item in items)
            )
        return self._bootstrap

    async def _token_credential(
        self, mechanism: ScramMechanism, token: DelegationTokenImage, secret_key: str
    ) -> ScramCredential:
        place = (token.token_id, mechanism)
        known = self._token_credentials.get(place)
        if known is None:
            secret = token_hmac(secret_key, token.token_id)
            known = await self._hash(token_credential, mechanism, secret)
            self._token_credentials[place] = known
            while len(self._token_credentials) > _TOKEN_CREDENTIALS_MAX:
                self._token_credentials.popitem(last=False)
        return known

    def _made_up(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        credentials = self._image.scram_credentials
        secret = secret_of(credentials) or self._first_secret
        if self._usual[0] is not self._image:
            self._usual = (self._image, {})
        usual = self._usual[1].get(mechanism)
        if usual is None:
            usual = usual_iterations(credentials, mechanism) if credentials else ITERATIONS_MIN
            self._usual[1][mechanism] = usual
        return made_up_credential(mechanism, name, secret, usual)

    @property
    def _image(self) -> Image:
        return self._node.store.image

    async def _hash(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do costly work on a thread; ProtocolError if too much of it waits already."""
        if self._hashing >= _HASHES_WAITING_MAX:
            raise ProtocolError("too many logins at once")
        self._hashing += 1
        try:
            return await run_in(self._threads, lambda: work(*args, **kwargs))
        finally:
            self._hashing -= 1


def _identity_of(token: DelegationTokenImage) -> SaslIdentity:
    return SaslIdentity(token.owner, min(token.expires_ms, token.max_ms), by_token=True)
