"""Fetch as its handler answers it: to consumers, to followers, now and later."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.handlers.fetch import fetch
from headrace.broker.quorum.wire import METADATA_TOPIC_ID
from headrace.config import TopicConfig
from headrace.config.cluster import RACK_AWARE
from headrace.errors import ErrorCode
from headrace.metadata.image import PartitionImage
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tests.unit.broker.handling import FOLLOWS, LEADS, TOPIC, TOPIC_ID, OneNode, batch, image_of
from tests.unit.client.virtual_time import run

NEXT_EPOCH = PartitionImage((1, 2, 3), (2, 3), leader=2, leader_epoch=5, partition_epoch=10)


def asking(
    offsets: dict[int, int] | None = None,
    *,
    replica: int = -1,
    replica_epoch: int | None = None,
    session: tuple[int, int] = (0, -1),
    forget: list[int] | None = None,
    epoch: int = -1,
    last_epoch: int = -1,
    **fields: Any,
) -> FetchRequest:
    partitions = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=1_000_000,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch,
            log_start_offset=0 if replica >= 0 else -1,
        )
        for index, offset in (offsets or {}).items()
    ]
    if replica_epoch is None:
        replica_epoch = replica * 10 if replica >= 0 else -1
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica, replica_epoch=replica_epoch),
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=partitions)]
        if partitions
        else [],
        forgotten_topics_data=[ForgottenTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=forget)]
        if forget
        else [],
        **{"min_bytes": 1, **fields},
    )


def ask(node: OneNode, request: FetchRequest, version: int = 17) -> FetchResponse:
    """The answer to a fetch that need not wait."""
    answer = fetch(node.context(version), request)
    assert isinstance(answer, FetchResponse), "it waits"
    return answer


def only(response: FetchResponse) -> PartitionData:
    [topic] = response.responses
    [partition] = topic.partitions
    return partition


def end_of(data: PartitionData) -> int:
    assert data.records
    return scan_headers(data.records)[-1].next_offset


def later(node: OneNode, request: FetchRequest, version: int = 17) -> asyncio.Future[FetchResponse]:
    answer = fetch(node.context(version), request)
    assert isinstance(answer, Awaitable), "it does not wait"
    return asyncio.ensure_future(answer)


def on_loop(
    directory: Path, test: Callable[[OneNode], Coroutine[Any, Any, None]], **settings: str
) -> None:
    node = OneNode(directory, **settings)
    run(node.clock, test(node))


def test_consumers_get_what_is_committed_and_followers_all_there_is(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        for value in (b"a", b"b", b"c"):
            node.append(partition, value)
        assert end_of(only(ask(node, asking({0: 0}, replica=2)))) == 3
        assert only(ask(node, asking({0: 0}))).records == b""
        ask(node, asking({0: 2}, replica=2, max_wait_ms=0))
        ask(node, asking({0: 1}, replica=3, max_wait_ms=0))
        data = only(ask(node, asking({0: 0})))
        assert (data.high_watermark, end_of(data)) == (1, 1)
        # Not even one that asks for what is not committed yet.
        data = only(ask(node, asking({0: 2})))
        assert (data.error_code, data.records) == (0, b"")

    on_loop(tmp_path, test)


def test_a_followers_fetch_releases_who_waits_for_all(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a")
        committed = partition.when_committed(0)
        assert committed is not None
        ask(node, asking({0: 1}, replica=2))
        assert not committed.done()
        data = only(ask(node, asking({0: 1}, replica=3)))
        assert committed.done()
        assert data.high_watermark == 1, "it is told what its own fetch committed"

    on_loop(tmp_path, test)


def test_an_old_fetch_names_its_replica_in_the_field_of_old(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a")
        for replica in (2, 3):
            request = asking({0: 1})
            request.replica_id = replica
            ask(node, request, version=12)
        assert partition.high_watermark == 1

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("replica", "replica_epoch", "code"),
    [
        (4, 40, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (2, 19, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 20, ErrorCode.NONE),
    ],
)
def test_only_replicas_of_today_fetch_as_followers(
    tmp_path: Path, replica: int, replica_epoch: int, code: ErrorCode
) -> None:
    async def test(node: OneNode) -> None:
        node.add()
        ask(node, asking({0: 0}, replica=2))
        request = asking({0: 0}, replica=replica, replica_epoch=replica_epoch)
        assert only(ask(node, request)).error_code == code

    on_loop(tmp_path, test)


def test_a_follower_out_of_range_is_not_counted(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a")
        ask(node, asking({0: 1}, replica=3))
        data = only(ask(node, asking({0: 5}, replica=2)))
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition.high_watermark == 0

    on_loop(tmp_path, test)


def test_a_log_that_went_another_way_is_told_where(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        for value in (b"a", b"b"):
            node.append(partition, value)
        later_epoch = PartitionImage((1, 2, 3), (1, 2, 3), 1, leader_epoch=6, partition_epoch=11)
        partition.lead(later_epoch, node.clock.now_ms())
        node.append(partition, b"c")
        data = only(ask(node, asking({0: 3}, replica=2, last_epoch=5)))
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (4, 2)
        assert partition.leadership is not None
        assert partition.leadership.followers[2].log_end_offset == -1

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH), (4, ErrorCode.NONE)],
)
def test_readers_of_another_leadership_are_refused(
    tmp_path: Path, epoch: int, code: ErrorCode
) -> None:
    async def test(node: OneNode) -> None:
        node.add()
        for replica in (-1, 2):
            assert only(ask(node, asking({0: 0}, replica=replica, epoch=epoch))).error_code == code

    on_loop(tmp_path, test)


def test_who_asks_the_wrong_broker_is_told_the_right_one(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        node.add(0, FOLLOWS)
        node.node.store.image = image_of(FOLLOWS)
        response = ask(node, asking({0: 0}, replica=3))
        data = only(response)
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 4)
        [endpoint] = response.node_endpoints
        assert (endpoint.node_id, endpoint.host, endpoint.rack) == (2, "10.0.0.2", "rack-2")
        old = ask(node, asking({0: 0}, replica=3), version=15)
        assert (only(old).current_leader.leader_id, old.node_endpoints) == (-1, [])

    on_loop(tmp_path, test)


def test_a_follower_serves_consumers_what_it_knows_to_be_committed(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, FOLLOWS)
        now_ms = node.clock.now_ms()
        data = batch(b"a", now_ms=now_ms) + batch(b"b", now_ms=now_ms, base_offset=1)
        partition.append_replicated(data, scan_headers(data), 1, 0, now_ms)
        found = only(ask(node, asking({0: 0})))
        assert (found.high_watermark, end_of(found)) == (1, 1)
        assert only(ask(node, asking({0: 2}))).error_code == 0
        assert only(ask(node, asking({0: 3}))).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        # Consumers from before KIP-392 know of leaders only.
        old = ask(node, asking({0: 0}), version=10)
        assert only(old).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_loop(tmp_path, test)


def test_a_consumer_is_sent_to_the_replica_in_its_rack(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a")
        for replica in (2, 3):
            ask(node, asking({0: 1}, replica=replica))
        data = only(ask(node, asking({0: 0}, rack_id="rack-3")))
        assert (data.preferred_read_replica, data.records) == (3, b"")
        for rack in ("rack-1", "elsewhere", ""):
            data = only(ask(node, asking({0: 0}, rack_id=rack)))
            assert (data.preferred_read_replica, end_of(data)) == (-1, 1)
        node.append(partition, b"b")
        ask(node, asking({0: 2}, replica=2))
        assert only(ask(node, asking({0: 2}, rack_id="rack-3"))).preferred_read_replica == -1
        node.node.store.image = image_of(LEADS, fenced=[3])
        assert only(ask(node, asking({0: 0}, rack_id="rack-3"))).preferred_read_replica == -1

    on_loop(tmp_path, test, replica_selector_class=RACK_AWARE)


def test_without_a_selector_consumers_read_from_the_leader(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a")
        for replica in (2, 3):
            ask(node, asking({0: 1}, replica=replica))
        assert end_of(only(ask(node, asking({0: 0}, rack_id="rack-3")))) == 1

    on_loop(tmp_path, test)


def test_an_append_wakes_a_follower_and_a_commit_a_consumer(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        follower = later(node, asking({0: 0}, replica=2, session=(0, 0), max_wait_ms=500))
        sessionless = later(node, asking({0: 0}, replica=3, max_wait_ms=500))
        consumer = later(node, asking({0: 0}, max_wait_ms=500))
        node.append(partition, b"a")
        assert end_of(only(await follower)) == end_of(only(await sessionless)) == 1
        await asyncio.sleep(0)
        assert not consumer.done()
        for replica in (2, 3):
            ask(node, asking({0: 1}, replica=replica))
        assert end_of(only(await consumer)) == 1
        assert node.clock.monotonic() < 1000.5

    on_loop(tmp_path, test)


def test_the_end_of_a_leadership_ends_the_wait(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        waiting = [
            later(node, asking({0: 0}, replica=2, session=(0, 0), epoch=4, max_wait_ms=500)),
            later(node, asking({0: 0}, session=(0, 0), epoch=4, max_wait_ms=500)),
            later(node, asking({0: 0}, epoch=4, max_wait_ms=500)),
        ]
        partition.follow(NEXT_EPOCH)
        codes = [only(await entry).error_code for entry in waiting]
        fenced = ErrorCode.FENCED_LEADER_EPOCH
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, fenced, fenced]
        assert node.clock.monotonic() < 1000.5

    on_loop(tmp_path, test)


async def open_session(node: OneNode, count: int, replica: int = 2) -> tuple[int, int]:
    """A session of a follower, at rest: it knows all there is of `count` partitions."""
    request = asking(dict.fromkeys(range(count), 0), replica=replica, session=(0, 0))
    session_id = ask(node, request).session_id
    response = await later(node, asking(replica=replica, session=(session_id, 1), max_wait_ms=500))
    assert response.responses == []
    return session_id, 2


def test_an_idle_session_looks_at_no_partition(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        for index in range(50):
            node.add(index)
        session_id, epoch = await open_session(node, 50)
        node.replicas.looked_at = 0
        request = asking(replica=2, session=(session_id, epoch), max_wait_ms=500)
        assert (await later(node, request)).responses == []
        assert node.replicas.looked_at == 0
        # Of fifty, only the one is looked at that was written to.
        request = asking(replica=2, session=(session_id, epoch + 1), max_wait_ms=500)
        waiting = later(node, request)
        node.append(node.replicas.partitions[17], b"a")
        assert only(await waiting).partition_index == 17
        assert node.replicas.looked_at == 1

    on_loop(tmp_path, test)


def test_what_comes_between_two_fetches_is_not_missed(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        for index in range(3):
            node.add(index)
        session_id, epoch = await open_session(node, 3)
        for index in (2, 0):
            node.append(node.replicas.partitions[index], b"a")
            node.append(node.replicas.partitions[index], b"b")
        response = ask(node, asking(replica=2, session=(session_id, epoch), max_wait_ms=500))
        [topic] = response.responses
        assert [
            (partition.partition_index, end_of(partition)) for partition in topic.partitions
        ] == [(2, 2), (0, 2)]

    on_loop(tmp_path, test)


def test_data_that_was_not_taken_is_given_again(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        node.add()
        session_id, epoch = await open_session(node, 1)
        node.append(node.replicas.partitions[0], b"a")
        for number in range(3):
            request = asking(replica=2, session=(session_id, epoch + number))
            assert end_of(only(ask(node, request))) == 1
        request = asking({0: 1}, replica=2, session=(session_id, epoch + 3))
        response = ask(node, request)
        assert [
            partition.records for topic in response.responses for partition in topic.partitions
        ] == []

    on_loop(tmp_path, test)


def test_a_byte_limit_starves_no_partition(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        for index in range(3):
            node.add(index)
        session_id, epoch = await open_session(node, 3)
        for index in range(3):
            node.append(node.replicas.partitions[index], b"a")
        given = []
        for number in range(6):
            request = asking(replica=2, session=(session_id, epoch + number), max_bytes=1)
            given.append(only(ask(node, request)).partition_index)
        assert given == [0, 1, 2, 0, 1, 2]

    on_loop(tmp_path, test)


def test_a_forgotten_partition_wakes_nobody(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        for index in range(2):
            node.add(index)
        session_id, epoch = await open_session(node, 2)
        request = asking(replica=2, session=(session_id, epoch), forget=[1], max_wait_ms=500)
        waiting = later(node, request)
        node.append(node.replicas.partitions[1], b"a")
        assert (await waiting).responses == []

    on_loop(tmp_path, test)


def test_a_follower_is_soon_told_what_is_committed(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        session_id, epoch = await open_session(node, 1)
        node.append(partition, b"a")
        ask(node, asking(replica=2, session=(session_id, epoch)))
        request = asking({0: 1}, replica=2, session=(session_id, epoch + 1), max_wait_ms=500)
        waiting = later(node, request)
        began = node.clock.monotonic()
        ask(node, asking({0: 1}, replica=3))
        assert only(await waiting).high_watermark == 1
        assert node.clock.monotonic() - began < 0.1

    on_loop(tmp_path, test)


def test_a_follower_is_soon_told_what_was_committed_before_it_asked(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        session_id, epoch = await open_session(node, 1)
        node.append(partition, b"a")
        ask(node, asking(replica=2, session=(session_id, epoch)))
        ask(node, asking({0: 1}, replica=3))
        began = node.clock.monotonic()
        request = asking({0: 1}, replica=2, session=(session_id, epoch + 1), max_wait_ms=500)
        assert only(await later(node, request)).high_watermark == 1
        assert node.clock.monotonic() - began < 0.1

    on_loop(tmp_path, test)


def test_a_new_log_start_is_told_soon(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, PartitionImage((1, 2), (1,), leader=1))
        node.append(partition, b"a")
        request = asking({0: 1}, replica=2, session=(0, 0))
        session_id = ask(node, request).session_id
        waiting = later(node, asking(replica=2, session=(session_id, 1), max_wait_ms=500))
        partition.advance_log_start(1)
        assert only(await waiting).log_start_offset == 1

    on_loop(tmp_path, test)


def test_a_follower_that_is_being_added_is_held_to_the_throttle(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        config = TopicConfig(leader_replication_throttled_replicas=("0:1",))
        partition = node.add(0, PartitionImage((1, 2, 3), (1, 2), 1, leader_epoch=4), config=config)
        for value in (b"a" * 2000, b"b" * 2000, b"c" * 2000):
            node.append(partition, value)
        request = asking({0: 0}, replica=3, session=(0, 0), max_bytes=1)
        response = ask(node, request)
        session_id = response.session_id
        # What a second lets through may go at once; the third would be more.
        began = node.clock.monotonic()
        request = asking({0: 1}, replica=3, session=(session_id, 1), max_bytes=1)
        assert end_of(only(ask(node, request))) == 2
        request = asking({0: 2}, replica=3, session=(session_id, 2), max_bytes=1, max_wait_ms=5000)
        assert end_of(only(await later(node, request))) == 3
        assert 0.3 < node.clock.monotonic() - began < 0.5
        # Who is in sync is not.
        assert end_of(only(ask(node, asking({0: 0}, replica=2)))) == 3

    on_loop(tmp_path, test, leader_replication_throttled_rate="3000")


def test_the_metadata_log_is_fetched_elsewhere(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        answer = FetchResponse()
        node.node.quorum = SimpleNamespace(fetch=lambda context, request: answer)
        topic = FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[FetchPartition()])
        assert fetch(node.context(17), FetchRequest(topics=[topic])) is answer

    on_loop(tmp_path, test)


def test_an_older_fetch_that_comes_late_does_not_keep_a_follower_out_of_sync(
    tmp_path: Path,
) -> None:
    async def test(node: OneNode) -> None:
        outside = replace(LEADS, isr=(1, 3))
        partition = node.add(0, outside)
        node.append(partition, b"a")
        assert partition.leadership is not None
        joining = partition.leadership.followers[2]
        first = ask(node, asking({0: 1}, replica=2, session=(0, 0)))
        await later(node, asking(replica=2, session=(first.session_id, 1), max_wait_ms=500))
        # What it asked before on another connection, where it had nothing yet.
        ask(node, asking({0: 0}, replica=2))
        assert joining.log_end_offset == 0
        await later(node, asking(replica=2, session=(first.session_id, 2), max_wait_ms=500))
        assert joining.log_end_offset == 1

    on_loop(tmp_path, test)
