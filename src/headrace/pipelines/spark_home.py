"""Where Spark is: as pip installed it, but for one archive that makes its workers slow to start.

Workers import pyspark from `python/lib/pyspark.zip`, which has no compiled modules, so each of the
several processes behind a query compiles hundreds of them. Without it they import what pip
installed, which is the same and compiled.
"""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from headrace.pipelines.homes import cached_home, link_entries

_ARCHIVE = "pyspark.zip"


def spark_home(environ: Mapping[str, str] = os.environ) -> str | None:
    """What `SPARK_HOME` should be for workers on this machine; None to leave it as it is."""
    found = importlib.util.find_spec("pyspark")
    if environ.get("SPARK_HOME") or found is None or found.origin is None:
        return None
    real = Path(found.origin).parent
    if not (real / "python" / "lib" / _ARCHIVE).is_file():
        return None
    return str(make_spark_home(real, cached_home("spark", real, environ)))


def make_spark_home(real: Path, home: Path) -> Path:
    """A home like the real one without the archive."""
    link_entries(real, home, but="python")
    link_entries(real / "python", home / "python", but="lib")
    link_entries(real / "python" / "lib", home / "python" / "lib", but=_ARCHIVE)
    return home
