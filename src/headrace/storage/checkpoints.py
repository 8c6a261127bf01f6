"""Formats of the checkpoints and other small text files beside the logs, as Kafka writes them.

Rule: these functions encode and decode, and open no file. A file in the wrong format raises
`ValueError`; the caller knows whether that is fatal or the file can be rebuilt.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.protocol.batch import crc32c
from headrace.types import TopicPartition, parse_uuid, uuid_text

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
# Not in Kafka: the sizes of a log's files when it was closed, or when it last rolled a segment.
SEGMENT_SIZES = "segment-checkpoint"
# Not in Kafka: the boot id of the machine when a data directory was last written to.
BOOT_ID = "boot-id"
# Not in Kafka: the recovery point of a log, in the log's own directory.
FLUSHED_OFFSET = "flushed-offset"
# Not in Kafka: the offset below which segments of a log may be gone, beside the log.
LOG_START = "log-start-offset"
# Not in Kafka: beside the log of a replica that is about to continue in another data directory.
MOVE_METADATA = "move.metadata"
META_PROPERTIES = "meta.properties"
# Not in Kafka: a copy, because a directory that loses its id is new, and its logs count as lost.
META_COPY = "meta.properties.copy"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = "0"
_META_VERSION = "1"
_META_CHECKSUM = "headrace.checksum"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a data directory: its cluster and node, and the id of the directory."""

    cluster_id: str
    node_id: int
    directory_id: bytes


class SegmentSizes(NamedTuple):
    """The sizes of a segment's files, and a checksum of its index of aborted transactions.

    That index must be complete, and no other file shows whether it is.
    """

    base_offset: int
    size: int
    index_size: int
    time_index_size: int
    aborted_size: int
    aborted_crc: int


def encode_segment_sizes(segments: Iterable[SegmentSizes]) -> bytes:
    """The content of a segment checkpoint: a line for each segment, and a checksum."""
    content = _encode_lines([" ".join(map(str, segment)) for segment in segments])
    return content + f"{crc32c(content)}\n".encode()


def decode_segment_sizes(data: bytes) -> list[SegmentSizes]:
    """The inverse of `encode_segment_sizes`."""
    end = data.rstrip(b"\n").rfind(b"\n") + 1
    if _natural(data[end:].decode().strip()) != crc32c(data[:end]):
        raise ValueError("the checksum of the segment checkpoint does not match its content")
    return [SegmentSizes(*map(_natural, line.split(" "))) for line in _decode_lines(data[:end])]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The content of an offset checkpoint: a version, a count, a line for each partition."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return _encode_lines(sorted(lines))


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """The inverse of `encode_offsets`."""
    offsets = {}
    for line in _decode_lines(data):
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, _natural(partition))] = _natural(offset)
    return offsets


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """The content of a leader epoch checkpoint: a line for each epoch with its start offset."""
    return _encode_lines([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """The inverse of `encode_epochs`; the entries must rise in epoch and in offset."""
    entries: list[tuple[int, int]] = []
    for line in _decode_lines(data):
        epoch, start_offset = line.split(" ")
        entry = (_natural(epoch), _natural(start_offset))
        if entries and (entry[0] <= entries[-1][0] or entry[1] < entries[-1][1]):
            raise ValueError(f"epoch {entry[0]} at {entry[1]} follows {entries[-1]}")
        entries.append(entry)
    return entries


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """The content of `partition.metadata`: the id of the topic that a log belongs to."""
    return f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """The topic id in `partition.metadata`."""
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines())
    if fields.get("version") != _VERSION or "topic_id" not in fields:
        raise ValueError(f"not a partition.metadata of version {_VERSION}: {fields}")
    return parse_uuid(fields["topic_id"])


def encode_move_metadata(directory_id: bytes) -> bytes:
    """The content of `move.metadata`: the id of the data directory that a replica moves to."""
    return f"version: {_VERSION}\ndirectory_id: {uuid_text(directory_id)}\n".encode()


def decode_move_metadata(data: bytes) -> bytes:
    """The directory id in `move.metadata`."""
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines())
    if fields.get("version") != _VERSION or "directory_id" not in fields:
        raise ValueError(f"not a move.metadata of version {_VERSION}: {fields}")
    return parse_uuid(fields["directory_id"])


def encode_meta(meta: MetaProperties) -> bytes:
    """The content of `meta.properties`. The checksum is not Kafka's, which ignores it."""
    properties = (
        "#\n"
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={uuid_text(meta.directory_id)}\n"
        f"node.id={meta.node_id}\n"
        f"version={_META_VERSION}\n"
    )
    return properties.encode() + encode_meta_checksum(meta)


def encode_meta_checksum(meta: MetaProperties) -> bytes:
    """The checksum line of `meta.properties`: damage to an id would not show otherwise."""
    return f"{_META_CHECKSUM}={_meta_checksum(meta)}\n".encode()


def _meta_checksum(meta: MetaProperties) -> str:
    fields = (meta.cluster_id, uuid_text(meta.directory_id), str(meta.node_id), _META_VERSION)
    return f"{crc32c(' '.join(fields).encode()):08x}"


def has_meta_checksum(data: bytes) -> bool:
    """Whether a `meta.properties` that can be decoded has a checksum line."""
    return _META_CHECKSUM in _meta_fields(data)


def _meta_fields(data: bytes) -> dict[str, str]:
    lines = (line.strip() for line in data.decode().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def decode_meta(data: bytes) -> MetaProperties:
    """The inverse of `encode_meta`; unknown properties are ignored.

    A file written by Kafka has no checksum.
    """
    fields = _meta_fields(data)
    if fields.get("version") != _META_VERSION:
        raise ValueError(f"version is {fields.get('version')!r}, expected {_META_VERSION}")
    missing = [name for name in ("cluster.id", "node.id", "directory.id") if not fields.get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    meta = MetaProperties(
        cluster_id=fields["cluster.id"],
        node_id=_natural(fields["node.id"]),
        directory_id=parse_uuid(fields["directory.id"]),
    )
    if fields.get(_META_CHECKSUM, _meta_checksum(meta)) != _meta_checksum(meta):
        raise ValueError(f"its {_META_CHECKSUM} is not that of its content")
    return meta


def encode_clean_shutdown(broker_epoch: int = -1) -> bytes:
    """The content of the clean-shutdown marker: the broker epoch of the run that wrote it.

    The marker counts by its existence; the epoch of a broker that never registered is -1.
    """
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch in the clean-shutdown marker."""
    epoch = json.loads(data)["brokerEpoch"]
    if not isinstance(epoch, int) or epoch < -1:
        raise ValueError(f"not a broker epoch: {epoch!r}")
    return epoch


def _encode_lines(lines: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def _decode_lines(data: bytes) -> list[str]:
    version, count, *lines = data.decode().splitlines()
    if version != _VERSION:
        raise ValueError(f"checkpoint version is {version!r}, expected {_VERSION}")
    if len(lines) != _natural(count):
        raise ValueError(f"checkpoint has {len(lines)} lines and claims {count}")
    return lines


def _natural(text: str) -> int:
    """A natural number; unlike `int`, without sign, spaces or underscores."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"not a number: {text!r}")
    return int(text)
