import os
import sys
import time
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.security.keyring import NO_KEYS, key_line
from headrace.storage.key_sources import parse_source, read_keyring, write_key_file
from headrace.testing.time_limits import scaled
from tests.unit.security.encrypting import NEW, OLD


def test_no_source_has_no_keys() -> None:
    assert read_keyring("") == NO_KEYS


def test_keys_come_from_a_file_that_only_its_owner_may_use(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_key_file(str(path), [OLD, NEW], replace=False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_keyring(f"file:{path}").keys == (OLD, NEW)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_keyring(f"file:{path}")


def test_a_file_of_keys_is_replaced_only_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_key_file(str(path), [OLD], replace=False)
    with pytest.raises(ConfigError, match="rotate"):
        write_key_file(str(path), [NEW], replace=False)
    assert read_keyring(f"file:{path}").keys == (OLD,)
    write_key_file(str(path), [OLD, NEW], replace=True)
    assert read_keyring(f"file:{path}").keys == (OLD, NEW)
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEYS", key_line(OLD))
    assert read_keyring("env:SOME_KEYS").current == OLD
    with pytest.raises(ConfigError, match="no variable OTHER_KEYS"):
        read_keyring("env:OTHER_KEYS")


def test_keys_are_the_output_of_a_command(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(key_line(OLD))
    assert read_keyring(f"command:cat {path}").current == OLD


def python(program: str) -> str:
    return f"command:{sys.executable} -c '{program}'"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("command:/no/such/program", "cannot be had"),
        (python("raise SystemExit(3)"), "ended with status 3"),
        (python("print()"), "has no key"),
        ("file:/no/such/file", "cannot read"),
        ("file:/dev/null", "is not a file"),
        ("vault:x", "must be file:PATH"),
        ("command:'unclosed", "must be file:PATH"),
        ("file:", "must be file:PATH"),
    ],
)
def test_sources_that_give_nothing_are_errors(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_keyring(source)


def test_a_command_that_hangs_is_stopped_with_its_children() -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="did not come within 200 ms"):
        read_keyring("command:sh -c 'sleep 600 & sleep 600'", timeout_ms=200)
    assert time.monotonic() - began < scaled(20)


def test_a_command_that_does_not_stop_writing_is_stopped() -> None:
    with pytest.raises(ConfigError, match="more than 65536 bytes"):
        read_keyring("command:yes", timeout_ms=20_000)


def test_no_error_repeats_what_a_source_has(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("id=" + "TOPSECRET" * 9)
    path.chmod(0o600)
    for source in (f"file:{path}", f"command:cat {path}"):
        with pytest.raises(ConfigError) as caught:
            read_keyring(source)
        assert "TOPSECRET" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        read_keyring(python("import sys; sys.exit(1)") + " --token TOPSECRET")
    assert "TOPSECRET" not in str(caught.value)


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(ConfigError, match="is not a file"):
        read_keyring(f"file:{tmp_path}/keys")


def test_sources_are_named_without_the_arguments_of_commands() -> None:
    assert str(parse_source("command:/bin/kms --token abc")) == "the output of /bin/kms"
