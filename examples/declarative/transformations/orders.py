"""Orders of a topic as a table, revenue by region as a view, large orders as a topic again."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

BROKER = os.environ.get("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092")


@dp.table
def orders() -> DataFrame:
    """Every order, each once: a run reads what has come since the last."""
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", BROKER)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = sf.from_json(sf.col("value").cast("string"), "id BIGINT, region STRING, cents BIGINT")
    return records.select(order.alias("order"), "timestamp").select("order.*", "timestamp")


@dp.materialized_view
def revenue() -> DataFrame:
    """Orders and cents of each region, computed anew by each run."""
    table = spark.read.table("orders").groupBy("region")
    return table.agg(sf.count("*").alias("orders"), sf.sum("cents").alias("cents"))


dp.create_sink("large", "headrace", {"kafka.bootstrap.servers": BROKER, "topic": "large-orders"})


@dp.append_flow(target="large", name="large_orders")
def large_orders() -> DataFrame:
    """Orders of 100.00 and more, by region, for whoever waits for them."""
    large = spark.readStream.table("orders").where("cents >= 10000")
    return large.select(
        sf.col("region").alias("key"),
        sf.to_json(sf.struct("id", "region", "cents")).alias("value"),
    )
