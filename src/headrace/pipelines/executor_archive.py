"""An archive of this package for executors on machines without it.

Spark unpacks an archive into the directory an executor runs in. One holds this package with its
compiled modules and the few packages below it; `PYTHONPATH` makes Python look there first. A zip
given as `--py-files` would not do: Python imports no compiled module from inside a zip. What else
a query needs, PyArrow above all, comes from the executor's own Python.

`headrace.pipelines.session` ships by itself. For `spark-submit` there is a command that writes the
archive, into the current directory if none is given, and prints its path:

    python -m headrace.pipelines.executor_archive [DIRECTORY]
"""

import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import headrace
from headrace.errors import ConfigError

# The packages that reading and writing import, and those for Avro if installed here.
NEEDED: Final = ("cramjam", "fastcrc", "uvloop")
WANTED: Final = ("fastavro",)
DIRECTORY: Final = "headrace-lib"

_LEFT_OUT = {"__pycache__", "bin"}
_SUFFIXES_LEFT_OUT = {".c", ".pxd", ".pyc", ".pyi"}


def archive_name() -> str:
    """The name of the archive: its version, Python and machine."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"headrace-{headrace.__version__}-{sys.implementation.cache_tag}-{machine}.tar.gz"


def write_archive(directory: Path) -> Path:
    """Write the archive of the packages installed here into a directory, and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / archive_name()
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
        try:
            # Compiled modules shrink to a third at the lowest level, in a third of a second.
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
                for name, place in sorted(_contents().items()):
                    archive.add(place, name, recursive=False)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    path.chmod(0o644)
    return path


def shipping_settings(archive: str | Path, config: Mapping[str, str]) -> dict[str, str]:
    """The Spark settings that ship an archive to the executors, merged with those in `config`."""
    archives = [*_parts(config, "spark.archives", ","), f"{archive}#{DIRECTORY}"]
    path = [DIRECTORY, *_parts(config, "spark.executorEnv.PYTHONPATH", ":")]
    return {"spark.archives": ",".join(archives), "spark.executorEnv.PYTHONPATH": ":".join(path)}


def _parts(config: Mapping[str, str], name: str, separator: str) -> list[str]:
    return [part for part in config.get(name, "").split(separator) if part]


def _contents() -> dict[str, Path]:
    """The names in the archive, and the files to store under them."""
    package = Path(headrace.__file__).parent
    found = {
        f"headrace/{path.relative_to(package).as_posix()}": path
        for path in package.rglob("*")
        if path.is_file()
    }
    by_name = find_spec("pyspark_headrace")
    assert by_name is not None and by_name.origin is not None, "it is part of this distribution"
    found["pyspark_headrace.py"] = Path(by_name.origin)
    for name in (*NEEDED, *WANTED):
        found.update(_installed(name))
    return {
        name: path
        for name, path in found.items()
        if not _LEFT_OUT.intersection(Path(name).parts) and path.suffix not in _SUFFIXES_LEFT_OUT
    }


def _installed(name: str) -> Iterator[tuple[str, Path]]:
    try:
        files = distribution(name).files
    except PackageNotFoundError:
        files = []
        if name in NEEDED:
            raise ConfigError(f"{name} is not installed here; pip install headrace") from None
    for file in files or []:
        place = Path(str(file.locate()))
        # Scripts and the like lie outside of the importable directories.
        if ".." not in file.parts and place.is_file():
            yield file.as_posix(), place


if __name__ == "__main__":
    sys.stdout.write(f"{write_archive(Path(*sys.argv[1:2]))}\n")
