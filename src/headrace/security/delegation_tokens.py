"""Delegation tokens (KIP-48): their secrets, and the credentials they log in with by SCRAM.

A token is an id and the HMAC of the id under a secret that all nodes share. Whoever has both logs
in by SCRAM: the id is the user name, and the HMAC, in base64, is the password.
"""

import hmac
from base64 import b64encode

from headrace.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

_SALT_BYTES = 24


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """The secret of a token."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def token_password(token_secret: bytes) -> str:
    """The password that a client logs in with."""
    return b64encode(token_secret).decode()


def token_credential(mechanism: ScramMechanism, token_secret: bytes) -> ScramCredential:
    """The SCRAM credential of a token, the same on every node; milliseconds of work."""
    salt = hmac.digest(token_secret, mechanism.sasl.value.encode(), "sha512")[:_SALT_BYTES]
    salted = salted_password(mechanism, token_password(token_secret), salt, ITERATIONS_MIN)
    return credential_of(mechanism, salted, salt, ITERATIONS_MIN)
