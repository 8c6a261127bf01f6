"""Thousands of mutated requests; `make soak` sends a million."""

from collections.abc import Callable
from random import Random

import psutil
import pytest

from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.records import Record
from tests.integration.mutation import Attack, Mutator, corpus
from tests.integration.requests import batch
from tests.integration.wire import Wire, create_topic, is_serving, produce, read_all
from tests.support import BrokerProcess

REQUESTS = 6_000
ROUNDS = 3
PARTITIONS_MAX = 200_000
GROWTH_BYTES_MAX = 150_000_000


def store_canary(address: str) -> list[Record]:
    """Records in a topic that no request of the attack names."""
    create_topic(address, "canary")
    with Wire(address) as wire:
        for number in range(100):
            assert produce(wire, "canary", batch(b"%d" % number)).error_code == 0
    return read_all(address, "canary")


@pytest.mark.timeout(300)
def test_mutated_requests_leave_the_broker_serving(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**{"auto.create.topics.enable": "false"})
    canary = store_canary(broker.address)
    process = psutil.Process(broker.pid)
    memory = process.memory_info().rss
    for number in range(ROUNDS):
        rng = Random(number)
        topic_id = create_topic(broker.address, f"target-{number}", 2)
        attack = Attack(broker.address, Mutator(rng, corpus(rng, f"target-{number}", topic_id)))
        attack.run(REQUESTS // ROUNDS)
        assert attack.counts.sent >= REQUESTS // ROUNDS
        assert attack.counts.answered > attack.counts.sent / 4, "most requests reach no handler"
        assert attack.counts.closed > 0
        assert "internal error" not in broker.log_text, internal_errors(broker)
        broker.check_log()
        assert is_serving(broker.address)
        assert read_all(broker.address, "canary") == canary
    with Wire(broker.address) as wire:
        topics = wire.ask(MetadataRequest(topics=None)).topics
    assert sum(len(topic.partitions) for topic in topics) < PARTITIONS_MAX
    assert process.memory_info().rss - memory < GROWTH_BYTES_MAX


def internal_errors(broker: BrokerProcess) -> str:
    lines = broker.log_text.splitlines()
    return "\n".join(line for line in lines if "closed connection" not in line)
