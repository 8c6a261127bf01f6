"""Data directories: whose they are, what a restart finds in them, and what one failure costs."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from headrace.config import TopicConfig
from headrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from headrace.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    decode_offsets,
    has_meta_checksum,
)
from headrace.storage.data_directory import parse_log_name
from headrace.storage.files import Files
from headrace.storage.log_manager import LogManager
from headrace.types import TopicPartition
from tests.unit.storage.logs import NOW_MS, SMALL, FaultyFiles, append, config, read_all

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
TOPIC_ID = bytes(range(16))

Open = Callable[..., LogManager]


@pytest.fixture
def open_manager(tmp_path: Path) -> Iterator[Open]:
    opened: list[LogManager] = []
    ids = count(1)

    def start(*names: str, files: Files | None = None, **options: object) -> LogManager:
        directories = [str(tmp_path / name) for name in names or ("data",)]
        arguments: dict[str, object] = {
            "node_id": 1,
            "cluster_id": CLUSTER_ID,
            "config_of": lambda _partition: SMALL,
            "now_ms": NOW_MS,
            "new_id": lambda: next(ids).to_bytes(16, "big"),
            **options,
        }
        manager = LogManager.open(files or Files(), directories, **arguments)  # type: ignore[arg-type]
        opened.append(manager)
        return manager

    yield start
    for manager in opened:
        manager.close(clean=False)


def partition(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def create(manager: LogManager, *numbers: int, settings: TopicConfig = SMALL) -> None:
    for number in numbers:
        manager.create(partition(number), TOPIC_ID, settings, NOW_MS)


def test_logs_are_found_again_after_a_clean_shutdown_without_a_scan(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    create(manager, 0, 1)
    for value in (b"a", b"b"):
        append(manager.logs[partition(1)], value=value)
    manager.close(high_watermarks={partition(1): 2})
    assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
    again = open_manager()
    assert not (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
    assert sorted(again.logs) == [partition(0), partition(1)]
    assert not any(log.recovery.scanned for log in again)
    assert read_all(again.logs[partition(1)]) == [(0, b"a"), (1, b"b")]
    assert again.logs[partition(1)].topic_id == TOPIC_ID
    assert again.high_watermark(partition(1)) == 2
    assert again.high_watermark(partition(0)) is None


def test_logs_are_scanned_after_a_crash(open_manager: Open) -> None:
    manager = open_manager()
    create(manager, 0)
    append(manager.logs[partition(0)])
    manager.close(clean=False)
    again = open_manager()
    assert again.logs[partition(0)].recovery.scanned
    assert again.logs[partition(0)].log_end_offset == 1


def test_the_name_of_a_data_directory_is_flushed_by_the_start_after_one_that_failed(
    tmp_path: Path, open_manager: Open
) -> None:
    """Else a loss of power takes the directory, with all that was flushed in it."""
    failing = FaultyFiles()
    failing.fail("sync_directory", tmp_path.name)
    with pytest.raises(StorageError):
        open_manager("new/data", files=failing)
    assert (tmp_path / "new" / "data").is_dir()
    healthy = FaultyFiles()
    open_manager("new/data", files=healthy).close()
    flushed = [path for name, path in healthy.operations if name == "sync_directory"]
    assert flushed[:2] == [str(tmp_path / "new"), str(tmp_path)]
    used = FaultyFiles()
    open_manager("new/data", files=used)
    assert ("sync_directory", str(tmp_path)) not in used.operations


def test_a_data_directory_below_one_that_may_not_be_read_can_be_used(
    tmp_path: Path, open_manager: Open
) -> None:
    (tmp_path / "data").mkdir()
    files = FaultyFiles()
    files.fail("sync_directory", tmp_path.name, errno.EACCES)
    assert open_manager(files=files).directories[0].error is None


def test_the_marker_is_durably_gone_before_a_log_is_opened(open_manager: Open) -> None:
    manager = open_manager()
    create(manager, 0)
    manager.close()
    files = FaultyFiles()
    open_manager(files=files)
    removed = next(
        index
        for index, (name, path) in enumerate(files.operations)
        if path.endswith(CLEAN_SHUTDOWN)
    )
    synced = files.operations.index(("sync_directory", manager.directories[0].path), removed)
    opened = [i for i, (_, path) in enumerate(files.operations) if "/orders-0/" in path]
    assert removed < synced < min(opened)


def test_checkpoints_have_what_a_restart_begins_from(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    create(manager, 0, 1)
    log = manager.logs[partition(0)]
    for _ in range(5):
        append(log)
    log.flush()
    append(log)
    log.advance_log_start(2)
    assert manager.checkpoint({partition(0): 4, partition(7): 9}) == []
    files = {
        name: decode_offsets((tmp_path / "data" / name).read_bytes())
        for name in (
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
            "replication-offset-checkpoint",
        )
    }
    assert list(files.values()) == [
        {partition(0): 5, partition(1): 0},
        {partition(0): 2},
        {partition(0): 4},
    ]
    manager.close(clean=False)
    again = open_manager()
    log = again.logs[partition(0)]
    assert (log.log_start_offset, log.log_end_offset) == (2, 6)
    assert again.high_watermark(partition(0)) == 4


def test_high_watermarks_have_a_checkpoint_of_their_own(open_manager: Open) -> None:
    manager = open_manager()
    create(manager, 0, 1)
    append(manager.logs[partition(0)])
    assert manager.checkpoint_high_watermarks({partition(0): 1, partition(1): 0}) == []
    # One that is not known keeps what is written of it; one without a log has none.
    assert manager.checkpoint_high_watermarks({partition(1): 5, partition(7): 9}) == []
    manager.close(clean=False)
    again = open_manager()
    assert [again.high_watermark(partition(number)) for number in (0, 1, 7)] == [1, 5, None]
    assert again.offline_directories() == []


def test_truncation_reaches_the_checkpoint_before_bytes_are_removed(
    tmp_path: Path, open_manager: Open
) -> None:
    files = FaultyFiles()
    manager = open_manager(files=files)
    create(manager, 0)
    log = manager.logs[partition(0)]
    for _ in range(5):
        append(log)
    log.flush()
    manager.checkpoint()
    files.fail("truncate", ".log")
    with pytest.raises(KafkaError):
        log.truncate_to(2)
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    # The segment that is cut has to be scanned.
    assert decode_offsets(path.read_bytes()) == {partition(0): 0}


def test_a_checkpoint_in_another_thread_does_not_bring_back_what_was_truncated(
    tmp_path: Path, open_manager: Open
) -> None:
    writing, truncated = Event(), Event()

    class Slow(FaultyFiles):
        """Puts the first checkpoint in place only when a truncation has had time to begin."""

        waits = False

        def attempt(self, operation: str, path: str) -> None:
            if operation == "rename" and path.endswith("checkpoint.tmp") and self.waits:
                self.waits = False
                writing.set()
                truncated.wait(0.2)
            super().attempt(operation, path)

    files = Slow()
    manager = open_manager(files=files)
    create(manager, 0)
    log = manager.logs[partition(0)]
    for _ in range(5):
        append(log)
    log.flush()
    files.waits = True
    errors: list[StorageError] = []
    worker = Thread(target=lambda: errors.extend(manager.checkpoint()))
    worker.start()
    writing.wait()
    log.truncate_to(2)
    truncated.set()
    worker.join()
    assert errors == []
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    assert decode_offsets(path.read_bytes()) == {partition(0): 0}


def test_damaged_checkpoints_cost_a_scan_and_a_line_each(
    tmp_path: Path, open_manager: Open, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager()
    create(manager, 0)
    append(manager.logs[partition(0)])
    manager.close()
    for path in (tmp_path / "data").glob("*checkpoint"):
        path.write_bytes(b"garbage")
    (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
    assert open_manager().logs[partition(0)].log_end_offset == 1
    lines = [record.getMessage() for record in caplog.records]
    for name in ("recovery-point-offset", "replication-offset", "cleaner-offset"):
        if (tmp_path / "data" / f"{name}-checkpoint").exists():
            assert [f"/{name}-checkpoint is damaged" in line for line in lines].count(True) == 1


def test_a_damaged_mark_of_a_clean_shutdown_is_told_of(
    tmp_path: Path, open_manager: Open, caplog: pytest.LogCaptureFixture
) -> None:
    open_manager().close(broker_epoch=7)
    (tmp_path / "data" / CLEAN_SHUTDOWN).write_bytes(b"garbage")
    assert open_manager().previous_broker_epoch == -1
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith(f"{CLEAN_SHUTDOWN} is damaged: the cluster is told of an unclean shutdown")


def test_new_logs_go_where_there_are_the_fewest(open_manager: Open) -> None:
    manager = open_manager("one", "two", "three")
    create(manager, *range(7))
    assert sorted(len(state.logs) for state in manager.describe()) == [2, 2, 3]
    manager.close()
    again = open_manager("one", "two", "three")
    create(again, 7, 8)
    assert [len(state.logs) for state in again.describe()] == [3, 3, 3]


def test_a_partition_in_two_directories_is_refused(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager("one", "two")
    create(manager, 0)
    manager.close()
    (tmp_path / "two" / "orders-0").mkdir()
    with pytest.raises(
        ConfigError, match=r"orders-0 is in more than one data directory: .*one.*two"
    ):
        open_manager("one", "two")


def test_a_directory_has_one_owner_at_a_time(open_manager: Open) -> None:
    manager = open_manager()
    with pytest.raises(ConfigError, match="in use by another process"):
        open_manager()
    manager.close()
    open_manager()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_id": 2}, "says node.id=1, this broker has node.id=2: set node.id to 1"),
        (
            {"cluster_id": "other"},
            f"says cluster.id={CLUSTER_ID}, this broker has cluster.id=other",
        ),
    ],
)
def test_a_directory_of_another_broker_is_refused(
    open_manager: Open, changes: dict[str, object], message: str
) -> None:
    open_manager().close()
    with pytest.raises(ConfigError, match=message):
        open_manager(**changes)
    open_manager()  # The refusal let go of the lock.


@pytest.mark.parametrize("content", [None, b"", b"version=0\n", "flipped"])
def test_meta_properties_are_made_again_from_their_copy(
    tmp_path: Path,
    open_manager: Open,
    content: bytes | str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = open_manager()
    first.close()
    path = tmp_path / "data" / META_PROPERTIES
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        damaged = before.replace(b"node.id=1", b"node.id=3") if content == "flipped" else content
        assert isinstance(damaged, bytes) and damaged != before
        path.write_bytes(damaged)
        assert path.with_name(path.name + ".copy").exists()
    again = open_manager()
    assert again.directories[0].meta == first.directories[0].meta
    assert path.read_bytes() == before
    assert path.with_name(path.name + "-damaged").exists() == (content is not None)
    [line] = [record.getMessage() for record in caplog.records]
    assert str(path) in line and "made again from its copy" in line


def test_damaged_meta_properties_without_a_copy_are_not_overwritten(
    tmp_path: Path, open_manager: Open
) -> None:
    """Both ways out that are named are gone: the backup, and the removal of the file."""
    first = open_manager()
    first.close()
    path = tmp_path / "data" / META_PROPERTIES
    backup = path.read_bytes()
    path.with_name(path.name + ".copy").unlink()
    path.write_bytes(b"version=0\n")
    with pytest.raises(ConfigError, match=r"is damaged.*Restore it from a backup.*remove it"):
        open_manager()
    assert path.read_bytes() == b"version=0\n"
    path.write_bytes(backup)
    again = open_manager()
    assert again.directories[0].meta == first.directories[0].meta
    again.close()
    path.unlink()
    path.with_name(path.name + ".copy").unlink()
    new = open_manager().directories[0].meta
    assert new is not None and first.directories[0].meta is not None
    assert new.directory_id != first.directories[0].meta.directory_id


def test_meta_properties_of_kafka_get_a_checksum_and_a_copy(
    tmp_path: Path, open_manager: Open
) -> None:
    open_manager().close()
    path = tmp_path / "data" / META_PROPERTIES
    of_kafka = b"other=x\n" + b"".join(path.read_bytes().splitlines(keepends=True)[:-1])
    path.write_bytes(of_kafka)
    path.with_name(path.name + ".copy").unlink()
    open_manager().close()
    assert path.read_bytes().startswith(of_kafka)
    assert has_meta_checksum(path.read_bytes())
    assert path.with_name(path.name + ".copy").exists()


def test_a_new_cluster_id_is_made_and_then_kept(open_manager: Open) -> None:
    manager = open_manager(cluster_id=None)
    assert len(manager.cluster_id) == 22
    manager.close()
    again = open_manager("data", "second", cluster_id=None)
    assert again.cluster_id == manager.cluster_id
    metas = [directory.meta for directory in again.directories]
    assert metas[0] is not None
    assert metas[1] is not None
    assert metas[0].cluster_id == metas[1].cluster_id
    assert metas[0].directory_id != metas[1].directory_id


def test_a_deleted_log_is_out_of_the_way_at_once_and_removed_later(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    settings = config(file_delete_delay_ms=1000)
    create(manager, 0, settings=settings)
    old = manager.logs[partition(0)]
    append(old)
    old.advance_log_start(1)
    manager.checkpoint({partition(0): 1})
    manager.delete(partition(0), NOW_MS)
    assert manager.get(partition(0)) is None
    with pytest.raises(KafkaError):
        append(old)
    gone = list((tmp_path / "data").glob("orders-0.*-delete"))
    assert len(gone) == 1
    create(manager, 0, settings=settings)
    new = manager.logs[partition(0)]
    assert (new.log_start_offset, new.log_end_offset) == (0, 0)
    assert manager.high_watermark(partition(0)) is None
    assert manager.delete_retired(NOW_MS + 999) == 0
    assert manager.delete_retired(NOW_MS + 1000) == 1
    assert not gone[0].exists()


def test_deletions_that_a_crash_interrupted_are_finished(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    create(manager, 0)
    manager.delete(partition(0), NOW_MS)
    manager.close()
    again = open_manager()
    assert again.logs == {}
    assert again.delete_retired(NOW_MS) == 1
    assert not list((tmp_path / "data").glob("*-delete"))


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    name = TopicPartition("x" * 249, 12345)
    manager.create(name, TOPIC_ID, SMALL, NOW_MS)
    manager.delete(name, NOW_MS)
    assert manager.delete_retired(NOW_MS + 10**6) == 1


def test_retired_segments_are_removed_for_all_logs(open_manager: Open) -> None:
    manager = open_manager()
    create(manager, 0, 1, settings=config(retention_ms=0, file_delete_delay_ms=0))
    for log in manager:
        append(log)
        log.retire_segments(NOW_MS + 1000, 1)
    assert manager.delete_retired(NOW_MS + 1000) == 2


def test_an_unusable_directory_leaves_the_others_serving(
    tmp_path: Path, open_manager: Open
) -> None:
    (tmp_path / "file").write_text("in the way")
    manager = open_manager("file/data", "good")
    create(manager, 0, 1)
    states = manager.describe()
    assert [len(state.logs) for state in states] == [0, 2]
    assert isinstance(states[0].error, StorageError)
    assert (states[0].total_bytes, states[0].usable_bytes) == (-1, -1)
    assert states[1].error is None
    assert states[1].total_bytes >= states[1].usable_bytes > 0
    append(manager.logs[partition(0)])
    manager.close()
    assert (tmp_path / "good" / CLEAN_SHUTDOWN).exists()


def test_no_usable_directory_is_an_error(tmp_path: Path, open_manager: Open) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="none of the data directories can be used"):
        open_manager("file/a", "file/b")


def test_a_log_that_cannot_be_opened_leaves_the_others_serving(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    create(manager, 0, 1)
    for log in manager:
        append(log)
    manager.close(clean=False)
    files = FaultyFiles()
    files.fails = lambda operation, path: errno.EIO * (operation == "read" and "orders-0/" in path)
    again = open_manager(files=files)
    assert list(again.logs) == [partition(1)]
    with pytest.raises(KafkaError, match=r"orders-0 is offline") as caught:
        again.get(partition(0))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    append(again.logs[partition(1)])
    again.close()
    # The log that failed was not flushed, so the next start has to scan.
    assert not (tmp_path / "data" / CLEAN_SHUTDOWN).exists()


def test_a_log_that_fails_to_close_withholds_the_marker(tmp_path: Path, open_manager: Open) -> None:
    files = FaultyFiles()
    manager = open_manager("one", "two", files=files)
    create(manager, 0, 1)
    for log in manager:
        append(log)
    files.fails = lambda operation, path: errno.EIO * (operation == "sync" and "orders-0/" in path)
    manager.close()
    markers = [(tmp_path / name / CLEAN_SHUTDOWN).exists() for name in ("one", "two")]
    assert markers == [False, True]


def test_the_last_run_is_known_if_it_shut_down_cleanly_in_every_directory(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager("one", "two")
    assert manager.previous_broker_epoch == -1
    manager.close(broker_epoch=7)
    manager = open_manager("one", "two")
    assert manager.previous_broker_epoch == 7
    # It never came to register, and so has changed nothing.
    manager.close()
    manager = open_manager("one", "two")
    assert manager.previous_broker_epoch == 7
    manager.close(clean=False)
    assert open_manager("one", "two").previous_broker_epoch == -1


@pytest.mark.parametrize("damage", [None, b"", b"[]", b'{"version":0,"brokerEpoch":6}'])
def test_the_last_run_is_not_known_if_a_directory_tells_another(
    tmp_path: Path, open_manager: Open, damage: bytes | None
) -> None:
    open_manager("one", "two").close(broker_epoch=7)
    marker = tmp_path / "two" / CLEAN_SHUTDOWN
    if damage is None:
        marker.unlink()
    else:
        marker.write_bytes(damage)
    manager = open_manager("one", "two")
    assert manager.previous_broker_epoch == -1
    assert manager.directories[1].clean == (damage is not None)


def test_a_failing_checkpoint_takes_the_directory_offline(open_manager: Open) -> None:
    files = FaultyFiles()
    manager = open_manager("one", "two", files=files)
    create(manager, 0, 1)
    broken = manager.directories[0].path
    files.fails = lambda _operation, path: errno.EIO * path.startswith(f"{broken}/recovery")
    assert len(manager.checkpoint()) == 1
    states = manager.describe()
    assert [state.error is None for state in states] == [False, True]
    with pytest.raises(KafkaError, match="offline"):
        append(states[0].logs[0])
    append(states[1].logs[0])
    create(manager, 2)
    assert len(manager.describe()[1].logs) == 2
    assert manager.checkpoint() == []


def test_a_full_disk_only_postpones_the_checkpoint(open_manager: Open) -> None:
    files = FaultyFiles()
    manager = open_manager(files=files)
    create(manager, 0)
    append(manager.logs[partition(0)])
    manager.logs[partition(0)].flush()
    files.fails = lambda operation, _path: errno.ENOSPC * (operation == "write")
    errors = manager.checkpoint()
    assert [type(error).__name__ for error in errors] == ["DiskFull"]
    files.heal()
    assert manager.checkpoint() == []
    assert append(manager.logs[partition(0)]).base_offset == 1


def test_what_others_may_read_is_up_to_the_administrator_but_for_the_metadata_log(
    tmp_path: Path, open_manager: Open
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    manager = open_manager("shared", "new")
    manager.open_metadata_log(SMALL, NOW_MS)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"shared": 0o755, "new": 0o700}
    assert (shared / "__cluster_metadata-0").stat().st_mode & 0o777 == 0o700


def test_the_metadata_log_is_opened_by_name_only(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    metadata = manager.open_metadata_log(SMALL, NOW_MS)
    append(metadata, value=b"a topic")
    assert manager.open_metadata_log(SMALL, NOW_MS) is metadata
    manager.close()
    assert (tmp_path / "data" / "__cluster_metadata-0").is_dir()
    again = open_manager()
    assert again.logs == {}
    log = again.open_metadata_log(SMALL, NOW_MS)
    assert not log.recovery.scanned
    assert read_all(log) == [(0, b"a topic")]


def test_logs_can_be_loaded_once_their_settings_are_known(open_manager: Open) -> None:
    manager = open_manager()
    create(manager, 0)
    manager.close()
    asked: list[TopicPartition] = []

    def config_of(name: TopicPartition) -> TopicConfig:
        asked.append(name)
        return config(segment_bytes=12345)

    again = open_manager(config_of=config_of, load_logs=False)
    assert (again.logs, asked) == ({}, [])
    again.load_logs(NOW_MS)
    assert asked == [partition(0)]
    assert again.logs[partition(0)].config.segment_bytes == 12345


def open_paths() -> list[str]:
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The one that listed them is gone by now.
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return paths


def test_many_logs_share_a_bounded_number_of_descriptors(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager(open_files_max=10)
    create(manager, *range(40))
    for log in manager:
        for _ in range(30):
            append(log, value=b"x" * 100)
    assert min(len(log.segments) for log in manager) > 2
    for log in manager:
        assert len(read_all(log)) == 30
    ours = [path for path in open_paths() if path.startswith(f"{tmp_path}/data/orders-")]
    assert len(ours) <= 40 + 10  # The active segment of each, and the shared ones.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b.c_d-12", ("a-b.c_d", 12)),
        ("orders-01", None),
        ("orders", None),
        ("-1", None),
        ("orders-0.0123456789abcdef-delete", None),
        ("lost+found", None),
        ("orders-\u0661", None),
    ],
)
def test_names_of_log_directories(name: str, expected: tuple[str, int] | None) -> None:
    assert parse_log_name(name) == expected
