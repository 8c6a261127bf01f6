"""Sessions that end with the credentials that they logged in with."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.login_sessions import LoginProof, LoginSessions, TokenKey, own_users
from headrace.config import broker_config
from headrace.metadata.image import Image
from headrace.metadata.scram_credentials import ScramKey
from headrace.security.scram import ScramCredential

ALICE, BOB = ScramKey("alice", 1), ScramKey("bob", 1)
FIRST = ScramCredential(b"salt", b"stored", b"server", 4096)
SECOND = ScramCredential(b"other salt", b"stored", b"server", 4096)


class FakeSession:
    """A session that notes its end; like that of a connection it is discarded then."""

    def __init__(self, sessions: LoginSessions, proof: LoginProof) -> None:
        self.proof: LoginProof | None = proof
        self.is_revoked = False
        self.ends_ms: int | None = None
        self._sessions = sessions
        sessions.add(self)

    def revoke(self) -> None:
        self.is_revoked = True
        self._sessions.discard(self)

    def end_by(self, expires_ms: int) -> None:
        self.ends_ms = expires_ms


def image(credentials: dict[ScramKey, ScramCredential], **tokens: int) -> Image:
    made = {
        token_id: SimpleNamespace(expires_ms=expires_ms, max_ms=1000)
        for token_id, expires_ms in tokens.items()
    }
    return cast(
        "Image",
        SimpleNamespace(
            features={"metadata.version": 1}, scram_credentials=credentials, delegation_tokens=made
        ),
    )


@pytest.mark.parametrize(
    ("left", "is_revoked"),
    [({ALICE: FIRST}, False), ({ALICE: SECOND}, True), ({BOB: FIRST}, True), ({}, True)],
    ids=["the same", "another password", "another user", "nobody"],
)
def test_a_session_ends_when_its_credential_is_changed_or_removed(
    left: dict[ScramKey, ScramCredential], is_revoked: bool
) -> None:
    sessions = LoginSessions()
    session = FakeSession(sessions, LoginProof(ALICE, FIRST))
    sessions.follow(image({ALICE: FIRST}), image(left))
    assert session.is_revoked is is_revoked
    assert len(sessions) == (not is_revoked)


def test_a_bootstrap_user_may_have_another_salt_but_must_be_there() -> None:
    sessions = LoginSessions()
    session = FakeSession(sessions, LoginProof(ALICE))
    sessions.follow(image({}), cast("Any", SimpleNamespace(**_empty(), features={})))
    sessions.follow(image({}), image({ALICE: SECOND}))
    assert not session.is_revoked
    sessions.follow(image({ALICE: SECOND}), image({}))
    assert session.is_revoked


def _empty() -> dict[str, Any]:
    return {"scram_credentials": {}, "delegation_tokens": {}}


def test_sessions_of_a_token_end_with_it_and_no_later_than_it() -> None:
    sessions = LoginSessions()
    ended, shortened = (
        FakeSession(sessions, LoginProof(TokenKey(name))) for name in ("ended", "shortened")
    )
    before = image({}, ended=500, shortened=500)
    sessions.follow(before, image({}, shortened=300))
    assert (ended.is_revoked, shortened.is_revoked) == (True, False)
    assert shortened.ends_ms == 300


def test_the_user_of_the_nodes_themselves_is_left_alone() -> None:
    sessions = LoginSessions(frozenset({"alice"}))
    session = FakeSession(sessions, LoginProof(ALICE, FIRST))
    token = FakeSession(sessions, LoginProof(TokenKey("alice")))
    sessions.follow(image({ALICE: FIRST}, alice=1), image({}))
    assert (session.is_revoked, token.is_revoked) == (False, True)


@pytest.mark.parametrize(
    ("voters", "users"), [("1@h:1,2@h:2", {"broker", "controller"}), ("1@h:1", set())]
)
def test_a_node_with_others_has_users_of_its_own(voters: str, users: set[str]) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": voters,
        "listeners": "INSIDE://h:9092,CONTROLLER://h:1",
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
    }
    for listener, name in (("inside", "broker"), ("controller", "controller")):
        jaas = f'{module} required username="{name}" password="secret";'
        settings[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = jaas
    assert own_users(broker_config(settings)) == users


def test_a_session_that_is_over_is_forgotten() -> None:
    sessions = LoginSessions()
    first, second = (FakeSession(sessions, LoginProof(ALICE, FIRST)) for _ in range(2))
    sessions.discard(first)
    sessions.discard(first)
    assert len(sessions) == 1
    sessions.follow(image({ALICE: FIRST}), image({}))
    assert (first.is_revoked, second.is_revoked) == (False, True)
