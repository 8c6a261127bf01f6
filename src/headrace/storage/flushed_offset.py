"""`flushed-offset`: below which offset the metadata log was on stable storage, as far as is known.

Rule: the number in the file is never above the truth. It is raised after a flush, without a flush
of its own: a process that dies loses nothing of it, a loss of power at most some seconds. It is
lowered, durably, before the log is cut. A file that is damaged says nothing.
"""

from contextlib import suppress

from headrace.errors import StorageError
from headrace.protocol.crc import crc32c
from headrace.storage.files import File, Files

FLUSHED_OFFSET = "flushed-offset"


def encode_flushed_offset(offset: int) -> bytes:
    """The file's content, of the same length for every offset."""
    number = b"%020d" % offset
    return b"%s %08x\n" % (number, crc32c(number))


def decode_flushed_offset(data: bytes) -> int | None:
    """The inverse of `encode_flushed_offset`; None for anything else."""
    number = data[:20]
    if not number.isdigit() or data != encode_flushed_offset(int(number)):
        return None
    return int(number)


class FlushedOffset:
    """The file in the directory of a metadata log. Owned by one thread."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FLUSHED_OFFSET}"
        self._file: File | None = None
        self._written: int | None = None

    def read(self) -> int | None:
        """What the file says; None if it is missing or damaged."""
        data = self._files.read_bytes(self._path)
        return None if data is None else decode_flushed_offset(data)

    def raise_to(self, offset: int) -> None:
        """Note that everything below `offset` is on stable storage.

        A disk that does not take it does no harm: what is not noted is only checked less strictly.
        """
        if offset != self._written:
            with suppress(StorageError):
                self._write(offset, sync=False)

    def lower_to(self, offset: int) -> None:
        """Note, durably, that the log may end at `offset` from now on."""
        known = self.read() if self._written is None else self._written
        if known is not None and known > offset:
            self._write(offset, sync=True)

    def _write(self, offset: int, *, sync: bool) -> None:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        # Shorter than a sector, and so written whole or not at all.
        self._file.write_at(0, encode_flushed_offset(offset))
        if sync:
            self._file.sync()
        self._written = offset
