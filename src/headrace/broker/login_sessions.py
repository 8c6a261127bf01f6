"""Logins of open connections, by the credential of the metadata log that each was proven with.

Rule: when such a credential is changed or removed, the connections that logged in with it are
closed. Unlike Kafka, where they last until their login ends.

The user as which this node logs in at other nodes is left out: brokers would lose each other at
once if its password were changed before their settings are.
"""

from typing import NamedTuple, Protocol, TypeAlias

from headrace.config import BrokerConfig
from headrace.config.sasl import broker_login, controller_login, has_other_nodes
from headrace.metadata.image import Image
from headrace.metadata.scram_credentials import ScramKey
from headrace.security.scram import ScramCredential


class TokenKey(NamedTuple):
    """A delegation token."""

    token_id: str


CredentialKey: TypeAlias = ScramKey | TokenKey


class LoginProof(NamedTuple):
    """The credential that a login was proven with.

    `credential` is None for a delegation token, and for a user of `scram.bootstrap.credentials`
    whom this node does not know from the metadata log yet.
    """

    key: CredentialKey
    credential: ScramCredential | None = None

    def holds(self, image: Image) -> bool:
        """Whether the credential is still that of its user, or the token is still there."""
        if isinstance(self.key, TokenKey):
            return self.key.token_id in image.delegation_tokens
        if not image.features:
            return True  # Nothing is known of any user yet.
        known = image.scram_credentials.get(self.key)
        return known is not None and self.credential in (None, known)


class RevocableLogin(Protocol):
    """A login of an open connection."""

    proof: LoginProof | None

    def revoke(self) -> None:
        """Close the connection, whose credential is no longer valid."""
        ...

    def end_by(self, expires_ms: int) -> None:
        """Let the login end at a time, if it does not end before."""
        ...


def own_users(config: BrokerConfig) -> frozenset[str]:
    """The users as which a node logs in at other nodes; none for a node that is alone."""
    if not has_other_nodes(config):
        return frozenset()
    logins = broker_login(config), controller_login(config)
    return frozenset(login.username for login in logins if login is not None and login.username)


class LoginSessions:
    """The sessions of a node that depend on the metadata log. Used on the event loop's thread only.

    Those of `unwatched` users stay when their credentials change.
    """

    def __init__(self, unwatched: frozenset[str] = frozenset()) -> None:
        self._unwatched = unwatched
        self._by_key: dict[CredentialKey, set[RevocableLogin]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def add(self, session: RevocableLogin) -> None:
        """Watch the credential that a session was proven with."""
        proof = session.proof
        if proof is None or (isinstance(proof.key, ScramKey) and proof.key.name in self._unwatched):
            return
        self._by_key.setdefault(proof.key, set()).add(session)

    def discard(self, session: RevocableLogin) -> None:
        """Forget a session; it need not be known."""
        if session.proof is None:
            return
        sessions = self._by_key.get(session.proof.key)
        if sessions is not None:
            sessions.discard(session)
            if not sessions:
                del self._by_key[session.proof.key]

    def follow(self, old: Image, new: Image) -> None:
        """Close the connections whose credentials the new image does not have."""
        if (
            new.scram_credentials is old.scram_credentials
            and new.delegation_tokens is old.delegation_tokens
        ):
            return
        for key, sessions in list(self._by_key.items()):
            self._end_expiring(key, sessions, old, new)
            # A copy: a session that is revoked is discarded.
            for session in list(sessions):
                assert session.proof is not None, "sessions without a proof are not kept"
                if not session.proof.holds(new):
                    session.revoke()

    def _end_expiring(
        self, key: CredentialKey, sessions: set[RevocableLogin], old: Image, new: Image
    ) -> None:
        """End the sessions of a token no later than the token, which may now expire earlier."""
        if not isinstance(key, TokenKey):
            return
        token = new.delegation_tokens.get(key.token_id)
        if token is not None and token is not old.delegation_tokens.get(key.token_id):
            for session in sessions:
                session.end_by(min(token.expires_ms, token.max_ms))
