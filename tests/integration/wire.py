"""The protocol spoken over a bare socket, in any version, right or wrong."""

import socket
from collections import deque
from types import TracebackType
from typing import Any, Self

from headrace.protocol.apis import (
    Api,
    RequestHeader,
    decode_response,
    encode_request,
    encode_response,
    served_versions,
)
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.records import Record, decode_rows
from headrace.protocol.schema import Message
from headrace.testing.time_limits import scaled
from headrace.types import Buffer

LATEST = -1
EARLIEST = -2
# Topics have names in these versions; later ones want ids, which a test would have to look up.
PRODUCE_BY_NAME = 12
FETCH_BY_NAME = 12


class Wire:
    """One connection. Every wait is bounded; a peer that says nothing is a failed test."""

    def __init__(
        self, address: str, timeout_s: float = 60.0, *, client_id: str = "wire test"
    ) -> None:
        self._client_id = client_id
        host, _, port = address.rpartition(":")
        self._timeout_s = scaled(timeout_s)
        self._socket = socket.create_connection((host, int(port)), self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # How the broker calls this connection in its log.
        host, port = self._socket.getsockname()[:2]
        self.local_address = f"{host}:{port}"
        self._correlation_id = 0
        self._pending: deque[tuple[int, int, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Message, version: int | None = None) -> Any:
        """Send a request and wait for its answer."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int | None = None, *, answered: bool = True) -> None:
        """Send a request; `receive` gives its answer later, if one is to come."""
        if version is None:
            version = served_versions(request.api_key)[1]
        self._correlation_id += 1
        self.send_bytes(
            b"".join(encode_request(request, version, self._correlation_id, self._client_id))
        )
        if answered:
            self._pending.append((self._correlation_id, request.api_key, version))

    def receive(self) -> Any:
        """The answer to the oldest request in flight."""
        wanted, api_key, version = self._pending.popleft()
        frame = self.read_frame()
        assert frame is not None, "the broker closed the connection instead of answering"
        correlation_id, response = decode_response(api_key, version, frame)
        assert correlation_id == wanted
        header = RequestHeader(api_key, version, correlation_id, None, 0)
        assert b"".join(encode_response(header, response))[4:] == frame, "more than an answer"
        return response

    def send_bytes(self, data: Buffer) -> None:
        self._socket.sendall(data)

    def finish_sending(self) -> None:
        """Close our direction only, as a client that has said all it will ever say."""
        self._socket.shutdown(socket.SHUT_WR)

    def read_frame(self) -> bytes | None:
        """The next frame without its length; None if the peer closed the connection."""
        head = self._read_exactly(4)
        return None if head is None else self._read_exactly(int.from_bytes(head, "big"))

    def closed_by_peer(self) -> bool:
        """Wait for the connection to end; False if something is received instead."""
        return self.read_frame() is None

    def closed_within(self, seconds: float) -> bool:
        """Whether the peer closes the connection in that time; it must not send anything."""
        self._socket.settimeout(seconds)
        try:
            return self.closed_by_peer()
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(self._timeout_s)

    def _read_exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)


def is_serving(address: str) -> bool:
    """Whether the broker answers a new client."""
    with Wire(address) as wire:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        return wire.ask(request).error_code == 0


def create_topic(address: str, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Make a topic, settings given with `_` for `.`; its id."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    with Wire(address) as wire:
        [result] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
    assert result.error_code == 0, result
    topic_id: bytes = result.topic_id
    return topic_id


def produce_request(
    topic: str, batch: Buffer, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def produce(
    wire: Wire, topic: str, batch: Buffer, *, partition: int = 0, acks: int = -1
) -> PartitionProduceResponse:
    """Produce one batch and return what the broker says of it."""
    request = produce_request(topic, batch, partition=partition, acks=acks)
    return produced(wire.ask(request, PRODUCE_BY_NAME))


def produced(response: Any) -> PartitionProduceResponse:
    [topic] = response.responses
    [result] = topic.partition_responses
    assert isinstance(result, PartitionProduceResponse)
    return result


def fetch(
    wire: Wire,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    wait_ms: int = 0,
    committed: bool = False,
) -> Any:
    """The answer for one partition, outside of any fetch session."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=50 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=int(committed),
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    [answered] = wire.ask(request, FETCH_BY_NAME).responses
    [result] = answered.partitions
    return result


def read_all(
    address: str, topic: str, partition: int = 0, offset: int | None = None
) -> list[Record]:
    """Every record of a partition from an offset, or from its start, to its high watermark."""
    with Wire(address) as wire:
        if offset is None:
            offset = list_offset(wire, topic, EARLIEST, partition)
        end = list_offset(wire, topic, LATEST, partition)
        records: list[Record] = []
        while offset < end:
            result = fetch(wire, topic, offset, partition=partition)
            assert result.error_code == 0, result.error_code
            data = bytes(result.records)
            headers = list(scan_headers(data))
            assert headers, f"nothing at offset {offset} of {end}"
            records += decode_rows(data, None, offset)
            # Markers are no records, and have offsets.
            offset = headers[-1].last_offset + 1
    return records


def list_offset(
    wire: Wire, topic: str, timestamp: int, partition: int = 0, *, committed: bool = False
) -> int:
    """Where a partition begins or ends, or where a time is; `committed` is for what is stable."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    [answered] = wire.ask(request).topics
    [result] = answered.partitions
    assert result.error_code == 0, result
    offset: int = result.offset
    return offset


def new_producer_id(wire: Wire) -> int:
    response = wire.ask(InitProducerIdRequest(transactional_id=None))
    assert response.error_code == 0
    producer_id: int = response.producer_id
    return producer_id


def every_version(api_key: Api) -> range:
    first, last = served_versions(api_key)
    return range(first, last + 1)
