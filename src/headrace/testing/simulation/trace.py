"""What happened in a run: always as a hash, and on request as lines to read."""

import hashlib
import marshal
import struct
import zlib
from typing import Any

_EVENT = struct.Struct("<dH")
_UNDIGESTED_BYTES_MAX = 65_536


class Trace:
    """Facts of a run in their order. Two runs are the same if their hashes are."""

    def __init__(self, *, readable: bool = False) -> None:
        self.lines: list[str] | None = [] if readable else None
        self._digest = hashlib.blake2b(digest_size=16)
        self._undigested = bytearray()

    def step(self, now: float, process: int) -> None:
        """A callback of a process runs."""
        self._undigested += _EVENT.pack(now, process)

    def note(self, now: float, *fields: Any) -> None:
        """Something else that happened; lines tell bytes by their checksum."""
        try:
            # Version 0 depends on values alone; later ones on which objects are shared.
            self._undigested += marshal.dumps(fields, 0)
        except ValueError:
            self._undigested += marshal.dumps([_text(field) for field in fields], 0)
        if self.lines is not None:
            self.lines.append(f"{now:.9f} . {' '.join(map(_text, fields))}")
        if len(self._undigested) > _UNDIGESTED_BYTES_MAX:
            self.hash()

    def hash(self) -> str:
        """The hash of all that happened up to now."""
        self._digest.update(self._undigested)
        self._undigested.clear()
        return self._digest.hexdigest()


def _text(field: object) -> str:
    if isinstance(field, bytes):
        return f"#{zlib.crc32(field):08x}+{len(field)}"
    return str(field)
