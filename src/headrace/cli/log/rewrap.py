"""`headrace log rewrap`: the data keys of encrypted records, wrapped by the current key."""

import os
from pathlib import Path

import click

from headrace.cli.log.dump import NotBrokerFile, keyring_of
from headrace.cli.options import examples
from headrace.errors import CorruptBatch, MissingKey
from headrace.security.batch_encryption import BatchEncryption
from headrace.storage.data_directory import LOCK
from headrace.storage.files import Files
from headrace.storage.log_encryption import rewrap_segment
from headrace.storage.stored_logs import stored_partitions, stored_segments


@click.command(
    epilog=examples("headrace log rewrap headrace-data --keys file:/etc/headrace/keys"),
    short_help="Wrap the keys of encrypted records anew.",
)
@click.argument(
    "directories",
    metavar="DATA...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
)
@click.option("--keys", metavar="SOURCE", required=True, help="The keys, old and new.")
@click.option("--key-id", default="", help="The key to wrap with; without it the last one.")
def rewrap(directories: tuple[Path, ...], keys: str, key_id: str) -> int:
    """Wrap the data keys in data directories of a stopped broker by the current key.

    No record is decrypted. Once every broker is done, the old key can be removed from the source.
    What cannot be done is told, left as it is, and makes the exit status 1.
    """
    encryption = BatchEncryption(keyring_of(keys, key_id), os.urandom)
    problems = 0
    for directory in directories:
        problems += _rewrap_directory(str(directory), encryption)
    return 1 if problems else 0


def _rewrap_directory(directory: str, encryption: BatchEncryption) -> int:
    files = Files()
    if not files.exists(directory):
        raise NotBrokerFile(
            f"{directory} does not exist", advice="give a data directory (log.dirs)"
        )
    lock = files.lock(f"{directory}/{LOCK}")
    if lock is None:
        raise NotBrokerFile(f"a broker uses {directory}", advice="stop it first")
    batches = changed = problems = 0
    try:
        for partition, path in stored_partitions(directory).items():
            for segment in stored_segments(path):
                try:
                    result = rewrap_segment(files, segment, encryption)
                except (CorruptBatch, MissingKey) as error:
                    problems += 1
                    click.echo(f"headrace: {partition}: {segment.log_path}: {error}", err=True)
                    continue
                batches += result.encrypted
                changed += result.changed
            files.sync_directory(path)
    finally:
        lock.release()
    click.echo(
        f"{directory}: {changed:,} of {batches:,} encrypted batches"
        f" are wrapped anew, by {encryption.keyring.current}"
    )
    return problems
