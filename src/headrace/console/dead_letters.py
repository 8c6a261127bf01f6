"""The newest dead letters of a pipeline, with the reasons that its decoder gave them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.console.cluster_access import ClusterAccess
from headrace.console.dead_letter_replay import HEADER_PREFIX
from headrace.console.record_views import record_path
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition

LETTERS_MAX = 20
_PARTITIONS_MAX = 64
_READ_S_MAX = 4.0
_VALUE_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be decoded: the reason, where it came from, how it begins."""

    reason: str
    origin: str
    timestamp_ms: int
    value: str
    path: str = ""


async def newest_dead_letters(access: ClusterAccess, topic: str) -> list[DeadLetter]:
    """The newest records of a dead-letter topic, the newest first, as the viewer may read them."""
    info = await access.admin.describe_topic(topic)
    tps = [TopicPartition(topic, partition.index) for partition in info.partitions]
    tps = tps[:_PARTITIONS_MAX]
    starts = await access.admin.offsets(dict.fromkeys(tps, EARLIEST))
    ends = await access.admin.offsets(dict.fromkeys(tps, LATEST))
    left = {tp: ends[tp].offset for tp in tps if ends[tp].offset > starts[tp].offset}
    found: list[tuple[int, DeadLetter]] = []
    if not left:
        return []
    async with access.consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        await consumer.assign(left)
        for tp, end in left.items():
            await consumer.seek(tp, max(end - LETTERS_MAX, starts[tp].offset))
        try:
            async with asyncio.timeout(_READ_S_MAX):
                while left:
                    for record in await consumer.poll(500):
                        tp = TopicPartition(record.topic, record.partition)
                        if tp in left and record.offset >= left[tp] - 1:
                            del left[tp]
                        found.append((record.timestamp, _letter(record)))
        except TimeoutError:
            pass  # Markers of transactions at the end are no records; what was read is shown.
    found.sort(key=lambda pair: -pair[0])
    return [letter for _, letter in found[:LETTERS_MAX]]


def _letter(record: ConsumerRecord) -> DeadLetter:
    headers = {
        name: (value or b"").decode(errors="backslashreplace")
        for name, value in record.headers
        if name.startswith(HEADER_PREFIX)
    }
    value = record.value or b""
    text = value[:_VALUE_BYTES_MAX].decode(errors="backslashreplace")
    origin = " ".join(
        headers[HEADER_PREFIX + part]
        for part in ("topic", "partition", "offset")
        if HEADER_PREFIX + part in headers
    )
    return DeadLetter(
        headers.get(f"{HEADER_PREFIX}reason", "no reason is given"),
        origin,
        record.timestamp,
        text + ("…" if len(value) > _VALUE_BYTES_MAX else ""),
        _path(headers),
    )


def _path(headers: Mapping[str, str]) -> str:
    """The address of the original record; empty if the letter does not name it."""
    topic = headers.get(f"{HEADER_PREFIX}topic", "")
    numbers = [headers.get(HEADER_PREFIX + part, "") for part in ("partition", "offset")]
    if not topic or not all(part.isascii() and part.isdigit() for part in numbers):
        return ""
    return record_path(topic, int(numbers[0]), int(numbers[1]))
