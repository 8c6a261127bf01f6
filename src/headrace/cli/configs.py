"""`headrace configs`: the settings of topics and brokers."""

import click

from headrace.cli.options import Command, client_options, examples, key_value, unique
from headrace.cli.output import print_json, print_table
from headrace.cli.session import open_admin
from headrace.client.administration.configs import ConfigResource, config_resource


@click.group(short_help="Show and change settings.")
def configs() -> None:
    """Show and change the settings of topics and brokers."""


def _resource_options(command: Command) -> Command:
    topic = click.option("--topic", metavar="NAME", help="The topic whose settings these are.")
    broker = click.option(
        "--broker",
        type=click.IntRange(min=0),
        metavar="ID",
        help="The broker whose settings these are.",
    )
    return topic(broker(command))


def _resource(topic: str | None, broker: int | None) -> ConfigResource:
    if (topic is None) == (broker is None):
        raise click.UsageError("Give either --topic or --broker.")
    return config_resource(topic, broker)


@configs.command(
    epilog=examples(
        "headrace configs describe --topic orders",
        "headrace configs describe --broker 1 --all --json",
    )
)
@_resource_options
@click.option("--all", "show_all", is_flag=True, help="Show settings at their defaults too.")
@client_options
def describe(
    topic: str | None,
    broker: int | None,
    show_all: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show settings and where their values come from."""
    resource = _resource(topic, broker)
    with open_admin(bootstrap, timeout_s) as admin:
        entries = admin.describe_configs(topic=topic, broker=broker)
    shown = [entry for entry in entries.values() if show_all or not entry.is_default]
    if as_json:
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
                    "(hidden)" if entry.sensitive else entry.value,
                    entry.source,
                    "no" if entry.read_only else "yes",
                )
                for entry in shown
            ],
        )
    else:
        click.echo(f"All settings of {resource} are at their defaults; see them with --all.")


@configs.command(
    epilog=examples(
        "headrace configs alter --topic orders --set retention.ms=86400000",
        "headrace configs alter --topic orders --delete retention.ms",
        "headrace configs alter --broker 1 --set log.retention.ms=86400000",
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
    "--delete",
    "deletions",
    multiple=True,
    metavar="KEY",
    help="Take a setting back to its default; may be repeated.",
)
@client_options
def alter(
    topic: str | None,
    broker: int | None,
    settings: tuple[tuple[str, str], ...],
    deletions: tuple[str, ...],
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Change settings while the broker runs. The others stay as they are."""
    resource = _resource(topic, broker)
    wanted = unique(settings, "--set")
    removed = list(dict.fromkeys(deletions))
    if not wanted and not removed:
        raise click.UsageError("Nothing to change: give --set or --delete.")
    for name in removed:
        if name in wanted:
            raise click.UsageError(f"{name} cannot be both set and deleted.")
    with open_admin(bootstrap, timeout_s) as admin:
        admin.alter_configs({**wanted, **dict.fromkeys(removed)}, topic=topic, broker=broker)
    if as_json:
        print_json(
            {
                "resource_type": resource.kind.name.lower(),
                "resource_name": resource.name,
                "set": wanted,
                "deleted": removed,
            }
        )
    else:
        click.echo(f"changed the settings of {resource}")
