"""A broker of Apache Kafka and one of ours with the same secured listeners, users and rights.

Both have the same properties, the same certificates and the same issuer of tokens. The listener
PLAINTEXT is of a super user: commands begin there, as there are no other users yet.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority, Validity
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.ports import HOST, hold_port
from tests.compat.apache import apache_kafka
from tests.integration.security.sasl_nodes import (
    AUDIENCE,
    ISSUER,
    PLAIN_MODULE,
    SCRAM_MODULE,
    TokenIssuer,
)
from tools.kafka_broker import server_properties

ALICE, ALICE_PASSWORD = "alice", "wonder-land-1"
ADMIN, ADMIN_PASSWORD = "admin", "admin-secret-1"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLERS = "org.apache.kafka.common.security.oauthbearer"
VALIDATOR = f"{_OAUTH_HANDLERS}.OAuthBearerValidatorCallbackHandler"
TOKEN_READER = f"{_OAUTH_HANDLERS}.OAuthBearerLoginCallbackHandler"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# Each listener beside PLAINTEXT, with the protocol that it speaks.
LISTENERS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "EARLY": "SSL",
    "ELSEWHERE": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "SECURE": "SASL_SSL",
    "FEW": "SASL_SSL",
}
_START_S_MAX = 60.0
_STOP_S_MAX = 30.0


class Credentials:
    """The certificates and tokens of a run, good and bad, in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.authority = CertificateAuthority.create(directory / "ca")
        self.stranger = CertificateAuthority.create(directory / "stranger", "another CA")
        now = datetime.now(UTC)
        expired = Validity.of_days(-1)
        early = Validity(now + timedelta(days=1), now + timedelta(days=2))
        issue = self.authority.issue_broker
        self.servers = {
            "": issue("broker", LOOPBACK_HOSTS),
            "EXPIRED": issue("expired-broker", LOOPBACK_HOSTS, expired),
            "EARLY": issue("early-broker", LOOPBACK_HOSTS, early),
            "ELSEWHERE": issue("far-broker", ["elsewhere.example"]),
        }
        self.clients = {
            "good": self.authority.issue_client(ALICE),
            "expired": self.authority.issue_client("expired-client", expired),
            "early": self.authority.issue_client("early-client", early),
            "unknown": self.stranger.issue_client(ALICE),
        }
        self.issuer = TokenIssuer(directory)
        (directory / "other").mkdir()
        other = TokenIssuer(directory / "other")
        hour = 3600.0
        self.tokens = {
            name: self._write(name, token)
            for name, token in {
                "good": self.issuer.token(ALICE, lasts_s=hour),
                "expired": self.issuer.token(ALICE, iat=0, exp=now.timestamp() - hour),
                "early": self.issuer.token(ALICE, lasts_s=2 * hour, nbf=now.timestamp() + hour),
                "other issuer": self.issuer.token(ALICE, lasts_s=hour, iss="https://other.example"),
                "other audience": self.issuer.token(ALICE, lasts_s=hour, aud="another-service"),
                "other key": other.token(ALICE, lasts_s=hour),
            }.items()
        }

    @property
    def trust(self) -> Path:
        """The certificates that clients trust."""
        return self.authority.certificate_path

    @property
    def files(self) -> str:
        """The URLs that Kafka is to be allowed to read."""
        return ",".join([self.issuer.url, *(path.as_uri() for path in self.tokens.values())])

    def _write(self, name: str, token: str) -> Path:
        path = self.directory / f"{name.replace(' ', '-')}.jwt"
        path.write_text(token)
        return path


class SecuredNode(NamedTuple):
    """A running broker: its listeners by name, and a directory for files of its clients."""

    addresses: Mapping[str, str]
    credentials: Credentials
    directory: Path

    @property
    def plain(self) -> str:
        """The listener of the super user."""
        return self.addresses["PLAINTEXT"]


def broker_settings(credentials: Credentials) -> dict[str, str]:
    """The settings of security that both brokers have."""
    settings = {
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}"
            for name, protocol in {
                "PLAINTEXT": "PLAINTEXT",
                "CONTROLLER": "PLAINTEXT",
                **LISTENERS,
            }.items()
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(credentials.servers[""]),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(credentials.trust),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "delegation.token.secret.key": "a secret of all nodes",
        "sasl.oauthbearer.jwks.endpoint.url": credentials.issuer.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "auto.create.topics.enable": "false",
    }
    for name, path in credentials.servers.items():
        if name:
            settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(path)
            settings[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
    users = f'user_{ALICE}="{ALICE_PASSWORD}" user_{ADMIN}="{ADMIN_PASSWORD}"'
    for name, protocol in LISTENERS.items():
        if not protocol.startswith("SASL"):
            continue
        prefix = f"listener.name.{name.lower()}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = (
            "PLAIN" if name == "FEW" else ",".join(MECHANISMS)
        )
        settings[f"{prefix}.plain.sasl.jaas.config"] = f"{PLAIN_MODULE} required {users};"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{SCRAM_MODULE} required;"
        bearer = f"{prefix}.oauthbearer.sasl"
        settings[f"{bearer}.jaas.config"] = f"{OAUTH_MODULE} required;"
        settings[f"{bearer}.server.callback.handler.class"] = VALIDATOR
    return settings


def client_properties(
    credentials: Credentials,
    address: str,
    *,
    tls: bool = False,
    certificate: str | None = None,
    trust: Path | None = None,
) -> dict[str, str]:
    """The properties of a Java client without a login."""
    properties = {"bootstrap.servers": address, "security.protocol": "PLAINTEXT"}
    if tls:
        properties |= {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trust or credentials.trust),
        }
    if certificate is not None:
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(credentials.clients[certificate]),
        }
    return properties


def with_password(
    properties: Mapping[str, str], mechanism: str, name: str, password: str, *, token: bool = False
) -> dict[str, str]:
    """The properties of a Java client that logs in by a name and a password."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    by_token = ' tokenauth="true"' if token else ""
    return _with_login(properties) | {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{name}" password="{password}"{by_token};',
    }


def with_token_file(properties: Mapping[str, str], token: Path) -> dict[str, str]:
    """The properties of a Java client that logs in with the token in a file."""
    return _with_login(properties) | {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTH_MODULE} required;",
        "sasl.login.callback.handler.class": TOKEN_READER,
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }


def _with_login(properties: Mapping[str, str]) -> dict[str, str]:
    is_secret = properties["security.protocol"].endswith("SSL")
    return {**properties, "security.protocol": "SASL_SSL" if is_secret else "SASL_PLAINTEXT"}


def write_properties(node: SecuredNode, name: str, properties: Mapping[str, str]) -> Path:
    """A file with the properties of a client, without addresses, for `--command-config`."""
    path = node.directory / f"{name}.properties"
    lines = [f"{key}={value}" for key, value in properties.items() if key != "bootstrap.servers"]
    path.write_text("\n".join(lines) + "\n")
    return path


def allowing_option(credentials: Credentials) -> str:
    """The option of a Java process that lets Kafka read keys and tokens in files."""
    return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={credentials.files}"


@contextmanager
def secured_brokers(directory: Path) -> Iterator[tuple[SecuredNode, SecuredNode]]:
    """Kafka's broker and ours."""
    credentials = Credentials(directory / "credentials")
    with (
        secured_kafka(directory / "kafka", credentials) as kafka,
        _headrace(directory / "headrace", credentials) as ours,
    ):
        yield kafka, ours


def _hold_listeners(stack: ExitStack) -> dict[str, str]:
    return {name: f"{HOST}:{stack.enter_context(hold_port()).number}" for name in LISTENERS}


@contextmanager
def secured_kafka(directory: Path, credentials: Credentials) -> Iterator[SecuredNode]:
    """A broker of Apache Kafka with its data in `directory`, which is made."""
    with ExitStack() as stack:
        addresses = _hold_listeners(stack)
        broker = stack.enter_context(
            apache_kafka(
                directory,
                settings=broker_settings(credentials),
                listeners=addresses,
                java_options=[allowing_option(credentials)],
            )
        )
        yield SecuredNode(
            {"PLAINTEXT": broker.bootstrap_servers, **addresses}, credentials, directory
        )


@contextmanager
def _headrace(directory: Path, credentials: Credentials) -> Iterator[SecuredNode]:
    directory.mkdir()
    with ExitStack() as stack:
        addresses = _hold_listeners(stack)
        port, controller_port = (stack.enter_context(hold_port()).number for _ in range(2))
        log = BrokerLog()
        process = BrokerProcess(log, _STOP_S_MAX)
        properties = server_properties(directory, port, controller_port, addresses)
        process.start(properties | broker_settings(credentials), None, _START_S_MAX)
        try:
            yield SecuredNode({"PLAINTEXT": f"{HOST}:{port}", **addresses}, credentials, directory)
            process.stop()
        finally:
            if process.is_running:
                process.kill()
            print(log.text)
            assert "Traceback (most recent call last)" not in log.text, log.text
            for secret in (ALICE_PASSWORD, ADMIN_PASSWORD):
                assert secret not in log.text
