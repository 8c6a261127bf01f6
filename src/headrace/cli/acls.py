"""`headrace acls`: who may do what with topics, groups and the cluster."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.clients import open_admin
from headrace.cli.options import client_options, confirm_deletion, examples, yes_option
from headrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from headrace.client.admin.acls import Acl

Command = TypeVar("Command", bound=Callable[..., Any])

_CLUSTER = "kafka-cluster"
_PRODUCER = ("write", "describe", "create")
_CONSUMER = ("read", "describe")


@click.group(short_help="Show, add, remove access control lists.")
def acls() -> None:
    """Show, add and remove access control lists (ACLs).

    They count where authorizer.class.name is set on the brokers. A right is denied if one ACL
    denies it, allowed if one allows it, and else denied.
    """


def resource_options(command: Command) -> Command:
    """The options that name resources; each may be repeated, but for the cluster."""
    for option in (
        click.option("--topic", "topics", metavar="NAME", multiple=True, help="A topic; * is all."),
        click.option("--group", "groups", metavar="NAME", multiple=True, help="A consumer group."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option(
            "--transactional-id", "transactional_ids", metavar="ID", multiple=True, help="An id."
        ),
        click.option("--delegation-token", "tokens", metavar="ID", multiple=True, help="A token."),
        click.option(
            "--user-principal",
            "users",
            metavar="PRINCIPAL",
            multiple=True,
            help="A user for whom tokens may be created.",
        ),
    ):
        command = option(command)
    return command


def named_resources(given: dict[str, Any]) -> list[tuple[str, str]]:
    """The types and names of the resources that options name; takes the options out."""
    found = []
    for option, resource_type in (
        ("topics", "topic"),
        ("groups", "group"),
        ("transactional_ids", "transactional_id"),
        ("tokens", "delegation_token"),
        ("users", "user"),
    ):
        found += [(resource_type, name) for name in given.pop(option)]
    if given.pop("cluster"):
        found.append(("cluster", _CLUSTER))
    return found


def print_acls(found: Iterable["Acl"], *, as_json: bool) -> None:
    """ACLs as a table, or as JSON."""
    if as_json:
        fields = ("principal", "permission", "operation", "host")
        print_json(
            [
                {
                    "resource_type": acl.resource_type,
                    "resource_name": acl.resource_name,
                    "pattern": acl.pattern,
                    **{field: getattr(acl, field) for field in fields},
                }
                for acl in found
            ]
        )
        return
    print_table(
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "PERMISSION", "OPERATION", "HOST"],
        [
            (
                acl.resource_type,
                acl.resource_name,
                acl.pattern,
                acl.principal,
                acl.permission,
                acl.operation,
                acl.host,
            )
            for acl in found
        ],
    )


def wanted_acls(
    principals: Iterable[tuple[str, str]],
    operations: Iterable[str],
    resources: Iterable[tuple[str, str]],
    hosts: Iterable[str],
    *,
    prefixed: bool,
) -> list["Acl"]:
    """The ACLs of every combination of the options; `principals` are pairs with a permission."""
    from headrace.client.admin.acls import Acl  # noqa: PLC0415 - only who adds needs it

    return [
        Acl(
            principal,
            operation,
            resource_type,
            name,
            "prefixed" if prefixed and resource_type != "cluster" else "literal",
            host,
            permission,
        )
        for permission, principal in principals
        for resource_type, name in resources
        for operation in operations
        for host in hosts
    ]


@acls.command(
    epilog=examples(
        "headrace acls add --allow-principal User:alice --operation read --topic orders",
        "headrace acls add --allow-principal User:etl --producer --topic raw. --prefixed",
        "headrace acls add --allow-principal User:etl --consumer --topic raw --group etl",
        "headrace acls add --deny-principal User:bob --operation all --topic secret"
        " --host 10.0.0.0/8",
    )
)
@click.option("--allow-principal", "allowed", metavar="PRINCIPAL", multiple=True, help="Allow it.")
@click.option("--deny-principal", "denied", metavar="PRINCIPAL", multiple=True, help="Deny it.")
@click.option(
    "--operation",
    "operations",
    metavar="NAME",
    multiple=True,
    help="read, write, describe, alter-configs, ...; all is every one.",
)
@click.option("--producer", is_flag=True, help="What a producer needs: write, describe, create.")
@click.option("--consumer", is_flag=True, help="What a consumer needs, of the topic and the group.")
@click.option(
    "--host",
    "hosts",
    metavar="ADDRESS",
    multiple=True,
    help="Only from this address or network, such as 10.0.0.0/8; from all by default.",
)
@click.option("--prefixed", is_flag=True, help="Names are prefixes of names.")
@resource_options
@client_options
def add(
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    hosts: tuple[str, ...],
    prefixed: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Allow or deny operations on resources; every combination of what is named."""
    resources = named_resources(given)
    principals = [("allow", name) for name in allowed] + [("deny", name) for name in denied]
    if not principals:
        raise click.UsageError("Give --allow-principal or --deny-principal.")
    if not resources:
        raise click.UsageError("Give a resource, as --topic NAME.")
    if not (operations or producer or consumer):
        raise click.UsageError("Give --operation, --producer or --consumer.")
    of_hosts = hosts or ("*",)
    wanted = wanted_acls(principals, operations, resources, of_hosts, prefixed=prefixed)
    for role, by_type in (
        (producer, {"topic": _PRODUCER, "transactional_id": ("write", "describe")}),
        (consumer, {"topic": _CONSUMER, "group": ("read",)}),
    ):
        for resource in resources if role else ():
            ops = by_type.get(resource[0], ())
            wanted += wanted_acls(principals, ops, [resource], of_hosts, prefixed=prefixed)
    with open_admin(bootstrap, timeout_s) as admin:
        admin.create_acls(wanted)
    print_acls(sorted(set(wanted)), as_json=as_json)


def _selections(
    principal: str | None, operation: str | None, match: bool, prefixed: bool, given: dict[str, Any]
) -> list[dict[str, str | None]]:
    """The selections that options make: one for each resource, or one for all."""
    if match and prefixed:
        raise click.UsageError("--match and --prefixed exclude each other.")
    pattern = "match" if match else "prefixed" if prefixed else None
    common = {"principal": principal, "operation": operation}
    resources = named_resources(given)
    if not resources:
        return [{**common, "pattern": pattern}]
    return [
        {
            **common,
            "resource_type": resource_type,
            "resource_name": name,
            "pattern": pattern or "literal",
        }
        for resource_type, name in resources
    ]


_PRINCIPAL = click.option("--principal", metavar="PRINCIPAL", help="Only those of a principal.")
_OPERATION = click.option("--operation", metavar="NAME", help="Only those of an operation.")
_MATCH = click.option(
    "--match", is_flag=True, help="All that count for the named resources, prefixes and * too."
)
_PREFIXED = click.option("--prefixed", is_flag=True, help="Names are prefixes of names.")


@acls.command(
    "list",
    epilog=examples(
        "headrace acls list",
        "headrace acls list --topic orders --match",
        "headrace acls list --principal User:alice --json",
    ),
)
@_PRINCIPAL
@_OPERATION
@_MATCH
@_PREFIXED
@resource_options
@client_options
def list_acls(
    principal: str | None,
    operation: str | None,
    match: bool,
    prefixed: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Show ACLs: all, or those of principals, operations and resources."""
    selections = _selections(principal, operation, match, prefixed, given)
    with open_admin(bootstrap, timeout_s) as admin:
        found = {acl for chosen in selections for acl in admin.describe_acls(**chosen)}
    print_acls(sorted(found), as_json=as_json)


@acls.command(
    epilog=examples(
        "headrace acls remove --principal User:alice --topic orders",
        "headrace acls remove --principal User:bob --yes",
    )
)
@_PRINCIPAL
@_OPERATION
@_MATCH
@_PREFIXED
@resource_options
@yes_option
@client_options
def remove(
    principal: str | None,
    operation: str | None,
    match: bool,
    prefixed: bool,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Remove ACLs of a principal, an operation or resources, and show them."""
    selections = _selections(principal, operation, match, prefixed, given)
    if any(all(value is None for value in chosen.values()) for chosen in selections):
        raise click.UsageError("This would remove every ACL; name a principal or a resource.")
    with open_admin(bootstrap, timeout_s) as admin:
        if not yes:
            found = {acl for chosen in selections for acl in admin.describe_acls(**chosen)}
            print_acls(sorted(found), as_json=as_json)
            confirm_deletion(f"{len(found)} ACLs")
        removed = {acl for chosen in selections for acl in admin.delete_acls(**chosen)}
    print_acls(sorted(removed), as_json=as_json)
