"""Pipelines to begin with, for `headrace pipeline init`. The first file is the pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """Files to begin with."""

    name: str
    text: str
    files: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name}, {self.text}"


_ORDERS = """\
pipeline: orders-by-region
description: Orders and revenue of each region, minute by minute.
broker: { bootstrap.servers: "${HEADRACE_BOOTSTRAP_SERVER:-127.0.0.1:9092}" }
# Where it was, so that it goes on from there: keep this directory.
checkpoint: ./checkpoints/orders-by-region
# A batch every so often; "available-now" reads what is there and ends.
trigger: 5 seconds

sources:
  orders:
    topic: orders
    starting: earliest
    decode:
      format: json
      schema: order_id BIGINT, region STRING, cents BIGINT, at TIMESTAMP
      # What cannot be read goes to the topic of dead letters, with the reason in its headers.
      on_error: dead-letter
    # How late an order may come. A minute is complete when an order is that much newer.
    watermark: { column: at, delay: 1 minute }

steps:
  unique_orders: { deduplicate: orders, keys: [order_id] }
  per_minute:
    sql: |
      SELECT window.start AS minute, region, count(*) AS orders, sum(cents) AS cents
      FROM unique_orders
      GROUP BY window(at, '1 minute'), region

sinks:
  totals: { from: per_minute, topic: orders-by-region, key: region }

dead_letters: { topic: orders-dead }
"""

_LAKE = """\
pipeline: events-lake
description: Events of a topic, in Parquet files by day.
broker: { bootstrap.servers: "${HEADRACE_BOOTSTRAP_SERVER:-127.0.0.1:9092}" }
# Where it was, so that it goes on from there: keep this directory.
checkpoint: ./checkpoints/events-lake
# The files are as large as what comes in that time.
trigger: 1 minute

sources:
  events:
    topic: events
    starting: earliest
    decode:
      format: json
      schema: id STRING, kind STRING, at TIMESTAMP
      # Which record a row came from.
      keep: [partition, offset]
      # An event that cannot be read stops the pipeline; dead-letter and drop do not.
      on_error: fail

steps:
  dated:
    sql: |
      SELECT *, to_date(at) AS day FROM events

sinks:
  lake: { from: dated, parquet: ./lake, partition_by: [day] }
"""

_PYTHON = '''\
"""Large orders, declared in Python: run it with `headrace pipeline run pipeline.py`."""

import os

from headrace import pipelines

orders = pipelines.pipeline(
    "large-orders",
    broker={"bootstrap.servers": os.environ.get("HEADRACE_BOOTSTRAP_SERVER", "127.0.0.1:9092")},
    checkpoint="./checkpoints/large-orders",
    trigger="5 seconds",
    dead_letters={"topic": "orders-dead"},
)

orders.source(
    "orders",
    topic="orders",
    starting="earliest",
    decode=pipelines.json("order_id BIGINT, region STRING, cents BIGINT, at TIMESTAMP"),
)


@orders.step
def large(orders):
    """Any DataFrame operations: a step is given those its parameters are named after."""
    return orders.where("cents > 10000")


orders.sink("large", large, topic="large-orders", key="region")
'''

TEMPLATES = {
    one.name: one
    for one in (
        Template(
            "orders", "a topic counted into another by the minute", {"pipeline.yaml": _ORDERS}
        ),
        Template("lake", "a topic into Parquet files by day", {"pipeline.yaml": _LAKE}),
        Template("python", "a topic filtered by a Python function", {"pipeline.py": _PYTHON}),
    )
}
