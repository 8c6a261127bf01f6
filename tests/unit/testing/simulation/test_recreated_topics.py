"""Offsets of a topic that was made again are told from those of the topic before it."""

import asyncio
from random import Random

from headrace.protocol.apis import Api, encode_request
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.testing.simulation.faults import RequestReplays, SentRequest
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.recreated_topics import GROUP, TOPIC, CurrentOffsets
from tests.unit.testing.simulation.support import pair, run


def commit_in_transaction(offset: int, group: str = GROUP) -> bytes:
    """The frame of a TxnOffsetCommit, as a client sends it."""
    partition = TxnOffsetCommitRequestPartition(committed_offset=offset)
    topic = TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    request = TxnOffsetCommitRequest(group_id=group, topics=[topic])
    return b"".join(encode_request(request, 5, 1, "d1"))


def test_offsets_of_an_earlier_topic_are_wrong_even_if_sent_in_a_transaction() -> None:
    offsets = CurrentOffsets()
    first, second = offsets.new(), offsets.new()
    offsets.sent(commit_in_transaction(second))
    assert offsets.may_have(first) and offsets.may_have(second)
    offsets.recreated()
    third = offsets.new()
    assert [offsets.may_have(offset) for offset in (first, second, third)] == [False, False, True]
    assert str(offsets) == str([third])


def test_an_offset_that_was_sent_twice_in_a_transaction_may_be_of_any_topic() -> None:
    # Seed 1000004: it came again while the transaction was open and the topic was another one.
    offsets = CurrentOffsets()
    first, second = offsets.new(), offsets.new()
    offsets.recreated()
    for _ in range(2):
        offsets.sent(commit_in_transaction(first))
        offsets.sent(commit_in_transaction(second, "another"))
    assert offsets.may_have(first) and not offsets.may_have(second)


def test_who_watches_an_api_is_told_of_requests_that_come_again() -> None:
    async def main(simulation: Simulation) -> list[SentRequest]:
        client, _, _, _ = await pair(simulation)
        replays = RequestReplays(simulation, Random(1), transaction_version=2)
        watched: list[SentRequest] = []
        replays.watchers[Api.TXN_OFFSET_COMMIT] = watched.append
        client.transport.write(commit_in_transaction(7))
        await replays.replay()
        await asyncio.sleep(5)
        return watched

    frames = [request.frame for request in run(main)]
    assert frames == [commit_in_transaction(7)] * 2
