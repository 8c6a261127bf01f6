"""Contents of the files of a data directory, as documents: a batch, an entry, a producer."""

import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from headrace.cli.output import content
from headrace.errors import CorruptBatch, HeadraceError, MissingKey
from headrace.metadata.records import MetadataError, decode_control_record, decode_record
from headrace.metadata.snapshot import SnapshotContent
from headrace.protocol.batch import BatchHeader, read_header, scan_headers
from headrace.protocol.compression import Compression
from headrace.protocol.markers import decode_marker
from headrace.protocol.records import Record, decode_rows
from headrace.security.batch_encryption import BatchEncryption, check_value_of
from headrace.security.keyring import NO_KEYS, Keyring
from headrace.storage import stored_logs
from headrace.storage.aborted_index import ABORTED_SUFFIX, aborted_size_fits, decode_aborted
from headrace.storage.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    decode_epochs,
    decode_meta,
    decode_offsets,
    decode_partition_metadata,
)
from headrace.storage.index import OFFSET_ENTRY, TIME_ENTRY, DamagedIndex
from headrace.storage.key_sources import read_keyring
from headrace.storage.metadata_log import QUORUM_STATE, decode_quorum_state, parse_snapshot_name
from headrace.storage.producer_state import SUFFIX as SNAPSHOT_SUFFIX
from headrace.storage.producer_state import ProducerStates
from headrace.storage.recovery import read_topic_id
from headrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from headrace.storage.stored_logs import FILES
from headrace.types import Buffer, uuid_text


class NotBrokerFile(HeadraceError):
    """A path that is not a file of a broker; the text says which paths are."""


class LogFileType(Enum):
    """The types of files, in the order of display for a directory."""

    META = "meta properties"
    OFFSETS = "offset checkpoint"
    PARTITION = "partition metadata"
    EPOCHS = "leader epochs"
    LOG = "segment"
    INDEX = "offset index"
    TIME_INDEX = "time index"
    ABORTED = "index of aborted transactions"
    SNAPSHOT = "producer snapshot"
    QUORUM = "quorum state"
    METADATA = "metadata snapshot"


_BY_NAME = {
    META_PROPERTIES: LogFileType.META,
    RECOVERY_POINTS: LogFileType.OFFSETS,
    LOG_START_OFFSETS: LogFileType.OFFSETS,
    HIGH_WATERMARKS: LogFileType.OFFSETS,
    PARTITION_METADATA: LogFileType.PARTITION,
    LEADER_EPOCHS: LogFileType.EPOCHS,
    QUORUM_STATE: LogFileType.QUORUM,
}
_BY_SUFFIX = {
    LOG_SUFFIX: LogFileType.LOG,
    INDEX_SUFFIX: LogFileType.INDEX,
    TIME_INDEX_SUFFIX: LogFileType.TIME_INDEX,
    ABORTED_SUFFIX: LogFileType.ABORTED,
    SNAPSHOT_SUFFIX: LogFileType.SNAPSHOT,
}


def kind_of(path: Path) -> LogFileType | None:
    """The type of a file by its name, or None."""
    named = _BY_NAME.get(path.name)
    if named is not None:
        return named
    if parse_snapshot_name(path.name) is not None:
        return LogFileType.METADATA
    kind = _BY_SUFFIX.get(path.suffix)
    return kind if kind is not None and base_offset_of(path) is not None else None


def keyring_of(source: str, key_id: str = "") -> Keyring:
    """The keys of `--keys`."""
    return read_keyring(source, key_id)


class SegmentEncryption(NamedTuple):
    """The decryptor of the batches of a segment; its errors become errors of the batches."""

    keys: BatchEncryption
    topic_id: bytes | None

    def decrypt_batch(self, data: Buffer, header: BatchHeader) -> bytearray:
        """A batch, opened; MissingKey or CorruptBatch if it does not open."""
        return self.keys.decrypt_batch(data, header, self.topic_id)


def base_offset_of(path: Path) -> int | None:
    """The offset in a file's name: twenty digits."""
    return stored_logs.base_offset_of(path.stem)


def expand(path: Path) -> list[Path]:
    """The files of a path: one file, those of a partition, or those of a data directory."""
    if not path.is_dir():
        if not path.exists():
            raise NotBrokerFile(
                f"{path} does not exist", advice="give a file or directory of a broker's data"
            )
        if kind_of(path) is None:
            raise NotBrokerFile(
                f"{path} is no file of a log",
                advice=(
                    "give a .log, .index, .timeindex, .txnindex, .snapshot"
                    " or checkpoint file, or a directory of them"
                ),
            )
        return [path]
    found = _known_files(path)
    for directory in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        found += _known_files(directory)
    if not found:
        raise NotBrokerFile(
            f"{path} holds no log files",
            advice="give a partition's directory, such as DATA/orders-0",
        )
    return found


def _known_files(directory: Path) -> list[Path]:
    order = list(LogFileType)
    found = [(kind_of(entry), entry) for entry in directory.iterdir() if entry.is_file()]
    known = [(order.index(kind), entry) for kind, entry in found if kind is not None]
    return [entry for _, entry in sorted(known)]


def open_segment(log_path: Path) -> Segment:
    """The segment of a `.log` file."""
    base_offset = base_offset_of(log_path)
    assert base_offset is not None, log_path
    size = FILES.open(str(log_path)).size()
    return stored_logs.open_segment(str(log_path.parent), base_offset, (size, 0, 0))


def read_small(path: Path) -> bytes:
    """The whole content of a file; for all but segments, which may be large."""
    data = FILES.read_bytes(str(path))
    if data is None:
        raise NotBrokerFile(f"{path} does not exist; it was removed a moment ago")
    return data


def index_entries(path: Path) -> tuple[list[tuple[int, int]], int]:
    """The entries of an index, and the number of bytes after the last whole one.

    Kafka preallocates the index of an active segment: zeros at the end are not entries.
    """
    layout: Struct = OFFSET_ENTRY if path.suffix == INDEX_SUFFIX else TIME_ENTRY
    data = read_small(path)
    whole = len(data) - len(data) % layout.size
    entries: list[tuple[int, int]] = list(layout.iter_unpack(memoryview(data)[:whole]))
    while len(entries) > 1 and entries[-1] == (0, 0):
        entries.pop()
    return entries, len(data) - whole


Document: TypeAlias = dict[str, Any]

# The directory of the cluster's metadata, whose records have their own format.
METADATA_DIRECTORY = "__cluster_metadata-0"


def dump_file(path: Path, *, with_records: bool, keyring: Keyring = NO_KEYS) -> Iterator[Document]:
    """Documents of one file, each with its `kind`; a `problem` where the file cannot be right.

    `keyring` opens encrypted batches.
    """
    try:
        match kind_of(path):
            case LogFileType.LOG:
                yield from _dump_segment(path, with_records, keyring)
            case LogFileType.INDEX | LogFileType.TIME_INDEX:
                yield from _dump_index(path)
            case LogFileType.ABORTED:
                yield from _dump_aborted(path)
            case LogFileType.SNAPSHOT:
                yield from _dump_snapshot(path)
            case LogFileType.EPOCHS:
                for epoch, start_offset in decode_epochs(read_small(path)):
                    yield {"kind": "leader_epoch", "epoch": epoch, "start_offset": start_offset}
            case LogFileType.OFFSETS:
                for tp, offset in decode_offsets(read_small(path)).items():
                    yield {"kind": "offset", **tp._asdict(), "offset": offset}
            case LogFileType.PARTITION:
                topic_id = uuid_text(decode_partition_metadata(read_small(path)))
                yield {"kind": "partition", "topic_id": topic_id}
            case LogFileType.QUORUM:
                yield {"kind": "quorum", **decode_quorum_state(read_small(path))._asdict()}
            case LogFileType.METADATA:
                yield from _dump_metadata_snapshot(read_small(path), with_records)
            case LogFileType.META:
                meta = decode_meta(read_small(path))
                yield {
                    "kind": "meta",
                    "cluster_id": meta.cluster_id,
                    "node_id": meta.node_id,
                    "directory_id": uuid_text(meta.directory_id),
                }
    except (ValueError, CorruptBatch, DamagedIndex, MetadataError) as error:
        yield {"kind": "problem", "problem": str(error)}


def _dump_segment(path: Path, with_records: bool, keyring: Keyring) -> Iterator[Document]:
    segment = open_segment(path)
    is_metadata = path.parent.name == METADATA_DIRECTORY
    encryption = segment_encryption(path, keyring)
    for header, buffer, position in segment.batches(0, segment.size):
        document = batch_document(header, position)
        if header.is_encrypted:
            document["key_check_value"] = check_value_of(buffer, header).hex()
        yield document
        if not with_records:
            continue
        if not header.is_encrypted:
            yield from _dump_records(buffer, header, position, is_metadata)
            continue
        try:
            opened = encryption.decrypt_batch(buffer, header)
        except MissingKey as error:
            # Nothing is wrong with the file.
            yield {"kind": "encrypted", "reason": f"{error} (--keys)"}
        except CorruptBatch as error:
            yield {"kind": "problem", "position": position, "problem": str(error)}
        else:
            yield from _dump_records(opened, read_header(opened), position, is_metadata)


def segment_encryption(path: Path, keyring: Keyring) -> SegmentEncryption:
    """The decryptor of the batches of a segment, by the topic id beside it."""
    return SegmentEncryption(
        BatchEncryption(keyring, os.urandom), read_topic_id(FILES, str(path.parent))
    )


def _dump_records(
    buffer: Buffer, header: BatchHeader, position: int, is_metadata: bool
) -> Iterator[Document]:
    try:
        records = decode_rows(buffer, header)
    except CorruptBatch as error:
        # The header has the position of the next batch, so a bad batch does not end the dump.
        yield {"kind": "problem", "position": position, "problem": str(error)}
        return
    for record in records:
        document = record_document(record)
        if is_metadata:
            document["metadata"] = _metadata_text(record, header.is_control)
        elif header.is_control:
            document["marker"] = _marker_text(buffer, header)
        yield document


def _marker_text(buffer: Buffer, header: BatchHeader) -> str:
    """The text of a transaction marker: how its producer's transaction ended."""
    try:
        marker = decode_marker(buffer, header)
    except CorruptBatch as error:
        return f"unreadable: {error}"
    if marker is None:
        return "unknown control record"
    word = "commit" if marker.committed else "abort"
    return f"{word}, coordinator epoch {marker.coordinator_epoch}"


def _metadata_text(record: Record, is_control: bool) -> str:
    """The text of a record of the cluster's metadata."""
    try:
        if is_control:
            return repr(decode_control_record(record) or "unknown control record")
        return repr(None if record.value is None else decode_record(record.value))
    except MetadataError as error:
        return f"unreadable: {error}"


def _dump_metadata_snapshot(data: bytes, with_records: bool) -> Iterator[Document]:
    for header in scan_headers(data):
        yield batch_document(header, header.position)
        if with_records:
            yield from _dump_records(data, header, header.position, True)
    SnapshotContent(data)


def batch_document(header: BatchHeader, position: int) -> Document:
    """The document of a batch, from its header."""
    try:
        compression = Compression(header.compression).name.lower()
    except ValueError:
        compression = f"codec {header.compression}"
    return {
        "kind": "batch",
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size": header.size,
        "compression": compression,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "encrypted": header.is_encrypted,
        "crc": header.crc,
    }


def record_document(record: Record) -> Document:
    """The document of a record."""
    return {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        **content("key", record.key),
        **content("value", record.value),
        "headers": [{"name": name, **content("value", value)} for name, value in record.headers],
    }


def _dump_index(path: Path) -> Iterator[Document]:
    base_offset = base_offset_of(path)
    assert base_offset is not None, path
    entries, left_over = index_entries(path)
    for first, second in entries:
        if kind_of(path) is LogFileType.INDEX:
            yield {"kind": "index_entry", "offset": base_offset + first, "position": second}
        else:
            yield {"kind": "time_entry", "timestamp": first, "offset": base_offset + second}
    if left_over:
        yield {"kind": "problem", "problem": f"{left_over} bytes after the last whole entry"}


def _dump_aborted(path: Path) -> Iterator[Document]:
    data = read_small(path)
    for entry in decode_aborted(data, str(path)):
        yield {"kind": "aborted", **entry._asdict()}
    if not aborted_size_fits(len(data)):
        yield {"kind": "problem", "problem": f"{len(data)} bytes are not whole entries"}


def _dump_snapshot(path: Path) -> Iterator[Document]:
    producers = ProducerStates()
    producers.load_snapshot(read_small(path))
    for producer_id, producer in producers:
        last = producer.batches[-1] if producer.batches else None
        yield {
            "kind": "producer",
            "producer_id": producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": producer.last_sequence,
            "last_offset": last.last_offset if last else -1,
            "timestamp": producer.timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_first_offset": producer.transaction_first_offset,
        }
