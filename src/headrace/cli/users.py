"""`headrace users`: who may log in by SCRAM.

Rule: no password is ever an argument of a command, where other users of the machine would see it,
nor printed.
"""

import secrets
import sys
from base64 import b64encode
from typing import TextIO

import click

from headrace.cli.clients import open_admin
from headrace.cli.options import client_options, confirm_deletion, examples, json_option, yes_option
from headrace.cli.output import print_json, print_table
from headrace.cli.terminal_text import printable
from headrace.client.admin.users import ScramDeletion, ScramUpsertion
from headrace.errors import ConfigError
from headrace.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    salted_password,
    scram_mechanism,
)

_MECHANISMS = [mechanism.sasl.value for mechanism in ScramMechanism]
_SALT_BYTES = 24
_PASSWORD_CHARACTERS_MAX = 4096

_NAME = click.argument("name", metavar="USER")
_MECHANISM = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    multiple=True,
    help="The mechanism, which may be given twice; without it both.",
)
_ITERATIONS = click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed: the more, the longer guesses take.",
)
_PASSWORD_FILE = click.option(
    "--password-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="The file whose first line is the password; - is standard input. Without it you are asked"
    " for the password on a terminal, and elsewhere it is read from standard input.",
)


@click.group(short_help="Add, list and delete users of SCRAM.")
def users() -> None:
    """Add, list and delete the users that log in by SCRAM.

    They are kept in the cluster's metadata, as salted hashes of their passwords. Connections
    of a user who is deleted, or whose password is changed, are closed at once.
    """


@users.command(
    epilog=examples("headrace users add alice", "pass kafka/alice | headrace users add alice")
)
@_NAME
@_MECHANISM
@_ITERATIONS
@_PASSWORD_FILE
@client_options
def add(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: TextIO | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Add a user, or give one another password."""
    chosen = list(dict.fromkeys(mechanisms)) or _MECHANISMS
    password = _password(name, password_file)
    with open_admin(bootstrap, timeout_s) as admin:
        admin.alter_user_scram_credentials(
            [ScramUpsertion(name, mechanism, password, iterations) for mechanism in chosen]
        )
    if as_json:
        print_json({"user": name, "mechanisms": chosen})
    else:
        click.echo(f"{printable(name)} can log in by {' and '.join(chosen)}")


@users.command("list", epilog=examples("headrace users list", "headrace users list --json"))
@client_options
def list_users(bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """List all users, and the mechanisms they can log in by."""
    _show((), bootstrap, timeout_s, as_json)


@users.command(epilog=examples("headrace users describe alice"))
@click.argument("names", metavar="USER...", nargs=-1, required=True)
@client_options
def describe(names: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Show the mechanisms that users can log in by."""
    _show(names, bootstrap, timeout_s, as_json)


def _show(names: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool) -> None:
    with open_admin(bootstrap, timeout_s) as admin:
        found = admin.describe_user_scram_credentials(names)
    if as_json:
        print_json([{"user": name, "mechanisms": known} for name, known in found.items()])
        return
    print_table(
        ["USER", "MECHANISM", "ITERATIONS"],
        [
            (name, mechanism, iterations)
            for name, known in found.items()
            for mechanism, iterations in known.items()
        ],
    )


@users.command(epilog=examples("headrace users delete alice"))
@_NAME
@_MECHANISM
@yes_option
@client_options
def delete(
    name: str,
    mechanisms: tuple[str, ...],
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Delete a user, or only the password for one mechanism."""
    if not yes:
        confirm_deletion(f"user {printable(name)}")
    with open_admin(bootstrap, timeout_s) as admin:
        known = admin.describe_user_scram_credentials([name])[name]
        chosen = [mechanism for mechanism in known if not mechanisms or mechanism in mechanisms]
        if not chosen:
            raise ConfigError(
                f"user {name} has no password for {' or '.join(mechanisms)}; see"
                f" `headrace users describe {name}`"
            )
        admin.alter_user_scram_credentials([ScramDeletion(name, mechanism) for mechanism in chosen])
    if as_json:
        print_json({"user": name, "deleted": chosen})
    else:
        click.echo(f"{printable(name)} can no longer log in by {' and '.join(chosen)}")


@users.command("hash", epilog=examples("headrace users hash admin"))
@_NAME
@_MECHANISM
@_ITERATIONS
@_PASSWORD_FILE
@json_option
def hash_password(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: TextIO | None,
    as_json: bool,
) -> None:
    """Print a value of the setting scram.bootstrap.credentials, for the first user of a cluster.

    It has the salted hash in place of the password. Nothing is asked of any broker.
    """
    if not name or set(name) & set(",[]"):
        raise click.BadParameter("the name of a first user has no comma and no bracket.")
    password = _password(name, password_file)
    items = []
    for chosen in list(dict.fromkeys(mechanisms)) or _MECHANISMS:
        mechanism = scram_mechanism(chosen)
        assert mechanism is not None
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = salted_password(mechanism, password, salt, iterations)
        items.append(
            f"{chosen}=[name={name},iterations={iterations},salt={b64encode(salt).decode()},"
            f"saltedpassword={b64encode(salted).decode()}]"
        )
    if as_json:
        print_json({"scram.bootstrap.credentials": ",".join(items)})
    else:
        click.echo(f"scram.bootstrap.credentials={','.join(items)}")


def _password(name: str, file: TextIO | None) -> str:
    """The password: the first line of a file, or of standard input, or typed twice."""
    if file is None and sys.stdin.isatty():
        typed: str = click.prompt(
            f"Password of {printable(name)}", hide_input=True, confirmation_prompt=True, err=True
        )
        return typed
    try:
        line = (file or sys.stdin).readline(_PASSWORD_CHARACTERS_MAX + 2).rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError("the password is not UTF-8 text; give another one") from None
    if not 0 < len(line) <= _PASSWORD_CHARACTERS_MAX:
        raise ConfigError(
            f"the password is empty, or has more than {_PASSWORD_CHARACTERS_MAX} characters; give"
            " it in the first line"
        )
    return line
