"""Settings of security protocols and of TLS: of listeners, and of connections to other nodes.

A setting that is `per_listener` may be given for one listener, as `listener.name.internal.` and its
name, in place of the value for all.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.options import Int, ListOf, Long, Password, Text, one_of, setting
from headrace.types import SecurityProtocol

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
STORE_TYPES = ("PEM", "PKCS12", "JKS")
CLIENT_AUTH = ("none", "requested", "required")

_PROTOCOL_NAMES = tuple(protocol.name for protocol in SecurityProtocol)
# Listeners of this name are for controllers in every example of Kafka, and plain text in most.
_CONTROLLER = "CONTROLLER"


def parse_protocols(text: str) -> tuple[str, ...]:
    """The items of `listener.security.protocol.map`, which is one text in Kafka."""
    items = []
    for item in text.split(",") if text else ():
        name, _, protocol = item.strip().partition(":")
        if not name or protocol not in _PROTOCOL_NAMES:
            raise ValueError(
                f"{item.strip()!r} is not NAME:PROTOCOL with one of {', '.join(_PROTOCOL_NAMES)}"
            )
        # As in `listeners`, where the case of a name does not count either.
        items.append(f"{name.upper()}:{protocol}")
    return tuple(items)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class SecurityConfig:
    """Settings of security protocols and of TLS."""

    listener_security_protocol_map: tuple[str, ...] = setting(
        Text(),
        tuple(f"{name}:{name}" for name in ("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT")),
        convert=parse_protocols,
        doc="What each listener name speaks, as `NAME:PROTOCOL` with PLAINTEXT, SSL, SASL_PLAINTEXT"
        " or SASL_SSL. Listeners for controllers are plain text without it, if all others are.",
    )
    security_inter_broker_protocol: str = setting(
        one_of(*_PROTOCOL_NAMES),
        "PLAINTEXT",
        doc="What brokers speak to each other: they use the first listener that speaks it. Give"
        " either this or `inter.broker.listener.name`.",
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        ListOf(may_be_empty=True),
        (),
        dynamic=True,
        per_broker=True,
        per_listener=True,
        doc="Cipher suites of TLS, in the names of Java or of OpenSSL; all good ones without it."
        " Those of TLS 1.3 cannot be chosen one by one: naming none of them turns TLS 1.3 off.",
    )
    ssl_client_auth: str = setting(
        one_of(*CLIENT_AUTH),
        "none",
        dynamic=True,
        per_broker=True,
        per_listener=True,
        doc="Whether clients must show a certificate: `none`, `requested` or `required`.",
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        ListOf(choices=TLS_VERSIONS),
        TLS_VERSIONS,
        dynamic=True,
        per_broker=True,
        per_listener=True,
        doc="Versions of TLS that are spoken: `TLSv1.2`, `TLSv1.3`.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        one_of("https", ""),
        "https",
        dynamic=True,
        per_broker=True,
        per_listener=True,
        doc="How this node checks the host names of other nodes against their certificates; empty"
        " turns the check off.",
    )
    ssl_handshake_timeout_ms: int = setting(
        Int(1),
        10_000,
        per_listener=True,
        doc="How long a TLS handshake may take; a connection whose handshake takes longer is"
        " closed. A setting of headrace's own.",
    )
    ssl_key_password: str | None = setting(
        Password(),
        None,
        dynamic=True,
        sensitive=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The password of an encrypted private key.",
    )
    ssl_keystore_certificate_chain: str | None = setting(
        Password(),
        None,
        dynamic=True,
        sensitive=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="This node's certificate and those that issued it, as PEM text in place of a file.",
    )
    ssl_keystore_key: str | None = setting(
        Password(),
        None,
        dynamic=True,
        sensitive=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="This node's private key, as PEM text in place of a file.",
    )
    ssl_keystore_location: str | None = setting(
        Text(),
        None,
        dynamic=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The file of this node's private key and certificate: PEM (key and chain in one file)"
        " or PKCS#12. When it changes, new connections get the new certificate.",
    )
    ssl_keystore_password: str | None = setting(
        Password(),
        None,
        dynamic=True,
        sensitive=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The password of the file in `ssl.keystore.location`, if it is PKCS#12.",
    )
    ssl_keystore_type: str = setting(
        one_of(*STORE_TYPES),
        "JKS",
        dynamic=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The format of `ssl.keystore.location`: `PEM` or `PKCS12`. `JKS`, Kafka's default,"
        " stands for whichever of the two the file is; one that is JKS in truth is refused.",
    )
    ssl_principal_mapping_rules: str = setting(
        Text(),
        "DEFAULT",
        per_listener=True,
        doc="How the name in a client's certificate becomes the name of a user: rules"
        " `RULE:pattern/replacement/` with an `L` or `U` for lower or upper case behind, or"
        " `DEFAULT` for the whole name, separated by commas. The first that matches counts."
        " Patterns are those of RE2.",
    )
    ssl_reload_interval_ms: int = setting(
        Long(-1),
        5000,
        doc="How often the broker looks whether the files of certificates have changed. -1 is"
        " never. A setting of headrace's own.",
    )
    ssl_truststore_certificates: str | None = setting(
        Password(),
        None,
        dynamic=True,
        sensitive=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The certificates that are trusted, as PEM text in place of a file.",
    )
    ssl_truststore_location: str | None = setting(
        Text(),
        None,
        dynamic=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The file of the certificates that are trusted: PEM or PKCS#12. Without any, those that"
        " the operating system trusts are.",
    )
    ssl_truststore_password: str | None = setting(
        Password(),
        None,
        dynamic=True,
        sensitive=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The password of the file in `ssl.truststore.location`, if it is PKCS#12.",
    )
    ssl_truststore_type: str = setting(
        one_of(*STORE_TYPES),
        "JKS",
        dynamic=True,
        per_broker=True,
        listener_only=True,
        per_listener=True,
        doc="The format of `ssl.truststore.location`, as `ssl.keystore.type` says it.",
    )


def protocol_map(items: tuple[str, ...]) -> dict[str, SecurityProtocol]:
    """The security protocols by listener name that `listener.security.protocol.map` holds."""
    pairs = (item.partition(":") for item in items)
    return {name: SecurityProtocol[protocol] for name, _, protocol in pairs}


def protocol_of_listener(
    name: str,
    mapped: Mapping[str, SecurityProtocol],
    listeners: Iterable[str],
    controllers: Collection[str],
) -> SecurityProtocol:
    """The security protocol of a listener; ConfigError if no setting names it.

    `listeners` are the names of all listeners of the node, and `controllers` of those for
    controllers, which are plain text without a word about them, if all others are.
    """
    known = _protocol_named(name, mapped)
    if known is not None:
        return known
    others = {_protocol_named(other, mapped) for other in listeners}
    if others <= {None, SecurityProtocol.PLAINTEXT}:
        if name in controllers or name == _CONTROLLER:
            return SecurityProtocol.PLAINTEXT
    raise ConfigError(
        f"listener.security.protocol.map does not say what the listener {name} speaks; add"
        f" {name}:PLAINTEXT, {name}:SSL, {name}:SASL_PLAINTEXT or {name}:SASL_SSL to it"
    )


def _protocol_named(name: str, mapped: Mapping[str, SecurityProtocol]) -> SecurityProtocol | None:
    if name in mapped:
        return mapped[name]
    return SecurityProtocol[name] if name in _PROTOCOL_NAMES else None
