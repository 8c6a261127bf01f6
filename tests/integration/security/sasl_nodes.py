"""Nodes whose listeners take logins, the users they know, and tokens for them."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from headrace.testing.broker import DEFAULTS
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.ports import HOST, hold_port

START_S = 60.0
STOP_S = 30.0
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
ISSUER, AUDIENCE = "https://issuer.example", "headrace"

PASSWORDS = {"admin": "admin-secret", "alice": "wonder=land,1"}
BOOTSTRAP = ",".join(
    f"{mechanism}=[name=admin,password={PASSWORDS['admin']}]"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
)


def plain_jaas(username: str | None = None) -> str:
    """The users of PLAIN, and a login of the node's own."""
    own = f' username="{username}" password="{PASSWORDS[username]}"' if username else ""
    users = "".join(f' user_{name}="{secret}"' for name, secret in PASSWORDS.items())
    return f"{PLAIN_MODULE} required{own}{users};"


class TokenIssuer:
    """An issuer of tokens, with a file of its public keys."""

    def __init__(self, directory: Path, key_id: str = "first") -> None:
        self.key_id = key_id
        self.key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        self.file = directory / "keys.json"
        self.publish()

    @property
    def url(self) -> str:
        return self.file.as_uri()

    def public_key(self) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {**row, "kid": self.key_id, "use": "sig", "alg": "RS256"}

    def publish(self) -> None:
        self.file.write_text(json.dumps({"keys": [self.public_key()]}))

    def token(self, name: str = "alice", *, lasts_s: float = 300, **claims: Any) -> str:
        """A token that a listener of `sasl_settings` takes, unless `claims` say otherwise."""
        now = time.time()
        content = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + lasts_s}
        content = {
            name: value for name, value in {**content, **claims}.items() if value is not None
        }
        return jwt.encode(content, self.key, algorithm="RS256", headers={"kid": self.key_id})


class SaslNode(NamedTuple):
    """A running node: its process, its log, and the addresses of its listeners by name."""

    process: BrokerProcess
    output: BrokerLog
    addresses: Mapping[str, str]

    @property
    def address(self) -> str:
        return next(iter(self.addresses.values()))


@contextmanager
def sasl_node(
    directory: Path, settings: Mapping[str, str], listeners: Mapping[str, str]
) -> Iterator[SaslNode]:
    """A node with these settings and listeners, each name with what it speaks."""
    with ExitStack() as stack:
        addresses = {
            name: f"{HOST}:{stack.enter_context(hold_port()).number}" for name in listeners
        }
        properties = {
            **DEFAULTS,
            "log.dirs": str(directory / "data"),
            "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in listeners.items()
            ),
            **settings,
        }
        output = BrokerLog()
        process = BrokerProcess(output, STOP_S)
        process.launch(properties, None)
        try:
            process.wait_until_ready(START_S)
            yield SaslNode(process, output, addresses)
        finally:
            if process.is_running:
                process.stop()
        assert "Traceback" not in output.text, output.text
        for secret in PASSWORDS.values():
            assert secret not in output.text
