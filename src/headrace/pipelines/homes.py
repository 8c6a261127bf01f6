"""Directories that are another one but for a few files: links, in the user's cache."""

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from zlib import crc32


def cached_home(kind: str, real: Path, environ: Mapping[str, str]) -> Path:
    """Where the changed form of a directory is kept: nobody else can write there."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base, "headrace")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    return directory / f"{kind}-{crc32(str(real).encode()):08x}"


def link_entries(real: Path, home: Path, *, but: str) -> None:
    """Have everything of a directory in another one, except what has the name `but`."""
    home.mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir():
        if entry.name != but:
            replace(home / entry.name, partial(os.symlink, entry))


def replace(path: Path, make: Callable[[Path], object]) -> None:
    """Make a file beside its place and move it there, so that nobody sees half of it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    make(new)
    new.replace(path)
