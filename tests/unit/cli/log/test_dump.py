import json
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.log.dump import expand
from headrace.cli.log.verify import check_files
from headrace.config import TopicConfig
from headrace.metadata.records import encode_control_batch, encode_record
from headrace.metadata.snapshot import encode_snapshot
from headrace.protocol.batch import scan_headers
from headrace.protocol.compression import Compression
from headrace.protocol.markers import Marker, encode_marker
from headrace.protocol.messages.metadata_records import TopicRecord
from headrace.protocol.messages.quorum_records import LeaderChangeMessage
from headrace.protocol.records import encode_batch
from headrace.raft.messages import HardState
from headrace.storage.checkpoints import (
    MetaProperties,
    encode_epochs,
    encode_meta,
    encode_offsets,
    encode_partition_metadata,
)
from headrace.storage.files import Files
from headrace.storage.key_sources import write_key_file
from headrace.storage.log import Log
from headrace.storage.metadata_log import encode_quorum_state
from headrace.storage.producer_state import ProducerStates
from headrace.storage.scrubbing import (
    SCRUB_CHECKPOINT,
    ScrubProgress,
    SegmentDamage,
    SegmentKey,
    encode_progress,
)
from headrace.types import TopicPartition, uuid_text
from tests.unit.cli.invoking import document, invoke
from tests.unit.security.encrypting import NEW, OLD, TOPIC_ID, encryption

PARTITION = TopicPartition("orders", 0)
BASE = 100
STEM = f"{BASE:020d}"


def batch(base_offset: int, count: int = 2, *, epoch: int = 0, compression: int = 0) -> bytes:
    rows = [
        (1_714_564_800_000 + base_offset + number, b"k%d" % number, b"v" * 50, [("h", b"\xff")])
        for number in range(count)
    ]
    return bytes(
        encode_batch(
            rows,
            base_offset=base_offset,
            leader_epoch=epoch,
            compression=compression,
            producer_id=9,
            producer_epoch=1,
            base_sequence=base_offset - BASE,
        )
    )


def write_segment(directory: Path, batches: list[bytes]) -> Path:
    """A segment with an index entry for every batch but the first."""
    directory.mkdir(exist_ok=True)
    data = b"".join(batches)
    headers = scan_headers(data)
    base_offset = headers[0].base_offset
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(data)
    entries = [(header.last_offset - base_offset, header.position) for header in headers[1:]]
    path.with_suffix(".index").write_bytes(b"".join(pack(">ii", *entry) for entry in entries))
    times = [(header.max_timestamp, header.last_offset - base_offset) for header in headers[1:]]
    path.with_suffix(".timeindex").write_bytes(b"".join(pack(">qi", *entry) for entry in times))
    return path


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of two segments."""
    directory = tmp_path / "orders-0"
    write_segment(directory, [batch(100), batch(102, compression=Compression.LZ4), batch(104)])
    write_segment(directory, [batch(106, epoch=2), batch(108, epoch=2)])
    (directory / "leader-epoch-checkpoint").write_bytes(encode_epochs([(0, 100), (2, 106)]))
    (directory / "partition.metadata").write_bytes(encode_partition_metadata(bytes(range(16))))
    producers = ProducerStates()
    data = batch(104)
    producers.replay(scan_headers(data)[0], data)
    (directory / f"{106:020d}.snapshot").write_bytes(producers.encode_snapshot())
    (directory / "notes.txt").write_text("not ours")
    return directory


def documents(*arguments: str) -> list[dict[str, object]]:
    result = invoke("log", "dump", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_batches_are_shown_with_their_headers(partition: Path) -> None:
    path = partition / f"{STEM}.log"
    first, second, third = documents(str(path))
    assert first["file"] == str(path)
    assert (first["kind"], first["position"]) == ("batch", 0)
    assert (first["base_offset"], first["last_offset"], first["records"]) == (100, 101, 2)
    assert (first["producer_id"], first["producer_epoch"], first["base_sequence"]) == (9, 1, 0)
    assert (second["compression"], second["position"]) == ("lz4", first["size"])
    assert third["base_offset"] == 104
    lines = invoke("log", "dump", str(path)).stdout.splitlines()
    assert lines[0] == str(path)
    assert "offsets 100-101  2 records" in lines[1]
    assert "CreateTime 2024-05-01T12:00:00.101Z  epoch 0  producer 9.1 sequence 0" in lines[1]


def test_records_are_decompressed(partition: Path) -> None:
    found = documents("--records", str(partition / f"{STEM}.log"))
    assert [entry["kind"] for entry in found] == ["batch", "record", "record"] * 3
    assert found[4] == {
        "file": str(partition / f"{STEM}.log"),
        "kind": "record",
        "offset": 102,
        "timestamp": 1_714_564_800_102,
        "key": "k0",
        "value": "v" * 50,
        "headers": [{"name": "h", "value_base64": "/w=="}],
    }
    text = invoke("log", "dump", "--records", str(partition / f"{STEM}.log")).stdout
    assert "102  2024-05-01T12:00:00.102Z  key=k0  value=vvv" in text
    assert "headers=h=base64:/w==" in text


def test_transactions_are_spelled_out(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    marker = encode_marker(Marker(9, 1, 4, committed=False), 1_714_564_800_200)
    path = write_segment(directory, [batch(100), placed(marker, 102)])
    index = path.with_suffix(".txnindex")
    index.write_bytes(pack(">hqqqq", 0, 9, 100, 102, 103))
    *_, last = documents("--records", str(path))
    assert last["marker"] == "abort, coordinator epoch 4"
    assert "abort, coordinator epoch 4" in invoke("log", "dump", "--records", str(path)).stdout
    assert documents(str(index)) == [
        {
            "file": str(index),
            "kind": "aborted",
            "producer_id": 9,
            "first_offset": 100,
            "last_offset": 102,
            "last_stable_offset": 103,
        }
    ]
    line = "producer id 9  first offset 100  last offset 102  last stable offset 103"
    assert line in invoke("log", "dump", str(index)).stdout
    assert problems(directory) == ""
    index.write_bytes(index.read_bytes() + b"?")
    assert ".txnindex: 35 bytes are not whole entries" in problems(directory)
    index.write_bytes(pack(">hqqqq", 1, 9, 100, 102, 103))
    assert "has an entry of version 1" in problems(directory)


def placed(data: bytearray, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big") + data[8:12] + bytes(4) + data[16:]


def test_the_clusters_metadata_is_spelled_out(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    value = encode_record(TopicRecord(name="orders", topic_id=bytes(16)))
    rows = [(5, None, value, ()), (5, None, b"\xff", ())]
    write_segment(directory, [bytes(encode_batch(rows))])
    _, first, second = documents("--records", str(directory / f"{0:020d}.log"))
    assert "name='orders'" in str(first["metadata"])
    assert str(second["metadata"]).startswith("unreadable")


def test_what_the_quorum_writes_is_spelled_out(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    change = LeaderChangeMessage(version=1, leader_id=3)
    write_segment(directory, [bytes(encode_control_batch([change], 5))])
    (directory / "quorum-state").write_bytes(encode_quorum_state(HardState(7, voted_for=3)))
    records = [TopicRecord(name="orders", topic_id=bytes(16))]
    snapshot = directory / f"{5:020d}-{2:010d}.checkpoint"
    data = b"".join(encode_snapshot(records, None, epoch=2, now_ms=5))
    snapshot.write_bytes(data)
    _, led = documents("--records", str(directory / f"{0:020d}.log"))
    assert "leader_id=3" in str(led["metadata"])
    (state,) = documents(str(directory / "quorum-state"))
    assert (state["epoch"], state["voted_for"]) == (7, 3)
    told = documents("--records", str(snapshot))
    assert [entry["kind"] for entry in told] == ["batch", "record"] * 3
    assert "name='orders'" in str(told[3]["metadata"])
    assert invoke("log", "dump", "--verify", str(directory)).exit_code == 0
    snapshot.write_bytes(data[:-1])
    assert "the snapshot is cut short" in problems(directory)


def test_every_kind_of_file_is_shown(partition: Path, tmp_path: Path) -> None:
    meta = MetaProperties("cluster", 3, bytes(16))
    (tmp_path / "meta.properties").write_bytes(encode_meta(meta))
    offsets = encode_offsets({TopicPartition("orders", 0): 104})
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(offsets)
    found: dict[str, list[dict[str, object]]] = {}
    for entry in documents(str(tmp_path)):
        found.setdefault(str(entry.pop("kind")), []).append(entry)
        entry.pop("file")
    assert found["meta"] == [
        {"cluster_id": "cluster", "node_id": 3, "directory_id": uuid_text(bytes(16))}
    ]
    assert found["offset"] == [{"topic": "orders", "partition": 0, "offset": 104}]
    assert found["partition"] == [{"topic_id": uuid_text(bytes(range(16)))}]
    assert found["leader_epoch"] == [
        {"epoch": 0, "start_offset": 100},
        {"epoch": 2, "start_offset": 106},
    ]
    assert len(found["batch"]) == 5
    assert found["index_entry"][0]["offset"] == 103
    assert found["time_entry"][0] == {"timestamp": 1_714_564_800_103, "offset": 103}
    assert found["producer"][0]["last_offset"] == 105
    text = invoke("log", "dump", str(tmp_path)).stdout
    assert "  topic orders  partition 0  offset 104\n" in text
    assert "  producer id 9  producer epoch 1  last sequence 5  last offset 105\n" in text
    assert "notes.txt" not in text


def test_a_log_that_is_right_passes(partition: Path) -> None:
    result = invoke("log", "dump", "--verify", str(partition))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("9 files, 5 batches, 10 records, ")
    assert result.stdout.endswith(": all right\n")
    found = document(invoke("log", "dump", "--verify", "--json", str(partition)))
    assert (found["batches"], found["records"], found["problems"]) == (5, 10, [])


def test_zeros_that_kafka_puts_at_the_end_of_an_index_are_no_entries(partition: Path) -> None:
    for suffix in (".index", ".timeindex"):
        path = partition / f"{STEM}{suffix}"
        path.write_bytes(path.read_bytes() + bytes(12 * 8))
    assert check_files([partition / f"{STEM}.log"]).problems == []
    assert len(documents(str(partition / f"{STEM}.index"))) == 2


@given(position=st.integers(16, 10_000), bit=st.integers(0, 7))
def test_a_changed_bit_of_a_batch_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    batches = [batch(100), batch(102, compression=Compression.ZSTD), batch(104)]
    path = write_segment(tmp_path_factory.mktemp("log"), batches)
    data = bytearray(path.read_bytes())
    size = len(batches[0])
    # The offset, length and epoch before the magic are not under the CRC.
    position = 16 + position % (size - 16)
    data[position] ^= 1 << bit
    path.write_bytes(data)
    findings = check_files([path])
    assert findings.problem_count > 0
    assert findings.problems[0].path == str(path)


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_bit_of_an_offset_index_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    path = write_segment(tmp_path_factory.mktemp("log"), [batch(100 + 2 * n) for n in range(5)])
    index = path.with_suffix(".index")
    data = bytearray(index.read_bytes())
    data[position % len(data)] ^= 1 << bit
    index.write_bytes(data)
    for wanted in (path, index):
        findings = check_files([wanted])
        assert {problem.path for problem in findings.problems} == {str(index)}


@given(cut=st.integers(1, 10_000))
def test_a_torn_tail_is_found_and_what_is_before_it_is_shown(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    last = batch(102)
    path = write_segment(tmp_path_factory.mktemp("log"), [batch(100), last])
    path.with_suffix(".index").unlink()
    path.with_suffix(".timeindex").unlink()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 1 - cut % (len(last) - 1)])
    assert check_files([path]).problem_count == 1
    result = invoke("log", "dump", str(path))
    assert result.exit_code == 1
    assert result.stdout.count("batch at") == 1
    assert result.stderr.startswith(f"headrace: {path}: ")


def problems(path: Path) -> str:
    findings = check_files(expand(path))
    return "\n".join(map(str, findings.problems))


def test_offsets_and_epochs_that_go_back_are_found(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "a", [batch(100, 4, epoch=3), batch(104, epoch=3)])
    path.write_bytes(batch(100, 4, epoch=3) + batch(102, epoch=1))
    path.with_suffix(".index").unlink()
    path.with_suffix(".timeindex").unlink()
    text = problems(tmp_path / "a")
    assert "offset 102 follows 103" in text
    assert "leader epoch 1 follows 3" in text


def test_segments_that_overlap_are_found(tmp_path: Path) -> None:
    write_segment(tmp_path / "a", [batch(100, 4)])
    write_segment(tmp_path / "a", [batch(102)])
    assert "begins before offset 104, where the last one ended" in problems(tmp_path / "a")


def test_a_time_index_is_held_against_the_largest_timestamps(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "a", [batch(100), batch(102), batch(104)])
    times = path.with_suffix(".timeindex")
    wrong = [(1_714_564_800_102, 3), (1_714_564_800_105, 99)]
    times.write_bytes(b"".join(pack(">qi", *entry) for entry in wrong))
    text = problems(tmp_path / "a")
    assert "offset 103 says 1714564800102, but the largest timestamp up to there is" in text
    assert "names offset 199, which the segment does not have" in text


def test_indexes_that_are_out_of_order_or_cut_are_found(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "a", [batch(100), batch(102), batch(104)])
    index = path.with_suffix(".index")
    data = index.read_bytes()
    index.write_bytes(data[8:] + data[:8] + b"xyz")
    text = problems(tmp_path / "a")
    assert "3 bytes after the last whole entry" in text
    assert "does not follow" in text


def test_an_index_without_its_segment_is_found(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "a", [batch(100), batch(102)])
    path.unlink()
    text = problems(tmp_path / "a")
    assert text.count(f"its segment {path.name} is missing") == 2


def test_damaged_small_files_are_found(partition: Path) -> None:
    (partition / "leader-epoch-checkpoint").write_text("0\n2\n0 100\n")
    snapshot = partition / f"{106:020d}.snapshot"
    data = bytearray(snapshot.read_bytes())
    data[-1] ^= 1
    snapshot.write_bytes(data)
    text = problems(partition)
    assert "leader-epoch-checkpoint: checkpoint has 1 lines and claims 2" in text
    assert ".snapshot: the producer snapshot's CRC does not match" in text


def test_a_corrupt_batch_does_not_hide_the_next_ones(partition: Path) -> None:
    path = partition / f"{STEM}.log"
    data = bytearray(path.read_bytes())
    data[len(batch(100)) - 1] ^= 1
    path.write_bytes(data)
    result = invoke("log", "dump", "--records", "--json", str(path))
    assert result.exit_code == 1
    kinds = [json.loads(line)["kind"] for line in result.stdout.splitlines()]
    assert kinds == ["batch", "problem", "batch", "record", "record", "batch", "record", "record"]
    result = invoke("log", "dump", "--verify", str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headrace: {path} at position 0: ")
    assert result.stdout.endswith(": 1 problem\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere", "does not exist; give a file or directory"),
        ("file.txt", "is no file of a log; give a .log"),
        ("empty", "holds no log files; give a partition's directory"),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    result = invoke("log", "dump", str(tmp_path / name))
    assert result.exit_code == 1
    assert text in result.stderr


def test_checking_prints_no_records(partition: Path) -> None:
    assert invoke("log", "dump", "--verify", "--records", str(partition)).exit_code == 2


def test_files_are_not_written_to(partition: Path) -> None:
    before = {path: path.read_bytes() for path in partition.iterdir()}
    for path in before:
        path.chmod(0o400)
    partition.chmod(0o500)
    invoke("log", "dump", "--records", str(partition))
    invoke("log", "dump", "--verify", str(partition))
    partition.chmod(0o700)
    assert {path: path.read_bytes() for path in partition.iterdir()} == before


def test_scrub_reads_every_segment_and_names_what_is_damaged(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "orders-0", [batch(100), batch(102), batch(104)])
    write_segment(tmp_path / "orders-0", [batch(106), batch(108)])
    result = invoke("log", "scrub", str(tmp_path))
    assert result.exit_code == 0
    printed = result.stdout
    assert printed.startswith(f"{tmp_path}: 2 segments, ")
    assert "all right" in printed
    assert "its broker: has not begun to scrub it" in printed
    progress = ScrubProgress(
        5000, 9000, 7, 1024, damage=(SegmentDamage(SegmentKey(PARTITION, 100), 102, 104),)
    )
    (tmp_path / SCRUB_CHECKPOINT).write_bytes(encode_progress(progress))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = invoke("log", "scrub", str(tmp_path))
    assert result.exit_code == 1
    assert f"{path} is damaged: " in result.stderr
    assert "offsets 102 to 103" in result.stderr
    assert "1 damaged segment" in result.stdout
    assert "its broker: scrubbed 7 segments, " in result.stdout
    [found] = json.loads(invoke("log", "scrub", "--json", str(tmp_path)).stdout)["directories"]
    assert (found["segments"], len(found["damage"])) == (2, 1)
    assert found["broker"]["damage"] == [
        {
            "topic": "orders",
            "partition": 0,
            "segment": 100,
            "first_offset": 102,
            "end_offset": 104,
        }
    ]


def sealed_partition(data: Path) -> Path:
    """A partition with one encrypted batch of the key `OLD`."""
    directory = data / "sealed-0"
    log = Log.open(
        Files(),
        str(directory),
        TopicPartition("sealed", 0),
        TopicConfig(encryption_enable=True, retention_ms=-1),
        1_714_564_800_000,
        topic_id=TOPIC_ID,
        encryption=encryption(OLD),
    )
    batch = encode_batch([(1_714_564_800_000, b"k", b"hidden", ())])
    log.append(batch, scan_headers(batch), 0, 1_714_564_800_000)
    log.close()
    return directory


def test_encrypted_records_are_shown_with_their_key(tmp_path: Path) -> None:
    directory = sealed_partition(tmp_path)
    keys = tmp_path / "keys"
    write_key_file(str(keys), [OLD, NEW], replace=False)
    without = invoke("log", "dump", "--records", str(directory))
    assert without.exit_code == 0, "that a key is missing is no problem of the file"
    assert "hidden" not in without.output and OLD.check_value.hex() in without.output
    shown = invoke("log", "dump", "--records", str(directory), "--keys", f"file:{keys}")
    assert "value=hidden" in shown.output and "encrypted" in shown.output
    verified = invoke("log", "dump", "--verify", str(directory))
    assert verified.exit_code == 0 and "only the checksum was checked" in verified.output
    verified = invoke("log", "dump", "--verify", str(directory), "--keys", f"file:{keys}")
    assert verified.exit_code == 0 and "all right" in verified.output
    assert "checksum" not in verified.output


def test_keys_are_wrapped_anew_in_the_directories_of_a_stopped_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    directory = sealed_partition(data)
    keys = tmp_path / "keys"
    write_key_file(str(keys), [NEW], replace=False)
    lacking = invoke("log", "rewrap", str(data), "--keys", f"file:{keys}")
    assert lacking.exit_code == 1 and OLD.check_value.hex() in lacking.output
    write_key_file(str(keys), [OLD, NEW], replace=True)
    done = invoke("log", "rewrap", str(data), "--keys", f"file:{keys}")
    assert done.exit_code == 0 and "1 of 1 encrypted batches" in done.output
    write_key_file(str(keys), [NEW], replace=True)
    shown = invoke("log", "dump", "--records", str(directory), "--keys", f"file:{keys}")
    assert "value=hidden" in shown.output
    lock = Files().lock(str(data / ".lock"))
    assert lock is not None
    try:
        refused = invoke("log", "rewrap", str(data), "--keys", f"file:{keys}")
        assert refused.exit_code == 1 and "stop it first" in refused.output
    finally:
        lock.release()
