"""docs/cli.md and the commands: neither has what the other lacks."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from headrace.cli.main import cli

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
SHARED = "What all commands have in common"
SHARED_OPTIONS = {
    *("--bootstrap-server", "-b", "--client-config", "--command-config", "--profile"),
    *("--timeout", "--json", "--help", "-h"),
}


def leaves(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(leaves(cli, "headrace"))


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options(command: click.Command) -> set[str]:
    found = [param for param in command.params if isinstance(param, click.Option)]
    return {name for entry in found for name in (*entry.opts, *entry.secondary_opts)}


def mentioned(text: str) -> set[str]:
    """The options in the first column of a section's tables."""
    rows = re.findall(r"^\| (`-.+?) \| ", text, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(--?[a-z][a-z-]*)", row)}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections()) == {*COMMANDS, SHARED}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_in_the_table_of_its_command(path: str) -> None:
    assert mentioned(sections()[path]) == options(COMMANDS[path]) - SHARED_OPTIONS


def test_shared_options_are_described_once() -> None:
    assert mentioned(sections()[SHARED]) == SHARED_OPTIONS
    for path, command in COMMANDS.items():
        shared = options(command) & SHARED_OPTIONS
        assert path.startswith(
            (
                *("headrace keys", "headrace log", "headrace pipeline", "headrace profile"),
                "headrace users hash",
                # It answers requests until it is stopped, and prints nothing.
                "headrace console",
            )
        ) or shared in (
            set(),
            SHARED_OPTIONS - {"-h", "--help"},
        )


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_an_example_in_the_page_and_in_its_help(path: str) -> None:
    assert f"$ {path}" in sections()[path]
    assert "Examples:\n" in (COMMANDS[path].epilog or "")


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_help(path: str) -> None:
    for param in COMMANDS[path].params:
        if isinstance(param, click.Option):
            assert param.help, param.opts
            assert param.help.rstrip("]").endswith((".", "value")), param.help


def test_every_example_can_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples in the help use options that exist, and values that are allowed."""
    monkeypatch.chdir(tmp_path)
    for name in ("plan.json", "client.properties"):
        (tmp_path / name).touch()
    for path, command in COMMANDS.items():
        for line in (command.epilog or "").splitlines():
            for call in re.findall(rf"{path} ([^|]*)", line):
                arguments = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", call)]
                if "server.properties" in arguments:
                    continue
                with command.make_context(path, arguments):
                    pass
