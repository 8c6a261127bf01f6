"""A scan of files gives what the broker gives, whatever the broker does meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from struct import pack

import pyarrow as pa
import pytest

import headrace
from headrace.pipelines.datasource import brokers, direct_scan
from headrace.pipelines.datasource.direct_scan import ScanPartition, ScanReader
from headrace.pipelines.datasource.errors import DataLoss, SourceError
from headrace.pipelines.datasource.read_options import ReadOptions, batch_options
from headrace.testing import Broker
from headrace.types import TopicPartition
from tests.unit.client.consumer.batches import ABORT, COMMIT, batch, marker, written
from tests.unit.pipelines.datasource.brokers import fill, options, table

VALUES = [Random(number).randbytes(12_000 * (number % 3)) for number in range(300)]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_process=True) as running:
        yield running
        brokers.close_idle()


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic of some segments."""
    name = small_segments(broker)
    fill(broker, name, VALUES)
    return name


def small_segments(broker: Broker) -> str:
    """A topic whose segments are as small as they may be."""
    return broker.create_topic(segment_bytes=1_048_576, index_interval_bytes=100)


def settings(path: object, **more: str) -> ReadOptions:
    return batch_options({"path": str(path)} | more)


def scanned(wanted: ReadOptions) -> pa.Table:
    """All that a scan gives, task by task."""
    reader = ScanReader(wanted)
    batches = [found for partition in reader.partitions() for found in reader.read(partition)]
    for found in batches:
        found.validate(full=True)
    return pa.Table.from_batches(batches) if batches else pa.table({"offset": []})


def offsets(wanted: ReadOptions) -> list[int]:
    found: list[int] = scanned(wanted)["offset"].to_pylist()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_a_scan_is_identical_to_the_broker_read(broker: Broker, codec: str) -> None:
    topic = small_segments(broker)
    fill(broker, topic, VALUES, compression_type=codec)
    segments = list((broker.data_dir / f"{topic}-0").glob("*.log"))
    assert len(segments) > 3
    expected = table(options(broker, topic, includeHeaders="true"), topic, 0, len(VALUES))
    found = scanned(settings(broker.data_dir, subscribe=topic, includeHeaders="true"))
    assert found.equals(expected)


def test_a_big_segment_is_split_where_batches_begin(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic(index_interval_bytes=100)
    fill(broker, topic, VALUES)
    # Entries of an index are written when it is closed, or when there are many.
    broker.restart()
    wanted = settings(broker.data_dir, subscribe=topic, minPartitions="8")
    tasks = [
        partition
        for partition in ScanReader(wanted).partitions()
        if isinstance(partition, ScanPartition)
    ]
    assert len({task.extent.path for task in tasks}) == 1
    assert 6 <= len(tasks) <= 9
    monkeypatch.setattr(direct_scan, "BLOCK_BYTES", 20_000)
    assert scanned(wanted)["value"].to_pylist() == VALUES


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"startingOffsets": '{"T": {"0": 30}}'}, range(30, 300)),
        ({"endingOffsets": '{"T": {"0": 31}}'}, range(31)),
        ({"startingOffsets": '{"T": {"0": 33}}', "endingOffsets": '{"T": {"0": 34}}'}, [33]),
        ({"startingOffsets": '{"T": {"0": -2}}', "endingOffsets": '{"T": {"0": -1}}'}, range(300)),
        ({"startingTimestamp": "0", "endingTimestamp": "1"}, []),
    ],
)
def test_a_scan_begins_and_ends_where_it_is_told(
    broker: Broker, topic: str, more: dict[str, str], expected: range
) -> None:
    named = {name: text.replace("T", topic) for name, text in more.items()}
    assert offsets(settings(broker.data_dir, assign=f'{{"{topic}": [0]}}', **named)) == list(
        expected
    )


def test_all_topics_but_the_clusters_own_are_read_unless_named(broker: Broker) -> None:
    topic = broker.create_topic("scanned-for-all", partitions=2)
    fill(broker, topic, VALUES[:3])
    every = scanned(settings(broker.data_dir))
    assert topic in every["topic"].unique().to_pylist()
    matching = scanned(settings(broker.data_dir, subscribePattern="scanned-.*"))
    assert matching["topic"].unique().to_pylist() == [topic]


def test_records_that_were_deleted_stay_deleted(broker: Broker) -> None:
    topic = broker.create_topic()
    fill(broker, topic, VALUES)
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 123})
    assert offsets(settings(broker.data_dir, subscribe=topic)) == list(range(123, 300))


@pytest.mark.parametrize("how", ["deleted", "cut", "compacted"])
def test_a_file_that_goes_away_under_a_scan_is_a_loss(broker: Broker, how: str) -> None:
    topic = small_segments(broker)
    fill(broker, topic, VALUES)
    for lenient in (False, True):
        wanted = settings(
            broker.data_dir, subscribe=topic, failOnDataLoss="false" if lenient else "true"
        )
        reader = ScanReader(wanted)
        first, *rest = reader.partitions()
        assert isinstance(first, ScanPartition)
        path = Path(first.extent.path)
        whole = path.read_bytes()
        if not lenient:
            path.rename(path.with_suffix(".log.deleted"))
            if how == "cut":
                path.write_bytes(b"")
            elif how == "compacted":
                path.write_bytes(whole + whole[: len(whole) // 2])
            with pytest.raises(DataLoss, match=f"{topic}-0: {path} cannot be read any more"):
                list(reader.read(first))
            path.write_bytes(whole)
        else:
            assert sum(entry.num_rows for entry in reader.read(rest[0])) > 0
            gone = ScanPartition(first.range, first.extent._replace(path=f"{path}-gone"))
            assert list(reader.read(gone)) == []


@pytest.mark.parametrize("at", [-1, 80])
def test_a_corrupt_batch_is_named_with_its_file_and_position(broker: Broker, at: int) -> None:
    topic = broker.create_topic()
    fill(broker, topic, VALUES[:14])
    path = broker.data_dir / f"{topic}-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=f"{path} at position .*headrace log dump"):
        scanned(settings(broker.data_dir, subscribe=topic))


def test_the_end_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "orders-0"
    log.mkdir()
    whole = batch(0, 5) + batch(5, 5)
    for torn in (b"", batch(10, 5)[:-1], batch(10, 5)[:20]):
        (log / "00000000000000000000.log").write_bytes(whole + torn)
        assert offsets(settings(tmp_path)) == list(range(10))


def test_what_is_no_batch_at_the_end_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    log = tmp_path / "orders-0"
    log.mkdir()
    (log / "00000000000000000000.log").write_bytes(batch(0, 5) + bytes(100))
    with pytest.raises(SourceError, match=r"0\.log at position \d+: .*starting it cuts"):
        scanned(settings(tmp_path))


def test_aborted_transactions_are_left_out_as_the_index_says(tmp_path: Path) -> None:
    log = tmp_path / "orders-0"
    log.mkdir()
    first = written(0, 1) + written(1, 2) + batch(2) + marker(3, 1, ABORT) + written(4, 1)
    second = written(5, 2) + marker(6, 2, ABORT) + marker(7, 1, COMMIT) + written(8, 2)
    (log / "00000000000000000000.log").write_bytes(first)
    (log / "00000000000000000005.log").write_bytes(second)
    (log / "00000000000000000000.txnindex").write_bytes(pack(">hqqqq", 0, 1, 0, 3, 4))
    (log / "00000000000000000005.txnindex").write_bytes(pack(">hqqqq", 0, 2, 1, 6, 7))
    assert offsets(settings(tmp_path)) == [2, 4], "8 is of a transaction that is open"
    dirty = settings(tmp_path, **{"kafka.isolation.level": "read_uncommitted"})
    assert offsets(dirty) == [0, 1, 2, 4, 5, 8]


def test_several_directories_are_one_data_set(tmp_path: Path) -> None:
    for number in range(2):
        log = tmp_path / f"disk{number}" / f"orders-{number}"
        log.mkdir(parents=True)
        (log / "00000000000000000000.log").write_bytes(batch(0, 3))
    found = scanned(settings(f"{tmp_path}/disk0, {tmp_path}/disk1"))
    assert found["partition"].to_pylist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"path": "/nowhere"}, "cannot list /nowhere.*data directories"),
        ({"subscribe": "ordres"}, "holds no log of ordres; did you mean orders"),
        ({"assign": '{"orders": [7]}'}, "holds no log of orders-7"),
        ({"subscribePattern": "x.*"}, "no topic that subscribePattern matches"),
    ],
)
def test_a_scan_of_what_is_not_there_says_so(
    tmp_path: Path, more: dict[str, str], said: str
) -> None:
    log = tmp_path / "orders-0"
    log.mkdir()
    (log / "00000000000000000000.log").write_bytes(batch(0))
    with pytest.raises(SourceError, match=said):
        scanned(batch_options({"path": str(tmp_path)} | more))


def test_an_empty_directory_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no log; it must be a data directory"):
        scanned(settings(tmp_path))


def test_an_empty_log_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").touch()
    assert scanned(settings(tmp_path)).num_rows == 0
