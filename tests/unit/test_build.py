"""The tests run against the build they are meant to run against, and the two are never mixed."""

import asyncio
import importlib.util
import logging
import os
import sys
from pathlib import Path

import pytest

import headrace
from headrace.protocol import codec_build, records
from tools import codec_build as tool
from tools.codec_build import compiled_modules, is_compiled, remove_stale
from tools.pure_build import copy_pure


def test_codec_modules_are_of_the_build_this_run_is_for() -> None:
    builds = {name: is_compiled(name) for name in compiled_modules()}
    assert builds, "no compiled module was found at all"
    # Without the variable (plain pytest) either build will do, but not a mixture.
    wanted = os.environ.get("HEADRACE_EXPECT_BUILD", "")
    expected = {"compiled": True, "pure": False}.get(wanted, records.COMPILED)
    assert builds == dict.fromkeys(builds, expected)


def test_codec_modules_know_how_they_were_built() -> None:
    claims = {name: importlib.import_module(name).COMPILED for name in compiled_modules()}
    assert claims == {name: is_compiled(name) for name in claims}


def test_uncompiled_clients_say_so_once_in_a_process_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(codec_build, "COMPILED", False)
    monkeypatch.setattr(codec_build, "_has_warned", False)
    make_clients()
    make_clients()
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.name == "headrace.producer"
    assert "runs uncompiled" in warning.getMessage()
    assert "apt install build-essential python3-dev" in warning.getMessage()


@pytest.mark.parametrize("kind", ["Producer", "Consumer"])
@pytest.mark.parametrize("is_async", [False, True])
def test_every_client_that_reads_or_writes_records_warns_of_an_uncompiled_codec(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, is_async: bool
) -> None:
    monkeypatch.setattr(codec_build, "COMPILED", False)
    monkeypatch.setattr(codec_build, "_has_warned", False)
    make_client(kind, is_async=is_async)
    assert [record.name for record in caplog.records] == [f"headrace.{kind.lower()}"]


def test_compiled_clients_have_nothing_to_warn_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(codec_build, "COMPILED", True)
    monkeypatch.setattr(codec_build, "_has_warned", False)
    make_clients()
    assert caplog.records == []


def test_pure_copy_holds_every_module_and_nothing_compiled(tmp_path: Path) -> None:
    package = Path(headrace.__file__).parent
    copy = copy_pure(tmp_path, package)
    assert _files(copy, "*.py") == _files(package, "*.py")
    assert not _files(copy, "*.so")
    assert not _files(copy, "*.c")


def test_pure_copy_replaces_an_older_one(tmp_path: Path) -> None:
    source = tmp_path / "headrace"
    source.mkdir()
    (source / "kept.py").touch()
    (source / "compiled.so").touch()
    (source / "removed.py").touch()
    copy_pure(tmp_path / "pure", source)
    (source / "removed.py").unlink()
    assert _files(copy_pure(tmp_path / "pure", source), "*") == {Path("kept.py")}


def test_library_older_than_its_source_is_removed_before_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    kept = _module_with_library(tmp_path, "fresh", library_age=-10)
    stale = _module_with_library(tmp_path, "changed", library_age=10)
    assert remove_stale(tmp_path) == [stale]
    assert kept.exists()
    assert not stale.exists()


def test_every_library_is_removed_for_a_pure_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PURE", "1")
    library = _module_with_library(tmp_path, "fresh", library_age=-10)
    assert remove_stale(tmp_path) == [library]


def test_library_of_a_module_that_is_gone_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    library = _module_with_library(tmp_path, "gone", library_age=-10)
    library.with_name("gone.py").unlink()
    assert remove_stale(tmp_path) == [library]


def test_the_library_that_all_share_is_kept_though_it_has_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _module_with_library(tmp_path, "_cyutility", library_age=-10)
    library.with_name("_cyutility.py").unlink()
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    assert remove_stale(tmp_path) == []
    monkeypatch.setenv("HEADRACE_PURE", "1")
    assert remove_stale(tmp_path) == [library]


def test_compiler_of_the_package_index_is_used_where_pythons_own_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    monkeypatch.setattr(tool, "has_headers", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert tool.compiler() is None
    assert tool.lacks_only_a_compiler()
    assert tool.obstacle() == (
        "no C compiler found; on Debian or Ubuntu: sudo apt install build-essential"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert tool.compiler() == f"{sys.executable} -m ziglang cc"
    assert not tool.lacks_only_a_compiler()
    assert tool.obstacle() is None


def test_a_compiler_alone_does_not_help_where_pythons_headers_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(tool, "has_headers", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not tool.lacks_only_a_compiler()
    assert tool.obstacle() == (
        "no C compiler and no Python headers found;"
        " on Debian or Ubuntu: sudo apt install build-essential python3-dev"
    )


def test_build_that_lacks_a_compiler_is_tried_again_by_the_next_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    monkeypatch.setattr(tool, "build", lambda: None)
    monkeypatch.setattr(sys, "argv", ["codec_build.py", "build", "--done", str(done)])
    monkeypatch.setattr(tool, "obstacle", lambda: "no C compiler found")
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    tool.main()
    assert not done.exists()
    # Plain Python was asked for, and nothing is missing.
    monkeypatch.setenv("HEADRACE_PURE", "1")
    tool.main()
    assert done.exists()


def test_changed_declarations_make_every_library_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    library = _module_with_library(tmp_path, "fresh", library_age=-10)
    declarations = library.with_name("shared.pxd")
    declarations.touch()
    os.utime(declarations, (1_000_020,) * 2)
    assert remove_stale(tmp_path) == [library]


def make_clients() -> None:
    """A producer and a consumer, blocking and of asyncio; nothing is sent."""
    for kind in ("Producer", "Consumer"):
        for is_async in (False, True):
            make_client(kind, is_async=is_async)


def make_client(kind: str, *, is_async: bool) -> None:
    async def make() -> None:
        async with getattr(headrace.aio, kind)(bootstrap_servers="127.0.0.1:1"):
            pass

    if is_async:
        asyncio.run(make())
    else:
        getattr(headrace, kind)(bootstrap_servers="127.0.0.1:1").close()


def _module_with_library(root: Path, name: str, library_age: int) -> Path:
    """A module, its stub and a library that is `library_age` seconds older than the source."""
    source = root / "src" / "headrace" / f"{name}.py"
    library = source.with_name(f"{name}.cpython-311.so")
    source.parent.mkdir(parents=True, exist_ok=True)
    for path in (source, source.with_suffix(".pyi"), library):
        path.touch()
    os.utime(library, (1_000_000 - library_age,) * 2)
    os.utime(source, (1_000_000,) * 2)
    return library


def _files(package: Path, pattern: str) -> set[Path]:
    return {path.relative_to(package) for path in package.rglob(pattern)}
