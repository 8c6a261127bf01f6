"""`headrace configs`: the settings of topics, brokers, groups, clients' metrics and loggers."""

from typing import TypedDict, Unpack

import click

from headrace.cli.clients import open_admin
from headrace.cli.options import (
    Command,
    asked,
    client_options,
    examples,
    key_value,
    unique,
    without_secrets,
)
from headrace.cli.output import print_json, print_table
from headrace.client.admin.configs import (
    ConfigEntry,
    ConfigOwner,
    ConfigResource,
    ResourceType,
    config_resource,
)

_HIDDEN = "(hidden)"
_KINDS = [kind.name.lower().replace("_", "-") for kind in ResourceType if kind.name != "ROLE"]


class _CommandOptions(TypedDict):
    """Options of every command that talks to a cluster."""

    bootstrap: str
    timeout_s: float
    as_json: bool


class _OwnerOptions(_CommandOptions, ConfigOwner):
    """Options of a command about the settings of one resource."""


@click.group(short_help="Show and change settings.")
def configs() -> None:
    """Show and change the settings of topics, brokers, groups, clients' metrics and loggers."""


def _resource_options(command: Command) -> Command:
    number = click.IntRange(min=0)
    for option in (
        click.option(
            "--broker-logger",
            type=number,
            metavar="ID",
            help="The broker whose loggers and their levels these are.",
        ),
        click.option(
            "--client-metrics", metavar="NAME", help="The subscription to metrics of clients."
        ),
        click.option("--group", metavar="NAME", help="The group whose settings these are."),
        click.option(
            "--broker", type=number, metavar="ID", help="The broker whose settings these are."
        ),
        click.option("--topic", metavar="NAME", help="The topic whose settings these are."),
    ):
        command = option(command)
    return command


def _resource(options: _OwnerOptions) -> tuple[ConfigResource, ConfigOwner]:
    """The resource that the options name, as a value and as keyword arguments."""
    owner: ConfigOwner = {
        "topic": options.get("topic"),
        "broker": options.get("broker"),
        "group": options.get("group"),
        "client_metrics": options.get("client_metrics"),
        "broker_logger": options.get("broker_logger"),
    }
    if sum(value is not None for value in owner.values()) != 1:
        names = ", ".join(f"--{kind}" for kind in _KINDS)
        raise click.UsageError(f"Give one of {names}.")
    return config_resource(**owner), owner


@configs.command(
    epilog=examples(
        "headrace configs describe --topic orders",
        "headrace configs describe --broker 1 --all --json",
        "headrace configs describe --broker-logger 1",
    )
)
@_resource_options
@click.option("--all", "show_all", is_flag=True, help="Show settings at their defaults too.")
@client_options
def describe(show_all: bool, **options: Unpack[_OwnerOptions]) -> None:
    """Show settings and the sources of their values.

    CHANGEABLE says whether a setting can change while the broker runs; a setting with "no effect"
    is a setting of Kafka that headrace accepts and ignores.
    """
    resource, owner = _resource(options)
    with open_admin(options["bootstrap"], options["timeout_s"]) as admin:
        entries = admin.describe_configs(**owner)
    shown = [entry for entry in entries.values() if show_all or not entry.is_default]
    if options["as_json"]:
        print_json(
            {
                "resource_type": resource.kind.name.lower(),
                "resource_name": resource.name,
                "configs": [
                    {
                        "name": entry.name,
                        "value": entry.value,
                        "source": entry.source,
                        "default": entry.is_default,
                        "read_only": entry.read_only,
                        "sensitive": entry.sensitive,
                        "effect": entry.has_effect,
                        "documentation": entry.documentation,
                    }
                    for entry in shown
                ],
            }
        )
    elif shown:
        print_table(
            ["SETTING", "VALUE", "SOURCE", "CHANGEABLE"],
            [
                (
                    entry.name,
                    _HIDDEN if entry.sensitive else entry.value,
                    entry.source,
                    _changeable(entry),
                )
                for entry in shown
            ],
        )
    else:
        click.echo(f"All settings of {resource} are at their defaults; see them with --all.")


def _changeable(entry: ConfigEntry) -> str:
    if not entry.has_effect:
        return "no effect"
    return "no" if entry.read_only else "yes"


@configs.command(
    epilog=examples(
        "headrace configs alter --topic orders --set retention.ms=86400000",
        "headrace configs alter --topic orders --delete retention.ms",
        "headrace configs alter --broker 1 --set log.retention.ms=86400000",
        "headrace configs alter --broker-logger 1 --set headrace.broker=DEBUG",
    )
)
@_resource_options
@click.option(
    "--set",
    "settings",
    type=key_value,
    multiple=True,
    metavar="KEY=VALUE",
    help="Give a setting a value; may be repeated.",
)
@click.option(
    "--ask",
    multiple=True,
    metavar="KEY",
    help="Ask for the value of a secret at a prompt, or read a line of standard input.",
)
@click.option(
    "--delete",
    "deletions",
    multiple=True,
    metavar="KEY",
    help="Take a setting back to its default; may be repeated.",
)
@client_options
def alter(
    settings: tuple[tuple[str, str], ...],
    ask: tuple[str, ...],
    deletions: tuple[str, ...],
    **options: Unpack[_OwnerOptions],
) -> None:
    """Change settings while the broker runs. Other settings stay as they are."""
    resource, owner = _resource(options)
    if options["broker"] is None:
        wanted = unique(settings, "--set")
    else:
        wanted = without_secrets(settings, "give it with --ask KEY")
    wanted |= {name: asked(name, hidden=True) for name in ask}
    removed = list(dict.fromkeys(deletions))
    if not wanted and not removed:
        raise click.UsageError("Nothing to change: give --set or --delete.")
    for name in removed:
        if name in wanted:
            raise click.UsageError(f"{name} cannot be both set and deleted.")
    with open_admin(options["bootstrap"], options["timeout_s"]) as admin:
        admin.alter_configs({**wanted, **dict.fromkeys(removed)}, **owner)
    if options["as_json"]:
        print_json(
            {
                "resource_type": resource.kind.name.lower(),
                "resource_name": resource.name,
                "set": wanted | dict.fromkeys(ask, _HIDDEN),
                "deleted": removed,
            }
        )
    else:
        click.echo(f"changed the settings of {resource}")


@configs.command(
    "list",
    epilog=examples("headrace configs list", "headrace configs list --kind group --json"),
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(_KINDS),
    multiple=True,
    help="Only those of this kind; may be repeated.",
)
@client_options
def list_(kinds: tuple[str, ...], **options: Unpack[_CommandOptions]) -> None:
    """List resources that can have settings. Groups and client metrics are listed once they have
    some.
    """
    wanted = [kind.replace("-", "_") for kind in kinds]
    with open_admin(options["bootstrap"], options["timeout_s"]) as admin:
        found = admin.list_config_resources(wanted)
    if options["as_json"]:
        print_json({"resources": found})
    else:
        rows = [(kind.replace("_", "-"), name) for kind, names in found.items() for name in names]
        print_table(["KIND", "NAME"], rows)
