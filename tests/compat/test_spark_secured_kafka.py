"""Spark at Apache Kafka with TLS, logins and ACLs: what our source and our sink need there.

Rule: the user of the queries has no right beyond those that docs/spark.md names.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace import Acl, Admin, Producer, ScramUpsertion
from headrace.testing.time_limits import scaled
from tests.compat.secured_brokers import (
    ALICE,
    ALICE_PASSWORD,
    MECHANISMS,
    Credentials,
    SecuredNode,
    secured_kafka,
)

RECORDS = 20
SOURCE, CLOSED = "orders", "closed"
COPIES = "copy-"
PREFIX = "billing"
PRINCIPALS = (f"User:{ALICE}", f"User:CN={ALICE}")

Options = dict[str, str]


def _acls(principal: str) -> list[Acl]:
    return [
        Acl(principal, "read", "topic", SOURCE),
        Acl(principal, "write", "topic", COPIES, "prefixed"),
        Acl(principal, "read", "topic", COPIES, "prefixed"),
        # What the sink needs to write a batch exactly once.
        Acl(principal, "write", "transactional_id", PREFIX, "prefixed"),
        Acl(principal, "describe", "transactional_id", PREFIX, "prefixed"),
        Acl(principal, "read", "group", PREFIX, "prefixed"),
    ]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """Apache Kafka with topics, and a user who may read and write some of them."""
    directory = tmp_path_factory.mktemp("secured")
    credentials = Credentials(directory / "credentials")
    with secured_kafka(directory / "kafka", credentials) as node:
        with Admin(bootstrap_servers=node.plain) as admin:
            for topic in (SOURCE, CLOSED, *(f"{COPIES}{number}" for number in range(2))):
                admin.create_topic(topic, partitions=2)
            admin.create_acls([acl for principal in PRINCIPALS for acl in _acls(principal)])
            admin.alter_user_scram_credentials(
                [
                    ScramUpsertion(ALICE, mechanism, ALICE_PASSWORD)
                    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
                ]
            )
        with Producer(bootstrap_servers=node.plain) as producer:
            for number in range(RECORDS):
                for topic in (SOURCE, CLOSED):
                    producer.send(topic, str(number), partition=number % 2)
        yield node


def _secured(node: SecuredNode, mechanism: str) -> Options:
    """The options of a login, with its secret by reference."""
    options = {
        "kafka.bootstrap.servers": node.addresses["SECURE"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(node.credentials.trust),
        "kafka.sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return options | {"kafka.sasl.oauth.token.file": str(node.credentials.tokens["good"])}
    password = node.directory / "password"
    password.write_text(ALICE_PASSWORD)
    return options | {
        "kafka.sasl.username": ALICE,
        "kafka.sasl.password": f"${{file:{password}}}",
    }


def _by_certificate(node: SecuredNode) -> Options:
    return {
        "kafka.bootstrap.servers": node.addresses["MUTUAL"],
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(node.credentials.trust),
        "kafka.ssl.keystore.location": str(node.credentials.clients["good"]),
    }


def _read(spark: SparkSession, options: Mapping[str, str], topic: str) -> DataFrame:
    return spark.read.format("headrace").options(**options, subscribe=topic).load()


def _values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def _copy_once(
    spark: SparkSession, options: Mapping[str, str], topic: str, checkpoint: Path
) -> None:
    """Copy the source as a stream, exactly once."""
    stream = spark.readStream.format("headrace").options(**options, subscribe=SOURCE)
    query = (
        stream.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(RECORDS // 2))
        .load()
        .select("value")
        .writeStream.format("headrace")
        .options(**options, topic=topic, transactionalIdPrefix=PREFIX)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(scaled(120)))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_batch_is_read_by_every_mechanism(
    spark: SparkSession, kafka: SecuredNode, mechanism: str
) -> None:
    frame = _read(spark, _secured(kafka, mechanism), SOURCE)
    assert _values(frame) == list(range(RECORDS))


def test_a_stream_is_copied_exactly_once_over_a_login(
    spark: SparkSession, kafka: SecuredNode, tmp_path: Path
) -> None:
    options = _secured(kafka, "SCRAM-SHA-512")
    topic = f"{COPIES}0"
    _copy_once(spark, options, topic, tmp_path / "checkpoint")
    copied = _read(spark, options | {"kafka.isolation.level": "read_committed"}, topic)
    assert _values(copied) == list(range(RECORDS))


def test_a_stream_is_copied_exactly_once_by_certificate(
    spark: SparkSession, kafka: SecuredNode, tmp_path: Path
) -> None:
    options = _by_certificate(kafka)
    topic = f"{COPIES}1"
    _copy_once(spark, options, topic, tmp_path / "checkpoint")
    copied = _read(spark, options | {"kafka.isolation.level": "read_committed"}, topic)
    assert _values(copied) == list(range(RECORDS))


def test_a_batch_is_written_over_a_login(spark: SparkSession, kafka: SecuredNode) -> None:
    options = _secured(kafka, "SCRAM-SHA-256")
    with Admin(bootstrap_servers=kafka.plain) as admin:
        admin.create_topic(f"{COPIES}batch")
    rows = _read(spark, options, SOURCE).select("value")
    written = rows.write.format("headrace").mode("append")
    written.options(**options, topic=f"{COPIES}batch").save()
    assert _values(_read(spark, options, f"{COPIES}batch")) == list(range(RECORDS))


def test_a_wrong_password_is_refused_and_not_shown(spark: SparkSession, kafka: SecuredNode) -> None:
    wrong = _secured(kafka, "SCRAM-SHA-512") | {"kafka.sasl.password": "wrong-and-hidden"}
    with pytest.raises(PySparkException) as caught:
        _read(spark, wrong, SOURCE).count()
    assert ALICE in str(caught.value)
    assert "wrong-and-hidden" not in str(caught.value)


def test_a_server_of_another_authority_is_refused(spark: SparkSession, kafka: SecuredNode) -> None:
    options = _secured(kafka, "SCRAM-SHA-512")
    stranger = options | {
        "kafka.ssl.truststore.location": str(kafka.credentials.stranger.certificate_path)
    }
    with pytest.raises(PySparkException, match="certificate"):
        _read(spark, stranger, SOURCE).count()


def test_a_topic_without_a_right_is_refused(spark: SparkSession, kafka: SecuredNode) -> None:
    with pytest.raises(PySparkException, match=CLOSED):
        _read(spark, _secured(kafka, "SCRAM-SHA-512"), CLOSED).count()
