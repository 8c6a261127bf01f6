"""What a broker gives to readers of committed records, over a bare socket."""

from collections.abc import Mapping

from headrace.protocol.batch import scan_headers
from headrace.protocol.records import decode_rows
from tests.integration.groups.raw import fetch_request
from tests.integration.wire import LATEST, Wire, fetch, list_offset


def stable(address: str, topic: str, partition: int = 0) -> int:
    """The last stable offset."""
    with Wire(address) as wire:
        return list_offset(wire, topic, LATEST, partition, committed=True)


def end(address: str, topic: str, partition: int = 0) -> int:
    """The high watermark."""
    with Wire(address) as wire:
        return list_offset(wire, topic, LATEST, partition)


def read_committed(address: str, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values below the last stable offset without aborted ones, as a client sorts them out."""
    values: list[bytes | None] = []
    offset = 0
    with Wire(address) as wire:
        while True:
            result = fetch(wire, topic, offset, partition=partition, committed=True)
            assert result.error_code == 0, result.error_code
            data = bytes(result.records or b"")
            if not data:
                assert offset == result.last_stable_offset, "stopped short of what is stable"
                return values
            aborted = sorted(
                result.aborted_transactions or [], key=lambda transaction: transaction.first_offset
            )
            cut: set[int] = set()
            for header in scan_headers(data):
                while aborted and aborted[0].first_offset <= header.last_offset:
                    cut.add(aborted.pop(0).producer_id)
                if header.is_control:
                    cut.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in cut):
                    values += [
                        row.value
                        for row in decode_rows(data, header)
                        if offset <= row.offset < result.last_stable_offset
                    ]
                offset = max(offset, header.last_offset + 1)


def group_offsets(
    address: str, group: str, topic: str, *partitions: int, stable: bool = False
) -> Mapping[int, tuple[int, int]]:
    """The error code and the offset that a group has of each partition."""
    request = fetch_request(group, {topic: partitions})
    request.require_stable = stable
    with Wire(address) as wire:
        [answered] = wire.ask(request, 9).groups
    assert answered.error_code == 0
    return {
        partition.partition_index: (partition.error_code, partition.committed_offset)
        for found in answered.topics
        for partition in found.partitions
    }
