"""Transactions in tests of storage: their batches, their markers, and who reads committed ones."""

from headrace.protocol.batch import BatchHeader, scan_headers
from headrace.protocol.markers import Marker, decode_marker, encode_marker
from headrace.protocol.records import decode_rows, encode_batch
from headrace.storage.log import AppendResult, Log
from tests.unit.storage.logs import NOW_MS


def transactional(
    producer: tuple[int, int, int], count: int = 1, *, value: bytes = b"value"
) -> bytearray:
    """A batch of a transaction; `producer` is id, epoch and first sequence."""
    producer_id, producer_epoch, base_sequence = producer
    return encode_batch(
        [(NOW_MS, None, value, ())] * count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )


def write(
    log: Log,
    producer: tuple[int, int, int],
    count: int = 1,
    *,
    value: bytes = b"value",
    now_ms: int = NOW_MS,
) -> AppendResult:
    """Append a batch of a transaction."""
    data = transactional(producer, count, value=value)
    return log.append(data, scan_headers(data), max(log.latest_epoch, 0), now_ms)


def end(
    log: Log,
    producer_id: int,
    producer_epoch: int,
    *,
    committed: bool,
    coordinator_epoch: int = 0,
    now_ms: int = NOW_MS,
) -> AppendResult:
    """Append a marker."""
    marker = Marker(producer_id, producer_epoch, coordinator_epoch, committed)
    data = encode_marker(marker, now_ms)
    return log.append(data, scan_headers(data), max(log.latest_epoch, 0), now_ms)


def commit(log: Log, producer_id: int, producer_epoch: int = 0) -> int:
    """Append a marker that commits; its offset."""
    return end(log, producer_id, producer_epoch, committed=True).base_offset


def abort(log: Log, producer_id: int, producer_epoch: int = 0) -> int:
    """Append a marker that aborts; its offset."""
    return end(log, producer_id, producer_epoch, committed=False).base_offset


def aborted(log: Log, start: int, end_offset: int) -> list[tuple[int, int]]:
    """Producer id and first offset of the aborted transactions in a range."""
    found = log.aborted_transactions(start, end_offset)
    assert log.aborted_transactions_cached(start, end_offset) == found
    return [(entry.producer_id, entry.first_offset) for entry in found]


def read_committed(log: Log, high_watermark: int, max_bytes: int = 300) -> list[int]:
    """The offsets that a consumer of committed records gets, who asks for a piece at a time."""
    offset = log.log_start_offset
    limit = log.last_stable_offset(high_watermark)
    found: list[int] = []
    while offset < limit:
        data = bytes(log.read(offset, max_bytes, limit, at_least_one=True).records)
        headers = scan_headers(data)
        if not headers:
            break
        aborted_then = log.aborted_transactions(offset, headers[-1].next_offset)
        begins = sorted((entry.first_offset, entry.producer_id) for entry in aborted_then)
        found += _visible(data, headers, begins, offset)
        offset = headers[-1].next_offset
    return found


def _visible(
    data: bytes, headers: list[BatchHeader], begins: list[tuple[int, int]], offset: int
) -> list[int]:
    """As clients do it: from its first offset to its marker a producer's records are skipped."""
    aborting: set[int] = set()
    found = []
    for header in headers:
        while begins and begins[0][0] <= header.last_offset:
            aborting.add(begins.pop(0)[1])
        if header.is_control:
            marker = decode_marker(data, header)
            if marker is not None and not marker.committed:
                aborting.discard(marker.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found += [row.offset for row in decode_rows(data, header) if row.offset >= offset]
    return found
