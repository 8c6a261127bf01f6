"""The room of one data directory: the bytes that appends may use, and the reserve that they leave.

Rule: appends never take the last `log.dir.reserved.bytes`, so that a start, checkpoints, the
metadata log and deletions work on a full disk. Most of the reserve is held by a file, because
another program may use up the disk too: the file is cut down, bit by bit, while the disk is full.
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
# Free bytes are asked for again after so many were appended, in case that others write there too.
_ALLOWANCE_MAX = 16 * 1024 * 1024
_PROBE_BYTES_MIN = 4096
# So many percent below its limit the use of a disk counts as low again.
_WARNED_PERCENT = 2


class Reserve(NamedTuple):
    """How a reserve is kept: `held` by the file, the other `margin` left free by appends."""

    bytes: int
    held: int
    margin: int


def reserve_of(setting: int, total_bytes: int) -> Reserve:
    """The reserve on a disk of that size; AUTOMATIC is a small part of it."""
    size = setting
    if setting == AUTOMATIC:
        size = min(total_bytes // _AUTOMATIC_SHARE, _AUTOMATIC_BYTES_MAX)
    margin = size // 4
    return Reserve(size, size - margin, margin)


class RoomChange(Enum):
    """News of a data directory."""

    FULL = "full"
    HAS_ROOM = "has room again"
    LOW = "used up to the percentage at which to warn"


class Room:
    """What is free in one data directory, and whether records may be appended there.

    Invariant: `is_full` from when an append found no room until the reserve and as much as that
    append wanted can be set aside again.

    Used by the thread that owns the logs.
    """

    def __init__(
        self, files: Files, directory: str, reserved_bytes: int = 0, warn_percent: int = 100
    ) -> None:
        self.is_full = False
        self.total_bytes = self.free_bytes = 0
        self.reserve = Reserve(0, 0, 0)
        self._files = files
        self._directory = directory
        self._reserved_bytes = reserved_bytes
        self._warn_percent = warn_percent
        self._allowance = 0
        self._held = 0
        self._can_hold = True
        # What the appends that found no room wanted.
        self._wanted = 0
        self._is_low = self._told_full = self._told_low = False

    @property
    def used_percent(self) -> int:
        """How much of the disk is used, without the reserve, in percent."""
        return 100 - 100 * self.free_bytes // max(self.total_bytes, 1)

    def open(self) -> None:
        """Look at the directory for the first time: an earlier run may have left a reserve."""
        self._held = self._files.file_sizes(self._directory).get(RESERVE_FILE, 0)
        self.look()

    def take(self, size: int) -> None:
        """Count an append of `size` bytes; DiskFull if it would take of the reserve."""
        if size > self._allowance:
            self._renew(size)
        self._allowance -= size

    def _renew(self, size: int) -> None:
        known = self.free_bytes
        self._measure()
        if self.is_full and self.free_bytes > known:
            self.look()
        if not self.is_full:
            free = self.free_bytes - self.reserve.bytes
            if free >= size:
                self._allowance = min(free, max(_ALLOWANCE_MAX, size))
                return
        self._fill_up(size)
        raise self._shortage()

    def check(self) -> None:
        """DiskFull if records are refused: no new log is made then either."""
        if self.is_full:
            raise self._shortage()

    def _shortage(self) -> DiskFull:
        return DiskFull(
            f"the data directory {self._directory} is full: {self.free_bytes} bytes are free, and"
            f" the reserve is {self.reserve.bytes}; free some space on that disk"
        )

    def refused(self, error: StorageError, size: int) -> None:
        """Note that the file system had no room for `size` bytes, whatever it says to be free."""
        cause = error.__cause__
        if isinstance(error, DiskFull) and getattr(cause, "errno", 0) != errno.EFBIG:
            self._fill_up(size)

    def _fill_up(self, size: int) -> None:
        self.is_full = True
        self._allowance = 0
        self._wanted = max(self._wanted, size)

    def look(self) -> None:
        """Find out whether there is room; to be called often, as others may write there too."""
        try:
            self._measure()
            if self.free_bytes < self.reserve.bytes:
                self._fill_up(0)
            if self.is_full:
                self._empty_out()
            elif self._held != self.reserve.held:
                self._hold(self.reserve.held)
        except DiskFull:
            self._fill_up(0)
            with suppress(StorageError):
                self._hold(0)
        except StorageError:
            pass  # Whoever reads or writes there takes the directory offline, and says why.
        used = self.used_percent
        self._is_low = used >= self._warn_percent - (_WARNED_PERCENT if self._is_low else 0)

    def _measure(self) -> None:
        self.total_bytes, usable = self._files.space(self._directory)
        self.free_bytes = usable + self._held
        self.reserve = reserve_of(self._reserved_bytes, self.total_bytes)
        self._allowance = 0

    def _empty_out(self) -> None:
        """Take records again if there is room, else give as much of the reserve as is needed."""
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
        """Whether the file system gives so many bytes: by a quota it may say what it has not."""
        try:
            self._hold(size)
        except DiskFull:
            self._hold(0)
            return False
        return True

    def _hold(self, size: int) -> None:
        """Have the file of the reserve hold so many bytes, or as many as the file system can."""
        if not self._can_hold and size:
            return
        path = f"{self._directory}/{RESERVE_FILE}"
        if not size:
            self._files.remove(path)
        elif not self._files.allocate(path, size):
            self._can_hold = False
            size = 0
        self._held = size

    def news(self) -> list[RoomChange]:
        """What has changed since the last call."""
        changes = []
        if self.is_full != self._told_full:
            self._told_full = self.is_full
            changes.append(RoomChange.FULL if self.is_full else RoomChange.HAS_ROOM)
        if self._is_low != self._told_low:
            self._told_low = self._is_low
            if self._is_low and not self.is_full:
                changes.append(RoomChange.LOW)
        return changes
