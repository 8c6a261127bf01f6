"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and both ends of the exchange.

Rule: nobody learns from an exchange whether a user exists. A server goes through all steps with a
made-up credential, and fails at the end, as it does for a wrong password.

Names and passwords are used as they are, in UTF-8: Kafka and its clients leave SASLprep out, and
whoever applied it could not log in where they do not.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from headrace.security.sasl import SaslFailure, SaslMechanism

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384

# The most that a client hashes for a server: one that asks for more wants to keep it busy.
CLIENT_ITERATIONS_MAX = 1_000_000
MESSAGE_BYTES_MAX = 16 * 1024
_NONCE_CHARACTERS_MAX = 1024
_SALT_BYTES = 24

_NO_BINDING = "n,,"
# `tokenauth=true` is Kafka's: the name is the id of a delegation token.
_CLIENT_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>[^,]*))?,n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[a-zA-Z]+=[^,]*)*)\Z"
)
_CLIENT_FINAL = re.compile(
    r"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[a-zA-Z]+=[^,]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)\Z"
)
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,.*)?\Z"
)
_ESCAPED = re.compile(r"=(?!2C|3D)")


class ScramMechanism(IntEnum):
    """Kafka's numbers of the SCRAM mechanisms, in requests and records."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl(self) -> SaslMechanism:
        return SaslMechanism[self.name]

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


def scram_mechanism(name: str) -> ScramMechanism | None:
    """The mechanism of that name, such as SCRAM-SHA-512; None for any other name."""
    return next((found for found in ScramMechanism if found.sasl.value == name), None)


class ScramCredential(NamedTuple):
    """The stored form of a password. It logs nobody in, but guesses can be tried on it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<ScramCredential of {self.iterations} iterations>"


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """The hash of a password: milliseconds of work for thousands of iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    return ScramCredential(
        salt,
        hashlib.new(mechanism.hash_name, client_key).digest(),
        _hmac(mechanism, salted, b"Server Key"),
        iterations,
    )


def password_matches(mechanism: ScramMechanism, password: str, known: ScramCredential) -> bool:
    """Whether a password is that of a credential, for PLAIN; as costly as `salted_password`."""
    salted = salted_password(mechanism, password, known.salt, known.iterations)
    found = credential_of(mechanism, salted, known.salt, known.iterations)
    return hmac.compare_digest(found.stored_key, known.stored_key)


def made_up_credential(
    mechanism: ScramMechanism, name: str, secret: bytes, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """The credential shown for an unknown user: always the same for a name, and no password fits.

    `secret` must be the same on all brokers: two that showed different salts for a name would tell
    that it does not exist.
    """

    def derived(purpose: bytes) -> bytes:
        return _hmac(mechanism, secret, purpose + b"\0" + name.encode("utf-8", "replace"))

    salt = derived(b"salt")[:_SALT_BYTES]
    return ScramCredential(salt, derived(b"stored key"), derived(b"server key"), iterations)


def escape_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape_name(text: str) -> str:
    if _ESCAPED.search(text):
        raise SaslFailure("the user name of a SCRAM message is not escaped as it must be")
    return text.replace("=2C", ",").replace("=3D", "=")


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslFailure(f"a SCRAM message has {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslFailure("a SCRAM message is not UTF-8") from None


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise SaslFailure("a SCRAM message has a bad base64 value") from None


def _exclusive_or(left: bytes, right: bytes) -> bytes:
    whole = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return whole.to_bytes(len(left), "big")


class ScramLoginRequest(NamedTuple):
    """The first message of a client, with the name of its user."""

    name: str
    nonce: str
    by_token: bool
    bare: str


def read_client_first(message: bytes) -> ScramLoginRequest:
    """Read the first message of a client; SaslFailure if it is malformed or unsupported."""
    text = _text(message)
    match = _CLIENT_FIRST.match(text)
    if match is None:
        if text.startswith("p="):
            raise SaslFailure("the client wants channel binding, which Kafka does not have")
        raise SaslFailure("the first SCRAM message cannot be read")
    if len(match["nonce"]) > _NONCE_CHARACTERS_MAX:
        raise SaslFailure("the nonce of a SCRAM message is too long")
    name = _unescape_name(match["name"])
    authzid = match["authzid"]
    if authzid and _unescape_name(authzid) != name:
        raise SaslFailure("the client wants to act as somebody else, which nobody may")
    extensions = dict(part.partition("=")[::2] for part in match["extensions"].split(",") if part)
    if "m" in extensions:
        raise SaslFailure("the client needs an extension of SCRAM that is not known")
    bare = text[match.start("name") - 2 :]
    return ScramLoginRequest(
        name, match["nonce"], extensions.get("tokenauth", "").lower() == "true", bare
    )


class ScramServer:
    """The server's end of one exchange: `read_client_first`, then `challenge`, then `verify`."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        login: ScramLoginRequest,
        credential: ScramCredential,
        nonce: str,
        *,
        exists: bool,
    ) -> None:
        self._mechanism = mechanism
        self._login = login
        self._credential = credential
        self._nonce = login.nonce + nonce
        self._exists = exists
        self.challenge = (
            f"r={self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        ).encode()

    def verify(self, message: bytes) -> bytes:
        """The answer to the client's last message; SaslFailure if it does not know the password."""
        match = _CLIENT_FINAL.match(_text(message))
        if match is None:
            raise SaslFailure("the last SCRAM message cannot be read")
        binding = _base64(match["binding"])
        if not re.fullmatch(rb"n,(a=[^,]*)?,", binding):
            raise SaslFailure("the client changed its mind about channel binding")
        nonce_fits = hmac.compare_digest(match["nonce"].encode(), self._nonce.encode())
        authenticated = f"{self._login.bare},{self.challenge.decode()},{match['bare']}".encode()
        known = self._credential
        proof = _base64(match["proof"])
        signature = _hmac(self._mechanism, known.stored_key, authenticated)
        if len(proof) != len(signature):
            raise SaslFailure("the proof of a SCRAM message has another length than its hash")
        client_key = _exclusive_or(proof, signature)
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        proven = hmac.compare_digest(stored_key, known.stored_key)
        # Every comparison is made before any of them decides.
        if not (proven & nonce_fits & self._exists):
            raise SaslFailure(
                "wrong password" if self._exists else f"{self._login.name!r} has no credential"
            )
        server_signature = _hmac(self._mechanism, known.server_key, authenticated)
        return b"v=" + b64encode(server_signature)


class ScramClient:
    """The client's end of one exchange: `first`, `final` and `verify`, in this order.

    `hash_password` is `salted_password`, or one that remembers: logins at many brokers have one
    salt, and need its milliseconds once.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        name: str,
        password: str,
        nonce: str,
        *,
        by_token: bool = False,
        hash_password: Callable[[ScramMechanism, str, bytes, int], bytes] = salted_password,
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._hash_password = hash_password
        extension = ",tokenauth=true" if by_token else ""
        self._bare = f"n={escape_name(name)},r={nonce}{extension}"
        self._signature = b""

    def first(self) -> bytes:
        return (_NO_BINDING + self._bare).encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof for a server's challenge; SaslFailure if the challenge is not acceptable."""
        text = _text(challenge)
        match = _SERVER_FIRST.match(text)
        if match is None:
            raise SaslFailure("the broker's SCRAM challenge cannot be read")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslFailure("the broker's SCRAM challenge answers another request")
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise SaslFailure(
                f"the broker wants the password hashed {iterations} times;"
                f" {ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are acceptable"
            )
        salt = _base64(match["salt"])
        salted = self._hash_password(self._mechanism, self._password, salt, iterations)
        bare = f"c={b64encode(_NO_BINDING.encode()).decode()},r={nonce}"
        authenticated = f"{self._bare},{text},{bare}".encode()
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        proof = _exclusive_or(client_key, _hmac(self._mechanism, stored_key, authenticated))
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._signature = _hmac(self._mechanism, server_key, authenticated)
        return f"{bare},p={b64encode(proof).decode()}".encode()

    def verify(self, message: bytes) -> None:
        """Check the server's last message; SaslFailure unless it knows the password as well."""
        text = _text(message)
        if text.startswith("e="):
            raise SaslFailure("the broker refuses the login")
        signature = _base64(text[2:].partition(",")[0]) if text.startswith("v=") else b""
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise SaslFailure("the broker does not know the password: it may be an impostor")
