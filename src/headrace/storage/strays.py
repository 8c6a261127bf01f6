"""Stray logs, set aside in their data directory as `<topic>-<partition>.<id>-stray`.

Rule: a start deletes no log. A log that is not in the metadata, or that cannot be used, gets
another name and a note with the reason; an operator decides whether to restore or delete it.
"""

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import StorageError
from headrace.storage.checkpoints import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    RECOVERY_POINTS,
    decode_offsets,
    encode_offsets,
)
from headrace.storage.data_directory import NAME_BYTES_MAX, parse_log_name
from headrace.storage.files import Files
from headrace.storage.log_start_offsets import (
    read_log_start_offsets,
    write_log_start_offsets,
)
from headrace.types import TopicPartition, parse_uuid, uuid_text

STRAY_SUFFIX = "-stray"
STRAY_METADATA = "stray.metadata"

_VERSION = "0"
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StrayNote:
    """The note beside the files of a stray log: its partition, and why it was set aside."""

    partition: TopicPartition
    topic_id: bytes | None
    reason: str
    time: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A log that was set aside. `note` is None if its file is missing or cannot be read."""

    path: str
    partition: TopicPartition
    note: StrayNote | None
    size_bytes: int


def encode_note(note: StrayNote) -> bytes:
    """The content of `stray.metadata`, in a format like that of Kafka's `partition.metadata`."""
    topic_id = _UNKNOWN if note.topic_id is None else uuid_text(note.topic_id)
    fields = {
        "version": _VERSION,
        "topic": note.partition.topic,
        "partition": str(note.partition.partition),
        "topic_id": topic_id,
        "reason": " ".join(note.reason.split()),
        "time": note.time,
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items()).encode()


def decode_note(data: bytes) -> StrayNote:
    """The inverse of `encode_note`; ValueError for anything else."""
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines())
    try:
        if fields["version"] != _VERSION:
            raise ValueError(f"not a {STRAY_METADATA} of version {_VERSION}: {fields}")
        topic_id = fields["topic_id"]
        return StrayNote(
            TopicPartition(fields["topic"], int(fields["partition"])),
            None if topic_id == _UNKNOWN else parse_uuid(topic_id),
            fields["reason"],
            fields["time"],
        )
    except KeyError as error:
        raise ValueError(f"{STRAY_METADATA} has no {error}") from error


def time_text(now_ms: int) -> str:
    """The text of a time in a note: UTC, to the second."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stray_name(partition: TopicPartition, unique: bytes) -> str:
    """The name of a stray log's directory; a topic's name that is too long is cut."""
    tail = f"-{partition.partition}.{unique.hex()}{STRAY_SUFFIX}"
    return f"{partition.topic[: NAME_BYTES_MAX - len(tail)]}{tail}"


def parse_stray_name(name: str) -> TopicPartition | None:
    """The partition in the name of a stray log, perhaps cut; None for any other name."""
    stem, _, tail = name.rpartition(".")
    return parse_log_name(stem) if tail.endswith(STRAY_SUFFIX) else None


def rename_aside(
    files: Files, data_directory: str, note: StrayNote, unique: bytes, path: str | None = None
) -> str:
    """Set a log aside; return its new path. After a StorageError it is still in place.

    `path` is that of the log, if it does not have the name of its partition.
    """
    path = path or f"{data_directory}/{note.partition}"
    aside = f"{data_directory}/{stray_name(note.partition, note.topic_id or unique)}"
    if files.exists(aside):
        aside = f"{data_directory}/{stray_name(note.partition, unique)}"
    files.write_atomically(f"{path}/{STRAY_METADATA}", encode_note(note), sync=False)
    files.rename(path, aside)
    # Else a crash could undo the rename, although a new log has been made since.
    files.sync_directory(data_directory)
    return aside


def list_strays(files: Files, data_directory: str) -> list[Stray]:
    """The stray logs in a data directory, by name."""
    strays = []
    for name in files.list_directories(data_directory):
        partition = parse_stray_name(name)
        if partition is None:
            continue
        path = f"{data_directory}/{name}"
        note = _read_note(files, path)
        size_bytes = sum(files.file_sizes(path).values())
        named = partition if note is None else note.partition
        strays.append(Stray(path, named, note, size_bytes))
    return strays


def _read_note(files: Files, path: str) -> StrayNote | None:
    data = files.read_bytes(f"{path}/{STRAY_METADATA}")
    try:
        return decode_note(data) if data else None
    except ValueError:
        return None


def restore(files: Files, data_directory: str, stray: Stray) -> str:
    """Rename a stray log back, for the next start of the broker; return its new path.

    StorageError if the partition has a log there.
    """
    path = f"{data_directory}/{stray.partition}"
    if files.exists(path):
        command = f"headrace log strays set-aside {shlex.quote(data_directory)} {stray.partition}"
        raise StorageError(
            f"{path} is there already, so {stray.path} cannot have that name: stop the broker and"
            f" run `{command}` first"
        )
    files.remove(f"{stray.path}/{STRAY_METADATA}")
    files.rename(stray.path, path)
    files.sync_directory(data_directory)
    return path


def discard(files: Files, stray: Stray) -> None:
    """Delete a stray log for good."""
    files.remove_tree(stray.path)


def forget(files: Files, data_directory: str, partition: TopicPartition) -> bool:
    """Remove a partition from the checkpoints of a stopped broker; return whether it was in any.

    The broker then makes a new log: the records of the lost log are given up.
    """
    known = False
    starts, _ = read_log_start_offsets(files, data_directory)
    if starts.pop(partition, None) is not None:
        known = True
        write_log_start_offsets(files, data_directory, starts)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS, CLEAN_OFFSETS):
        path = f"{data_directory}/{name}"
        data = files.read_bytes(path)
        try:
            offsets = decode_offsets(data) if data is not None else {}
        except ValueError:
            continue  # The broker does not use a damaged checkpoint either.
        if offsets.pop(partition, None) is not None:
            known = True
            files.write_atomically(path, encode_offsets(offsets))
    return known
