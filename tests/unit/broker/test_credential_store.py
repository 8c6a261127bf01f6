"""Looking a user up takes the same steps whether or not there is one."""

import asyncio
import hmac
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.credential_store import CredentialStore, FoundCredential
from headrace.metadata.image import Image
from headrace.metadata.scram_credentials import ScramKey
from headrace.security import scram
from headrace.security.scram import ScramMechanism, credential_of

MECHANISM = ScramMechanism.SCRAM_SHA_512
ALICE = ScramKey("alice", MECHANISM)
SALT = bytes(24)


async def found(names: tuple[str, ...]) -> dict[str, FoundCredential]:
    credential = credential_of(MECHANISM, bytes(64), SALT, 4096)
    node = SimpleNamespace(
        rng=SimpleNamespace(randbytes=bytes),
        ready=asyncio.Event(),
        store=SimpleNamespace(
            image=Image(features={"a": 1}, scram_credentials={ALICE: credential})
        ),
    )
    node.ready.set()
    store = CredentialStore(cast("Any", node))
    try:
        return {name: await store.scram_credential(MECHANISM, name) for name in names}
    finally:
        store.close()


def test_a_missing_user_costs_no_more_hashes_than_one_that_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[bytes] = []

    def counted(key: bytes, message: bytes, digest: str) -> bytes:
        hashed.append(message.rpartition(b"\0")[2])
        return hmac.digest(key, message, digest)

    monkeypatch.setattr(scram, "hmac", SimpleNamespace(digest=counted))
    credentials = asyncio.run(found(("alice", "nobody")))
    assert credentials["alice"].credential.salt == SALT
    assert credentials["alice"].identity is not None
    assert credentials["nobody"].identity is None
    assert hashed.count(b"alice") == hashed.count(b"nobody") > 0
