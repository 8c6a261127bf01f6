"""SASL mechanisms by Kafka's names, and the outcomes of an authentication."""

from enum import StrEnum
from typing import NamedTuple

from headrace.errors import HeadraceError
from headrace.security.authorization import Principal


class SaslMechanism(StrEnum):
    """A mechanism that headrace has, by its name on the wire."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"

    @property
    def is_scram(self) -> bool:
        return self in (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)


MECHANISMS = tuple(mechanism.value for mechanism in SaslMechanism)


class SaslFailure(HeadraceError):
    """A login that is refused.

    `what` is for the log of the end that refuses. Unless `peer_message` is given, the peer hears
    no reason: it must not learn whether the user exists.
    """

    def __init__(self, what: str, *, peer_message: str | None = None) -> None:
        super().__init__(what)
        self.peer_message = peer_message


class SaslIdentity(NamedTuple):
    """The outcome of an authentication: a principal, and until when it holds.

    `expires_ms` is the time at which the credentials themselves expire (those of tokens do), None
    if they do not. `by_token` is true for a delegation token."""

    principal: Principal
    expires_ms: int | None = None
    by_token: bool = False


def user(name: str, groups: tuple[str, ...] = ()) -> Principal:
    """The principal of a user name, and of the groups that a token names."""
    return Principal("User", name, groups)
