"""Requests to the brokers of a test, and the cluster state in their responses."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from headrace.client.blocking import LoopThread
from headrace.client.errors import check
from headrace.errors import ErrorCode, HeadraceError, Subject
from headrace.net.addresses import Address
from headrace.net.client_connection import PLAINTEXT, ClientConnection, ClientSecurity
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.schema import Message
from headrace.testing.time_limits import scaled

# Requests to the brokers of a test.
#
# Rule: they are sent to the address a broker listens on, not the one it advertises: faults on the
# way there are meant for the clients under test.


def ask(
    address: Address, request: Message, timeout_s: float, security: ClientSecurity = PLAINTEXT
) -> Any:
    """The response of one broker; HeadraceError if there is none in time."""
    # The caller may be inside a running event loop, which cannot run another one.
    with closing(LoopThread("headrace-testing")) as thread:
        return thread.run(_send_request(address, request, timeout_s, security))


def ask_all(
    addresses: Sequence[Address],
    request: Message,
    timeout_s: float,
    security: ClientSecurity = PLAINTEXT,
) -> list[Any]:
    """The responses of brokers, requested concurrently; None for a broker without one in time."""

    async def everybody() -> list[Any]:
        return await asyncio.gather(
            *(_send_request(address, request, timeout_s, security) for address in addresses),
            return_exceptions=True,
        )

    with closing(LoopThread("headrace-testing")) as thread:
        answers = thread.run(everybody())
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, HeadraceError):
            raise answer
    return [None if isinstance(answer, BaseException) else answer for answer in answers]


def create_topic(
    address: Address,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    timeout_s: float,
    replication_factor: int = 1,
    security: ClientSecurity = PLAINTEXT,
) -> None:
    """Create a topic; KafkaError has the reason if that fails."""
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
    for result in ask(address, request, scaled(timeout_s), security).topics:
        check(result.error_code, result.error_message, Subject("topic", name))


async def _send_request(
    address: Address, request: Message, timeout_s: float, security: ClientSecurity
) -> Any:
    connection = await ClientConnection.open(address, timeout_s, security=security)
    try:
        return await connection.ask(request, timeout_s)
    finally:
        connection.close()


# The state of a cluster from the responses of several brokers.
#
# Rule: an isolated broker does not know that it is, so of several responses the one with the
# highest epoch counts.


NOBODY = -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition in a broker's metadata; `leader` is NOBODY while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it has a leader, and every replica is in sync."""
        return self.leader != NOBODY and set(self.isr) == set(self.replicas)


def topic_view(answers: Iterable[Any], topic: str) -> dict[int, PartitionView]:
    """The partitions of a topic by index, from Metadata responses of any brokers."""
    found: dict[int, PartitionView] = {}
    for answer in answers:
        for described in answer.topics:
            if described.name != topic or described.error_code:
                continue
            for partition in described.partitions:
                view = PartitionView(
                    partition.leader_id,
                    partition.leader_epoch,
                    tuple(partition.replica_nodes),
                    tuple(partition.isr_nodes),
                )
                known = found.get(partition.partition_index)
                if known is None or known.leader_epoch < view.leader_epoch:
                    found[partition.partition_index] = view
    return dict(sorted(found.items()))


def quorum_leader(answers: Iterable[Any]) -> tuple[int, int]:
    """The active controller and its epoch, from DescribeQuorum responses; NOBODY if none."""
    found = (NOBODY, NOBODY)
    for answer in answers:
        if answer.error_code:
            continue
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER) and (
                    partition.leader_epoch > found[1]
                    or (partition.leader_epoch == found[1] and found[0] < 0)
                ):
                    found = (partition.leader_id, partition.leader_epoch)
    return found
