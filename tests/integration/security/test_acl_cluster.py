"""Three nodes that know each other and their clients by certificates, and enforce ACLs."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import Acl, ErrorCode
from headrace.config.authorization import AUTHORIZER
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.security.tls_brokers import TlsBrokers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBrokers]:
    nodes = ";".join(f"User:broker-{number}" for number in (1, 2, 3))
    brokers = TlsBrokers(
        tmp_path_factory.mktemp("cluster"),
        3,
        authorizer_class_name=AUTHORIZER,
        super_users=f"{nodes};User:alice",
        ssl_principal_mapping_rules="RULE:^CN=([^,]+).*$/$1/,DEFAULT",
    )
    with brokers:
        yield brokers


def as_user(cluster: TlsBrokers, name: str, **more: Any) -> dict[str, Any]:
    """The options of a client that shows the certificate of a user."""
    path = cluster.authority.directory / f"{name}.pem"
    if not path.exists():
        path = cluster.authority.issue_client(name)
    return cluster.options(ssl_keystore_location=str(path)) | more


def denial(call: object, *arguments: object) -> ErrorCode:
    with pytest.raises(headrace.KafkaError) as denied:
        call(*arguments)  # type: ignore[operator]
    return denied.value.code


def test_a_user_has_the_rights_that_it_was_given_and_no_others(cluster: TlsBrokers) -> None:
    with (
        headrace.Admin(**as_user(cluster, "alice")) as alice,
        headrace.Admin(**as_user(cluster, "bob")) as bob,
        headrace.Producer(**as_user(cluster, "bob")) as producer,
    ):
        alice.create_topic("orders", partitions=3, replication_factor=3)
        assert "orders" in alice.list_topics() and "orders" not in bob.list_topics()
        assert denial(bob.create_topic, "own") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert denial(bob.describe_acls) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        alice.create_acls(
            [
                Acl("User:bob", "write", "topic", "ord", "prefixed", host="127.0.0.0/8"),
                Acl("User:bob", "create", "topic", "own"),
            ]
        )
        # A broker that is not the controller passes this on, with the name of its sender.
        for address in cluster.bootstrap_servers.split(","):
            with headrace.Admin(**as_user(cluster, "bob", bootstrap_servers=address)) as anywhere:
                wait_until(lambda: "orders" in anywhere.list_topics(), 30, "the ACL is not known")
                assert (
                    denial(anywhere.create_topic, "other") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
        bob.create_topic("own")
        producer.send("orders", b"1", partition=0).result()
        with headrace.Consumer(
            "orders", group_id="g", auto_offset_reset="earliest", **as_user(cluster, "bob")
        ) as consumer:
            assert denial(consumer.poll, 10_000) in (
                ErrorCode.GROUP_AUTHORIZATION_FAILED,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )


def test_a_revoked_right_is_gone_on_every_broker_within_a_second(cluster: TlsBrokers) -> None:
    with (
        headrace.Admin(**as_user(cluster, "alice")) as alice,
        headrace.Producer(**as_user(cluster, "carol")) as producer,
    ):
        alice.create_topic("revoked", partitions=3, replication_factor=3)
        alice.create_acls([Acl("User:carol", "write", "topic", "revoked")])

        def refused() -> list[ErrorCode]:
            """The errors of the partitions that refuse a record; others lead each of them."""
            sent = [producer.send("revoked", b"1", partition=number) for number in range(3)]
            errors = [delivery.exception(scaled(20)) for delivery in sent]
            return [error.code for error in errors if isinstance(error, headrace.KafkaError)]

        wait_until(lambda: refused() == [], 30, "the right is not known everywhere")
        alice.delete_acls(principal="User:carol")
        began = time.monotonic()
        wait_until(
            lambda: refused() == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 3,
            30,
            "the right is not gone everywhere",
        )
        assert time.monotonic() - began < scaled(1.0)
