"""`headrace certs`: what it writes, and the settings that it prints."""

from pathlib import Path

from click.testing import CliRunner, Result

from headrace.cli.certs import certs
from headrace.config import broker_config, read_properties


def run(*words: str) -> Result:
    return CliRunner().invoke(certs, words)


def settings_in(output: str) -> dict[str, str]:
    """The lines of a properties file in an output."""
    return dict(read_properties(output[output.index("# settings of") :]))


def test_the_printed_settings_are_those_of_a_broker_and_a_client(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "certs"))
    assert run("ca", *where).exit_code == 0
    made = run("broker", "b1", "--host", "kafka.example.org", *where)
    config = broker_config(settings_in(made.output))
    assert config.ssl_keystore_location == str(tmp_path / "certs" / "b1.pem")
    assert "for kafka.example.org, valid for 825 days" in made.output
    client = run("client", "alice", *where)
    assert "brokers call the client User:CN=alice" in client.output
    assert settings_in(client.output)["security.protocol"] == "SSL"


def test_without_hosts_a_broker_is_for_this_machine(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path))
    run("ca", *where)
    assert "for localhost, 127.0.0.1, ::1" in run("broker", "dev", *where).output


def test_an_authority_is_needed_first(tmp_path: Path) -> None:
    made = run("client", "alice", "--dir", str(tmp_path))
    assert "make it with `headrace certs ca --dir" in str(made.exception)
