"""Files of a broker by their kinds, and damage that changes them."""

from random import Random

import pytest

from headrace.testing.simulation.damage import DIRECTORY, DamageTarget, choose, damaged, kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("orders-0/00000000000000000000.log", "segment"),
        ("orders-0/00000000000000000000.index", "offset index"),
        ("orders-0/00000000000000000000.timeindex", "time index"),
        ("orders-0/00000000000000000000.txnindex", "aborted transactions"),
        ("orders-0/00000000000000000009.snapshot", "producer snapshot"),
        ("orders-0/leader-epoch-checkpoint", "leader-epoch-checkpoint"),
        ("orders-0/partition.metadata", "partition.metadata"),
        ("recovery-point-offset-checkpoint", "recovery-point-offset-checkpoint"),
        (".kafka_cleanshutdown", ".kafka_cleanshutdown"),
        ("meta.properties", "metadata meta.properties"),
        ("__cluster_metadata-0/quorum-state", "metadata quorum-state"),
        ("__cluster_metadata-0/00000000000000000000.log", "metadata segment"),
        ("__cluster_metadata-0/00000000000000000009-0000000001.checkpoint", "metadata snapshot"),
        ("orders-0/flushed-offset", "flushed-offset"),
        ("meta.properties.copy", "metadata meta.properties.copy"),
        (".lock", ""),
        ("orders-0/00000000000000000000.log.deleted", ""),
        ("orders-0.00ff-delete/00000000000000000000.log", ""),
    ],
)
def test_a_file_is_known_by_its_path(path: str, kind: str) -> None:
    assert kind_of(path) == kind


def test_small_files_and_directories_are_chosen_as_often_as_segments() -> None:
    paths = [f"orders-0/{number:020}.log" for number in range(50)] + ["meta.properties", ".lock"]
    chosen = [choose(paths, Random(seed)) for seed in range(100)]
    kinds = {target.kind for target in chosen if target is not None}
    assert kinds == {"segment", DIRECTORY, "metadata meta.properties"}
    assert choose(paths, Random(1), [DIRECTORY]) == DamageTarget("orders-0", DIRECTORY)
    assert choose(paths, Random(1), ["offset index"]) is None


def test_damage_changes_a_file_or_removes_it() -> None:
    content = bytes(range(256)) * 5
    left = [damaged(content, Random(seed)) for seed in range(100)]
    assert all(changed != content for _, changed in left)
    sizes = {None if changed is None else len(changed) for _, changed in left}
    assert {None, 0, len(content)} < sizes
    assert damaged(b"", Random(1)) == ("removed", None)
