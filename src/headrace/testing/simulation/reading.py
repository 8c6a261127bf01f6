"""Everything that partitions hold, as a consumer is given it."""

from collections.abc import Sequence
from typing import Literal

from headrace import aio
from headrace.errors import HeadraceError
from headrace.testing.simulation.history import Violation
from headrace.types import TopicPartition


async def read_partitions(
    bootstrap_servers: str,
    partitions: Sequence[TopicPartition],
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
) -> dict[TopicPartition, dict[int, bytes]]:
    """The values of partitions by offset; they must be readable."""
    found: dict[TopicPartition, dict[int, bytes]] = {one: {} for one in partitions}
    consumer = aio.Consumer(
        bootstrap_servers=bootstrap_servers,
        client_id="reader",
        auto_offset_reset="earliest",
        isolation_level=isolation_level,
    )
    try:
        consumer.assign(partitions)
        left = dict(await consumer.end_offsets(*partitions))
        while left:
            for record in await consumer.poll(1000):
                partition = TopicPartition(record.topic, record.partition)
                found[partition][record.offset] = bytes(record.value)
            for one in list(left):
                if await consumer.position(one) >= left[one]:
                    del left[one]
    except HeadraceError as error:
        raise Violation(f"the partitions cannot be read after healing: {error}") from error
    finally:
        await consumer.close()
    return found
