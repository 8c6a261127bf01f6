"""What is sent to executors: all that reading and writing import, and nothing else."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import headrace
from headrace.pipelines import executor_archive
from headrace.pipelines.executor_archive import archive_name, shipping_settings, write_archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("ship"))


def test_the_archive_is_named_for_what_it_fits(archive: Path) -> None:
    assert archive.name == archive_name()
    assert archive.name.startswith(
        f"headrace-{headrace.__version__}-{sys.implementation.cache_tag}"
    )
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def test_it_has_the_package_and_its_compiled_modules_and_no_sources_of_those(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        names = {member.name for member in opened.getmembers()}
    assert {"pyspark_headrace.py", "headrace/pipelines/datasource/default_source.py"} <= names
    package = Path(headrace.__file__).parent
    compiled = {
        f"headrace/{path.relative_to(package).as_posix()}" for path in package.rglob("*.so")
    }
    assert compiled <= names
    assert any(name.startswith("cramjam/cramjam.") for name in names)
    assert not [name for name in names if name.endswith((".c", ".pyc", ".pyi", ".pxd"))]
    assert not [name for name in names if name.startswith(("/", ".."))]


def test_the_client_runs_from_the_archive_alone(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import headrace, headrace.protocol.records\n"
        "headrace.Producer; headrace.Consumer; headrace.Admin\n"
        "print(headrace.__file__)"
    )
    # -I -S: neither this environment nor what is installed in it.
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(answer.stdout.strip()).is_relative_to(tmp_path)


def test_a_command_writes_it_and_prints_where(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "headrace.pipelines.executor_archive", tmp_path / "here"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == f"{tmp_path / 'here' / archive_name()}\n"
    assert tarfile.is_tarfile(answer.stdout.strip())


def test_settings_stand_beside_those_that_are_there() -> None:
    assert shipping_settings("lib.tar.gz", {}) == {
        "spark.archives": "lib.tar.gz#headrace-lib",
        "spark.executorEnv.PYTHONPATH": "headrace-lib",
    }
    given = {"spark.archives": "a.zip#a,b.zip", "spark.executorEnv.PYTHONPATH": "a:b"}
    assert shipping_settings("lib.tar.gz", given) == {
        "spark.archives": "a.zip#a,b.zip,lib.tar.gz#headrace-lib",
        "spark.executorEnv.PYTHONPATH": "headrace-lib:a:b",
    }


def test_what_is_needed_and_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_archive, "NEEDED", ("cramjam", "no-such-thing"))
    with pytest.raises(headrace.ConfigError, match="no-such-thing is not installed here"):
        write_archive(tmp_path)
    assert not list(tmp_path.iterdir())
