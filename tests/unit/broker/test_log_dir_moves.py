"""Moves between data directories as the broker makes them: what may happen between two steps."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.broker.compactor import Compactor
from headrace.broker.log_dir_moves import LogDirMoves
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.metadata.image import PartitionImage
from headrace.metrics.registry import Registry
from headrace.options import LONG_MAX
from headrace.storage.log_manager import LogManager
from tests.unit.broker.replication.test_partition import ByHand, batch
from tests.unit.storage.logs import NAME, NOW_MS, SMALL, TOPIC_ID, UnsyncedFiles, config, read_all

ALONE = PartitionImage(replicas=(1,), isr=(1,), leader=1)


class Steps:
    """The worker threads of a broker: work is done at once, and then what is in `after` for it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.after: dict[str, Callable[[], None]] = {}

    async def work(self, work: Callable[..., Any], *arguments: Any) -> Any:
        name = work.__name__
        self.done.append(name)
        await asyncio.sleep(0)
        result = work(*arguments)
        if (then := self.after.pop(name, None)) is not None:
            then()
        return result

    read = flush = compact = work


class World:
    """A partition of a broker with two directories, which is led there."""

    def __init__(self, directory: Path, settings: TopicConfig = SMALL) -> None:
        self.logs = LogManager.open(
            UnsyncedFiles(),
            [str(directory / "a"), str(directory / "b")],
            node_id=1,
            cluster_id="4L6g3nShT-eMCtK--X86sw",
            config_of=lambda _partition: settings,
            now_ms=NOW_MS,
        )
        self.moves = self.logs.moves
        self.moves.prefer(NAME, self.logs.directories[0])
        log = self.logs.create(NAME, TOPIC_ID, settings, NOW_MS)
        self.executor = ByHand()
        self.partition = Partition(NAME, log, settings, FlushQueue(self.executor))
        self.partition.lead(ALONE, NOW_MS)
        self.steps = Steps()
        self.rate = LONG_MAX
        node: Any = SimpleNamespace(
            logs=self.logs,
            replicas=Replicas(self.partition),
            workers=self.steps,
            clock=SimpleNamespace(now_ms=lambda: NOW_MS),
            rng=SimpleNamespace(randbytes=bytes),
            metrics=Registry(),
            move_requested=asyncio.Event(),
            config=SimpleNamespace(
                replica_alter_log_dirs_io_max_bytes_per_second=self.rate, log_cleaner_enable=True
            ),
        )
        self.node = node
        self.mover = LogDirMoves(node)

    def append(self, *values: bytes) -> None:
        self.partition.append(batch(*values), NOW_MS)

    def begin(self, number: int = 1) -> None:
        self.moves.begin(NAME, self.logs.directories[number], NOW_MS)
        self.node.move_requested.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)

    @property
    def home(self) -> str:
        return self.partition.log.directory.rsplit("/", 2)[1]


class Replicas(list[Partition]):
    def __init__(self, partition: Partition) -> None:
        super().__init__([partition])

    def replica_of(self, topic: str, index: int) -> Partition:
        return self[0]


def run(
    directory: Path,
    test: Callable[[World], Coroutine[Any, Any, None]],
    settings: TopicConfig = SMALL,
) -> None:
    async def run() -> None:
        world = World(directory, settings)
        world.mover.start()
        try:
            await test(world)
        finally:
            await world.mover.stop()
            world.logs.close()

    asyncio.run(run())


def test_what_is_appended_during_every_step_is_in_the_new_log(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for number in range(50):
            world.append(b"%d" % number)
        world.steps.after = {
            "_copy_piece": lambda: world.append(b"during a piece"),
            "prepare": lambda: world.append(b"during the flush"),
        }
        world.begin()
        await world.until(lambda: world.home == "b")
        world.append(b"after")
        values = [value for _, value in read_all(world.partition.log)]
        assert values[50:] == [b"during a piece", b"during the flush", b"after"]
        assert len(values) == 53
        await world.until(lambda: "make_durable" in world.steps.done)

    run(tmp_path, test)


def test_a_move_that_is_cancelled_while_it_is_prepared_leaves_nothing(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.append(b"a")
        world.steps.after = {"prepare": lambda: world.begin(0)}
        world.begin()
        await world.until(lambda: "unprepare" in world.steps.done)
        assert world.home == "a"
        assert not world.moves.futures

    run(tmp_path, test)
    assert not list(tmp_path.glob("*/*/move.metadata"))


def test_a_topic_may_be_deleted_during_any_step(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.append(b"a")
        world.begin()
        await world.until(lambda: step in world.steps.done)
        world.logs.delete(NAME, NOW_MS)
        await world.until(lambda: not world.moves.futures)
        await world.mover.stop()

    for step in ("_copy_piece", "prepare", "make_durable"):
        run(tmp_path / step, test)
        left = [path for path in (tmp_path / step).glob("*/orders*") if "-delete" not in path.name]
        assert not left


def test_a_record_waits_for_the_flush_of_the_log_that_it_has_moved_to(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.append(b"a")
        waiting = world.partition.when_committed(0)
        assert waiting is not None
        world.begin()
        await world.until(lambda: world.home == "b")
        assert len(world.executor.waiting) == 2
        await world.executor.run_one()
        assert world.partition.high_watermark == 0, "the old log was flushed, which is given up"
        assert not waiting.done()
        await world.executor.run_one()
        assert world.partition.high_watermark == 1
        assert waiting.done()

    run(tmp_path, test, replace(SMALL, flush_messages=1))


def test_compaction_leaves_a_replica_alone_that_moves(tmp_path: Path) -> None:
    settings = config(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)

    async def test(world: World) -> None:
        await world.mover.stop()
        compactor = Compactor(world.node)
        asked: list[object] = []
        compactor._plan = asked.append  # type: ignore[method-assign,assignment]
        await compactor.compact_dirtiest()
        assert len(asked) == 1
        world.begin()
        await compactor.compact_dirtiest()
        assert len(asked) == 1

    run(tmp_path, test, settings)


def test_the_limit_is_kept_and_followed_when_it_changes(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for number in range(50):
            world.append(b"%d" % number * 20)
        world.node.config.replica_alter_log_dirs_io_max_bytes_per_second = 10
        world.begin()
        await world.until(lambda: "_copy_piece" in world.steps.done)
        for _ in range(100):
            await asyncio.sleep(0)
        assert world.steps.done.count("_copy_piece") < 5
        assert world.home == "a"
        world.node.config.replica_alter_log_dirs_io_max_bytes_per_second = LONG_MAX
        await world.until(lambda: world.home == "b")

    run(tmp_path, test)
