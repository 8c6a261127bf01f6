"""The `headrace` command: finds and runs a subcommand, and maps every outcome to an exit status.

Exit statuses: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from headrace import __version__
from headrace.cli.errors import explain
from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.options import examples
from headrace.errors import ConfigError, HeadraceError


class Subcommand(NamedTuple):
    """The module of a subcommand, and its help line, which is shown without importing it."""

    module: str
    attribute: str
    summary: str


SUBCOMMANDS = {
    "up": Subcommand(
        "headrace.cli.serve", "up", "Start a broker for development, or a cluster of several."
    ),
    "broker": Subcommand("headrace.cli.serve", "broker", "Start a broker from a properties file."),
    "topics": Subcommand("headrace.cli.topics", "topics", "Create, list, change, delete topics."),
    "produce": Subcommand("headrace.cli.produce", "produce", "Write records to a topic."),
    "consume": Subcommand("headrace.cli.consume", "consume", "Read records from topics."),
    "search": Subcommand("headrace.cli.search", "search", "Find records by an expression."),
    "groups": Subcommand("headrace.cli.groups", "groups", "Watch and reset consumer groups."),
    "transactions": Subcommand(
        "headrace.cli.transactions", "transactions", "Watch and abort transactions."
    ),
    "configs": Subcommand("headrace.cli.configs", "configs", "Show and change settings."),
    "users": Subcommand("headrace.cli.users", "users", "Add, list and delete users of SCRAM."),
    "acls": Subcommand("headrace.cli.acls", "acls", "Show, add, remove access control lists."),
    "roles": Subcommand("headrace.cli.roles", "roles", "Make roles, and bind users to them."),
    "quotas": Subcommand("headrace.cli.quotas", "quotas", "Show and change quotas of clients."),
    "brokers": Subcommand(
        "headrace.cli.brokers", "brokers", "Watch, drain and remove brokers; elect leaders."
    ),
    "reassign": Subcommand("headrace.cli.reassign", "reassign", "Move partitions between brokers."),
    "top": Subcommand("headrace.cli.top", "top", "Watch a cluster live."),
    "console": Subcommand("headrace.cli.console", "console", "Show a cluster in a browser."),
    "doctor": Subcommand("headrace.cli.doctor", "doctor", "Tell what is wrong with a cluster."),
    "quorum": Subcommand("headrace.cli.quorum", "quorum", "Show and change the controllers."),
    "features": Subcommand("headrace.cli.features", "features", "Show and change feature levels."),
    "profile": Subcommand(
        "headrace.cli.profile", "profile", "Keep how to connect to clusters, under names."
    ),
    "pipeline": Subcommand("headrace.cli.pipeline", "pipeline", "Run data pipelines on Spark."),
    "certs": Subcommand(
        "headrace.cli.certs", "certs", "Make certificates for development and tests."
    ),
    "keys": Subcommand("headrace.cli.keys", "keys", "Make and rotate keys of encrypted topics."),
    "docs": Subcommand("headrace.cli.docs", "docs", "Show the documentation in a browser."),
    "log": Subcommand("headrace.cli.log", "log", "Look into the files of a broker."),
}


class RootGroup(click.Group):
    """A group that imports a subcommand only when it is called, and handles every error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = SUBCOMMANDS.get(cmd_name)
        if found is None:
            return None
        command: click.Command = getattr(import_module(found.module), found.attribute)
        if not gc.isenabled():
            # Undo the state `main` left. Imported modules stay, so the collector need not look at
            # them.
            gc.freeze()
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.summary) for name, found in SUBCOMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            # Only needed after a mistake.
            from headrace.cli.kafka_options import command_for  # noqa: PLC0415
            from headrace.options import nearest  # noqa: PLC0415

            if (meant := command_for(args[0])) is not None:
                raise click.UsageError(f"No such command '{args[0]}': use `{meant}`.", ctx)
            near = nearest(args[0], SUBCOMMANDS)
            names = [near] if near else []
            raise click.exceptions.NoSuchCommand(args[0], possibilities=names, ctx=ctx)
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]  # the result is always an exit
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        extra["standalone_mode"] = False
        try:
            # Commands return their exit status, or None for success.
            sys.exit(super().main(args, prog_name, **extra) or 0)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            fail(_usage_text(error), error.exit_code)
        except HeadraceError as error:
            fail(explain(error), 2 if isinstance(error, ConfigError) else 1)
        except OSError as error:
            # The rest of its buffer cannot be written either.
            _discard_stdout()
            where = f"{error.filename}: " if error.filename else ""
            fail(f"{where}{error.strerror or error}; see whether files and disks are all right", 1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe: that is not a failure.
            _discard_stdout()
            return 0


def _usage_text(error: click.ClickException) -> str:
    """A click error as one line with advice at its end."""
    text = " ".join(error.format_message().split()).rstrip(".")
    if not isinstance(error, click.UsageError):
        return text
    path = error.ctx.command_path if error.ctx else "headrace"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        text = f"No such option '{error.option_name}'{_instead(error.ctx, error.option_name)}"
    return f"{text} See `{path} --help`" if text.endswith("?") else f"{text}; see `{path} --help`"


def _instead(ctx: click.Context, option: str) -> str:
    """The suggestion for an unknown option: advice for one of Kafka's options, or the nearest
    option.
    """
    # Only needed after a mistake.
    from headrace.cli.kafka_options import advice  # noqa: PLC0415
    from headrace.options import nearest  # noqa: PLC0415

    if (meant := advice(ctx.command_path, option)) is not None:
        return f": {meant}"
    # Kafka's commands have options for what are subcommands here: `kafka-acls --list`.
    for group in (ctx, ctx.parent):
        name = option.removeprefix("--")
        if group and isinstance(group.command, click.Group) and name in group.command.commands:
            return f": use `{group.command_path} {name}`"
    names = [name for parameter in ctx.command.params for name in parameter.opts]
    near = nearest(option, (name for name in names if name.startswith("--")))
    return f": did you mean {near}" if near else ""


def _discard_stdout() -> None:
    """Redirect stdout to nothing, so that the flush at exit cannot fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def fail(text: str, status: int) -> NoReturn:
    """End the process with one line on stderr."""
    click.echo(f"headrace: {text}", err=True)
    sys.exit(status)


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "headrace up",
        "echo hello | headrace produce greetings",
        "headrace consume greetings",
    ),
)
@click.version_option(__version__, prog_name="headrace")
def cli() -> None:
    """A message queue that speaks the Apache Kafka protocol."""


def main() -> NoReturn:
    """The entry point of the console script."""
    # Importing leaves no garbage. Collecting meanwhile, and over all modules at the end, would be a
    # fifth of the time of a small command.
    gc.disable()
    try:
        cli.main(prog_name="headrace")
    except KeyboardInterrupt:
        # Interrupts that click does not see: while modules are imported, or at exit.
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
