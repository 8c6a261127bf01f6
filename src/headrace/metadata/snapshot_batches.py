"""The content of a snapshot file: a header, who votes, the records of an image, and a footer.

Rule: a snapshot without its footer is not whole. Offsets in it count its own records from 0.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.errors import CorruptBatch
from headrace.metadata.control_records import decode_control_batch, encode_control_batch
from headrace.metadata.features import METADATA_VERSION_MAX
from headrace.metadata.records import MetadataError, decode_record, encode_record
from headrace.protocol.messages.quorum_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from headrace.protocol.records import assign, check_batch, decode_rows, encode_batch, scan_headers
from headrace.protocol.schema import Message

_RECORDS_PER_BATCH = 1024


def encode_snapshot(
    records: Iterable[Message],
    voters: VotersRecord | None,
    *,
    epoch: int,
    now_ms: int,
    metadata_version: int = METADATA_VERSION_MAX,
) -> Iterator[bytearray]:
    """The batches of a snapshot, in order; without voters those of the configuration hold."""
    offset = 0
    for batch in _batches(records, voters, now_ms, metadata_version):
        (header,) = scan_headers(batch)
        assign(batch, header, offset, epoch)
        offset = header.next_offset
        yield batch


def _batches(
    records: Iterable[Message], voters: VotersRecord | None, now_ms: int, metadata_version: int
) -> Iterator[bytearray]:
    head: list[Message] = [SnapshotHeaderRecord(last_contained_log_timestamp=now_ms)]
    if voters is not None:
        head += [KRaftVersionRecord(k_raft_version=1), voters]
    yield encode_control_batch(head, now_ms)
    rest = iter(records)
    while rows := [
        (now_ms, None, encode_record(record, metadata_version), ())
        for record in islice(rest, _RECORDS_PER_BATCH)
    ]:
        yield encode_batch(rows)
    yield encode_control_batch([SnapshotFooterRecord()], now_ms)


class SnapshotContent:
    """What a snapshot file says: `voters`, and `records` one after another.

    MetadataError if it is cut short, damaged or of a version that knows more.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.voters: VotersRecord | None = None
        try:
            self._headers = scan_headers(data)
            for header in self._headers:
                check_batch(data, header)
        except CorruptBatch as error:
            raise MetadataError(f"the snapshot is damaged: {error}") from error
        whole = False
        for header in self._headers:
            if header.is_control:
                for message in decode_control_batch(data, header):
                    whole = isinstance(message, SnapshotFooterRecord)
                    if isinstance(message, VotersRecord):
                        self.voters = message
        end = self._headers[-1].position + self._headers[-1].size if self._headers else 0
        if not whole or end != len(data):
            raise MetadataError("the snapshot is cut short")

    def records(self) -> Iterator[Message]:
        """The records of the image."""
        for header in self._headers:
            if not header.is_control:
                for row in decode_rows(self._data, header):
                    if row.value is not None:
                        yield decode_record(row.value)
