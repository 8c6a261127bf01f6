"""`headrace log strays`: list, restore, discard and make logs that are set aside."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from headrace.cli.log.dump import NotBrokerFile
from headrace.cli.options import confirm_deletion, examples, json_option, yes_option
from headrace.cli.output import bytes_text, print_json, print_table
from headrace.clock import SystemClock
from headrace.storage import strays as stored
from headrace.storage.checkpoints import META_PROPERTIES
from headrace.storage.data_directory import LOCK, METADATA_LOG, parse_log_name
from headrace.storage.files import Files
from headrace.storage.recovery import read_topic_id
from headrace.storage.strays import Stray, StrayNote
from headrace.types import TopicPartition, uuid_text

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_data_argument = click.argument("data", metavar="DATA", type=_DIRECTORY)
_partition_argument = click.argument("partition", metavar="PARTITION")
_strays_argument = click.argument(
    "paths", metavar="STRAY...", nargs=-1, required=True, type=_DIRECTORY
)


@click.group(short_help="Logs that a broker set aside.")
def strays() -> None:
    """Logs that a broker set aside.

    A start deletes no log. A log that the cluster's metadata does not know, that belongs to another
    topic, or that is damaged while other replicas are sound, is renamed to TOPIC-PARTITION.ID-stray
    in its data directory, and stays there until you decide.
    """


@strays.command(
    "list",
    epilog=examples("headrace log strays list headrace-data"),
    short_help="Show the logs that were set aside.",
)
@click.argument("data", metavar="DATA...", nargs=-1, required=True, type=_DIRECTORY)
@json_option
def list_(data: tuple[Path, ...], as_json: bool) -> None:
    """Show the logs that were set aside in data directories (log.dirs), and the reasons.

    The broker may be running.
    """
    found = [stray for path in data for stray in stored.list_strays(Files(), _data_directory(path))]
    if as_json:
        print_json([_document(stray) for stray in found])
        return
    if not found:
        click.echo("no logs were set aside")
        return
    rows = [
        (
            stray.path,
            str(stray.partition),
            bytes_text(stray.size_bytes),
            stray.note.time if stray.note else "unknown",
            stray.note.reason if stray.note else "unknown: stray.metadata cannot be read",
        )
        for stray in found
    ]
    print_table(("DIRECTORY", "PARTITION", "SIZE", "SET ASIDE", "REASON"), rows)


def _document(stray: Stray) -> dict[str, object]:
    note = stray.note
    return {
        "path": stray.path,
        "topic": stray.partition.topic,
        "partition": stray.partition.partition,
        "topic_id": uuid_text(note.topic_id) if note and note.topic_id else None,
        "size_bytes": stray.size_bytes,
        "time": note.time if note else None,
        "reason": note.reason if note else None,
    }


@strays.command(
    epilog=examples("headrace log strays restore headrace-data/orders-0.5bd0...-stray"),
    short_help="Give stray logs their names back.",
)
@_strays_argument
def restore(paths: tuple[Path, ...]) -> None:
    """Rename logs back to their original names, for the next start of their broker.

    Nothing is overwritten: a partition that has a log in the same data directory is refused. The
    command does not know the broker's other data directories (log.dirs): if one of them has a log
    of the partition, the broker refuses to start, and says which of the two to move away. A start
    sets a log aside again if the metadata still does not know it.
    """
    for stray in [_stray(path) for path in paths]:
        path = stored.restore(Files(), os.path.dirname(stray.path), stray)
        click.echo(f"{stray.path} is {path} again; the broker opens it at its next start")


@strays.command(
    epilog=examples("headrace log strays discard headrace-data/orders-0.5bd0...-stray"),
    short_help="Delete stray logs.",
)
@_strays_argument
@yes_option
def discard(paths: tuple[Path, ...], yes: bool) -> None:
    """Delete logs for good that were set aside. The broker may be running."""
    found = [_stray(path) for path in paths]
    if not yes:
        confirm_deletion(" and ".join(stray.path for stray in found))
    for stray in found:
        stored.discard(Files(), stray)
        click.echo(f"{stray.path} is deleted")


@strays.command(
    "set-aside",
    epilog=examples("headrace log strays set-aside headrace-data orders-0"),
    short_help="Set a log aside by hand.",
)
@_data_argument
@_partition_argument
def set_aside(data: Path, partition: str) -> None:
    """Set aside the log of a partition of a stopped broker.

    The broker fetches it again from another replica when it starts.
    """
    files, directory, name = Files(), _data_directory(data), _partition(partition)
    with _stopped(files, directory):
        path = f"{directory}/{name}"
        if not files.exists(path):
            raise NotBrokerFile(
                f"{path} does not exist",
                advice=f"`ls {shlex.quote(directory)}` shows the logs there are",
            )
        note = StrayNote(
            name,
            read_topic_id(files, path),
            "it was set aside by hand",
            stored.time_text(SystemClock().now_ms()),
        )
        aside = stored.rename_aside(files, directory, note, os.urandom(16))
    click.echo(f"{path} is {aside} now")


@strays.command(
    epilog=examples("headrace log strays forget headrace-data orders-0"),
    short_help="Give up a log that is lost.",
)
@_data_argument
@_partition_argument
def forget(data: Path, partition: str) -> None:
    """Give up the lost log of a partition that has no other replica.

    The broker, which must be stopped, no longer expects the log and creates an empty one when it
    starts.
    """
    files, directory, name = Files(), _data_directory(data), _partition(partition)
    with _stopped(files, directory):
        if files.exists(f"{directory}/{name}"):
            command = f"headrace log strays set-aside {shlex.quote(directory)} {name}"
            raise NotBrokerFile(
                f"{directory}/{name} exists, so it is not lost",
                advice=f"to begin with an empty log all the same, run `{command}` first",
            )
        if not stored.forget(files, directory, name):
            raise NotBrokerFile(f"{directory} expects no log of {name}; nothing is to be given up")
    click.echo(f"{directory} expects no log of {name} any more")


def _data_directory(path: Path) -> str:
    if not (path / META_PROPERTIES).exists():
        raise NotBrokerFile(
            f"{path} is no data directory of a broker", advice="give one of its log.dirs"
        )
    return str(path.absolute())


def _partition(text: str) -> TopicPartition:
    name = parse_log_name(text)
    if name is None or name == METADATA_LOG:
        raise click.BadParameter(f"{text!r} is no partition; give TOPIC-NUMBER, such as orders-0.")
    return name


def _stray(path: Path) -> Stray:
    wanted = str(path.absolute())
    directory = Path(wanted).parent
    if directory.is_dir():
        for stray in stored.list_strays(Files(), str(directory)):
            if stray.path == wanted:
                return stray
    command = f"headrace log strays list {shlex.quote(str(directory))}"
    raise NotBrokerFile(f"{path} is no log that was set aside", advice=f"`{command}` shows them")


@contextmanager
def _stopped(files: Files, directory: str) -> Iterator[None]:
    """Hold the directory's lock, so that no broker starts; NotBrokerFile if one runs."""
    lock = files.lock(f"{directory}/{LOCK}")
    if lock is None:
        raise NotBrokerFile(f"{directory} is in use by a running broker", advice="stop it first")
    try:
        yield
    finally:
        lock.release()
