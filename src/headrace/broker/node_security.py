"""The security of a node: its listeners, its connections to other nodes, and its authorizer.

TLS contexts are made at the start, and made again when their files or settings change. The
authorizer is made from the settings and renewed with every image. Until the metadata is known only
super users have rights: a rule that denies may be in it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from headrace.broker.audit_log import AuditLog, AuditSettings
from headrace.broker.cluster.channels import NewLink, NodeChannel
from headrace.broker.node import Node
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.config.authorization import parse_super_users
from headrace.config.sasl import NodeLogin, broker_login, controller_login, has_other_nodes
from headrace.errors import ConfigError
from headrace.metadata.image import Image
from headrace.metadata.role_settings import roles_of_members
from headrace.net.client_connection import PLAINTEXT, ClientSecurity, SaslLogin
from headrace.net.sasl_login import ClientLogin, file_mechanism, password_mechanism
from headrace.net.tls_contexts import ClientTls, ServerTls, TlsContext, TlsSettings
from headrace.net.tls_failures import TlsFailed
from headrace.net.tls_stores import Store
from headrace.security.acl_authorizer import AclAuthorizer, AclPolicy
from headrace.security.authorization import Principal
from headrace.security.distinguished_names import MalformedCertificate
from headrace.security.principal_mapping import NoRuleMatches, PrincipalMapping
from headrace.storage.files import Files
from headrace.tasks import PeriodicTask
from headrace.types import SecurityProtocol

logger = logging.getLogger(__name__)


class NodeSecurity:
    """TLS and logins of a node. ConfigError if a certificate or a setting cannot be used."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._now_s: Callable[[], float] = lambda: clock.now_ms() / 1000
        self._listeners: dict[str, ServerTls] = {}
        self._clients: dict[str, TlsContext] = {}
        for listener in config.listeners:
            if listener.name not in self._listeners:
                if config.protocol_of(listener.name).uses_tls:
                    self._listeners[listener.name] = self._server_tls(listener.name)
        self.brokers = self._client_security(config.inter_broker_listener)
        self.controllers = self._client_security(config.controller_listener)
        if has_other_nodes(config):
            self.brokers = self.brokers._replace(login=_login(broker_login(config)))
            self.controllers = self.controllers._replace(login=_login(controller_login(config)))
        self._renewal: PeriodicTask | None = None

    def add_listener(self, listener: str) -> ServerTls:
        """TLS of a listener that is not among `listeners`; renewed like theirs."""
        tls = self._listeners[listener] = self._server_tls(listener)
        return tls

    def tls_of(self, listener: str) -> ServerTls | None:
        """TLS of a listener; None if it does not speak TLS."""
        return self._listeners.get(listener)

    def certificate_expiries(self) -> Iterator[tuple[tuple[str], float]]:
        """When the certificates of listeners expire, in seconds since 1970, by listener."""
        for listener, tls in self._listeners.items():
            if tls.context.expires_s is not None:
                yield (listener,), tls.context.expires_s

    @property
    def broker_link(self) -> NewLink:
        """A function that makes links to brokers."""
        return lambda address_of, client_id: NodeChannel(address_of, client_id, self.brokers)

    @property
    def controller_link(self) -> NewLink:
        """A function that makes links to controllers."""
        return lambda address_of, client_id: NodeChannel(address_of, client_id, self.controllers)

    def start(self) -> None:
        """Begin to look for files that change."""
        period_ms = self._config.ssl_reload_interval_ms
        if period_ms > 0 and (self._listeners or self._clients):
            self._renewal = PeriodicTask("certificates", period_ms / 1000, self._renew)
            self._renewal.start()

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take new settings; they hold for connections from then on."""
        self._config = config
        if self._renewal is not None:
            self._renewal.run_now()

    async def _renew(self) -> None:
        loop, config = asyncio.get_running_loop(), self._config
        for name, tls in self._listeners.items():
            await loop.run_in_executor(None, tls.context.renew, _settings_at(config, name))
        for name, context in self._clients.items():
            await loop.run_in_executor(None, context.renew, _settings_at(config, name))

    def _server_tls(self, listener: str) -> ServerTls:
        settings = _settings_at(self._config, listener)
        if settings.identity is None:
            raise ConfigError(
                f"the listener {listener} speaks TLS and has no certificate; set"
                " ssl.keystore.location, or ssl.keystore.key and ssl.keystore.certificate.chain."
                " `headrace certs` makes certificates for tests"
            )
        context = TlsContext(
            settings, server_side=True, name=f"the listener {listener}", now_s=self._now_s
        )
        mapping = PrincipalMapping(self._config.value_at(listener, "ssl.principal.mapping.rules"))
        return ServerTls(context, lambda certificate: _principal_of(mapping, certificate))

    def _client_security(self, listener: str) -> ClientSecurity:
        """TLS and login of the connections of this node to a listener of other nodes."""
        if not self._config.protocol_of(listener).uses_tls:
            return PLAINTEXT
        context = self._clients.get(listener)
        if context is None:
            context = self._clients[listener] = TlsContext(
                _settings_at(self._config, listener),
                server_side=False,
                name=f"this node as a client of {listener}",
                now_s=self._now_s,
            )
        return ClientSecurity(ClientTls(context, renews=False))


def _principal_of(mapping: PrincipalMapping, certificate: bytes | None) -> Principal:
    try:
        return mapping.principal_of(certificate)
    except NoRuleMatches as error:
        raise TlsFailed(
            f"no rule of ssl.principal.mapping.rules is for the client's certificate, {error}",
            "add one, or DEFAULT at the end",
            lasting=True,
        ) from None
    except MalformedCertificate as error:
        raise TlsFailed(str(error), "renew the client's certificate", lasting=True) from None


def _settings_at(config: BrokerConfig, listener: str) -> TlsSettings:
    """The settings of TLS at a listener."""

    def value(name: str) -> Any:
        return config.value_at(listener, name)

    return TlsSettings(
        identity=_identity_at(value),
        trust=_trust_at(value),
        versions=value("ssl.enabled.protocols"),
        cipher_suites=value("ssl.cipher.suites"),
        checks_host=bool(value("ssl.endpoint.identification.algorithm")),
        client_auth=value("ssl.client.auth"),
        handshake_s_max=value("ssl.handshake.timeout.ms") / 1000,
    )


def _identity_at(value: Callable[[str], Any]) -> Store | None:
    path, key = value("ssl.keystore.location"), value("ssl.keystore.key")
    chain = value("ssl.keystore.certificate.chain")
    if path is not None:
        if key is not None or chain is not None:
            raise ConfigError(
                "ssl.keystore.location and ssl.keystore.key are both given; take one of them away"
            )
        return Store(
            "ssl.keystore.location",
            path=path,
            kind=value("ssl.keystore.type"),
            password=value("ssl.keystore.password"),
            key_password=value("ssl.key.password"),
        )
    if key is None and chain is None:
        return None
    return Store(
        "ssl.keystore.certificate.chain",
        text=chain or "",
        key_text=key or "",
        key_password=value("ssl.key.password"),
    )


def _trust_at(value: Callable[[str], Any]) -> Store | None:
    path, text = value("ssl.truststore.location"), value("ssl.truststore.certificates")
    if path is not None:
        if text is not None:
            raise ConfigError(
                "ssl.truststore.location and ssl.truststore.certificates are both given; take one"
                " of them away"
            )
        return Store(
            "ssl.truststore.location",
            path=path,
            kind=value("ssl.truststore.type"),
            password=value("ssl.truststore.password"),
        )
    return None if text is None else Store("ssl.truststore.certificates", text=text)


def _login(settings: NodeLogin | None) -> SaslLogin | None:
    if settings is None:
        return None
    if settings.token_file is not None:
        return ClientLogin(file_mechanism(settings.token_file))
    return ClientLogin(
        password_mechanism(
            settings.mechanism,
            settings.username,
            settings.password,
            by_token=settings.by_token,
        )
    )


def start_authorizer(node: Node, files: Files) -> None:
    """Give a node the authorizer and the audit log that its settings ask for, if any."""
    config = node.config
    if not config.authorizer_class_name:
        return
    super_users = frozenset(parse_super_users(config.super_users))
    policy = AclPolicy(super_users, config.allow_everyone_if_no_acl_found)
    node.authorizer = AclAuthorizer(policy)
    plain = [
        listener.name
        for listener in config.listeners
        if config.protocol_of(listener.name) is SecurityProtocol.PLAINTEXT
    ]
    if plain:
        logger.warning(
            "ACLs are enforced, and everybody is User:ANONYMOUS at the plain-text listeners %s;"
            " give them a security protocol that tells users apart",
            ", ".join(plain),
        )
    if config.audit_log_path:
        settings = AuditSettings(
            config.audit_log_path,
            config.audit_log_decisions == "all",
            config.audit_log_max_per_second,
            config.audit_log_max_bytes,
        )
        node.audit = AuditLog(settings, files, node.clock, node.workers, node.metrics)


def follow_acls(node: Node, old: Image, new: Image) -> None:
    """Renew the authorizer if ACLs or roles have changed."""
    authorizer = node.authorizer
    if not isinstance(authorizer, AclAuthorizer):
        return
    roles = authorizer.roles
    if new.configs is not old.configs:
        roles = roles_of_members(new.configs)
    if new.acls is not old.acls or roles != authorizer.roles:
        node.authorizer = authorizer.changed(new.acls, roles)


def stop_audit(node: Node) -> None:
    """Write the decisions that are still queued."""
    if node.audit is not None:
        node.audit.close()
