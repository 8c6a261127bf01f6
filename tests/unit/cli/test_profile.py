"""`headrace profile`: files that only their owner reads, and no secret on the command line."""

from pathlib import Path

import pytest

from headrace.cli.connection_settings import read_profile
from headrace.client.property_files import profile_path
from tests.unit.cli.invoking import document, invoke

SECRET = "wonder=land"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CONFIG_DIR", str(tmp_path / "headrace"))
    monkeypatch.delenv("HEADRACE_PROFILE", raising=False)
    monkeypatch.delenv("HEADRACE_CLIENT_CONFIG", raising=False)
    return tmp_path


def add(name: str, *arguments: str, stdin: str = "") -> str:
    result = invoke("profile", "add", name, *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """What a command says that fails."""
    result = invoke(*arguments)
    assert result.exit_code != 0
    return result.output


def test_only_the_owner_may_read_a_profile(directory: Path) -> None:
    add("prod", "sasl.username=alice", "--ask", "sasl.password", stdin=f"{SECRET}\n")
    path = profile_path("prod")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert read_profile("prod") == {"sasl.username": "alice", "sasl.password": SECRET}


def test_the_first_profile_is_the_current_one_and_others_are_chosen() -> None:
    assert "connect by profile a now" in add("a", "bootstrap.servers=a:1")
    assert "now" not in add("b", "bootstrap.servers=b:1")
    assert invoke("profile", "list").stdout == "* a\n  b\n"
    assert invoke("profile", "use", "b").exit_code == 0
    assert document(invoke("profile", "list", "--json")) == {"current": "b", "profiles": ["a", "b"]}
    assert invoke("profile", "use", "--none").exit_code == 0
    assert invoke("profile", "list").stdout == "  a\n  b\n"


def test_a_secret_is_no_argument(directory: Path) -> None:
    result = invoke("profile", "add", "prod", f"sasl.password={SECRET}")
    assert result.exit_code == 2
    assert "give it with --ask sasl.password, in a file with --from" in result.output
    assert SECRET not in result.output
    assert not profile_path("prod").exists()


def test_a_reference_to_a_secret_may_be_one_and_stays_a_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add("prod", "sasl.password=${env:THE_PASSWORD}")
    assert "${env:THE_PASSWORD}" in profile_path("prod").read_text()
    assert invoke("profile", "show", "prod").stdout == "sasl.password=${env:THE_PASSWORD}\n"
    monkeypatch.setenv("THE_PASSWORD", SECRET)
    assert read_profile("prod") == {"sasl.password": SECRET}


def test_secrets_are_not_shown(directory: Path) -> None:
    file = directory / "client.properties"
    file.write_text(f"sasl.username=alice\nsasl.password={SECRET}\nssl.key.password={SECRET}\n")
    add("prod", "--from", str(file), "sasl.username=bob")
    shown = invoke("profile", "show")
    assert SECRET not in shown.output
    assert document(invoke("profile", "show", "--json"))["properties"] == {
        "sasl.username": "bob",
        "sasl.password": "******",
        "ssl.key.password": "******",
    }


def test_a_profile_is_replaced_only_when_told_to() -> None:
    add("prod", "client.id=1")
    assert "pass --replace" in refused("profile", "add", "prod", "client.id=2")
    add("prod", "client.id=2", "--replace")
    assert read_profile("prod") == {"client.id": "2"}


def test_a_profile_that_is_removed_is_current_no_more() -> None:
    add("prod", "client.id=1")
    assert invoke("profile", "remove", "prod", "--yes").exit_code == 0
    assert document(invoke("profile", "list", "--json")) == {"current": None, "profiles": []}
    assert "make one with `headrace profile add`" in invoke("profile", "list").output


@pytest.mark.parametrize("command", [["show", "x"], ["use", "x"], ["remove", "x", "--yes"]])
def test_a_profile_that_is_not_there_is_named(command: list[str]) -> None:
    assert "there is no profile 'x'" in refused("profile", *command)


def test_wrong_arguments_say_what_to_give(directory: Path) -> None:
    assert "or --none" in invoke("profile", "use").output
    assert "no profile is chosen" in refused("profile", "show")
    assert "standard input has no line for sasl.password" in refused(
        "profile", "add", "prod", "--ask", "sasl.password"
    )
    assert "client.id" in refused("profile", "add", "prod", "client.idd=1")
