"""JSON web tokens: signatures, algorithms, claims, and the messages that carry them."""

import hmac
import json
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.json_web_tokens import (
    KEYS_MAX,
    KeySet,
    KeySetError,
    TokenRules,
    UnknownKey,
    encode_token,
    read_bearer_message,
    read_key_set,
    verify_token,
)
from headrace.security.sasl import SaslFailure

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["RS256", "none", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
ROWS = ANY_JSON | st.sampled_from(["RSA", "EC", "OKP", "P-256", "Ed25519", "AQAB", "_" * 400])

NOW = 1_800_000_000.0
RULES = TokenRules("https://issuer", ("headrace",), clock_skew_s=30)
CLAIMS = {"sub": "alice", "iss": "https://issuer", "aud": "headrace", "exp": NOW + 60}
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def public(key: Any, **fields: str) -> dict[str, Any]:
    algorithms: dict[type[Any], Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    algorithm = next(found for kind, found in algorithms.items() if isinstance(key, kind))
    return {**json.loads(algorithm.to_jwk(key.public_key())), **fields}


def key_set(*rows: dict[str, Any]) -> KeySet:
    return read_key_set(json.dumps({"keys": list(rows)}).encode())


KEYS = key_set(public(RSA, kid="rsa"), public(EC, kid="ec"), public(ED, kid="ed"))


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **claims: Any) -> str:
    content = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers={} if kid is None else {"kid": kid})


def by_hand(header: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(CLAIMS).encode(), signature]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (RSA, "RS256", "rsa"),
        (RSA, "PS512", "rsa"),
        (EC, "ES256", "ec"),
        (ED, "EdDSA", "ed"),
        (RSA, "RS256", None),
    ],
)
def test_tokens_of_known_keys_are_believed(key: Any, algorithm: str, kid: str | None) -> None:
    identity = verify_token(token(key, algorithm, kid, groups=["ops"]), KEYS, RULES, NOW)
    assert str(identity.principal) == "User:alice"
    assert identity.principal.groups == ("ops",)
    assert identity.expires_ms == int((NOW + 60) * 1000)


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS1", "", None, 5])
def test_the_token_does_not_choose_how_it_is_checked(algorithm: Any) -> None:
    with pytest.raises(SaslFailure, match=r"not accepted|no JSON web token"):
        verify_token(by_hand({"alg": algorithm, "kid": "rsa"}), KEYS, RULES, NOW)


def test_a_public_key_is_no_secret_to_sign_with() -> None:
    public_key = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    unsigned = by_hand({"alg": "HS256", "kid": "rsa"}).rstrip(".")
    signature = hmac.digest(public_key, unsigned.encode(), "sha256")
    forged = by_hand({"alg": "HS256", "kid": "rsa"}, signature)
    with pytest.raises(SaslFailure, match="not accepted"):
        verify_token(forged, KEYS, RULES, NOW)


def test_a_key_verifies_its_own_algorithms_only() -> None:
    with pytest.raises(UnknownKey):
        verify_token(by_hand({"alg": "ES256", "kid": "rsa"}), KEYS, RULES, NOW)
    with pytest.raises(UnknownKey):
        verify_token(token(), key_set(public(RSA, kid="rsa", alg="RS512")), RULES, NOW)


def test_a_token_of_another_key_is_refused() -> None:
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    with pytest.raises(SaslFailure, match="bad signature"):
        verify_token(token(other), KEYS, RULES, NOW)
    with pytest.raises(UnknownKey):
        verify_token(token(kid="new"), KEYS, RULES, NOW)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 30}, "expired"),
        ({"exp": None}, "no expiry"),
        ({"exp": "tomorrow"}, "bad time"),
        ({"exp": True}, "bad time"),
        ({"exp": 1e300}, "bad time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "in the future"),
        ({"iss": "https://elsewhere"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "audience"),
        ({"sub": None}, "no user name"),
        ({"sub": " "}, "no user name"),
        ({"sub": ["alice"]}, "no user name"),
        ({"scope": 5}, "no texts"),
        ({"groups": {"ops": 1}}, "no texts"),
    ],
)
def test_claims_are_checked(claims: dict[str, Any], reason: str) -> None:
    # PyJWT itself refuses to encode some of them, so they are signed as they are.
    payload = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    signed = jwt.api_jws.encode(json.dumps(payload).encode(), RSA, "RS256", {"kid": "rsa"})
    with pytest.raises(SaslFailure, match=reason):
        verify_token(signed, KEYS, RULES, NOW)


def test_clocks_may_be_apart_a_little() -> None:
    verify_token(token(exp=NOW - 29, nbf=NOW + 29, iat=NOW + 29), KEYS, RULES, NOW)


@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "zip"]), ANY_JSON))
def test_any_header_of_an_unsigned_token_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(SaslFailure):
        verify_token(by_hand(header), KEYS, RULES, NOW)


@given(st.lists(st.dictionaries(st.sampled_from(["kty", "crv", "n", "e", "x", "y", "use"]), ROWS)))
def test_any_rows_of_a_key_set_are_keys_or_left_out(rows: list[dict[str, Any]]) -> None:
    with suppress(KeySetError):
        key_set(*rows)


def test_critical_headers_are_refused() -> None:
    with pytest.raises(SaslFailure):
        verify_token(by_hand({"alg": "RS256", "kid": "rsa", "crit": ["b64"]}), KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 5}',
        b'{"keys": []}',
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "x"}]}).encode(),
        json.dumps({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}).encode(),
        json.dumps({"keys": [public(RSA, use="enc")]}).encode(),
        json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(),
    ],
)
def test_key_sets_without_usable_keys_are_refused(document: bytes) -> None:
    with pytest.raises(KeySetError):
        read_key_set(document)


def test_messages_carry_tokens() -> None:
    assert read_bearer_message(encode_token("a.b.c")).token == "a.b.c"
    message = read_bearer_message(b"n,a=alice,\x01host=x\x01auth=bearer a.b.c\x01\x01")
    assert (message.token, message.authzid) == ("a.b.c", "alice")
    assert "a.b.c" not in repr(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"p=x,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
        b"\xff",
    ],
)
def test_bad_messages_are_refused(message: bytes) -> None:
    with pytest.raises(SaslFailure):
        read_bearer_message(message)
