"""`headrace quotas`: what users, client ids and addresses may use of a cluster."""

from collections.abc import Mapping
from typing import TypedDict, Unpack

import click

from headrace.cli.clients import open_admin
from headrace.cli.options import Command, client_options, examples, key_value, unique
from headrace.cli.output import print_json, print_table
from headrace.client.admin.quotas import QuotaOwner

_DEFAULT = "(default)"
_UNITS = {
    "producer_byte_rate": "bytes a second",
    "consumer_byte_rate": "bytes a second",
    "request_percentage": "percent of a broker's time",
    "controller_mutation_rate": "partitions a second",
    "connection_creation_rate": "connections a second",
}


class _QuotaOptions(TypedDict):
    """Options of a command about the quotas of one owner, and of every command on a cluster."""

    user: str | None
    user_default: bool
    client_id: str | None
    client_id_default: bool
    ip: str | None
    ip_default: bool
    bootstrap: str
    timeout_s: float
    as_json: bool


@click.group(short_help="Show and change quotas of clients.")
def quotas() -> None:
    """Show and change what users, client ids and addresses may use of each broker.

    A client is held to the quota of its user and client id together, or else of its user, or else
    of its client id; a default is for all that have none of their own.
    """


def _owner_options(command: Command) -> Command:
    for option in (
        click.option("--ip-default", is_flag=True, help="Every address without its own quota."),
        click.option("--ip", metavar="ADDRESS", help="The address that connections come from."),
        click.option("--client-id-default", is_flag=True, help="Every other client id."),
        click.option("--client-id", metavar="NAME", help="The client id, as clients give it."),
        click.option("--user-default", is_flag=True, help="Every other user."),
        click.option("--user", metavar="NAME", help="The user; ANONYMOUS without authentication."),
    ):
        command = option(command)
    return command


def _owner(options: _QuotaOptions) -> QuotaOwner:
    owner: QuotaOwner = {}
    for option, name, is_default in (
        ("user", options["user"], options["user_default"]),
        ("client-id", options["client_id"], options["client_id_default"]),
        ("ip", options["ip"], options["ip_default"]),
    ):
        if name is not None and is_default:
            raise click.UsageError(f"Give --{option} or --{option}-default, not both.")
        if name is not None or is_default:
            owner[option.replace("-", "_")] = name  # type: ignore[literal-required]
    if "ip" in owner and len(owner) > 1:
        raise click.UsageError("An --ip cannot be combined with a --user or a --client-id.")
    return owner


def _named(owner: QuotaOwner) -> QuotaOwner:
    if not owner:
        raise click.UsageError("Give --user, --client-id or --ip, or the default of one of them.")
    return owner


def _text(owner: QuotaOwner) -> str:
    return ", ".join(
        f"{kind.replace('_', '-')} {_DEFAULT if name is None else name}"
        for kind, name in owner.items()
    )


@quotas.command(
    epilog=examples(
        "headrace quotas describe",
        "headrace quotas describe --user alice",
        "headrace quotas describe --client-id-default --json",
    )
)
@_owner_options
@client_options
def describe(**options: Unpack[_QuotaOptions]) -> None:
    """Show quotas: all, or those that name a user, a client id or an address."""
    owner = _owner(options)
    with open_admin(options["bootstrap"], options["timeout_s"]) as admin:
        found = admin.describe_client_quotas(**owner)
    if options["as_json"]:
        print_json(
            {
                "quotas": [
                    {"owner": dict(entry.owner), "quotas": dict(entry.quotas)} for entry in found
                ]
            }
        )
        return
    rows = [
        (*(_shown(entry.owner, kind) for kind in ("user", "client_id", "ip")), key, f"{value:.12g}")
        for entry in found
        for key, value in sorted(entry.quotas.items())
    ]
    if rows:
        print_table(["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"], rows)
    else:
        click.echo("There are no quotas.")


def _shown(owner: Mapping[str, str | None], kind: str) -> str:
    if kind not in owner:
        return "-"
    return _DEFAULT if owner[kind] is None else str(owner[kind])


@quotas.command(
    "set",
    epilog=examples(
        "headrace quotas set --user alice producer_byte_rate=10485760",
        "headrace quotas set --client-id-default consumer_byte_rate=20971520 request_percentage=50",
        "headrace quotas set --ip-default connection_creation_rate=20",
    ),
)
@click.argument("quotas", metavar="QUOTA=VALUE...", type=key_value, nargs=-1, required=True)
@_owner_options
@client_options
def set_(quotas: tuple[tuple[str, str], ...], **options: Unpack[_QuotaOptions]) -> None:
    """Set quotas of a user, a client id, an address, or the default of them.

    \b
    producer_byte_rate        bytes a second that may be produced to each broker
    consumer_byte_rate        bytes a second that may be fetched from each broker
    request_percentage        percent of each broker's time
    controller_mutation_rate  partitions a second that may be created or deleted
    connection_creation_rate  connections a second to each broker; of an address only
    """
    owner = _named(_owner(options))
    wanted = {key: _number(key, text) for key, text in unique(quotas, "The command line").items()}
    with open_admin(options["bootstrap"], options["timeout_s"]) as admin:
        admin.alter_client_quotas(wanted, **owner)
    if options["as_json"]:
        print_json({"owner": dict(owner), "set": wanted})
    else:
        click.echo(f"set the quotas of {_text(owner)}")


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        unit = _UNITS.get(key, "a number")
        raise click.UsageError(f"{key} is {text!r}; give a number ({unit}).") from None


@quotas.command(
    epilog=examples(
        "headrace quotas remove --user alice producer_byte_rate",
        "headrace quotas remove --ip-default connection_creation_rate",
    )
)
@click.argument("quotas", metavar="QUOTA...", nargs=-1, required=True)
@_owner_options
@client_options
def remove(quotas: tuple[str, ...], **options: Unpack[_QuotaOptions]) -> None:
    """Remove quotas; to remove one that is not there is no error."""
    owner = _named(_owner(options))
    removed = list(dict.fromkeys(quotas))
    with open_admin(options["bootstrap"], options["timeout_s"]) as admin:
        admin.alter_client_quotas(dict.fromkeys(removed), **owner)
    if options["as_json"]:
        print_json({"owner": dict(owner), "removed": removed})
    else:
        click.echo(f"removed quotas of {_text(owner)}")
