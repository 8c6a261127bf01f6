"""Security of a cluster on one machine: its certificates, its users, and settings for both ends.

`headrace up --secure` and `headrace.testing` use it. Every listener speaks SASL_SSL with
SCRAM-SHA-512, and ACLs are enforced. There are two users, both of them super users: `broker`, as
which nodes log in at each other, and `admin` for people and their programs.
"""

import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.config.authorization import AUTHORIZER
from headrace.config.properties import properties_text
from headrace.errors import ConfigError

PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
USER, NODE_USER = "admin", "broker"
DIRECTORY = "security"
CLIENT_FILE = "client.properties"

_PASSWORDS_FILE = "passwords.json"
_CERTIFICATE = "broker"
_PASSWORD_BYTES = 24
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class SecuredCluster:
    """Files of certificates, and passwords, for the brokers of a cluster and their clients."""

    trusted: Path
    """The certificate of the authority, which clients and brokers trust."""
    keystore: Path
    """The private key and the certificate of all brokers."""
    password: str = field(repr=False)
    """The password of `USER`."""
    node_password: str = field(repr=False)

    @classmethod
    def prepare(cls, directory: Path, hosts: Iterable[str]) -> "SecuredCluster":
        """Those in a directory, which are made if they are not there.

        The brokers' certificate is made anew, for these hosts. ConfigError if a file is damaged.
        """
        # Imported here because `cryptography` takes long, and a plain cluster does not need it.
        from headrace.cli.certificate_authority import (  # noqa: PLC0415
            CA_FILE,
            LOOPBACK_HOSTS,
            CertificateAuthority,
        )

        exists = (directory / CA_FILE).exists()
        create = CertificateAuthority.open if exists else CertificateAuthority.create
        authority = create(directory)
        (directory / f"{_CERTIFICATE}.pem").unlink(missing_ok=True)
        names = dict.fromkeys([*LOOPBACK_HOSTS, *hosts])
        keystore = authority.issue_broker(_CERTIFICATE, names)
        passwords = _passwords(directory / _PASSWORDS_FILE)
        return cls(
            authority.certificate_path.resolve(),
            keystore.resolve(),
            passwords[USER],
            passwords[NODE_USER],
        )

    def broker_properties(self) -> dict[str, str]:
        """The settings of each broker, besides its listeners, which are named `PROTOCOL`."""
        users = {USER: self.password, NODE_USER: self.node_password}
        return {
            "inter.broker.listener.name": PROTOCOL,
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.location": str(self.trusted),
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.jaas.config": _login_module(NODE_USER, self.node_password),
            "scram.bootstrap.credentials": ",".join(
                f"{MECHANISM}=[name={name},password={password}]" for name, password in users.items()
            ),
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(f"User:{name}" for name in users),
        }

    def client_properties(self, bootstrap: str) -> dict[str, str]:
        """The properties of a client, which Kafka's Java programs understand too."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trusted),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": _login_module(USER, self.password),
        }

    def write_client_file(self, directory: Path, bootstrap: str) -> Path:
        """Write the properties of a client to a file that only its owner may read."""
        path = directory / CLIENT_FILE
        _write_secret(path, properties_text(self.client_properties(bootstrap)))
        return path


def _login_module(name: str, password: str) -> str:
    return f'{_SCRAM_MODULE} required username="{name}" password="{password}";'


def _passwords(path: Path) -> dict[str, str]:
    """The passwords in a file, by user; a new cluster gets random passwords."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(found[name]) for name in (USER, NODE_USER)}
    except FileNotFoundError:
        made = {name: secrets.token_urlsafe(_PASSWORD_BYTES) for name in (USER, NODE_USER)}
        _write_secret(path, json.dumps(made) + "\n")
        return made
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} has no passwords that can be read, and the brokers know no others; restore"
            " the file, or start a new cluster in another directory"
        ) from None


def _write_secret(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
