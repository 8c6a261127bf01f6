"""Disk space of a data directory: the bytes that appends may use, and the reserve.

Rule: appends never use the last `log.dir.reserved.bytes`, so that a start, checkpoints, the
metadata log and deletions work on a full disk. Most of the reserve is held by a file, because other
programs may use up the disk too: the file is shrunk step by step while the disk is full.
"""

import errno
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.storage.files import DiskFull, Files

RESERVE_FILE = "reserved-space"
AUTOMATIC = -1

_AUTOMATIC_BYTES_MAX = 16 * 1024 * 1024
_AUTOMATIC_SHARE = 32
# The appended bytes after which the free bytes are measured again: other programs may write there
# too.
_ALLOWANCE_MAX = 16 * 1024 * 1024
_PROBE_BYTES_MIN = 4096
# Hysteresis of the warning: use must fall so far below `warn_percent` before another warning.
_WARNED_PERCENT = 2


class SpaceReserve(NamedTuple):
    """A reserve in bytes: `held` by the reserve file, the other `margin` left free by appends."""

    bytes: int
    held: int
    margin: int


def reserve_of(setting: int, total_bytes: int) -> SpaceReserve:
    """The reserve on a disk of `total_bytes`; AUTOMATIC is a small part of the disk."""
    size = setting
    if setting == AUTOMATIC:
        size = min(total_bytes // _AUTOMATIC_SHARE, _AUTOMATIC_BYTES_MAX)
    margin = size // 4
    return SpaceReserve(size, size - margin, margin)


class DiskSpaceChange(Enum):
    """A change of a data directory's disk space that is worth a log line."""

    FULL = "full"
    HAS_ROOM = "has room again"
    LOW = "used up to the percentage at which to warn"


class DiskSpace:
    """The free space of a data directory, and whether records may be appended there.

    Invariant: `is_full` is set when an append found no room, until the reserve and the bytes of
    that append are free again.

    Used by the thread that owns the logs.
    """

    def __init__(
        self, files: Files, directory: str, reserved_bytes: int = 0, warn_percent: int = 100
    ) -> None:
        self.is_full = False
        self.total_bytes = self.free_bytes = 0
        self.reserve = SpaceReserve(0, 0, 0)
        self._files = files
        self._directory = directory
        self._reserved_bytes = reserved_bytes
        self._warn_percent = warn_percent
        self._allowance = 0
        self._held = 0
        self._can_hold = True
        # The size of the largest append that found no room.
        self._wanted = 0
        self._is_low = False
        # The state at the last call of `changes`.
        self._reported_full = self._reported_low = False

    @property
    def used_percent(self) -> int:
        """The used part of the disk in percent; the reserve file counts as free."""
        return 100 - 100 * self.free_bytes // max(self.total_bytes, 1)

    def open(self) -> None:
        """Measure the directory for the first time: an earlier run may have left a reserve."""
        self._held = self._files.file_sizes(self._directory).get(RESERVE_FILE, 0)
        self.refresh()

    def count_append(self, size: int) -> None:
        """Count an append of `size` bytes; DiskFull if it would use the reserve."""
        if size > self._allowance:
            self._renew(size)
        self._allowance -= size

    def _renew(self, size: int) -> None:
        known = self.free_bytes
        self._measure()
        if self.is_full and self.free_bytes > known:
            self.refresh()
        if not self.is_full:
            free = self.free_bytes - self.reserve.bytes
            if free >= size:
                self._allowance = min(free, max(_ALLOWANCE_MAX, size))
                return
        self._mark_full(size)
        raise self._shortage()

    def check(self) -> None:
        """Raise DiskFull if the directory is full, so that no new log is made there."""
        if self.is_full:
            raise self._shortage()

    def _shortage(self) -> DiskFull:
        return DiskFull(
            f"the data directory {self._directory} is full: {self.free_bytes} bytes are free, and"
            f" the reserve is {self.reserve.bytes}; free some space on that disk"
        )

    def refused(self, error: StorageError, size: int) -> None:
        """Note that a write of `size` bytes failed, if the reason was a lack of disk space."""
        cause = error.__cause__
        if isinstance(error, DiskFull) and getattr(cause, "errno", 0) != errno.EFBIG:
            self._mark_full(size)

    def _mark_full(self, size: int) -> None:
        self.is_full = True
        self._allowance = 0
        self._wanted = max(self._wanted, size)

    def refresh(self) -> None:
        """Measure the free space; to be called often, as other programs may write there too."""
        try:
            self._measure()
            if self.free_bytes < self.reserve.bytes:
                self._mark_full(0)
            if self.is_full:
                self._leave_full_state()
            elif self._held != self.reserve.held:
                self._hold(self.reserve.held)
        except DiskFull:
            self._mark_full(0)
            with suppress(StorageError):
                self._hold(0)
        except StorageError:
            pass  # The next read or write there fails too; that takes the directory offline.
        used = self.used_percent
        self._is_low = used >= self._warn_percent - (_WARNED_PERCENT if self._is_low else 0)

    def _measure(self) -> None:
        self.total_bytes, usable = self._files.space(self._directory)
        self.free_bytes = usable + self._held
        self.reserve = reserve_of(self._reserved_bytes, self.total_bytes)
        self._allowance = 0

    def _leave_full_state(self) -> None:
        """Accept records again if there is room; otherwise shrink the reserve file as needed."""
        reserve = self.reserve
        wanted = max(reserve.bytes + reserve.margin + self._wanted, _PROBE_BYTES_MIN)
        if self.free_bytes >= wanted and self._can_be_held(wanted):
            self.is_full = False
            self._wanted = 0
            self._hold(reserve.held)
            return
        usable = self.free_bytes - self._held
        if self._held and usable < reserve.margin:
            self._hold(max(self._held - (reserve.margin - usable), 0))

    def _can_be_held(self, size: int) -> bool:
        """Whether `size` bytes can be allocated: a quota may allow less than is reported free."""
        try:
            self._hold(size)
        except DiskFull:
            self._hold(0)
            return False
        return True

    def _hold(self, size: int) -> None:
        """Resize the reserve file to `size` bytes; without a file where it cannot allocate."""
        if not self._can_hold and size:
            return
        path = f"{self._directory}/{RESERVE_FILE}"
        if not size:
            self._files.remove(path)
        elif not self._files.allocate(path, size):
            self._can_hold = False
            size = 0
        self._held = size

    def changes(self) -> list[DiskSpaceChange]:
        """The changes since the last call."""
        changes = []
        if self.is_full != self._reported_full:
            self._reported_full = self.is_full
            changes.append(DiskSpaceChange.FULL if self.is_full else DiskSpaceChange.HAS_ROOM)
        if self._is_low != self._reported_low:
            self._reported_low = self._is_low
            if self._is_low and not self.is_full:
                changes.append(DiskSpaceChange.LOW)
        return changes
