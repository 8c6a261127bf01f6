"""The same bad records in Apache Kafka and here: the same codes, and the same records are named."""

import time
from pathlib import Path
from typing import Any

from headrace.protocol.records import encode_batch
from tests.compat.apache import apache_kafka
from tests.integration.wire import Wire, create_topic, produce
from tests.support import BrokerProcess

NARROW = {
    "message_timestamp_before_max_ms": "1000000",
    "message_timestamp_after_max_ms": "1000000",
}
TOPICS: dict[str, dict[str, str]] = {
    "table": {"cleanup_policy": "compact"},
    "narrow": NARROW,
    "narrow-table": {"cleanup_policy": "compact", **NARROW},
}


def answers(address: str, now_ms: int) -> list[Any]:
    """What a broker says of batches, without its words."""
    old, new = now_ms - 2_000_000, now_ms + 2_000_000
    batches: list[list[tuple[int, bytes | None]]] = [
        [(now_ms, b"k"), (now_ms, None), (now_ms, b"k"), (now_ms, None)],
        [(now_ms, b"k"), (old, b"k"), (new, b"k")],
        [(now_ms, b"k"), (old, None), (new, b"k")],
        [(now_ms, b"k"), (old, None)],
        [(-1, b"k"), (-1, b"k")],
    ]
    found = []
    for topic, configs in TOPICS.items():
        create_topic(address, topic, 1, **configs)
        with Wire(address) as wire:
            for compression in (0, 4):
                for times in batches:
                    rows = [(timestamp, key, b"v", ()) for timestamp, key in times]
                    told = produce(wire, topic, encode_batch(rows, compression=compression))
                    indexes = [record_error.batch_index for record_error in told.record_errors]
                    offsets = (told.base_offset, told.log_start_offset)
                    found.append((topic, told.error_code, offsets, indexes))
                    assert bool(told.error_message) == bool(indexes)
    return found


def test_records_are_refused_as_in_kafka(broker: BrokerProcess, tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    with apache_kafka(tmp_path / "kafka") as kafka:
        theirs = answers(kafka.bootstrap_servers, now_ms)
    assert answers(broker.address, now_ms) == theirs
