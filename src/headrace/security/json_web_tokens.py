"""JSON web tokens, and OAUTHBEARER (RFC 7628), which hands one over.

Rule: a token decides nothing about how it is checked. Its algorithm must be one of `ALGORITHMS`,
all of which are asymmetric, and fit the type of the key, which comes from the key set alone:
neither an unsigned token nor one that is signed with a public key as if it were a secret gets in.
Symmetric keys in a key set are left out.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
from jwt.exceptions import PyJWTError

from headrace.errors import HeadraceError
from headrace.security.sasl import SaslFailure, SaslIdentity, user

# The algorithms that a key may verify, by its type and curve.
_ALGORITHMS_BY_KEY: Mapping[tuple[str, str], frozenset[str]] = {
    ("RSA", ""): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
ALGORITHMS = frozenset[str]().union(*_ALGORITHMS_BY_KEY.values())

TOKEN_BYTES_MAX = 64 * 1024
KEYS_MAX = 200
_RSA_MODULUS_CHARACTERS_MIN = 2048 // 8 * 4 // 3
_GROUPS_MAX = 1000
_KEYS_TRIED_MAX = 8
_NAME_CHARACTERS_MAX = 1024

_SEPARATOR = "\x01"
_MESSAGE = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01\Z"
)
_BEARER = re.compile(r"(?i:Bearer) +(?P<token>[-A-Za-z0-9._~+/]+=*) *\Z")
_RESERVED_EXTENSION = "auth"

INVALID_TOKEN = b'{"status":"invalid_token"}'
# What a client answers to a refusal, so that the exchange ends in the order of SASL.
REFUSAL_HEARD = b"\x01"


class UnknownKey(SaslFailure):
    """A token whose key is not in the key set: it may be new."""


class KeySetError(HeadraceError):
    """A document that is no JSON web key set."""


class TokenRules(NamedTuple):
    """The requirements for a valid token, and the claims that are read from it."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str = "groups"


class _VerifyingKey(NamedTuple):
    key_id: str | None
    algorithms: frozenset[str]
    key: Any


class KeySet:
    """The public keys that tokens are verified with."""

    def __init__(self, keys: tuple[_VerifyingKey, ...] = ()) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key_id: str | None, algorithm: str) -> list[_VerifyingKey]:
        """The keys that may have signed a token."""
        return [
            known
            for known in self._keys
            if algorithm in known.algorithms and key_id in (None, known.key_id)
        ]


def read_key_set(document: bytes) -> KeySet:
    """The usable keys of a JWKS document (RFC 7517); KeySetError if it is none."""
    try:
        rows = json.loads(document)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise KeySetError("it is no JSON object with a list of keys") from None
    if not isinstance(rows, list) or len(rows) > KEYS_MAX:
        raise KeySetError(f"its keys are no list of at most {KEYS_MAX}")
    keys = [key for row in rows if isinstance(row, dict) and (key := _verifying_key(row))]
    if not keys:
        raise KeySetError("it has no RSA, EC or Ed25519 key that signs tokens")
    return KeySet(tuple(keys))


def _verifying_key(row: Mapping[str, Any]) -> _VerifyingKey | None:
    algorithms = _ALGORITHMS_BY_KEY.get((str(row.get("kty")), str(row.get("crv") or "")))
    if algorithms is None or row.get("use", "sig") != "sig":
        return None
    if row.get("alg") is not None:
        algorithms &= {str(row["alg"])}
    if row["kty"] == "RSA" and len(str(row.get("n"))) < _RSA_MODULUS_CHARACTERS_MIN:
        return None
    if not algorithms:
        return None
    key_id = row.get("kid")
    try:
        # The algorithm is named for the class of the key only; `verify_token` names it again.
        key = jwt.PyJWK(dict(row), algorithm=min(algorithms)).key
    except PyJWTError:
        return None
    return _VerifyingKey(key_id if isinstance(key_id, str) else None, algorithms, key)


def encode_token(token: str) -> bytes:
    """The first message of a client."""
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{_SEPARATOR}".encode()


class BearerMessage(NamedTuple):
    """The first message of a client, read."""

    token: str
    authzid: str | None

    def __repr__(self) -> str:
        return "<BearerMessage>"


def read_bearer_message(message: bytes) -> BearerMessage:
    """Read the first message of a client; SaslFailure if it is none."""
    if len(message) > TOKEN_BYTES_MAX:
        raise SaslFailure(f"an OAUTHBEARER message has {len(message)} bytes")
    try:
        match = _MESSAGE.match(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise SaslFailure("an OAUTHBEARER message cannot be read")
    values = [
        value
        for name, _, value in (pair.partition("=") for pair in match["pairs"].split(_SEPARATOR))
        if name == _RESERVED_EXTENSION
    ]
    bearer = _BEARER.match(values[0]) if len(values) == 1 else None
    if bearer is None:
        raise SaslFailure("an OAUTHBEARER message has no bearer token")
    return BearerMessage(bearer["token"], match["authzid"] or None)


def verify_token(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> SaslIdentity:
    """Whom a token names; SaslFailure if it is not valid now, by these keys and rules."""
    claims = _verified_claims(token, keys)
    skew = rules.clock_skew_s
    expires = _seconds(claims, "exp")
    if expires is None:
        raise SaslFailure("the token has no expiry (exp)")
    if now_s >= expires + skew:
        raise SaslFailure(f"the token expired {now_s - expires:.0f} s ago")
    for claim, meaning in (("nbf", "is not valid yet"), ("iat", "is issued in the future")):
        begins = _seconds(claims, claim)
        if begins is not None and begins > now_s + skew:
            raise SaslFailure(f"the token {meaning}: {claim} is {begins - now_s:.0f} s from now")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise SaslFailure(f"the token is of issuer {claims.get('iss')!r}")
    if rules.audiences and not set(_texts(claims, "aud")) & set(rules.audiences):
        raise SaslFailure(f"the token is for the audience {claims.get('aud')!r}")
    name = claims.get(rules.subject_claim)
    if not isinstance(name, str) or not 0 < len(name.strip()) <= _NAME_CHARACTERS_MAX:
        raise SaslFailure(f"the token has no user name in {rules.subject_claim}")
    _texts(claims, rules.scope_claim)
    groups = _texts(claims, rules.groups_claim) if rules.groups_claim else ()
    return SaslIdentity(user(name, groups[:_GROUPS_MAX]), int(expires * 1000))


def _verified_claims(token: str, keys: KeySet) -> Mapping[str, Any]:
    """The claims of a token whose signature is good."""
    try:
        header = jwt.get_unverified_header(token)
    except PyJWTError:
        raise SaslFailure("the token is no JSON web token") from None
    algorithm = header.get("alg")
    # A list or an object, which no set can be asked for, is no algorithm either.
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise SaslFailure(f"the token is signed with {algorithm!r}, which is not accepted")
    if "crit" in header:
        raise SaslFailure("the token has critical headers, which are not known")
    key_id = header.get("kid")
    found = keys.find(key_id if isinstance(key_id, str) else None, algorithm)
    if not found:
        raise UnknownKey(f"the token is signed with the key {key_id!r}, which is not known")
    for known in found[:_KEYS_TRIED_MAX]:
        try:
            payload = jwt.api_jws.decode(token, known.key, algorithms=[algorithm])
            claims = json.loads(payload)
        except (PyJWTError, ValueError, RecursionError):
            continue
        if isinstance(claims, dict):
            return claims
    raise SaslFailure("the token has a bad signature")


def expiry_of(token: str) -> float | None:
    """The expiry in a token, unverified: for the client that sends the token."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        return _seconds(claims, "exp")
    except (PyJWTError, SaslFailure):
        return None


def _seconds(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    # Bounded, so that it can be converted; and true is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise SaslFailure(f"the token has a bad time in {claim}")
    return float(value)


def _texts(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """A claim that is a list of texts, or one text."""
    value = claims.get(claim)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in values):
        raise SaslFailure(f"the token has no texts in {claim}")
    return tuple(values)
