"""Commands on the active controller: in order, in few batches, answered when they are committed."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import ConfigResourceType, Image
from headrace.metadata.records import CommandResult
from tests.unit.broker.quorums import Cluster, Member, put


def with_node(directory: Path, test: Callable[[Member], Any], **settings: Any) -> None:
    cluster = Cluster(directory, voters=1, **settings)

    async def run() -> None:
        cluster.start()
        node = cluster.members[1]
        await node.store.ready()
        await test(node)

    cluster.run(run())


def test_commands_see_what_those_before_them_did_and_share_a_flush(tmp_path: Path) -> None:
    async def test(node: Member) -> None:
        seen: list[str | None] = []

        def command(image: Image, offset: int) -> CommandResult[int]:
            seen.append(image.config_of(ConfigResourceType.BROKER, "").get("a"))
            return put("a", str(offset))(image, offset)

        before = node.files.syncs
        offsets = await asyncio.gather(*(node.store.submit(command) for _ in range(50)))
        assert offsets == list(range(1, 51))
        assert seen == [None, *(str(offset) for offset in range(1, 50))]
        # The segment, and nothing else: no file was made.
        assert node.files.syncs - before == 1
        assert node.images == 1
        assert node.store.image_offset == 51

    with_node(tmp_path, test)


def test_a_command_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    def refuse(image: Image, offset: int) -> CommandResult[None]:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)

    async def test(node: Member) -> None:
        first, refused, last = await asyncio.gather(
            node.put("a", "1"),
            node.store.submit(refuse),
            node.put("b", "2"),
            return_exceptions=True,
        )
        assert (first, last) == (1, 2)
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.POLICY_VIOLATION

    with_node(tmp_path, test)


def test_a_bug_in_a_command_leaves_nobody_waiting(tmp_path: Path) -> None:
    def broken(image: Image, offset: int) -> CommandResult[None]:
        raise ZeroDivisionError

    async def test(node: Member) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        outcomes = await asyncio.gather(
            node.put("a", "1"), node.store.submit(broken), return_exceptions=True
        )
        for outcome in outcomes:
            assert isinstance(outcome, KafkaError)
            assert outcome.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await node.put("b", "2") == 1
        assert (node.value("a"), node.value("b")) == (None, "2")

    with_node(tmp_path, test)


def test_answers_come_after_followers_have_seen_the_image(tmp_path: Path) -> None:
    async def test(node: Member) -> None:
        events: list[str] = []

        async def on_change(old: Image, new: Image) -> None:
            await asyncio.sleep(1)
            events.append("seen")

        node.store.follow(on_change)
        await node.put("a", "1")
        events.append("answered")
        assert events == ["seen", "answered"]

    with_node(tmp_path, test)


@pytest.mark.parametrize("pause", [0.0, 0.0005])
def test_a_command_without_records_waits_for_the_commit_of_what_it_saw(
    tmp_path: Path, pause: float
) -> None:
    cluster = Cluster(tmp_path)

    async def test() -> None:
        cluster.start()
        leader = await cluster.leader()

        async def slow(old: Image, new: Image) -> None:
            await asyncio.sleep(60)

        def look(image: Image, _: int) -> CommandResult[str | None]:
            return CommandResult((), image.config_of(ConfigResourceType.BROKER, "").get("a"))

        leader.store.follow(slow)
        writing = asyncio.create_task(leader.put("a", "1"))
        await asyncio.sleep(pause)
        began = leader.log.log_end_offset if pause else leader.log.log_end_offset + 1
        assert await leader.store.submit(look) == "1"
        assert leader.quorum.high_watermark >= began
        # It is not held up by whoever takes long to follow.
        assert not writing.done()
        assert await leader.store.submit(look) == "1"

    cluster.run(test())


def test_who_is_active_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    told: list[tuple[int, bool]] = []

    def tell(node_id: int, active: bool) -> None:
        told.append((node_id, active))

    async def test() -> None:
        cluster.start()
        for member in cluster.members.values():
            member.store.on_activation(partial(tell, member.node_id))
        first = await cluster.leader()
        await first.stop()
        second = await cluster.leader()
        assert told == [(first.node_id, True), (first.node_id, False), (second.node_id, True)]

    cluster.run(test())


def test_waiting_for_an_image_ends_with_it_or_in_time(tmp_path: Path) -> None:
    async def test(node: Member) -> None:
        waiting = asyncio.create_task(node.store.image_at(2, 5.0))
        await asyncio.sleep(0)
        await node.put("a", "1")
        assert (await waiting) is node.store.image
        with pytest.raises(KafkaError) as late:
            await node.store.image_at(99, 0.5)
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        unfinished = asyncio.create_task(node.store.image_at(99, 5.0))
        await asyncio.sleep(0)
        await node.store.close()
        with pytest.raises(KafkaError):
            await unfinished
        with pytest.raises(KafkaError) as closed:
            await node.put("b", "2")
        assert closed.value.code is ErrorCode.NOT_CONTROLLER

    with_node(tmp_path, test)


def test_closing_waits_for_what_was_submitted(tmp_path: Path) -> None:
    async def test(node: Member) -> None:
        writing = asyncio.create_task(node.put("a", "1"))
        await asyncio.sleep(0)
        await node.store.close()
        assert await writing == 1

    with_node(tmp_path, test)


def test_a_full_disk_refuses_changes_until_there_is_room(tmp_path: Path) -> None:
    async def test(node: Member) -> None:
        node.files.is_full = True
        with pytest.raises(KafkaError) as refused:
            await node.put("a", "1")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.store.is_active and not node.fatal
        node.files.is_full = False
        assert await node.put("a", "2") == 1

    with_node(tmp_path, test)


def test_a_snapshot_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    async def test(node: Member) -> None:
        await node.put("a", "1")
        node.files.is_full_for = ".part"
        for number in range(50):
            await node.put(f"k{number}", "v")
        assert node.quorum.log.snapshots.ids == () and not node.fatal
        node.files.is_full_for = None
        for number in range(50):
            await node.put(f"k{number}", "w")
        assert node.quorum.log.snapshots.ids

    with_node(tmp_path, test, metadata_log_max_record_bytes_between_snapshots=1000)
