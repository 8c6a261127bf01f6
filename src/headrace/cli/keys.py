"""`headrace keys`: files of the keys that encrypted topics are written and read with."""

import secrets
from datetime import UTC, datetime

import click

from headrace.cli.options import examples, json_option
from headrace.cli.output import print_json, print_table
from headrace.security.keyring import KEY_SIZE, KeyEncryptionKey, Keyring, check_key_id
from headrace.storage.key_sources import read_keyring, write_key_file

_id_option = click.option(
    "--id", "key_id", metavar="ID", default="", help="Its id; without it the date of today."
)
_file_argument = click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))


@click.group(short_help="Make and rotate keys of encrypted topics.")
def keys() -> None:
    """Make and rotate the keys of encrypted topics.

    A topic with encryption.enable=true is encrypted under a key of the brokers' setting
    encryption.key.source, such as file:FILE. Whoever loses every copy of a key loses the records
    under it.
    """


@keys.command(
    epilog=examples("headrace keys create /etc/headrace/keys"),
    short_help="Make a file with a new key.",
)
@_file_argument
@_id_option
def create(path: str, key_id: str) -> None:
    """Make a file with one new, random key, which only its owner may use (0600)."""
    key = _new_key(key_id, Keyring())
    write_key_file(path, [key], replace=False)
    click.echo(f"{path} has the key {key}")
    click.echo(f"set encryption.key.source=file:{path} at every broker, and keep a copy elsewhere")


@keys.command(
    epilog=examples("headrace keys rotate /etc/headrace/keys"),
    short_help="Add a new key, which encrypts from now on.",
)
@_file_argument
@_id_option
def rotate(path: str, key_id: str) -> None:
    """Add a new key to a file. Brokers encrypt under it when they have read the file again.

    The keys before stay, for what is encrypted under them. Give every broker the new file within
    encryption.key.refresh.ms, or keep encryption.key.id at the old key until all have it: a broker
    that lacks a key answers what is under it with an error that clients retry.
    """
    keyring = read_keyring(f"file:{path}")
    key = _new_key(key_id, keyring)
    write_key_file(path, [*keyring.keys, key], replace=True)
    click.echo(f"{path} has the new key {key}, and {len(keyring.keys)} before it")


@keys.command(
    "list",
    epilog=examples(
        "headrace keys list file:/etc/headrace/keys",
        "headrace keys list 'command:/usr/local/bin/fetch-keys --cluster eu'",
    ),
    short_help="Show the ids of keys.",
)
@click.argument("source", metavar="SOURCE")
@json_option
def list_(source: str, as_json: bool) -> None:
    """Show the ids and check values of a source's keys, and never the keys themselves.

    `headrace log dump` shows the check value of the key that a batch needs.
    """
    keyring = read_keyring(source)
    if as_json:
        print_json(
            [
                {
                    "id": key.key_id,
                    "check_value": key.check_value.hex(),
                    "current": key == keyring.current,
                }
                for key in keyring.keys
            ]
        )
        return
    print_table(
        ("ID", "CHECK VALUE", "CURRENT"),
        [
            (key.key_id, key.check_value.hex(), "yes" if key == keyring.current else "")
            for key in keyring.keys
        ],
    )


def _new_key(key_id: str, keyring: Keyring) -> KeyEncryptionKey:
    """A random key, under the id that is asked for or one of today's date."""
    taken = {key.key_id for key in keyring.keys}
    if not key_id:
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        free = (f"{today}-{number}" for number in range(2, len(taken) + 3))
        key_id = today if today not in taken else next(name for name in free if name not in taken)
    elif key_id in taken:
        raise click.UsageError(f"There is a key {key_id} already; give it another --id.")
    return KeyEncryptionKey(check_key_id(key_id), secrets.token_bytes(KEY_SIZE))
