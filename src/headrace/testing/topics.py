"""Creating topics on the broker of a test."""

from collections.abc import Mapping
from contextlib import closing

from headrace.client.outcomes import check
from headrace.client.transport.thread import LoopThread
from headrace.net.addresses import Address
from headrace.net.outgoing import Connection
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)


def create_topic(
    address: Address, name: str, partitions: int, configs: Mapping[str, str], timeout_s: float
) -> None:
    """Create a topic; KafkaError says what is wrong with it.

    The broker is asked where it listens, not where it tells clients to go: faults on the way there
    are meant for the clients under test.
    """
    # A caller may be inside an event loop of its own, which could not run another one.
    with closing(LoopThread("headrace-testing")) as thread:
        thread.run(_create(address, name, partitions, configs, timeout_s))


async def _create(
    address: Address, name: str, partitions: int, configs: Mapping[str, str], timeout_s: float
) -> None:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[
                    CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=int(timeout_s * 1000),
    )
    connection = await Connection.open(address, timeout_s)
    try:
        response = await connection.ask(request, timeout_s)
    finally:
        connection.close()
    for result in response.topics:
        check(result.error_code, result.error_message, f"topic {name}")
