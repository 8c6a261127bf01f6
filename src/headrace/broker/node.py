"""What handlers work with: the parts of a running broker, and one request's circumstances."""

from dataclasses import dataclass, field
from random import Random

from headrace.broker.coordinators import Coordinators
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.outgoing import Outgoing
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.replicas import Replicas
from headrace.broker.workers import Workers
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.protocol.api import RequestHeader
from headrace.storage.manager import LogManager


@dataclass(slots=True)
class Node:
    """The parts of one broker. `config` is replaced when a dynamic setting changes."""

    node_id: int
    cluster_id: str
    config: BrokerConfig
    clock: Clock
    rng: Random
    workers: Workers
    logs: LogManager
    store: MetadataStore
    replicas: Replicas
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    coordinators: Coordinators
    outgoing: Outgoing = field(default_factory=Outgoing)
    closing: bool = False


class RequestContext:
    """One request: who is asked, the header it came with, and the address it came from."""

    __slots__ = ("header", "host", "node")

    def __init__(self, node: Node, header: RequestHeader, host: str) -> None:
        self.node = node
        self.header = header
        self.host = host

    @property
    def version(self) -> int:
        return self.header.api_version
