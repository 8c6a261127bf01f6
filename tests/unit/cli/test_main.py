import subprocess
import sys

import click
import pytest

from headrace.cli.main import SUBCOMMANDS, RootGroup, cli
from headrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from headrace.testing.time_limits import scaled
from tests.unit.cli.invoking import invoke


def test_the_help_of_each_command_is_the_one_it_gives_itself() -> None:
    context = click.Context(cli)
    for name, found in SUBCOMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str(100) == found.summary


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from headrace.cli.main import cli\n"
        "try: cli.main(['--help'], prog_name='headrace')\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "loaded = [name for name in sys.modules if name.startswith(('rich', 'headrace.client',"
        " 'headrace.protocol', 'headrace.broker', 'uvloop', 'asyncio'))]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_printed() -> None:
    from headrace import __version__

    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"headrace, version {__version__}\n")


def test_without_a_command_the_help_goes_to_stderr() -> None:
    for arguments in ((), ("topics",), ("log",)):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("Usage: headrace")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["topic"], "headrace: No such command 'topic'. Did you mean 'topics'? See `headrace"),
        (["nope"], "headrace: No such command 'nope'; see `headrace --help`"),
        (["topics", "create"], "headrace: Missing argument 'NAME...'; see `headrace topics create"),
        (["topics", "list", "--nope"], "headrace: No such option '--nope'; see `headrace topics"),
        (
            ["consume", "--max-message", "1"],
            "headrace: No such option '--max-message': did you mean",
        ),
        (
            ["up", "--datadir", "x"],
            "headrace: No such option '--datadir': did you mean --data-dir;",
        ),
        (["consume", "--topic", "a"], "headrace: No such option '--topic': name the topic without"),
        (["consume", "a", "--group", "g"], "headrace: No such option '--group': consume is a memb"),
        (
            ["topics", "--create"],
            "headrace: No such option '--create': use `headrace topics create",
        ),
        (["topics", "create", "--topic", "a"], "headrace: No such option '--topic': name the top"),
        (["produce", "a", "--property", "b=c"], "headrace: No such option '--property': use --key"),
        (["acls", "--list"], "headrace: No such option '--list': use `headrace acls list`; see"),
        (
            ["users", "add", "--list"],
            "headrace: No such option '--list': use `headrace users list`",
        ),
        (
            ["configs", "alter", "--entity-name", "a"],
            "headrace: No such option '--entity-name': name the resource by its kind: --topic",
        ),
        (
            ["kafka-consumer-groups.sh", "--list"],
            "headrace: No such command 'kafka-consumer-groups.sh': use `headrace groups`; see",
        ),
        (["topics", "list", "--zookeeper", "a"], "headrace: No such option '--zookeeper': there "),
        (
            ["consume", "a", "--from-beginning", "--from", "end"],
            "headrace: --from-beginning and --",
        ),
        (["consume", "a", "--partition", "x"], "headrace: Invalid value for '--partition'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], line: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("no such thing"), 2, "headrace: no such thing\n"),
        (StorageError("disk\nfull"), 1, "headrace: disk full\n"),
        (
            KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "topic a exists."),
            1,
            "headrace: topic a exists; choose another name, or pass --if-not-exists\n",
        ),
        (click.Abort(), 130, ""),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(
    error: BaseException, status: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(RootGroup, "get_command", lambda *_: failing)
    result = invoke("topics")
    assert (result.exit_code, result.stderr, result.stdout) == (status, line, "")


def test_a_command_returns_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> int:
        return 3

    monkeypatch.setattr(RootGroup, "get_command", lambda *_: failing)
    assert invoke("topics").exit_code == 3


def test_a_closed_pipe_is_no_failure() -> None:
    code = (
        "import sys, time; from headrace.cli import main as m; import click\n"
        "@click.command()\n"
        "def endless():\n"
        "    while True: click.echo('x' * 1000)\n"
        "m.RootGroup.get_command = lambda *_: endless\n"
        "m.cli.main(['topics'], prog_name='headrace')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(scaled(10)) == 0
