"""Damage to the files of a stopped broker: kinds of files, and kinds of damage.

The simulator and the long run against real processes (`tools/soak_damage.py`) both use it.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from headrace.storage.aborted_index import ABORTED_SUFFIX
from headrace.storage.checkpoints import META_PROPERTIES
from headrace.storage.data_directory import LOCK, METADATA_LOG, parse_log_name
from headrace.storage.metadata_log import SUFFIX as METADATA_SNAPSHOT_SUFFIX
from headrace.storage.producer_state import SUFFIX as SNAPSHOT_SUFFIX
from headrace.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
)

SEGMENT = "segment"
DIRECTORY = "directory"
METADATA = "metadata"
# Damage to these changes a replica's log: other replicas must have its records.
HARMS_LOG = frozenset({SEGMENT, DIRECTORY})

_SECTOR_BYTES = 512
_SUFFIXES = {
    LOG_SUFFIX: SEGMENT,
    INDEX_SUFFIX: "offset index",
    TIME_INDEX_SUFFIX: "time index",
    ABORTED_SUFFIX: "aborted transactions",
    SNAPSHOT_SUFFIX: "producer snapshot",
}
# Files that a broker is about to delete or to rename into place.
_PASSING = (".tmp", ".part", DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)


class DamageTarget(NamedTuple):
    """A file, or the directory of a log, relative to a data directory."""

    path: str
    kind: str

    @property
    def directory(self) -> str:
        """The name of the log's directory; empty for files beside the logs."""
        return self.path if self.kind == DIRECTORY else self.path.rpartition("/")[0]

    @property
    def is_metadata(self) -> bool:
        """Whether the node's state in the quorum depends on the file."""
        return self.kind.startswith(METADATA)


def kind_of(path: str) -> str:
    """The kind of a file, by its path in a data directory; empty if it is irrelevant to brokers."""
    directory, _, name = path.rpartition("/")
    if name == LOCK or name.endswith(_PASSING):
        return ""
    if not directory:
        return f"{METADATA} {name}" if name.startswith(META_PROPERTIES) else name
    partition = parse_log_name(directory)
    if partition is None:
        return ""
    kind = _SUFFIXES.get(name[name.rfind(".") :] if "." in name else "", name)
    if partition != METADATA_LOG:
        return kind
    return f"{METADATA} {'snapshot' if name.endswith(METADATA_SNAPSHOT_SUFFIX) else kind}"


def choose(
    paths: Iterable[str], rng: Random, kinds: Sequence[str] | None = None
) -> DamageTarget | None:
    """A random file of a broker: first a kind, so that small files are chosen too."""
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
    return DamageTarget(rng.choice(sorted(by_kind[kind])), kind)


def damaged(content: bytes, rng: Random) -> tuple[str, bytes | None]:
    """Random damage: its description, and the content left; None if the file is deleted."""
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
