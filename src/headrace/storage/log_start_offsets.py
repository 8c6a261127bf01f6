"""`log-start-offset-checkpoint` and its copy: where logs begin that had records deleted.

Rule: records below a log's start are as good as deleted, so a wrong number is never believed.
Kafka's file has room for no checksum; the copy beside it has one, and is written first. Where the
two differ and the copy is sound, the copy is right.
"""

from collections.abc import Mapping

from headrace.protocol.batch import crc32c
from headrace.storage.checkpoints import LOG_START_OFFSETS, decode_offsets, encode_offsets
from headrace.storage.files import Files
from headrace.types import TopicPartition

# Not one of Kafka's.
LOG_START_OFFSETS_COPY = f"{LOG_START_OFFSETS}.copy"
_SHOWN_MAX = 3


def encode_copy(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The checkpoint with a checksum of it in a last line."""
    content = encode_offsets(offsets)
    return content + b"%08x\n" % crc32c(content)


def decode_copy(data: bytes) -> dict[TopicPartition, int]:
    """The inverse of `encode_copy`; ValueError for anything else."""
    offsets = decode_offsets(data[: data.rstrip(b"\n").rfind(b"\n") + 1])
    if data != encode_copy(offsets):
        raise ValueError(f"the checksum of {LOG_START_OFFSETS_COPY} is not that of its content")
    return offsets


def read_log_start_offsets(
    files: Files, directory: str
) -> tuple[dict[TopicPartition, int], str | None]:
    """The log start offsets of a data directory, and what is wrong with its files, if anything.

    A problem of "" is that there is no copy yet, as in a directory of Kafka's.
    """
    path = f"{directory}/{LOG_START_OFFSETS}"
    data, copy_data = (
        files.read_bytes(one) for one in (path, f"{directory}/{LOG_START_OFFSETS_COPY}")
    )
    try:
        found = None if data is None else decode_offsets(data)
        problem = f"{path} is missing"
    except ValueError as error:
        found, problem = None, f"{path} is damaged: {error}"
    try:
        copy = None if copy_data is None else decode_copy(copy_data)
    except ValueError as error:
        return found or {}, f"{path}.copy is damaged: {error}; it is made again"
    if copy is None:
        if found is None and data is not None:
            return {}, f"{problem}; it has no copy, so logs begin with their first segments"
        return found or {}, "" if found else None
    if found == copy:
        return copy, None
    if found is not None:
        problem = f"{path} is wrong: {_differences(found, copy)}"
    return copy, f"{problem}; it is made again from its copy"


def write_log_start_offsets(
    files: Files, directory: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace the checkpoint and its copy, durably."""
    files.write_atomically(f"{directory}/{LOG_START_OFFSETS_COPY}", encode_copy(offsets))
    files.write_atomically(f"{directory}/{LOG_START_OFFSETS}", encode_offsets(offsets))


def _differences(found: Mapping[TopicPartition, int], copy: Mapping[TopicPartition, int]) -> str:
    names = sorted(one for one in {*found, *copy} if found.get(one, 0) != copy.get(one, 0))
    shown = [f"{one} at {found.get(one, 0)} is {copy.get(one, 0)}" for one in names[:_SHOWN_MAX]]
    return ", ".join(shown) + (", ..." if len(names) > _SHOWN_MAX else "")
