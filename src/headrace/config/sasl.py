"""Settings of SASL: of listeners, and of this node's own logins at other nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from headrace.config.jaas import (
    OAUTH_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    LoginModule,
    parse_jaas,
)
from headrace.errors import ConfigError
from headrace.options import Bool, Int, ListOf, Long, Password, Scope, Text, options_of, setting

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MODULE_OF = {
    "PLAIN": PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    "OAUTHBEARER": OAUTH_MODULE,
}
_UNSECURED = "unsecuredLogin"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DAY_MS = 86_400_000

# As `kafka-storage format --add-scram` takes them: SCRAM-SHA-256=[name=admin,password=secret].
_BOOTSTRAP_ITEM = re.compile(
    r"(?P<mechanism>SCRAM-SHA-(?:256|512))=\[(?P<fields>[^\[\]]*)\]\s*,?\s*"
)
_BOOTSTRAP_FIELDS = {"name", "password", "iterations", "salt", "saltedpassword"}


def _mechanism(value: str) -> str:
    if value not in ("", *SASL_MECHANISMS):
        raise ValueError(_unknown(value))
    return value


def _mechanisms(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in SASL_MECHANISMS:
            raise ValueError(_unknown(value))
    return values


def _unknown(mechanism: str) -> str:
    kerberos = " (headrace has no Kerberos)" if mechanism == "GSSAPI" else ""
    return f"{mechanism!r} is not one of {', '.join(SASL_MECHANISMS)}{kerberos}"


def _jaas(text: str) -> str:
    if text:
        parse_jaas(text)
    return text


def _url(allowed: tuple[str, ...]) -> Any:
    def check(text: str) -> str:
        parts = urlsplit(text)
        if not text or parts.scheme in allowed:
            return text
        if parts.scheme == "http" and parts.hostname in _LOOPBACK:
            return text
        raise ValueError(f"it must begin with {' or '.join(f'{scheme}:' for scheme in allowed)}")

    return check


class BootstrapCredential(NamedTuple):
    """A SCRAM credential of the first start: a password, or a salt and a salted password."""

    mechanism: str
    name: str
    iterations: int
    password: str | None
    salt: bytes | None
    salted_password: bytes | None

    def __repr__(self) -> str:
        return f"<BootstrapCredential of {self.name!r}>"


def parse_bootstrap_credentials(text: str) -> tuple[BootstrapCredential, ...]:
    """The items of `scram.bootstrap.credentials`; ValueError never quotes them."""
    from base64 import b64decode  # noqa: PLC0415

    found, position = [], 0
    text = text.strip()
    while position < len(text):
        match = _BOOTSTRAP_ITEM.match(text, position)
        if match is None:
            raise ValueError(
                "each item must be SCRAM-SHA-256=[name=NAME,password=PASSWORD], or SCRAM-SHA-512"
            )
        position = match.end()
        fields = dict(part.strip().partition("=")[::2] for part in match["fields"].split(","))
        hashed = "salt" in fields and "saltedpassword" in fields
        if not fields.get("name") or not set(fields) <= _BOOTSTRAP_FIELDS:
            raise ValueError(f"the fields of an item are {', '.join(sorted(_BOOTSTRAP_FIELDS))}")
        if not hashed and not fields.get("password"):
            raise ValueError("an item must have a password, or salt and saltedpassword in base64")
        iterations = fields.get("iterations", "4096")
        if (
            not iterations.isascii()
            or not iterations.isdigit()
            or not 4096 <= int(iterations) <= 16384
        ):
            raise ValueError("iterations must be 4096 to 16384")
        try:
            salt = b64decode(fields["salt"], validate=True) if hashed else None
            salted = b64decode(fields["saltedpassword"], validate=True) if hashed else None
        except ValueError:
            raise ValueError("salt and saltedpassword must be base64") from None
        found.append(
            BootstrapCredential(
                match["mechanism"],
                fields["name"],
                int(iterations),
                None if hashed else fields["password"],
                salt,
                salted,
            )
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # `BrokerConfig` has them.
class SaslConfig:
    """Settings of SASL and of delegation tokens."""

    connection_failed_authentication_delay_ms: int = setting(
        Int(0),
        100,
        doc="How long the answer to a failed login is held back, so that guessing takes time.",
    )
    connections_max_reauth_ms: int = setting(
        Long(0),
        0,
        per_listener=True,
        doc="How long a login by SASL holds; a client that does not log in again in time loses its"
        " connection with its next request. 0 is for ever, but no login outlives its token.",
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        Long(1),
        3_600_000,
        doc="How often expired delegation tokens are removed. They log nobody in meanwhile.",
    )
    delegation_token_expiry_time_ms: int = setting(
        Long(1),
        _DAY_MS,
        doc="How long a delegation token is valid before it must be renewed.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        Long(1),
        7 * _DAY_MS,
        doc="How long a delegation token can be renewed at most.",
    )
    delegation_token_secret_key: str | None = setting(
        Password(),
        None,
        sensitive=True,
        doc="The secret that delegation tokens are made from, the same on every node. Without it"
        " there are no delegation tokens.",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ListOf(may_be_empty=True),
        (),
        convert=_mechanisms,
        per_listener=True,
        doc=f"The mechanisms that clients may log in with: {', '.join(SASL_MECHANISMS)}. Kafka's"
        " default is GSSAPI, which headrace does not have.",
    )
    sasl_jaas_config: str | None = setting(
        Password(),
        None,
        convert=_jaas,
        sensitive=True,
        per_listener=True,
        doc="A login module with its options, as Kafka writes it. `username` and `password` are"
        " this node's own login at other nodes. For PLAIN at one listener, under"
        " `listener.name.NAME.plain.sasl.jaas.config`, options `user_NAME` are the passwords of"
        " users.",
    )
    sasl_mechanism_controller_protocol: str = setting(
        Text(),
        "",
        convert=_mechanism,
        doc="The mechanism that this node logs in with at controllers.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        Text(),
        "",
        convert=_mechanism,
        doc="The mechanism that this node logs in with at other brokers.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        Int(0, 3600),
        30,
        per_listener=True,
        doc="How far the clocks of this node and of the issuer of tokens may be apart.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        ListOf(may_be_empty=True),
        (),
        per_listener=True,
        doc="The audiences of which a token must name one. Empty is any: then a token that the"
        " same issuer made for another service logs in here.",
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        Text(),
        None,
        per_listener=True,
        doc="The issuer that a token must name.",
    )
    sasl_oauthbearer_groups_claim_name: str = setting(
        Text(),
        "groups",
        per_listener=True,
        doc="The claim of a token with the groups that its user is in, a list of texts. A setting"
        " of headrace's own.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        Long(1000),
        3_600_000,
        per_listener=True,
        doc="How often the keys of tokens are read again. A token with an unknown key has them"
        " read at once, but not more often than every 10 seconds.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        Text(),
        None,
        convert=_url(("https", "file")),
        per_listener=True,
        doc="Where the public keys of tokens are, as a JSON web key set: an `https:` or `file:`"
        " URL; `http:` is taken only for this machine.",
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        Text(), "scope", per_listener=True, doc="The claim of a token with its scope."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        Text(), "sub", per_listener=True, doc="The claim of a token with the name of the user."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        Text(),
        None,
        convert=_url(("file",)),
        per_listener=True,
        doc="A `file:` URL of the token that this node logs in with at other nodes by OAUTHBEARER;"
        " it is read at every login. Unlike Kafka, no token is asked for over the network.",
    )
    sasl_plain_scram_credentials: bool = setting(
        Bool(),
        False,
        per_listener=True,
        doc="Whether PLAIN takes the users and passwords of SCRAM, so that no password lies in a"
        " file. A setting of headrace's own.",
    )
    sasl_server_authentication_timeout_ms: int = setting(
        Int(1),
        10_000,
        per_listener=True,
        doc="How long a client may take to log in; a connection that takes longer is closed. A"
        " setting of headrace's own.",
    )
    sasl_server_max_receive_size: int = setting(
        Int(1),
        524_288,
        doc="The largest request accepted of a client that has not logged in.",
    )
    scram_bootstrap_credentials: str | None = setting(
        Password(),
        None,
        convert=lambda text: (parse_bootstrap_credentials(text), text)[1],
        sensitive=True,
        doc="The first SCRAM users of a new cluster, each as"
        " `SCRAM-SHA-512=[name=admin,password=secret]`, or with `iterations`, `salt` and"
        " `saltedpassword` in base64, as `kafka-storage format --add-scram` takes them. They are"
        " written to the metadata log when the cluster first starts, and never again. A setting of"
        " headrace's own.",
    )


_SETTINGS = options_of(SaslConfig, Scope.BROKER)


class ListenerSasl(NamedTuple):
    """The SASL of one listener."""

    listener: str
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    plain_from_scram: bool
    max_reauth_ms: Mapping[str, int]
    timeout_ms: int
    max_receive_bytes: int
    failure_delay_ms: int
    jwks_url: str | None
    jwks_refresh_ms: int
    issuer: str | None
    audiences: tuple[str, ...]
    clock_skew_s: int
    subject_claim: str
    scope_claim: str
    groups_claim: str

    def __repr__(self) -> str:
        return f"<ListenerSasl of {self.listener}>"


class NodeLogin(NamedTuple):
    """A node's own login at other nodes: a name and a password, or the file of a token."""

    mechanism: str
    username: str
    password: str
    by_token: bool = False
    token_file: str | None = None

    def __repr__(self) -> str:
        return f"<NodeLogin by {self.mechanism} as {self.username!r}>"


def listener_sasl(config: "BrokerConfig", listener: str) -> ListenerSasl:
    """The SASL of a listener; ConfigError if a setting that its mechanisms need is missing."""

    def value(name: str) -> Any:
        return config.value_at(listener, name)

    mechanisms: tuple[str, ...] = value("sasl.enabled.mechanisms")
    if not mechanisms:
        raise ConfigError(
            f"the listener {listener} speaks SASL, and no mechanism is enabled; set"
            f" sasl.enabled.mechanisms to some of {', '.join(SASL_MECHANISMS)}"
        )
    users: dict[str, str] = {}
    if "PLAIN" in mechanisms:
        module = _module(config, listener, "PLAIN")
        users = module.users if module is not None else {}
        if not users and not value("sasl.plain.scram.credentials"):
            raise ConfigError(
                f"the listener {listener} enables PLAIN and knows no user; set"
                f" {_jaas_name(listener, 'PLAIN')} with options user_NAME, or"
                " sasl.plain.scram.credentials=true"
            )
    if "OAUTHBEARER" in mechanisms:
        _module(config, listener, "OAUTHBEARER")
        if not value("sasl.oauthbearer.jwks.endpoint.url"):
            raise ConfigError(
                f"the listener {listener} enables OAUTHBEARER and has no keys to check tokens"
                " with; set sasl.oauthbearer.jwks.endpoint.url"
            )
    return ListenerSasl(
        listener=listener,
        mechanisms=mechanisms,
        plain_users=users,
        plain_from_scram=value("sasl.plain.scram.credentials"),
        max_reauth_ms={
            mechanism: mechanism_value(config, listener, mechanism, "connections.max.reauth.ms")
            for mechanism in mechanisms
        },
        timeout_ms=value("sasl.server.authentication.timeout.ms"),
        max_receive_bytes=config.sasl_server_max_receive_size,
        failure_delay_ms=config.connection_failed_authentication_delay_ms,
        jwks_url=value("sasl.oauthbearer.jwks.endpoint.url"),
        jwks_refresh_ms=value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        issuer=value("sasl.oauthbearer.expected.issuer"),
        audiences=value("sasl.oauthbearer.expected.audience"),
        clock_skew_s=value("sasl.oauthbearer.clock.skew.seconds"),
        subject_claim=value("sasl.oauthbearer.sub.claim.name"),
        scope_claim=value("sasl.oauthbearer.scope.claim.name"),
        groups_claim=value("sasl.oauthbearer.groups.claim.name"),
    )


def broker_login(config: "BrokerConfig") -> NodeLogin | None:
    """This node's login at other brokers; None if their listener takes none."""
    listener = config.inter_broker_listener
    if not config.protocol_of(listener).uses_sasl:
        return None
    mechanism = config.sasl_mechanism_inter_broker_protocol
    return _node_login(config, listener, mechanism, "sasl.mechanism.inter.broker.protocol")


def controller_login(config: "BrokerConfig") -> NodeLogin | None:
    """This node's login at controllers; None if their listener takes none."""
    listener = config.controller_listener
    if not config.protocol_of(listener).uses_sasl:
        return None
    mechanism = config.sasl_mechanism_controller_protocol
    if not mechanism and listener == config.inter_broker_listener:
        mechanism = config.sasl_mechanism_inter_broker_protocol
    return _node_login(config, listener, mechanism, "sasl.mechanism.controller.protocol")


def has_other_nodes(config: "BrokerConfig") -> bool:
    """Whether the settings name a node besides this one; one alone never logs in anywhere."""
    voters = {voter.node_id for voter in config.controller_quorum_voters}
    return bool(voters - {config.node_id} or config.controller_quorum_bootstrap_servers)


def check_node_logins(config: "BrokerConfig") -> None:
    """Refuse a config without the logins that this node needs at other nodes."""
    if has_other_nodes(config):
        broker_login(config)
        controller_login(config)


def _node_login(
    config: "BrokerConfig", listener: str, mechanism: str, setting_name: str
) -> NodeLogin:
    if not mechanism:
        raise ConfigError(
            f"other nodes are reached at {listener}, which speaks SASL; set {setting_name} to the"
            f" mechanism to log in with: {', '.join(SASL_MECHANISMS)}"
        )
    module = _module(config, listener, mechanism)
    if mechanism == "OAUTHBEARER":
        url = config.value_at(listener, "sasl.oauthbearer.token.endpoint.url")
        if not url:
            raise ConfigError(
                f"this node logs in at {listener} by OAUTHBEARER and has no token; set"
                " sasl.oauthbearer.token.endpoint.url to a file: URL"
            )
        return NodeLogin(mechanism, "", "", token_file=urlsplit(url).path)
    options = {} if module is None else module.options
    if not options.get("username") or not options.get("password"):
        raise ConfigError(
            f"this node logs in at {listener} by {mechanism} and has no username and password for"
            f" it; set {_jaas_name(listener, mechanism)} or sasl.jaas.config"
        )
    by_token = options.get("tokenauth", "").lower() == "true"
    return NodeLogin(mechanism, options["username"], options["password"], by_token)


def mechanism_value(config: "BrokerConfig", listener: str, mechanism: str, name: str) -> Any:
    """The value of a setting for one mechanism of a listener, or else for the listener."""
    own = f"listener.name.{listener.lower()}.{mechanism.lower()}.{name}"
    for given, text in (*config.dynamic.items(), *config.static.items()):
        if given.lower() == own:
            return _SETTINGS[name].parse(text)
    return config.value_at(listener, name)


def _jaas_name(listener: str, mechanism: str) -> str:
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"


def _module(config: "BrokerConfig", listener: str, mechanism: str) -> LoginModule | None:
    text: str | None = mechanism_value(config, listener, mechanism, "sasl.jaas.config")
    if not text:
        return None
    module = parse_jaas(text)
    if module.name != _MODULE_OF[mechanism]:
        if _is_own(config, listener, mechanism):
            raise ConfigError(
                f"{_jaas_name(listener, mechanism)} has a {module.name}, where {mechanism} needs a"
                f" {_MODULE_OF[mechanism]}"
            )
        return None  # The value for all mechanisms is meant for another.
    if any(name.startswith(_UNSECURED) for name in module.options):
        raise ConfigError(
            f"{_jaas_name(listener, mechanism)} asks for unsecured tokens, which anybody can make;"
            " set sasl.oauthbearer.jwks.endpoint.url and use signed ones"
        )
    return module


def _is_own(config: "BrokerConfig", listener: str, mechanism: str) -> bool:
    return any(name.lower() == _jaas_name(listener, mechanism) for name in config.static)
