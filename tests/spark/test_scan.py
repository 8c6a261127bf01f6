"""A data directory read on Spark without its broker."""

import json
from pathlib import Path
from typing import Literal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, spark_partition_id

import headrace
from headrace.security.keyring import KEY_SIZE, KeyEncryptionKey
from headrace.storage.key_sources import write_key_file
from headrace.testing import Broker

COUNT = 3000


@pytest.fixture(scope="module")
def topic(spark_broker: Broker) -> str:
    """Two partitions of some segments each, a record in ten with headers, some compressed."""
    name = spark_broker.create_topic("scanned", partitions=2, segment_bytes=1_048_576)
    codecs: list[Literal["none", "zstd"]] = ["none", "zstd", "none"]
    for part, codec in enumerate(codecs):
        with headrace.Producer(
            bootstrap_servers=spark_broker.bootstrap_servers,
            compression_type=codec,
        ) as producer:
            for number in range(part * COUNT // 3, (part + 1) * COUNT // 3):
                producer.send(
                    name,
                    b"%d" % number * 400 if number % 7 else None,
                    key=b"%d" % number if number % 3 else None,
                    headers=[("number", b"%d" % number)] if number % 10 == 0 else None,
                    partition=number % 2,
                )
    return name


def scan(spark: SparkSession, broker: Broker, topic: str, **more: str) -> DataFrame:
    reader = spark.read.format("headrace").option("path", str(broker.data_dir))
    return reader.options(subscribe=topic, includeHeaders="true", **more).load()


def through_broker(spark: SparkSession, broker: Broker, topic: str, **more: str) -> DataFrame:
    reader = spark.read.format("headrace")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.options(subscribe=topic, includeHeaders="true", **more).load()


def test_a_scan_has_the_rows_of_the_broker_in_their_order(
    spark: SparkSession, spark_broker: Broker, topic: str
) -> None:
    wanted = {"endingOffsets": json.dumps({topic: {"0": -1, "1": 1300}})}
    files = scan(spark, spark_broker, topic, **wanted)
    broker = through_broker(spark, spark_broker, topic, **wanted)
    assert files.schema == broker.schema
    found = files.select("*", spark_partition_id().alias("task")).collect()
    assert len({row.task for row in found}) > 2, "segments of a partition are read in parallel"
    assert [row[:-1] for row in found] == [tuple(row) for row in broker.collect()]
    assert len(found) == 1500 + 1300


def test_filters_leave_files_unread(spark: SparkSession, spark_broker: Broker, topic: str) -> None:
    files = scan(spark, spark_broker, topic, pushFilters="true")
    narrow = files.where((col("partition") == 1) & (col("offset") >= 1490))
    found = narrow.select("offset", spark_partition_id().alias("task")).collect()
    assert [(row.offset, row.task) for row in found] == [(at, 0) for at in range(1490, 1500)]


@pytest.mark.usefixtures("topic")
def test_a_scan_of_nothing_says_what_there_is(spark: SparkSession, spark_broker: Broker) -> None:
    with pytest.raises(PySparkException, match="holds no log of scaned; did you mean scanned"):
        scan(spark, spark_broker, "scaned").collect()


def test_encrypted_topics_need_the_option_with_the_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    write_key_file(str(keys), [KeyEncryptionKey("k", bytes(KEY_SIZE))], replace=False)
    with Broker(config={"encryption.key.source": f"file:{keys}"}) as broker:
        name = broker.create_topic("sealed", encryption_enable=True)
        with headrace.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(500):
                producer.send(name, b"%d" % number * 40, key=b"key", partition=0)
        given = {"encryptionKeySource": f"file:{keys}"}
        wanted = through_broker(spark, broker, name).collect()
        assert scan(spark, broker, name, **given).collect() == wanted
        assert len(wanted) == 500
        with pytest.raises(PySparkException, match=r"check value .*encryptionKeySource"):
            scan(spark, broker, name).collect()
