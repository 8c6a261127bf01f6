"""The files of a broker's data directory, opened for reading only and told apart by their names."""

from enum import Enum
from pathlib import Path
from struct import Struct

from headrace.errors import HeadraceError
from headrace.storage import stored
from headrace.storage.aborted_index import ABORTED_SUFFIX
from headrace.storage.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from headrace.storage.index import OFFSET_ENTRY, TIME_ENTRY
from headrace.storage.metadata_snapshots import parse_snapshot_name
from headrace.storage.quorum_state import QUORUM_STATE
from headrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from headrace.storage.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from headrace.storage.stored import FILES


class NotOurs(HeadraceError):
    """A path that is no file of a broker; the text says what would be."""


class Kind(Enum):
    """What a file is, in the order in which those of a directory are shown."""

    META = "meta properties"
    OFFSETS = "offset checkpoint"
    PARTITION = "partition metadata"
    EPOCHS = "leader epochs"
    LOG = "segment"
    INDEX = "offset index"
    TIME_INDEX = "time index"
    ABORTED = "index of aborted transactions"
    SNAPSHOT = "producer snapshot"
    QUORUM = "quorum state"
    METADATA = "metadata snapshot"


_BY_NAME = {
    META_PROPERTIES: Kind.META,
    RECOVERY_POINTS: Kind.OFFSETS,
    LOG_START_OFFSETS: Kind.OFFSETS,
    HIGH_WATERMARKS: Kind.OFFSETS,
    PARTITION_METADATA: Kind.PARTITION,
    LEADER_EPOCHS: Kind.EPOCHS,
    QUORUM_STATE: Kind.QUORUM,
}
_BY_SUFFIX = {
    LOG_SUFFIX: Kind.LOG,
    INDEX_SUFFIX: Kind.INDEX,
    TIME_INDEX_SUFFIX: Kind.TIME_INDEX,
    ABORTED_SUFFIX: Kind.ABORTED,
    SNAPSHOT_SUFFIX: Kind.SNAPSHOT,
}


def kind_of(path: Path) -> Kind | None:
    """What a file is by its name, or None."""
    named = _BY_NAME.get(path.name)
    if named is not None:
        return named
    if parse_snapshot_name(path.name) is not None:
        return Kind.METADATA
    kind = _BY_SUFFIX.get(path.suffix)
    return kind if kind is not None and base_offset_of(path) is not None else None


def base_offset_of(path: Path) -> int | None:
    """The offset a file is named after: twenty digits."""
    return stored.base_offset_of(path.stem)


def expand(path: Path) -> list[Path]:
    """The files to look at: one file, those of a partition, or those of a data directory."""
    if not path.is_dir():
        if not path.exists():
            raise NotOurs(f"{path} does not exist; give a file or directory of a broker's data")
        if kind_of(path) is None:
            raise NotOurs(
                f"{path} is no file of a log; give a .log, .index, .timeindex, .txnindex, .snapshot"
                " or checkpoint file, or a directory of them"
            )
        return [path]
    found = _known_files(path)
    for directory in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        found += _known_files(directory)
    if not found:
        raise NotOurs(
            f"{path} holds no log files; give a partition's directory, such as DATA/orders-0"
        )
    return found


def _known_files(directory: Path) -> list[Path]:
    order = list(Kind)
    found = [(kind_of(entry), entry) for entry in directory.iterdir() if entry.is_file()]
    known = [(order.index(kind), entry) for kind, entry in found if kind is not None]
    return [entry for _, entry in sorted(known)]


def open_segment(log_path: Path) -> Segment:
    """The segment whose `.log` file this is."""
    base_offset = base_offset_of(log_path)
    assert base_offset is not None, log_path
    size = FILES.open(str(log_path)).size()
    return stored.open_segment(str(log_path.parent), base_offset, (size, 0, 0))


def read_small(path: Path) -> bytes:
    """A file's whole content; for all but segments, which may be large."""
    data = FILES.read_bytes(str(path))
    if data is None:
        raise NotOurs(f"{path} does not exist; it was removed a moment ago")
    return data


def index_entries(path: Path) -> tuple[list[tuple[int, int]], int]:
    """The entries of an index, and the bytes after the last whole one.

    Kafka makes the index of an active segment at its full size: zeros at the end are no entries.
    """
    layout: Struct = OFFSET_ENTRY if path.suffix == INDEX_SUFFIX else TIME_ENTRY
    data = read_small(path)
    whole = len(data) - len(data) % layout.size
    entries: list[tuple[int, int]] = list(layout.iter_unpack(memoryview(data)[:whole]))
    while len(entries) > 1 and entries[-1] == (0, 0):
        entries.pop()
    return entries, len(data) - whole
