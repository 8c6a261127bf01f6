"""Where a command has its connection's properties from, and what is said of wrong ones."""

from pathlib import Path

import click
import pytest

from headrace.cli.connection_settings import (
    client_properties,
    connection_options,
    connection_properties,
    connection_security,
    read_profile,
)
from headrace.client.property_files import profile_path
from headrace.errors import ConfigError
from headrace.net.client_connection import PLAINTEXT

SECRET = "wonder=land"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own directory of profiles, and none of the user's variables."""
    for name in ("HEADRACE_PROFILE", "HEADRACE_CLIENT_CONFIG", "HEADRACE_SASL_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_CONFIG_DIR", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    return tmp_path


def found_by(*arguments: str) -> dict[str, str]:
    """The properties that a command with these arguments would connect with."""
    found: dict[str, str] = {}

    @click.command()
    @connection_options
    def command() -> None:
        found.update(connection_properties())

    command.main(list(arguments), standalone_mode=False)
    return found


def write_profile(name: str, text: str) -> None:
    profile_path(name).write_text(text)


def test_without_a_file_profile_or_variable_a_command_has_no_properties() -> None:
    assert found_by() == {}
    assert connection_properties() == {}
    assert connection_security() == PLAINTEXT


def test_an_option_wins_over_variables_and_they_over_the_current_profile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("current", "named", "optional"):
        write_profile(name, f"client.id={name}\n")
    file = directory / "file.properties"
    file.write_text("client.id=file\n")
    (directory / "current-profile").write_text("current\n")
    assert found_by() == {"client.id": "current"}
    monkeypatch.setenv("HEADRACE_PROFILE", "named")
    assert found_by() == {"client.id": "named"}
    monkeypatch.setenv("HEADRACE_CLIENT_CONFIG", str(file))
    assert found_by() == {"client.id": "file"}
    assert found_by("--profile", "optional") == {"client.id": "optional"}
    assert found_by("--client-config", str(file)) == {"client.id": "file"}
    # The option of Kafka's own commands.
    assert found_by("--command-config", str(file)) == {"client.id": "file"}


def test_variables_of_the_environment_replace_single_properties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_profile("prod", "sasl.plain.username=alice\nsasl.password=old\n")
    monkeypatch.setenv("HEADRACE_SASL_PASSWORD", SECRET)
    monkeypatch.setenv("HEADRACE_SASL_USERNAME", "bob")
    assert found_by("--profile", "prod") == {"sasl.username": "bob", "sasl.password": SECRET}


def test_a_file_and_a_profile_are_not_taken_together(directory: Path) -> None:
    write_profile("prod", "")
    (directory / "file").write_text("")
    with pytest.raises(click.UsageError, match="two ways to say the same"):
        found_by("--profile", "prod", "--client-config", str(directory / "file"))


def test_a_client_gets_those_of_its_own_properties_and_never_the_brokers(directory: Path) -> None:
    write_profile("all", "bootstrap.servers=a:1\nclient.id=x\nacks=1\ngroup.id=g\n")
    (directory / "current-profile").write_text("all")
    with click.Context(click.Command("c")):
        assert client_properties("producer") == {"client.id": "x", "acks": "1"}
        assert client_properties("consumer") == {"client.id": "x", "group.id": "g"}
        assert client_properties("admin") == {"client.id": "x"}


def test_the_security_of_connections_never_shows_its_secret(directory: Path) -> None:
    write_profile(
        "p",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\n"
        f"sasl.password={SECRET}\n",
    )
    (directory / "current-profile").write_text("p")
    with click.Context(click.Command("c")):
        security = connection_security()
    assert security.login is not None
    assert SECRET not in repr(security)


def test_a_profile_that_is_not_there_is_named(directory: Path) -> None:
    with pytest.raises(ConfigError, match="headrace profile add prod"):
        read_profile("prod")
    for name in ("", "../prod", "-x", "a" * 65):
        with pytest.raises(ConfigError, match="cannot be the name of a profile"):
            profile_path(name)
