"""PLAIN (RFC 4616): a name and a password in one message, as they are."""

import hmac
from collections.abc import Mapping
from typing import NamedTuple

from headrace.security.sasl import SaslFailure

_FIELD_BYTES_MAX = 4096


class PlainLogin(NamedTuple):
    """A name and a password."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"PlainLogin({self.name!r})"


def encode_login(login: PlainLogin) -> bytes:
    """The message of a client."""
    return f"\0{login.name}\0{login.password}".encode()


def read_login(message: bytes) -> PlainLogin:
    """Read the message of a client; SaslFailure if it is none."""
    parts = message.split(b"\0")
    if len(parts) != 3 or max(map(len, parts)) > _FIELD_BYTES_MAX:
        raise SaslFailure("a PLAIN message is not authzid, user name and password")
    try:
        authzid, name, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise SaslFailure("a PLAIN message is not UTF-8") from None
    if not name or not password:
        raise SaslFailure("a PLAIN message has no user name, or no password")
    if authzid and authzid != name:
        raise SaslFailure("the client wants to act as somebody else, which nobody may")
    return PlainLogin(name, password)


def is_known(login: PlainLogin, passwords: Mapping[str, str]) -> bool:
    """Whether a login is among those of a listener; a missing user takes as long as a wrong one."""
    expected = passwords.get(login.name)
    same = hmac.compare_digest((expected or "").encode(), login.password.encode())
    return same and expected is not None
