"""Logins at the admin listener: the principal of an HTTP request, and its right to read metrics.

Users, passwords and tokens are those of the first listener with SASL. A password is a secret: it is
taken over TLS, or from this machine, and nowhere else.
"""

import asyncio
import binascii
import logging
from base64 import b64decode
from ipaddress import ip_address

from headrace.broker.authentication import NodeLogins
from headrace.broker.node import Node
from headrace.broker.sasl_exchanges import Exchange, ExchangeParts, PlainExchange, new_exchange
from headrace.errors import HeadraceError
from headrace.net.http_server import HttpRequest
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from headrace.security.authorization import ALLOW_ALL, ANONYMOUS, Principal, Right
from headrace.security.sasl import SaslFailure

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
