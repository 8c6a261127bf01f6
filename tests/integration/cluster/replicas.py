"""The files of a partition's replicas, byte by byte."""

import hashlib
import time
from pathlib import Path

from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import Deadline

_PATIENCE_S = 60.0


def log_bytes(data_dir: Path, topic: str, partition: int) -> bytes:
    """All batches of a replica in order, wherever its segments begin."""
    directory = data_dir / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def wait_until_identical(cluster: Cluster, topic: str, partitions: int) -> int:
    """Wait until all replicas of every partition have the same bytes; how many those are."""
    deadline = Deadline(_PATIENCE_S)
    size = 0
    for partition in range(partitions):
        replicas = cluster.partitions_of(topic)[partition].replicas
        while True:
            found = {
                replica: log_bytes(cluster.broker(replica).data_dir, topic, partition)
                for replica in replicas
            }
            if len(set(found.values())) == 1:
                break
            assert not deadline.has_passed, (
                f"replicas of {topic}-{partition} differ: {_describe(found)}"
            )
            time.sleep(0.1)
        size += len(found[replicas[0]])
    return size


def _describe(found: dict[int, bytes]) -> str:
    return ", ".join(
        f"broker {node_id} has {len(data)} bytes, {hashlib.sha256(data).hexdigest()[:12]}"
        for node_id, data in sorted(found.items())
    )
