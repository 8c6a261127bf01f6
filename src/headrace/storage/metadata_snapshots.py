"""Snapshots of the metadata log: files `<offset>-<epoch>.checkpoint` beside its segments.

Rule: a file of that name is whole and on stable storage; one that is being written or fetched has
another name, and is gone after a restart.
"""

import re
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.storage.files import File, Files

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"

_NAME = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint\Z")


class SnapshotId(NamedTuple):
    """What a snapshot stands for: the log below `end_offset`, whose last record is of `epoch`."""

    end_offset: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.end_offset:020}-{self.epoch:010}"


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The snapshot that a file of that name is; None for any other file."""
    match = _NAME.match(name)
    return None if match is None else SnapshotId(int(match["offset"]), int(match["epoch"]))


class MetadataSnapshots:
    """The snapshots in one directory, oldest first. Owned by one thread.

    `read`, `remove` and the methods of a `SnapshotPart` may run in another one.
    """

    def __init__(self, files: Files, directory: str, *, keep_parts: bool = False) -> None:
        """`keep_parts` is for whoever only looks: what is not whole is left where it is."""
        self._files = files
        self._directory = directory
        names = files.list_directory(directory) if files.exists(directory) else []
        for name in names:
            if name.endswith(PART_SUFFIX) and not keep_parts:
                files.remove(f"{directory}/{name}")
        found = (parse_snapshot_name(name) for name in names)
        self.ids = tuple(sorted(one for one in found if one is not None))

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    @property
    def oldest(self) -> SnapshotId | None:
        return self.ids[0] if self.ids else None

    def path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot}{SUFFIX}"

    def begin(self, snapshot: SnapshotId) -> "SnapshotPart":
        """A file to write the snapshot into; `finish` gives it its name."""
        return SnapshotPart(self._files, self.path(snapshot))

    def add(self, snapshot: SnapshotId) -> None:
        """Note that a part was finished."""
        self.ids = tuple(sorted({*self.ids, snapshot}))

    def read(self, snapshot: SnapshotId) -> bytes:
        """The whole content of a snapshot."""
        data = self._files.read_bytes(self.path(snapshot))
        if data is None:
            raise StorageError(f"{self.path(snapshot)} is gone")
        return data

    def open(self, snapshot: SnapshotId) -> File:
        """The file of a snapshot; it can be read although it is removed meanwhile."""
        return self._files.open(self.path(snapshot))

    def remove(self, snapshot: SnapshotId) -> None:
        """Remove the file of a snapshot, unless it was added."""
        if snapshot not in self.ids:
            self._files.remove(self.path(snapshot))

    def remove_before(self, end_offset: int) -> None:
        """Remove the snapshots of less than `end_offset`."""
        while self.ids and self.ids[0].end_offset < end_offset:
            gone, self.ids = self.ids[0], self.ids[1:]
            self._files.remove(self.path(gone))


class SnapshotPart:
    """A snapshot that is not whole yet."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._part = path.removesuffix(SUFFIX) + PART_SUFFIX
        files.remove(self._part)
        self._file = files.open(self._part, create=True)
        self.size = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write the next bytes."""
        self._file.write_at(self.size, data)
        self.size += len(data)

    def read(self) -> bytes:
        """All that was written."""
        return self._file.read_at(0, self.size)

    def finish(self) -> None:
        """Make it durable under its name."""
        self._file.sync()
        self._files.rename(self._part, self._path)
        self._files.sync_directory(self._path.rpartition("/")[0])

    def discard(self) -> None:
        """Remove what there is of it."""
        self._files.remove(self._part)
