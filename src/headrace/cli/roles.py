"""`headrace roles`: named sets of rights, and who has them."""

from typing import Any

import click

from headrace.cli.acls import named_resources, print_acls, resource_options, wanted_acls
from headrace.cli.clients import open_admin
from headrace.cli.options import client_options, confirm_deletion, examples, yes_option
from headrace.cli.output import print_json, print_table
from headrace.cli.terminal_text import printable

_NAME = click.argument("name", metavar="ROLE")
_MEMBERS = click.argument("members", metavar="MEMBER...", nargs=-1, required=True)


@click.group(short_help="Make roles, and bind users to them.")
def roles() -> None:
    """Make roles, grant rights to them, and bind users or groups to them.

    The rights of a role are ACLs of the principal Role:NAME, which `headrace acls` shows too.
    Members are users (User:alice), and groups that a user's token claims (Group:analysts).
    """


@roles.command(epilog=examples("headrace roles create analysts --description reports"))
@_NAME
@click.option("--description", metavar="TEXT", default="", help="What the role is for.")
@client_options
def create(name: str, description: str, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Make a role, without rights and members."""
    with open_admin(bootstrap, timeout_s) as admin:
        admin.create_role(name, description)
    _done(as_json, f"role {name} is created", name)


def _done(as_json: bool, text: str, name: str) -> None:
    if as_json:
        print_json({"role": name})
    else:
        click.echo(text)


@roles.command("list", epilog=examples("headrace roles list", "headrace roles list --json"))
@client_options
def list_roles(bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Show all roles."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_roles()
    if as_json:
        print_json(
            [
                {
                    "role": role.name,
                    "description": role.description,
                    "members": list(role.members),
                    "rights": len(role.rights),
                }
                for role in found.values()
            ]
        )
        return
    print_table(
        ["ROLE", "MEMBERS", "RIGHTS", "DESCRIPTION"],
        [
            (role.name, len(role.members), len(role.rights), role.description)
            for role in found.values()
        ],
    )


@roles.command(epilog=examples("headrace roles describe analysts"))
@_NAME
@client_options
def describe(name: str, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Show the members and the rights of a role."""
    with open_admin(bootstrap, timeout_s) as admin:
        [role] = admin.describe_roles([name]).values()
    if not as_json:
        click.echo(printable(f"{role.name}: {role.description}" if role.description else role.name))
        click.echo(printable("members: " + (", ".join(role.members) or "none")))
        print_acls(role.rights, as_json=False)
        return
    print_json(
        {
            "role": role.name,
            "description": role.description,
            "members": list(role.members),
            "rights": [str(right) for right in role.rights],
        }
    )


@roles.command(epilog=examples("headrace roles delete analysts --yes"))
@_NAME
@yes_option
@client_options
def delete(name: str, yes: bool, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Delete a role with its rights; its members lose them."""
    if not yes:
        confirm_deletion(f"role {name}")
    with open_admin(bootstrap, timeout_s) as admin:
        admin.delete_role(name)
    _done(as_json, f"role {name} is deleted", name)


_OPERATIONS = click.option(
    "--operation", "operations", metavar="NAME", multiple=True, required=True, help="As for ACLs."
)
_PREFIXED = click.option("--prefixed", is_flag=True, help="Names are prefixes of names.")
_HOSTS = click.option(
    "--host", "hosts", metavar="ADDRESS", multiple=True, default=("*",), help="Only from there."
)


@roles.command(
    epilog=examples("headrace roles grant analysts --operation read --topic reports. --prefixed")
)
@_NAME
@_OPERATIONS
@_HOSTS
@_PREFIXED
@resource_options
@client_options
def grant(
    name: str,
    operations: tuple[str, ...],
    hosts: tuple[str, ...],
    prefixed: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Give a role rights to resources."""
    resources = named_resources(given)
    if not resources:
        raise click.UsageError("Give a resource, as --topic NAME.")
    principals = [("allow", f"Role:{name}")]
    wanted = wanted_acls(principals, operations, resources, hosts, prefixed=prefixed)
    with open_admin(bootstrap, timeout_s) as admin:
        # Rights of a role that nobody has made would lie in wait for it.
        admin.describe_roles([name])
        admin.create_acls(wanted)
    print_acls(sorted(wanted), as_json=as_json)


@roles.command(
    epilog=examples("headrace roles revoke analysts --operation read --topic reports. --prefixed")
)
@_NAME
@_OPERATIONS
@_PREFIXED
@resource_options
@client_options
def revoke(
    name: str,
    operations: tuple[str, ...],
    prefixed: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Take rights to resources from a role, from whatever host they are."""
    resources = named_resources(given)
    if not resources:
        raise click.UsageError("Give a resource, as --topic NAME.")
    with open_admin(bootstrap, timeout_s) as admin:
        removed = {
            acl
            for resource_type, resource_name in resources
            for operation in operations
            for acl in admin.delete_acls(
                principal=f"Role:{name}",
                operation=operation,
                resource_type=resource_type,
                resource_name=resource_name,
                pattern="prefixed" if prefixed else "literal",
            )
        }
    print_acls(sorted(removed), as_json=as_json)


@roles.command(epilog=examples("headrace roles bind analysts User:alice Group:finance"))
@_NAME
@_MEMBERS
@client_options
def bind(
    name: str, members: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool
) -> None:
    """Give a role to users, or to groups that tokens claim."""
    with open_admin(bootstrap, timeout_s) as admin:
        admin.bind_role(name, members)
    _done(as_json, f"{', '.join(members)} now in role {name}", name)


@roles.command(epilog=examples("headrace roles unbind analysts User:alice"))
@_NAME
@_MEMBERS
@client_options
def unbind(
    name: str, members: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool
) -> None:
    """Take a role from users or groups."""
    with open_admin(bootstrap, timeout_s) as admin:
        admin.unbind_role(name, members)
    _done(as_json, f"{', '.join(members)} no longer in role {name}", name)
