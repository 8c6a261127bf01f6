"""SCRAM: the vectors of the RFCs, both ends against each other, and everything that is refused."""

from base64 import b64decode
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.security.sasl import SaslFailure
from headrace.security.scram import (
    CLIENT_ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    made_up_credential,
    password_matches,
    read_client_first,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism
SALT = b"0123456789abcdef"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def credential(
    password: str, mechanism: ScramMechanism = SHA_256, salt: bytes = SALT
) -> ScramCredential:
    salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
    return credential_of(mechanism, salted, salt, ITERATIONS_MIN)


def exchange(client: ScramClient, server: ScramServer) -> None:
    client.verify(server.verify(client.final(server.challenge)))


def server_of(
    client: ScramClient,
    known: ScramCredential,
    mechanism: ScramMechanism = SHA_256,
    *,
    nonce: str = "server",
    exists: bool = True,
) -> ScramServer:
    login = read_client_first(client.first())
    return ScramServer(mechanism, login, known, nonce, exists=exists)


def test_the_example_of_rfc_7677() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    known = credential("pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    server = server_of(client, known, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(server.challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    answer = server.verify(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.verify(answer)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(ScramMechanism), TEXTS, TEXTS)
def test_any_name_and_password_log_in(mechanism: ScramMechanism, name: str, password: str) -> None:
    client = ScramClient(mechanism, name, password, "nonce")
    assert read_client_first(client.first()).name == name
    exchange(client, server_of(client, credential(password, mechanism), mechanism))


def test_a_wrong_password_is_refused() -> None:
    client = ScramClient(SHA_256, "alice", "no", "nonce")
    with pytest.raises(SaslFailure, match="wrong password"):
        exchange(client, server_of(client, credential("yes")))


def test_a_made_up_credential_is_always_the_same_and_logs_nobody_in() -> None:
    made_up = made_up_credential(SHA_256, "nobody", b"secret")
    assert made_up == made_up_credential(SHA_256, "nobody", b"secret")
    assert made_up.salt != made_up_credential(SHA_256, "somebody", b"secret").salt
    assert made_up.salt != made_up_credential(SHA_256, "nobody", b"another").salt
    client = ScramClient(SHA_256, "nobody", "x", "nonce")
    with pytest.raises(SaslFailure):
        exchange(client, server_of(client, made_up, exists=False))


def test_a_user_that_does_not_exist_is_refused_even_with_the_password() -> None:
    client = ScramClient(SHA_256, "alice", "yes", "nonce")
    with pytest.raises(SaslFailure):
        exchange(client, server_of(client, credential("yes"), exists=False))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=user",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=root,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,m=new,n=user,r=x",
        b"n,,n=user,r=x,m=new",
        b"n,,n=user,r=" + b"x" * 2000,
        b"\xff" * 10,
        b"n" * 100_000,
    ],
)
def test_bad_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(SaslFailure):
        read_client_first(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=nonce", b"r=other"),
        lambda final: final[:-4],
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda final: b"",
    ],
    ids=["channel binding", "nonce", "short proof", "no proof", "empty"],
)
def test_changed_last_messages_are_refused(change: Callable[[bytes], bytes]) -> None:
    client = ScramClient(SHA_256, "alice", "yes", "nonce")
    server = server_of(client, credential("yes"))
    with pytest.raises(SaslFailure):
        server.verify(change(client.final(server.challenge)))


@pytest.mark.parametrize(
    "challenge",
    [
        f"r=nonceserver,s=QUJD,i={CLIENT_ITERATIONS_MAX + 1}",
        f"r=nonceserver,s=QUJD,i={ITERATIONS_MIN - 1}",
        "r=nonceserver,s=QUJD,i=99999999999",
        "r=otherserver,s=QUJD,i=4096",
        "r=nonce,s=QUJD,i=4096",
        "r=nonceserver,s=?,i=4096",
        "e=other-error",
    ],
    ids=["bomb", "too few", "huge", "nonce", "no nonce of its own", "salt", "error"],
)
def test_a_client_refuses_bad_challenges_before_it_hashes_anything(challenge: str) -> None:
    def never(*_: object) -> bytes:
        raise AssertionError("the password is hashed")

    client = ScramClient(SHA_256, "alice", "yes", "nonce", hash_password=never)
    with pytest.raises(SaslFailure):
        client.final(challenge.encode())


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=AAAA", b"e=invalid-proof"])
def test_a_client_refuses_a_server_that_does_not_know_the_password(answer: bytes) -> None:
    client = ScramClient(SHA_256, "alice", "yes", "nonce")
    client.final(b"r=nonceserver,s=QUJD,i=4096")
    with pytest.raises(SaslFailure):
        client.verify(answer)


def test_passwords_are_compared_with_credentials() -> None:
    assert password_matches(SHA_512, "yes", credential("yes", SHA_512))
    assert not password_matches(SHA_512, "no", credential("yes", SHA_512))


def test_a_credential_does_not_show_its_keys() -> None:
    assert repr(credential("yes")) == "<ScramCredential of 4096 iterations>"


def test_a_token_says_that_it_is_one() -> None:
    first = ScramClient(SHA_256, "id", "hmac", "nonce", by_token=True).first()
    assert first == b"n,,n=id,r=nonce,tokenauth=true"
    assert read_client_first(first).by_token
    assert not read_client_first(b"n,,n=id,r=nonce,tokenauth=false").by_token
