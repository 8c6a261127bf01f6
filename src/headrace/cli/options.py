"""Options that several commands share, and the values they take."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.cli.connection_settings import BOOTSTRAP, connection_options, connection_properties
from headrace.errors import ConfigError
from headrace.options import Scope

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 30.0


def key_value(text: str) -> tuple[str, str]:
    """`KEY=VALUE`, split at the first `=`. The value may be empty, the key may not."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE.")
    return key.strip(), value


def unique(pairs: tuple[tuple[str, str], ...], option: str) -> dict[str, str]:
    """The pairs as a mapping; a usage error for a duplicate key."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{option} gives {key} twice.")
        found[key] = value
    return found


def without_secrets(settings: tuple[tuple[str, str], ...], advice: str) -> dict[str, str]:
    """Settings of a broker in arguments; a usage error for a secret, which `ps` shows to all."""
    # Imported here: most commands do without the settings of brokers, and start sooner.
    from headrace.config import BROKER_SETTINGS, find_setting  # noqa: PLC0415

    found = unique(settings, "--set")
    for name in found:
        # An unknown setting is refused where it is used.
        with suppress(ConfigError):
            if find_setting(name, Scope.BROKER, BROKER_SETTINGS).sensitive:
                raise click.UsageError(
                    f"{name} is a secret, and other users of this machine see the arguments of"
                    f" commands; {advice}."
                )
    return found


def asked(name: str, *, hidden: bool) -> str:
    """A value from a prompt, or the next line of standard input if that is no terminal."""
    if sys.stdin.isatty():
        return str(click.prompt(name, hide_input=hidden, err=True))
    line = sys.stdin.readline().rstrip("\n")
    if not line:
        raise ConfigError(f"standard input has no line for {name}")
    return line


def bootstrap_option(command: Command) -> Command:
    """The option for the bootstrap brokers."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        # The variable of the client, and that of the option.
        envvar=["HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_BOOTSTRAP_SERVER"],
        show_envvar=True,
        callback=_bootstrap,
        help="Brokers to ask first; one that answers is enough.",
    )(connection_options(command))


def _bootstrap(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The brokers that were named, else those of the profile or file of properties."""
    assert parameter.name is not None
    if context.get_parameter_source(parameter.name) is click.core.ParameterSource.DEFAULT:
        return connection_properties().get(BOOTSTRAP, value)
    return value


def timeout_option(command: Command) -> Command:
    """The option that limits the duration of a command."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="Give up on an answer after so long.",
    )(command)


def json_option(command: Command) -> Command:
    """The option for JSON output."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON instead of text for people."
    )(command)


def client_options(command: Command) -> Command:
    """The options of every command that talks to a broker."""
    return bootstrap_option(timeout_option(json_option(command)))


def isolation_option(command: Command) -> Command:
    """The `--isolation-level` option of commands that read records."""
    return click.option(
        "--isolation-level",
        "isolation",
        type=click.Choice(["read_uncommitted", "read_committed"]),
        default="read_uncommitted",
        show_default=True,
        metavar="LEVEL",
        help="read_committed leaves out aborted transactions, and stops before open ones.",
    )(command)


def pipelines_option(command: Command) -> Command:
    """The `--pipeline` option of commands that show running pipelines."""
    return click.option(
        "--pipeline",
        "pipelines",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="A pipeline that runs on this machine; may be repeated.",
    )(command)


def yes_option(command: Command) -> Command:
    """The `--yes` option, for commands that ask before deleting."""
    return click.option("--yes", is_flag=True, help="Do not ask before deleting.")(command)


def confirm_deletion(subject: str) -> None:
    """Ask for confirmation on a terminal; without a terminal --yes is required."""
    confirm(f"Delete {subject}?", "Deleting")


def confirm(question: str, doing: str) -> None:
    """Ask for confirmation on a terminal; `doing` names the action in the usage error."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{doing} needs a terminal to confirm it, or --yes.")
    click.confirm(question, abort=True, err=True)


def examples(*lines: str) -> str:
    """An epilog with one example per line, kept as they are by click's `\\b` marker."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
