"""Questions to the brokers of a test, asked where they listen.

Rule: a broker is asked where it listens, not where it tells clients to go: faults on the way there
are meant for the clients under test.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from headrace.client.outcomes import check
from headrace.client.transport.thread import LoopThread
from headrace.errors import HeadraceError
from headrace.net.addresses import Address
from headrace.net.outgoing import Connection
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.schema import Message
from headrace.testing.time_limits import scaled


def ask(address: Address, request: Message, timeout_s: float) -> Any:
    """The answer of one broker; HeadraceError if there is none in time."""
    # A caller may be inside an event loop of its own, which could not run another one.
    with closing(LoopThread("headrace-testing")) as thread:
        return thread.run(_ask(address, request, timeout_s))


def ask_all(addresses: Sequence[Address], request: Message, timeout_s: float) -> list[Any]:
    """The answers of brokers that are all asked at once; None for one that is not there in time."""

    async def everybody() -> list[Any]:
        return await asyncio.gather(
            *(_ask(one, request, timeout_s) for one in addresses), return_exceptions=True
        )

    with closing(LoopThread("headrace-testing")) as thread:
        answers = thread.run(everybody())
    for one in answers:
        if isinstance(one, BaseException) and not isinstance(one, HeadraceError):
            raise one
    return [None if isinstance(one, BaseException) else one for one in answers]


def create_topic(
    address: Address,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    timeout_s: float,
    replication_factor: int = 1,
) -> None:
    """Create a topic; KafkaError says what is wrong with it."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=[
                    CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=int(scaled(timeout_s) * 1000),
    )
    for result in ask(address, request, scaled(timeout_s)).topics:
        check(result.error_code, result.error_message, f"topic {name}")


async def _ask(address: Address, request: Message, timeout_s: float) -> Any:
    connection = await Connection.open(address, timeout_s)
    try:
        return await connection.ask(request, timeout_s)
    finally:
        connection.close()
