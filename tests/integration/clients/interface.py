"""What the tests ask of a client, whichever it is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.testing.time_limits import Deadline

SECONDS = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Above the broker's own limit, so that it is the broker that refuses.
LARGEST_REQUEST = 8_000_000

EARLIEST = "earliest"
LATEST = "latest"


class ToSend(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Received(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Refused(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Reader(ABC):
    """A consumer that was given its partitions."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Received]:
        """What has arrived, waiting for it for a while."""

    def take(self, count: int) -> list[Received]:
        """Exactly `count` records, in the order of their arrival."""
        taken: list[Received] = []
        deadline = Deadline(SECONDS)
        while len(taken) < count:
            assert not deadline.has_passed, f"{len(taken)} of {count} records arrived in time"
            taken += self.poll(1.0)
        assert len(taken) == count, "more records than were written"
        return taken


class Client(ABC):
    """What every client does, connected to one broker."""

    name: str
    sends_null_headers = True

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def add_partitions(self, topic: str, count: int) -> None: ...

    @abstractmethod
    def delete_records(self, topic: str, before: int) -> int:
        """Delete what is before an offset of partition 0; the low watermark afterwards."""

    @abstractmethod
    def topic_settings(self, topic: str) -> dict[str, str]: ...

    @abstractmethod
    def alter_topic(self, topic: str, settings: Mapping[str, str]) -> None: ...

    @abstractmethod
    def topics(self) -> dict[str, int]:
        """Every topic with its number of partitions."""

    @abstractmethod
    def cluster(self) -> tuple[str, list[int]]:
        """The cluster's id and its brokers' ids."""

    @abstractmethod
    def send(
        self,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        acks: int | str = "all",
        idempotent: bool = False,
    ) -> list[tuple[int, int]]:
        """Produce, in order; the partition and offset of each record. `Refused` if one fails."""

    @abstractmethod
    def reader(self, topic: str, starts: Mapping[int, int | str], *, wait_ms: int = 500) -> Any:
        """A context manager with a `Reader` of the given partitions from the given offsets."""

    @abstractmethod
    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> dict[int, int]:
        """For each partition the first offset with that time or a later one; -1 or end if none."""

    @abstractmethod
    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The first offset and the one after the last."""

    def read(self, topic: str, starts: Mapping[int, int | str], count: int) -> list[Received]:
        with self.reader(topic, starts) as reader:
            taken: list[Received] = reader.take(count)
            return taken
