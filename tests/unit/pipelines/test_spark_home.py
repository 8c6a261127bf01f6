"""Spark without the archive that makes its workers slow to start."""

import os
from pathlib import Path

import pyspark
import pytest

from headrace.pipelines.java import make_spark_home, spark_home

ARCHIVE = Path("python", "lib", "pyspark.zip")


def entries(root: Path) -> set[str]:
    """Every file below a directory, links followed."""
    return {
        os.path.relpath(os.path.join(directory, name), root)
        for directory, _, names in os.walk(root, followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }


def test_everything_is_there_but_the_archive(tmp_path: Path) -> None:
    real = Path(pyspark.__file__).parent
    home = Path(spark_home({"XDG_CACHE_HOME": str(tmp_path)}) or "")
    assert home.is_relative_to(tmp_path)
    assert (real / ARCHIVE).is_file()
    for part in ("bin", "jars", "python/lib", "sbin"):
        assert entries(real / part) - {ARCHIVE.name} == entries(home / part)


def test_a_home_is_made_again_over_an_old_one(tmp_path: Path) -> None:
    real, home = tmp_path / "real", tmp_path / "home"
    (real / "python" / "lib").mkdir(parents=True)
    (real / ARCHIVE).touch()
    (real / "bin").mkdir()
    for _ in range(2):
        make_spark_home(real, home)
        assert (home / "bin").readlink() == real / "bin"
        assert not (home / ARCHIVE).exists()


@pytest.mark.parametrize("environ", [{"SPARK_HOME": "elsewhere"}])
def test_a_spark_that_the_user_chose_is_left_alone(environ: dict[str, str]) -> None:
    assert spark_home(environ) is None
