"""A lone broker whose log is damaged: it serves what is intact, and says what is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Consumer, TopicPartition
from headrace.errors import ErrorCode
from headrace.protocol.batch import scan_headers
from headrace.protocol.records import encode_batch
from headrace.testing.time_limits import wait_until
from tests.integration.commands import Cli
from tests.integration.wire import Wire, create_topic, fetch, produce
from tests.support import BrokerProcess

StartBroker = Callable[..., BrokerProcess]

BATCHES, PER_BATCH = 100, 20
LENGTH_AT, RECORDS_AT = 10, 300


def flip(path: Path, number: int, byte: int) -> None:
    """Turn over a bit of a batch of a segment."""
    content = bytearray(path.read_bytes())
    position = 0
    for _ in range(number):
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    content[position + byte] ^= 1
    path.write_bytes(content)


def segment_of(broker: BrokerProcess, name: str) -> Path:
    [path] = (broker.data_dir / name).glob("*.log")
    return path


def read_until_refused(address: str, topic: str, *, committed: bool) -> tuple[int, int]:
    """Read from the start; the offset that was reached, and the error there."""
    with Wire(address) as wire:
        offset = 0
        while True:
            answer = fetch(wire, topic, offset, committed=committed)
            headers = [] if answer.error_code else scan_headers(answer.records)
            if not headers:
                return offset, answer.error_code
            offset = headers[-1].next_offset


@pytest.mark.parametrize("byte", [LENGTH_AT, RECORDS_AT])
def test_damage_is_told_and_the_rest_is_served(
    start_broker: StartBroker, topic: str, byte: int
) -> None:
    broker = start_broker()
    create_topic(broker.address, topic, flush_messages="1")
    with Wire(broker.address) as wire:
        for number in range(BATCHES):
            rows = [(0, None, b"%d" % number + b"x" * 100, ()) for _ in range(PER_BATCH)]
            assert produce(wire, topic, encode_batch(rows)).error_code == 0
    broker.stop()
    path = segment_of(broker, f"{topic}-0")
    flip(path, 72, byte)
    broker.start()
    wait_until(
        lambda: f"{topic}-0: {path} is damaged: at position" in broker.log_text,
        30,
        lambda: broker.log_text,
    )
    assert f"offsets {72 * PER_BATCH} to {73 * PER_BATCH - 1}" in broker.log_text
    assert f"headrace log repair {path.parent}" in broker.log_text
    refused = (72 * PER_BATCH, ErrorCode.CORRUPT_MESSAGE)
    for committed in (True, False):
        assert read_until_refused(broker.address, topic, committed=committed) == refused
    with Wire(broker.address) as wire:
        behind = fetch(wire, topic, 73 * PER_BATCH, committed=True)
        assert scan_headers(behind.records)[-1].next_offset == BATCHES * PER_BATCH
    cli = Cli(broker.address)
    told = cli.run("doctor", status=1).stdout.decode()
    assert f"{topic}-0" in told
    assert "headrace log repair" in told
    assert "damaged" in cli.run("topics", "describe", topic).stdout.decode()


def test_a_coordinator_names_its_damaged_file_and_what_to_do(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker(**{"offsets.topic.num.partitions": "1"})
    create_topic(broker.address, topic)
    with Consumer(bootstrap_servers=broker.address, group_id="g") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for offset in range(120):  # More than a clean start reads.
            consumer.commit({TopicPartition(topic, 0): offset + 1})
    broker.stop()
    path = segment_of(broker, "__consumer_offsets-0")
    flip(path, 10, 80)
    broker.start()
    wait_until(
        lambda: f"__consumer_offsets-0: {path} is damaged: at position" in broker.log_text,
        30,
        lambda: broker.log_text,
    )
    assert f"headrace log repair {path.parent}" in broker.log_text
    assert "__consumer_offsets-0" in Cli(broker.address).run("doctor", status=1).stdout.decode()
