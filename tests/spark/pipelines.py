"""Pipelines in files, and what goes into them and comes out."""

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent
from typing import Any

from headrace import Consumer, ConsumerRecord, Producer, TopicPartition
from headrace.pipelines.run.run_state import RunState
from headrace.pipelines.run.runner import run
from headrace.pipelines.spec import load
from headrace.testing import Broker
from tests.support import BrokerProcess

AnyBroker = Broker | BrokerProcess


def _address(broker: AnyBroker) -> str:
    return broker.address if isinstance(broker, BrokerProcess) else broker.bootstrap_servers


def write_pipeline(directory: Path, broker: AnyBroker, name: str, text: str) -> Path:
    """A pipeline file with that name and broker, which runs on as few tasks as can be."""
    head = f"""
        pipeline: {name}
        broker: {{ bootstrap.servers: "{_address(broker)}" }}
        checkpoint: ./checkpoints
        parallelism: 1
    """
    path = directory / "pipeline.yaml"
    path.write_text(dedent(head) + dedent(text))
    return path


def run_now(path: Path, **options: Any) -> RunState:
    """Run a pipeline on what is there."""
    return run(load(path), available_now=True, **options)


def send(broker: AnyBroker, topic: str, values: Iterable[object]) -> None:
    """Write bytes as they are, anything else as JSON."""
    with Producer(bootstrap_servers=_address(broker)) as producer:
        for number, value in enumerate(values):
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            producer.send(topic, data, key=str(number).encode())


def received(broker: Broker, topic: str) -> list[ConsumerRecord]:
    """All records of a topic that are committed."""
    found: list[ConsumerRecord] = []
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed"
    ) as consumer:
        numbers = consumer.partitions_for(topic) or []
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            found += consumer.poll(timeout_ms=1000)
    return found
