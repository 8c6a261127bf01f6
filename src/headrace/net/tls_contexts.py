"""TLS contexts made of settings: of a server's listener, and of a client. Both can be renewed.

Rule: a renewed context serves new connections, and those that are open keep theirs. A context that
is in use is never changed: OpenSSL would keep a certificate of another key type beside the new one.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.net.tls import TLS_SCRATCH_BYTES, TlsLayer
from headrace.net.tls_failures import TlsFailed
from headrace.net.tls_stores import Store, load_identity, load_trust
from headrace.security.authorization import Principal

logger = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# A certificate is complained of when it has less time left than this.
_EXPIRES_SOON_S = 14 * 86_400
_SUITES_1_3 = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)


class TlsSettings(NamedTuple):
    """The settings of TLS at one end; `client_auth` and `handshake_s_max` are a server's.

    `prefix` is how the names of settings begin in messages: `ssl.` or `ssl_`.
    """

    identity: Store | None = None
    trust: Store | None = None
    versions: tuple[str, ...] = tuple(_VERSIONS)
    cipher_suites: tuple[str, ...] = ()
    checks_host: bool = True
    client_auth: str = "none"
    handshake_s_max: float = 10.0


class TlsContext:
    """An SSLContext that is made again when its settings or files change.

    Invariant: `current` is a context whose files were read without an error.
    """

    def __init__(
        self, settings: TlsSettings, *, server_side: bool, name: str, now_s: Callable[[], float]
    ) -> None:
        self.settings = settings
        self._server_side = server_side
        self._name = name
        self._now_s = now_s
        self._signatures = _signatures(settings)
        self._refused: object = None
        # When its own certificate expires, if it has one, in seconds since 1970.
        self.expires_s: float | None = None
        self.current = self._make(settings)

    def __repr__(self) -> str:
        return f"<TlsContext of {self._name}>"

    def renew(self, settings: TlsSettings | None = None) -> bool:
        """Make the context again if its settings or its files have changed; True if it is new.

        It reads files: not for the event loop's thread. What cannot be used is logged once, and the
        old context stays.
        """
        wanted = settings or self.settings
        signatures = _signatures(wanted)
        if wanted == self.settings and signatures == self._signatures:
            return False
        if (wanted, signatures) == self._refused:
            return False
        try:
            made = self._make(wanted)
        except ConfigError as error:
            self._refused = (wanted, signatures)
            logger.error(
                "%s keeps its old certificates, since the new ones cannot be used: %s",
                self._name,
                error,
            )
            return False
        self.settings, self._signatures, self._refused = wanted, signatures, None
        self.current = made
        logger.info("%s has new certificates, for connections from now on", self._name)
        return True

    def _make(self, settings: TlsSettings) -> ssl.SSLContext:
        protocol = ssl.PROTOCOL_TLS_SERVER if self._server_side else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        _set_versions(context, settings)
        if settings.identity is not None:
            pem = load_identity(context, settings.identity)
            self.expires_s = _expiry(pem, settings.identity, self._now_s())
        if self._server_side:
            # One ticket is enough to resume a session, and OpenSSL would send two.
            context.num_tickets = 1
            context.verify_mode = _CLIENT_AUTH[settings.client_auth]
        else:
            context.check_hostname = settings.checks_host
            context.verify_mode = ssl.CERT_REQUIRED
        if context.verify_mode is not ssl.CERT_NONE:
            if settings.trust is not None:
                load_trust(context, settings.trust)
            else:
                context.load_default_certs(
                    ssl.Purpose.CLIENT_AUTH if self._server_side else ssl.Purpose.SERVER_AUTH
                )
        return context


def _signatures(settings: TlsSettings) -> tuple[object, ...]:
    """Fingerprint of the files of settings: it changes when a file is replaced."""
    found: list[object] = []
    for store in (settings.identity, settings.trust):
        for path in store.paths if store is not None else ():
            try:
                status = os.stat(path)
            except OSError as error:
                found.append((path, error.errno))
            else:
                found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = {_VERSIONS[name] for name in settings.versions}
    suites = [suite for suite in settings.cipher_suites if suite not in _SUITES_1_3]
    if settings.cipher_suites:
        if len(suites) == len(settings.cipher_suites):
            versions.discard(ssl.TLSVersion.TLSv1_3)
        if not suites:
            versions.discard(ssl.TLSVersion.TLSv1_2)
    if not versions:
        raise ConfigError(
            "ssl.cipher.suites has no suite of a version in ssl.enabled.protocols; add one"
        )
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if suites:
        try:
            context.set_ciphers(":".join(_openssl_name(suite) for suite in suites))
        except ssl.SSLError:
            raise ConfigError(
                f"ssl.cipher.suites has no suite that OpenSSL knows: {', '.join(suites)}"
            ) from None


def _openssl_name(suite: str) -> str:
    """The name of OpenSSL for a suite of TLS 1.2 under its standard name, which Java uses.

    >>> _openssl_name("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    'ECDHE-RSA-AES128-GCM-SHA256'
    """
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return suite
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC_", "_").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    parts = [cipher] if exchange == "RSA" else [exchange, cipher]
    return "_".join(parts).replace("_", "-")


def _expiry(pem: bytes, store: Store, now_s: float) -> float:
    """When a certificate expires. A line in the log if peers will refuse it now or soon."""
    from cryptography import x509  # noqa: PLC0415  # Only nodes and clients with TLS need it.

    certificate = x509.load_pem_x509_certificates(pem)[0]
    ends_s = certificate.not_valid_after_utc.timestamp()
    begins_s = certificate.not_valid_before_utc.timestamp()
    if now_s > ends_s:
        logger.error("the certificate in %r expired at %s; renew it", store, _utc(ends_s))
    elif now_s < begins_s:
        logger.error("the certificate in %r is not valid before %s", store, _utc(begins_s))
    elif ends_s - now_s < _EXPIRES_SOON_S:
        logger.warning("the certificate in %r expires at %s; renew it", store, _utc(ends_s))
    return ends_s


def _utc(seconds: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415  # For these messages alone.

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


# How often a client looks whether its files have changed, at most, and only when it connects.
_RENEWAL_S = 5.0


class ClientTls:
    """TLS of connections that are opened. For one event loop.

    A node's `renews` is false: the node renews the context itself.
    """

    def __init__(self, context: TlsContext, *, renews: bool = True) -> None:
        self._context = context
        self._renews = renews
        self._renewed_at = float("-inf")
        self._scratch: memoryview | None = None

    def __repr__(self) -> str:
        return f"<ClientTls of {self._context!r}>"

    @property
    def scratch(self) -> memoryview:
        """The buffer that all connections of the loop receive ciphertext into."""
        if self._scratch is None:
            self._scratch = memoryview(bytearray(TLS_SCRATCH_BYTES))
        return self._scratch

    async def context(self) -> ssl.SSLContext:
        """The context for a new connection, of the files as they are now."""
        loop = asyncio.get_running_loop()
        if self._renews and loop.time() - self._renewed_at > _RENEWAL_S:
            self._renewed_at = loop.time()
            await loop.run_in_executor(None, self._context.renew)
        return self._context.current


def client_tls(settings: TlsSettings) -> ClientTls:
    """TLS of a client; ConfigError says which file or setting is wrong."""
    return ClientTls(TlsContext(settings, server_side=False, name="this client", now_s=time.time))


class ServerTls(NamedTuple):
    """TLS of a listener: its context, and the principal that a client's certificate is for.

    `principal_of` gets the certificate as DER, or None for a client without one, and may refuse it
    by TlsFailed.
    """

    context: TlsContext
    principal_of: Callable[[bytes | None], Principal]

    def layer(
        self,
        connection: asyncio.BufferedProtocol,
        scratch: memoryview,
        worker: Executor | None,
        on_principal: Callable[[Principal], None],
        on_failed: Callable[[TlsFailed], None],
    ) -> TlsLayer:
        """TLS below a connection of the listener; `on_principal` is called after the handshake."""

        def on_open(session: ssl.SSLObject) -> None:
            on_principal(self.principal_of(session.getpeercert(binary_form=True)))

        return TlsLayer(
            connection,
            self.context.current,
            server_side=True,
            hostname=None,
            scratch=scratch,
            handshake_s_max=self.context.settings.handshake_s_max,
            on_open=on_open,
            on_failed=on_failed,
            worker=worker,
        )
