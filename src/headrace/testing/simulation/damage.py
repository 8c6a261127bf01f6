"""Damage to the files of a stopped broker: what kinds of files there are, and what happens to one.

The simulator and the long run against real processes (`tools/soak_damage.py`) both use it.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from headrace.storage.aborted_index import ABORTED_SUFFIX
from headrace.storage.checkpoints import (
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from headrace.storage.directory import METADATA_LOG, parse_log_name
from headrace.storage.metadata_snapshots import SUFFIX as METADATA_SNAPSHOT_SUFFIX
from headrace.storage.quorum_state import QUORUM_STATE
from headrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from headrace.storage.snapshots import SUFFIX as SNAPSHOT_SUFFIX

SEGMENT = "segment"
DIRECTORY = "directory"
METADATA = "metadata"
# After these a replica's log is not what it was: others have to have its records.
HARMS_LOG = frozenset({SEGMENT, DIRECTORY})

_SECTOR_BYTES = 512
_SUFFIXES = {
    LOG_SUFFIX: SEGMENT,
    INDEX_SUFFIX: "offset index",
    TIME_INDEX_SUFFIX: "time index",
    ABORTED_SUFFIX: "aborted transactions",
    SNAPSHOT_SUFFIX: "producer snapshot",
}
_NAMES = (LEADER_EPOCHS, PARTITION_METADATA)
_ROOT_NAMES = (
    RECOVERY_POINTS,
    LOG_START_OFFSETS,
    HIGH_WATERMARKS,
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
)


class Target(NamedTuple):
    """A file, or the directory of a log, relative to a data directory."""

    path: str
    kind: str

    @property
    def directory(self) -> str:
        """The name of the log's directory; empty for files beside the logs."""
        return self.path if self.kind == DIRECTORY else self.path.rpartition("/")[0]

    @property
    def is_metadata(self) -> bool:
        """Whether the node's place in the quorum depends on it."""
        return self.kind.startswith(METADATA)


def kind_of(path: str) -> str:
    """What a file is, by its path in a data directory; empty if a broker does not rely on it."""
    directory, _, name = path.rpartition("/")
    if not directory:
        if name == META_PROPERTIES:
            return f"{METADATA} {name}"
        return name if name in _ROOT_NAMES else ""
    partition = parse_log_name(directory)
    if partition is None:
        return ""
    suffix = name[name.rfind(".") :] if "." in name else ""
    kind = _SUFFIXES.get(suffix) or (name if name in _NAMES else "")
    if partition != METADATA_LOG:
        return kind
    if suffix == METADATA_SNAPSHOT_SUFFIX or name == QUORUM_STATE:
        kind = "snapshot" if suffix else name
    return f"{METADATA} {kind}" if kind else ""


def choose(paths: Iterable[str], rng: Random, kinds: Sequence[str] | None = None) -> Target | None:
    """One of a broker's files: a kind first, so that small files get their turn."""
    by_kind: dict[str, list[str]] = {}
    for path in paths:
        kind = kind_of(path)
        if kind:
            by_kind.setdefault(kind, []).append(path)
        if kind == SEGMENT:
            directories = by_kind.setdefault(DIRECTORY, [])
            directory = path.rpartition("/")[0]
            if directory not in directories:
                directories.append(directory)
    allowed = sorted(by_kind if kinds is None else by_kind.keys() & set(kinds))
    if not allowed:
        return None
    kind = rng.choice(allowed)
    return Target(rng.choice(sorted(by_kind[kind])), kind)


def damaged(content: bytes, rng: Random) -> tuple[str, bytes | None]:
    """What happened to a file's content, and what is left of it; None if the file is gone."""
    way = rng.choice(("flip", "flip", "zero", "cut", "empty", "remove"))
    if not content or way == "remove":
        return "removed", None
    place = rng.randrange(len(content))
    if way == "empty":
        return "emptied", b""
    if way == "cut":
        return f"cut to {place} of {len(content)} bytes", content[:place]
    changed = bytearray(content)
    if way == "zero":
        start = place - place % _SECTOR_BYTES
        size = len(changed[start : start + _SECTOR_BYTES])
        changed[start : start + size] = bytes(size)
        return f"{size} bytes zeroed from {start} on", bytes(changed)
    changed[place] ^= 1 << rng.randrange(8)
    return f"a bit flipped in byte {place} of {len(content)}", bytes(changed)
