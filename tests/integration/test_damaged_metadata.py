"""Metadata logs that were damaged while their broker was down: what a start says, and does."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.records import encode_batch
from headrace.testing import Cluster
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.test_durability import failed_start
from tests.integration.wire import Wire, create_topic, produce, read_all
from tests.support import BrokerProcess, headrace_command

METADATA = "__cluster_metadata-0"
RECORD = encode_batch([(1_700_000_000_000, None, b"value", ())])


def metadata_segment(data_dir: Path) -> Path:
    """The newest segment of a metadata log that has batches."""
    segments = sorted((data_dir / METADATA).glob("*.log"))
    return [segment for segment in segments if segment.stat().st_size][-1]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def flip_in_the_middle(data_dir: Path) -> None:
    """Change a byte of a batch that others follow."""
    path = metadata_segment(data_dir)
    headers = scan_headers(path.read_bytes())
    middle = headers[(len(headers) - 1) // 2]
    flip(path, middle.position + middle.size - 3)


def contents(data_dir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data_dir)): path.read_bytes()
        for path in sorted(data_dir.rglob("*"))
        if path.is_file() and path.name not in (".lock", "reserved-space")
    }


def topics_of(address: str) -> set[str]:
    with Wire(address) as wire:
        return {topic.name for topic in wire.ask(MetadataRequest(topics=None)).topics}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A lone broker with topics that were made one after another, each with a record."""
    with BrokerProcess(tmp_path) as broker:
        for topic in ("aaaa", "bbbb", "cccc"):
            create_topic(broker.address, topic)
            with Wire(broker.address) as wire:
                assert produce(wire, topic, RECORD).error_code == 0
        broker.kill()
        yield broker


def run(command: str) -> str:
    """Run a command that was printed, as it was printed; what it says."""
    program, *arguments = shlex.split(command)
    assert program == "headrace"
    done = subprocess.run(
        [headrace_command(), *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lone_broker_refuses_a_damaged_log_and_the_printed_advice_brings_it_back(
    broker: BrokerProcess,
) -> None:
    path = metadata_segment(broker.data_dir)
    flip(path, path.read_bytes().index(b"bbbb"))
    before = contents(broker.data_dir)
    said = failed_start(broker.data_dir)
    assert contents(broker.data_dir) == before, "nothing is touched"
    assert str(path) in said and re.search(r"offsets \d+ to \d+", said), said
    assert "only controller" in said and "from a backup" in said

    [command] = re.findall(r"`(headrace log repair-metadata [^`]*)`", said)
    shown = run(command)
    assert contents(broker.data_dir) == before, "it only shows"
    assert "Topics that remain: aaaa\n" in shown
    assert re.search(r"TopicRecord\(name='cccc'", shown), shown
    assert "bbbb-0, cccc-0" in shown
    assert "--apply" in shown and "--apply" in said
    run(f"{command} --apply")
    [aside] = broker.data_dir.glob(f"{METADATA}.*-damaged")
    assert (aside / path.name).read_bytes() == before[f"{METADATA}/{path.name}"], "it is kept"
    assert (broker.data_dir / "bbbb-0").is_dir() and (broker.data_dir / "cccc-0").is_dir()

    broker.start()
    assert topics_of(broker.address) == {"aaaa"}
    assert list(broker.data_dir.glob("bbbb-0*")), "no log of a partition is deleted"
    assert len(read_all(broker.address, "aaaa", 0)) == 1
    create_topic(broker.address, "dddd")
    broker.restart()
    assert topics_of(broker.address) == {"aaaa", "dddd"}


def test_lone_broker_is_back_when_its_metadata_log_is_restored_from_a_backup(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The other advice: the directory that is named, from a backup."""
    path = metadata_segment(broker.data_dir)
    backup = (broker.data_dir / METADATA).rename(tmp_path / "backup")
    said = failed_start(broker.data_dir)
    assert "no metadata log" in said or "ends at offset 0" in said, said
    [directory] = re.findall(r"Restore (\S+) from a backup", said)
    backup.rename(directory)
    flip(path, path.stat().st_size - 5)
    assert f"Restore {directory} from a backup" in failed_start(broker.data_dir), "the last batch"
    flip(path, path.stat().st_size - 5)
    broker.start()
    assert topics_of(broker.address) == {"aaaa", "bbbb", "cccc"}
    assert [len(read_all(broker.address, name, 0)) for name in ("aaaa", "cccc")] == [1, 1]


def test_lone_broker_that_has_nothing_left_begins_anew_as_it_says(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Damage at the very beginning, and no backup: all there is to do is to begin anew."""
    flip(metadata_segment(broker.data_dir), 70)
    said = failed_start(broker.data_dir)
    assert "move the data directories away as a whole" in said, said
    broker.data_dir.rename(tmp_path / "kept")
    broker.start()
    assert topics_of(broker.address) == set()
    assert (tmp_path / "kept" / "aaaa-0").is_dir()


@pytest.mark.timeout(240)
def test_node_with_peers_fetches_a_damaged_log_again_by_itself(tmp_path: Path) -> None:
    """A follower, then the leader after snapshots; each counts again afterwards."""
    config = {"metadata.log.max.record.bytes.between.snapshots": "3000"}
    with Cluster(3, config=config, data_dir=tmp_path) as cluster:
        topics = [cluster.create_topic()]
        leader = cluster.controller_id
        for node_id in (leader % 3 + 1, leader):
            broker = cluster.broker(node_id)
            broker.kill()
            flip_in_the_middle(broker.data_dir)
            broker.start()
            assert "It is set aside as" in broker.log, broker.log
            assert list(broker.data_dir.glob(f"{METADATA}.*-damaged"))
            cluster.wait_for_isr(topics[0], 3)
            # Its vote counts: with it, the cluster does without another one.
            other = cluster.broker(node_id % 3 + 1)
            wait_until(partial(votes, broker.data_dir), 30, "it does not vote")
            other.kill()
            cluster.wait_for_controller()
            topics.append(cluster.create_topic(replication_factor=1))
            other.start()
            assert topics_of(f"{broker.host}:{broker.port}") >= set(topics)
            for number in range(25):
                topics.append(cluster.create_topic(f"t{node_id}-{number}"))
            wait_until(partial(have_snapshots, cluster), 30, "a node has no snapshot")


def have_snapshots(cluster: Cluster) -> bool:
    return all(list((entry.data_dir / METADATA).glob("*.checkpoint")) for entry in cluster.brokers)


def votes(data_dir: Path) -> bool:
    return b'"mayVote": true' in (data_dir / METADATA / "quorum-state").read_bytes()


def test_lone_broker_is_back_when_its_small_files_are_lost(broker: BrokerProcess) -> None:
    """Whose directory it is, how it voted, and how far the log was flushed."""
    (broker.data_dir / "meta.properties").unlink()
    (broker.data_dir / METADATA / "quorum-state").write_bytes(b"\0" * 50)
    (broker.data_dir / METADATA / "flushed-offset").unlink()
    broker.start()
    assert topics_of(broker.address) == {"aaaa", "bbbb", "cccc"}
    with Wire(broker.address) as wire:
        for topic in ("aaaa", "bbbb", "cccc"):
            assert produce(wire, topic, RECORD).error_code == 0
            assert len(read_all(broker.address, topic, 0)) == 2
