"""Scrubbing by a broker, on virtual time: its pace, what it finds, and what it does about it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.scrubber import Scrubber
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.metrics.registry import Registry
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import Files, TooManyOpenFiles
from headrace.storage.scrubbing import SCRUB_CHECKPOINT, decode_progress
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run
from tests.unit.storage.logs import NAME, append, config, open_log

DAY_MS = 86_400_000


async def at_once(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return work(*args, **kwargs)


class Host:
    """Broker 1 with one partition of four segments; `isr` are its replicas in sync."""

    is_applied = True

    def __init__(self, directory: Path, clock: FakeClock, **settings: int) -> None:
        self.directory = DataDirectory(Files(), str(directory))
        self.log = open_log(directory / str(NAME), config(segment_bytes=1500))
        while len(self.log.segments) < 4:
            append(self.log, 3, value=bytes(50))
        self.partition = SimpleNamespace(name=NAME, log=self.log, isr=(1,))
        self.held: list[Any] = [self.partition]
        self.reported: list[tuple[TopicPartition, str]] = []
        self.node = SimpleNamespace(
            node_id=1,
            scrub_progress={},
            clock=clock,
            config=SimpleNamespace(
                **{
                    "log_scrub_interval_ms": DAY_MS,
                    "log_scrub_bytes_per_second": 1_000_000,
                    **settings,
                }
            ),
            metrics=Registry(),
            workers=SimpleNamespace(read=at_once, flush=at_once),
            replicas=self,
            logs=SimpleNamespace(
                directories=[self.directory],
                files=Files(),
                failed={},
                directory_of=lambda _: self.directory,
            ),
        )

    def __iter__(self) -> Any:
        return iter(self.held)

    def replica_of(self, topic: str, index: int) -> Any:
        if not self.held:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.partition

    def report_damage(self, name: TopicPartition, error: StorageError) -> None:
        self.reported.append((name, str(error)))
        self.node.logs.failed[name] = error
        self.held.clear()

    def flip(self, index: int, position: int = 80) -> None:
        with open(self.log.segments[index].log_path, "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1]))

    @property
    def written(self) -> Any:
        data = Files().read_bytes(f"{self.directory.path}/{SCRUB_CHECKPOINT}")
        return None if data is None else decode_progress(data)


def try_scrubber(
    directory: Path,
    scenario: Callable[[Host, Callable[[], Scrubber]], Coroutine[Any, Any, None]],
    **settings: int,
) -> None:
    clock = FakeClock()

    async def main() -> None:
        host = Host(directory, clock, **settings)
        started: list[Scrubber] = []

        def start() -> Scrubber:
            host.node.scrub_progress.clear()  # What a new process knows.
            started.append(Scrubber(cast("Any", host.node)))
            started[-1].start()
            return started[-1]

        await scenario(host, start)
        for entry in started:
            await entry.stop()

    run(clock, main())


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_segments_are_read_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        start()
        await asyncio.sleep(10)
        size = sum(segment.size for segment in host.log.segments)
        [line] = lines(caplog, logging.INFO)
        assert line == (f"scrubbed 4 segments with {size} bytes in {tmp_path}: all are intact")
        assert (host.written.segment_count, host.written.byte_count) == (4, size)
        await asyncio.sleep(600)
        assert len(caplog.records) == 1, "an hour has not passed"
        await asyncio.sleep(3600)
        assert len(caplog.records) == 2

    try_scrubber(tmp_path, scenario, log_scrub_interval_ms=3_600_000)


def test_it_keeps_to_its_rate(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        # The last segment is read twice: before all others, and in the pass.
        size = sum(entry.size for entry in (*host.log.segments, host.log.segments[-1]))
        start()
        await asyncio.sleep(size / 1000 - 2)
        assert not host.written
        await asyncio.sleep(3)
        assert host.written.finished_ms > 0

    try_scrubber(tmp_path, scenario, log_scrub_bytes_per_second=1000)


def test_a_restart_goes_on_where_the_last_run_was(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        first = start()
        await asyncio.sleep(2.5)
        await first.stop()
        halfway = host.written
        assert 0 < halfway.segment_count < 4
        assert halfway.is_under_way
        second = start()
        await asyncio.sleep(halfway.byte_count / 1000 + 1)
        await second.stop()
        assert halfway.segment_count < host.written.segment_count <= 4
        assert host.written.started_ms == halfway.started_ms

    try_scrubber(tmp_path, scenario, log_scrub_bytes_per_second=1000)


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        start()
        await asyncio.sleep(100)
        assert not host.written

    try_scrubber(tmp_path, scenario, log_scrub_interval_ms=-1)


def test_a_damaged_replica_is_reported_where_another_is_in_sync(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.partition.isr = (1, 2)
        host.flip(1)
        start()
        await asyncio.sleep(5)
        [(name, error)] = host.reported
        segment = host.log.segments[1]
        assert name == NAME
        assert f"{segment.log_path} is damaged: at position 0, " in error
        [damage] = host.written.damage
        assert damage.key == (NAME, segment.base_offset)

    try_scrubber(tmp_path, scenario)


def test_a_lone_replica_goes_on_and_its_damage_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.flip(0)
        start()
        await asyncio.sleep(600)
        assert host.reported == []
        [line] = lines(caplog, logging.ERROR)
        assert f"{host.log.segments[0].log_path} is damaged" in line
        assert "offsets 0 to 2 " in line
        assert f"headrace log repair {tmp_path}/{NAME}" in line
        assert "damaged are orders-0" in lines(caplog, logging.WARNING)[0]
        # As soon as another is in sync, the replica is made anew from it.
        host.partition.isr = (1, 3)
        await asyncio.sleep(120)
        assert len(host.reported) == 1

    try_scrubber(tmp_path, scenario)


def test_damage_that_was_known_before_a_restart_is_looked_at_again(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.flip(0)
        first = start()
        await asyncio.sleep(5)
        await first.stop()
        assert len(host.written.damage) == 1
        host.flip(0)  # Restored from a backup, say.
        second = start()
        await asyncio.sleep(5)
        await second.stop()
        assert host.written.damage == ()
        assert host.reported == []

    try_scrubber(tmp_path, scenario)


def test_a_segment_that_goes_while_it_is_read_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.flip(0)
        plain = host.node.workers.read

        async def read(work: Callable[..., Any], *args: Any) -> Any:
            host.log.truncate_fully_and_start_at(1000)
            host.node.workers.read = plain
            return await plain(work, *args)

        host.node.workers.read = read
        start()
        await asyncio.sleep(5)
        assert lines(caplog, logging.ERROR) == []
        assert host.written.damage == ()

    try_scrubber(tmp_path, scenario)


def test_a_replica_that_is_deleted_while_it_is_read_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.partition.isr = (1, 2)
        host.flip(0)
        plain = host.node.workers.read

        async def read(work: Callable[..., Any], *args: Any) -> Any:
            host.held.clear()
            return await plain(work, *args)

        host.node.workers.read = read
        start()
        await asyncio.sleep(5)
        assert host.reported == []
        assert lines(caplog, logging.ERROR) == []

    try_scrubber(tmp_path, scenario)


def test_a_segment_that_cannot_be_opened_now_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        async def read(work: Callable[..., Any], *args: Any) -> Any:
            raise TooManyOpenFiles("cannot open a segment")

        host.node.workers.read = read
        start()
        await asyncio.sleep(5)
        assert host.reported == []
        assert host.written.damage == ()
        assert "not scrubbed" in lines(caplog, logging.WARNING)[0]

    try_scrubber(tmp_path, scenario)


def test_after_a_start_the_last_segment_is_read_before_all_others(tmp_path: Path) -> None:
    """A clean start believes all but the end, and the newest records are in the last segment."""

    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.partition.isr = (1, 2)
        host.flip(0)
        host.flip(-1)
        start()
        await asyncio.sleep(0)
        [(_, error)] = host.reported
        assert host.log.active.log_path in error

    try_scrubber(tmp_path, scenario)


def test_what_the_start_has_scanned_is_not_read_first(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.log.recovery.scanned = True
        host.partition.isr = (1, 2)
        host.flip(0)
        host.flip(-1)
        start()
        await asyncio.sleep(5)
        [(_, error)] = host.reported
        assert host.log.segments[0].log_path in error

    try_scrubber(tmp_path, scenario)


def test_every_start_is_followed_by_a_pass(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        first = start()
        await asyncio.sleep(60)
        await first.stop()
        assert host.written.finished_ms > 0
        host.flip(1)
        second = start()
        await asyncio.sleep(60)
        await second.stop()
        [damage] = host.written.damage
        assert damage.key == (NAME, host.log.segments[1].base_offset)
        assert host.written.finished_ms > 0

    try_scrubber(tmp_path, scenario)


def test_nothing_is_read_before_it_is_known_which_replicas_there_are(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.is_applied = False
        start()
        await asyncio.sleep(30)
        assert not host.written
        host.is_applied = True
        await asyncio.sleep(5)
        assert host.written.segment_count == 4

    try_scrubber(tmp_path, scenario)


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_damage_that_a_reader_has_met_is_found_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, isr: tuple[int, ...]
) -> None:
    """Also where no pass is due, or ever."""

    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.partition.isr = isr
        start()
        await asyncio.sleep(5)
        segment = host.log.segments[2]
        offset = segment.base_offset
        host.flip(2)
        host.log.suspect(offset + 1)
        await asyncio.sleep(2)
        assert len(host.reported) == len(isr) - 1
        [damage] = host.written.damage
        assert damage.key == (NAME, offset)
        if len(isr) == 1:
            for _ in range(3):  # Readers come again and again.
                host.log.suspect(offset + 1)
                await asyncio.sleep(5)
            [line] = lines(caplog, logging.ERROR)
            assert f"{segment.log_path} is damaged: at position 0, " in line
            assert f"headrace log repair {tmp_path}/{NAME}" in line
            with pytest.raises(KafkaError) as refused:
                host.log.read(offset, 1000, host.log.log_end_offset)
            assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
            assert host.log.read(0, 1000, host.log.log_end_offset).records

    try_scrubber(tmp_path, scenario, log_scrub_interval_ms=-1)


def test_damage_is_looked_for_in_the_whole_log_if_it_is_not_where_a_reader_was(
    tmp_path: Path,
) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        start()
        host.flip(1)
        host.log.suspect(0)
        await asyncio.sleep(2)
        [damage] = host.written.damage
        assert damage.key == (NAME, host.log.segments[1].base_offset)

    try_scrubber(tmp_path, scenario, log_scrub_interval_ms=-1)


def test_a_restored_segment_is_read_again_by_the_next_pass(tmp_path: Path) -> None:
    async def scenario(host: Host, start: Callable[[], Scrubber]) -> None:
        host.flip(0)
        start()
        await asyncio.sleep(5)
        with pytest.raises(KafkaError):
            host.log.read(0, 1000, host.log.log_end_offset)
        host.flip(0)
        await asyncio.sleep(600)
        assert host.log.read(0, 1000, host.log.log_end_offset).records

    try_scrubber(tmp_path, scenario, log_scrub_interval_ms=300_000)
