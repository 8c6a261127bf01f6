"""What the files of a log hold, as plain documents: one for each batch, entry or producer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from headrace.cli.formats import content
from headrace.cli.log.files import (
    Kind,
    base_offset_of,
    index_entries,
    kind_of,
    open_segment,
    read_small,
)
from headrace.errors import CorruptBatch
from headrace.metadata.control_records import decode_control_record
from headrace.metadata.records import MetadataError, decode_record
from headrace.metadata.snapshot_batches import SnapshotContent
from headrace.protocol.compression import Compression
from headrace.protocol.markers import decode_marker
from headrace.protocol.records import BatchHeader, Record, decode_rows, scan_headers
from headrace.storage.aborted_index import aborted_size_fits, decode_aborted
from headrace.storage.checkpoints import (
    decode_epochs,
    decode_meta,
    decode_offsets,
    decode_partition_metadata,
)
from headrace.storage.index import DamagedIndex
from headrace.storage.producers import Producers
from headrace.storage.quorum_state import decode_quorum_state
from headrace.types import Buffer, uuid_text

Document: TypeAlias = dict[str, Any]

# Where the cluster's metadata lies, whose values are records of their own kind.
METADATA_DIRECTORY = "__cluster_metadata-0"


def dump_file(path: Path, *, with_records: bool) -> Iterator[Document]:
    """Documents of one file, each with its `kind`; a `problem` where the file cannot be right."""
    try:
        match kind_of(path):
            case Kind.LOG:
                yield from _dump_segment(path, with_records)
            case Kind.INDEX | Kind.TIME_INDEX:
                yield from _dump_index(path)
            case Kind.ABORTED:
                yield from _dump_aborted(path)
            case Kind.SNAPSHOT:
                yield from _dump_snapshot(path)
            case Kind.EPOCHS:
                for epoch, start_offset in decode_epochs(read_small(path)):
                    yield {"kind": "leader_epoch", "epoch": epoch, "start_offset": start_offset}
            case Kind.OFFSETS:
                for tp, offset in decode_offsets(read_small(path)).items():
                    yield {"kind": "offset", **tp._asdict(), "offset": offset}
            case Kind.PARTITION:
                topic_id = uuid_text(decode_partition_metadata(read_small(path)))
                yield {"kind": "partition", "topic_id": topic_id}
            case Kind.QUORUM:
                yield {"kind": "quorum", **decode_quorum_state(read_small(path))._asdict()}
            case Kind.METADATA:
                yield from _dump_metadata_snapshot(read_small(path), with_records)
            case Kind.META:
                meta = decode_meta(read_small(path))
                yield {
                    "kind": "meta",
                    "cluster_id": meta.cluster_id,
                    "node_id": meta.node_id,
                    "directory_id": uuid_text(meta.directory_id),
                }
    except (ValueError, CorruptBatch, DamagedIndex, MetadataError) as error:
        yield {"kind": "problem", "problem": str(error)}


def _dump_segment(path: Path, with_records: bool) -> Iterator[Document]:
    segment = open_segment(path)
    is_metadata = path.parent.name == METADATA_DIRECTORY
    for header, buffer, position in segment.batches(0, segment.size):
        yield batch_document(header, position)
        if with_records:
            yield from _dump_records(buffer, header, position, is_metadata)


def _dump_records(
    buffer: Buffer, header: BatchHeader, position: int, is_metadata: bool
) -> Iterator[Document]:
    try:
        records = decode_rows(buffer, header)
    except CorruptBatch as error:
        # The header says where the next batch is, so this one does not end the dump.
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
    """What a control record says of its producer's transaction."""
    try:
        marker = decode_marker(buffer, header)
    except CorruptBatch as error:
        return f"unreadable: {error}"
    if marker is None:
        return "unknown control record"
    word = "commit" if marker.committed else "abort"
    return f"{word}, coordinator epoch {marker.coordinator_epoch}"


def _metadata_text(record: Record, is_control: bool) -> str:
    """What a record of the cluster's metadata says."""
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
    """A batch by its header."""
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
        "crc": header.crc,
    }


def record_document(record: Record) -> Document:
    """A record as it is."""
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
        if kind_of(path) is Kind.INDEX:
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
    producers = Producers()
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
