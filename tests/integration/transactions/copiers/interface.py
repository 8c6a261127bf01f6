"""What a copier asks of a client: a consumer in a group and a producer of transactions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.testing.time_limits import scaled

# A copier whose call takes longer is replaced; some are in every run, so this has an end.
CALL_S = min(scaled(8), 20)
REQUEST_MS = 2_000
SESSION_MS = 6_000


class Abortable(Exception):
    """The transaction cannot be committed; after it is aborted the next one may begin."""


class Fenced(Exception):
    """Another copier has taken our place: nothing that this one does counts any more."""


class Taken(NamedTuple):
    """A record that was read from the source."""

    partition: int
    offset: int
    value: bytes


@dataclass(frozen=True, kw_only=True)
class Job:
    """From where to where a copier copies, and who it is."""

    bootstrap_servers: str
    source: str
    target: str
    group: str
    name: str
    """The transactional id, and the name in the group."""
    transaction_timeout_ms: int


class Copier(ABC):
    """One client at work. Whatever else a call raises ends the process, and another one follows."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def open_producer(self) -> None:
        """Connect, and fence whoever worked under our name."""

    @abstractmethod
    def open_consumer(self) -> None:
        """Join the group."""

    @abstractmethod
    def close_producer(self) -> None: ...

    @abstractmethod
    def close_consumer(self) -> None: ...

    @abstractmethod
    def poll(self, seconds: float, count: int) -> list[Taken]:
        """At most so many records that come next, waiting for the first of them for a while."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, partition: int, value: bytes) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Wait until what was sent is written, as part of a transaction that is not decided."""

    @abstractmethod
    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        """The position in each partition of the source becomes part of the transaction."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go back to where a transaction began that came to nothing."""
