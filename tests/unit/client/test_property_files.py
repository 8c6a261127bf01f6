"""Properties files of clients: references, profiles, and clients that are made from them."""

from pathlib import Path

import pytest

from headrace.client.options import (
    check_properties,
    consumer_options,
    is_sensitive,
    producer_options,
)
from headrace.client.property_files import (
    profile_directory,
    profile_path,
    read_client_config,
    resolved,
)
from headrace.errors import ConfigError

SECRET = "wonder=land"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own directory of profiles."""
    monkeypatch.setenv("HEADRACE_CONFIG_DIR", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    return tmp_path


def test_references_are_resolved_when_a_file_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_USER", "alice")
    (directory / "secret").write_text(f"{SECRET}\n")
    file = directory / "file"
    file.write_text(
        f"sasl.username=${{env:THE_USER}}\nsasl.password=${{file:{directory}/secret}}\n"
    )
    assert read_client_config(file) == {"sasl.username": "alice", "sasl.password": SECRET}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x${env:NO_SUCH_VARIABLE}", "here refers to the variable NO_SUCH_VARIABLE, which is not"),
        ("x${file:/no/such}", "here refers to the file /no/such: No such file"),
    ],
)
def test_a_reference_to_nothing_is_named_without_the_value(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        resolved(SECRET + value, "here")
    assert SECRET not in str(caught.value)


def test_an_error_in_a_file_has_its_path_and_line(directory: Path) -> None:
    file = directory / "file"
    file.write_text("client.id=x\nsasl.password=${env:NO_SUCH_VARIABLE}\n")
    with pytest.raises(ConfigError, match=r"file, line 2: sasl.password refers to"):
        read_client_config(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is no text; give a properties file"):
        read_client_config(file)


def test_a_name_that_no_client_has_is_refused_with_the_nearest() -> None:
    check_properties({"acks": "", "group.id": "", "sasl.jaas.config": ""}, "f")
    with pytest.raises(ConfigError, match=r"client\.id") as caught:
        check_properties({"client.idd": SECRET}, "f")
    assert SECRET not in str(caught.value)


def test_profiles_are_in_the_users_own_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere/conf")
    assert profile_directory() == Path("/somewhere/conf/headrace/profiles")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert profile_directory() == Path("/somewhere/.config/headrace/profiles")


@pytest.mark.parametrize("name", ["sasl.password", "sasl.jaas.config", "ssl.key.password"])
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert is_sensitive(name)
    assert not is_sensitive("sasl.username")


def test_a_client_takes_its_own_options_from_a_file_or_profile_and_arguments_win(
    directory: Path,
) -> None:
    text = (
        "bootstrap.servers=kafka:9093\nacks=1\ngroup.id=billing\nsasl.plain.username=alice\n"
        f"sasl.password={SECRET}\nclient.id=of-the-file\n"
    )
    file = directory / "client.properties"
    file.write_text(text)
    profile_path("prod").write_text(text)
    producer = producer_options(client_config=file, sasl_username="bob")
    assert [str(address) for address in producer.bootstrap_servers] == ["kafka:9093"]
    # An argument replaces the file's under another name of the same option.
    assert (producer.sasl_username, producer.sasl_password) == ("bob", SECRET)
    # As if it had been given: what contradicts acks=1 is off.
    assert (producer.acks, producer.enable_idempotence) == (1, False)
    consumer = consumer_options(profile="prod", client_id="own")
    assert (consumer.group_id, consumer.client_id) == ("billing", "own")


def test_a_file_that_a_client_cannot_use_is_named_without_its_secrets(directory: Path) -> None:
    file = directory / "client.properties"
    for text, said in (
        (f"client.idd={SECRET}", r"client\.properties: .*did you mean client\.id"),
        ("acks=5", r"client\.properties: acks cannot be '5'"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            producer_options(client_config=file)
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        producer_options(client_config=directory / "none")
    with pytest.raises(ConfigError, match="client_config and profile are both given"):
        producer_options(client_config=file, profile="prod")
    with pytest.raises(ConfigError, match="there is no profile 'prod'"):
        producer_options(profile="prod")
