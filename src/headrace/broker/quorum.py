"""The node's part in the quorum that keeps the metadata log: it drives `raft.RaftNode`.

Composition (what others construct and call):

    quorum = Quorum(log, files, config, cluster_id=..., directory_id=..., clock=..., rng=...,
                    workers=..., on_fatal=stop_the_process)
    store = MetadataStore(quorum, config, clock, workers)
    quorum.start(endpoints)     # own (name, host, port) addresses at which controllers are reached
    await store.ready()         # a first committed image is there; listeners must be open by then
    ...
    await store.close(); await quorum.stop()

Rule: an epoch or a vote is on stable storage before anybody hears of it, a record before it is
counted. When either cannot be written the node takes no further part: `on_fatal` is called.
"""

from collections.abc import Callable, Sequence
from random import Random

from headrace.broker.node import RequestContext
from headrace.broker.workers import Workers
from headrace.clock import Clock
from headrace.config import BrokerConfig, Listener
from headrace.errors import HeadraceError
from headrace.net.addresses import Address
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.storage.files import Files
from headrace.storage.log import Log

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"


class Quorum:
    """Used on the event loop's thread only."""

    def __init__(
        self,
        log: Log,
        files: Files,
        config: BrokerConfig,
        *,
        cluster_id: str | None,
        directory_id: bytes,
        clock: Clock,
        rng: Random,
        workers: Workers,
        on_fatal: Callable[[HeadraceError], None],
    ) -> None:
        raise NotImplementedError

    def start(self, endpoints: Sequence[Listener]) -> None:
        """Take part; a single voter leads when this returns."""

    async def stop(self) -> None:
        """Hand leadership over if there is anybody to take it, and end every task."""

    @property
    def leader_id(self) -> int:
        """The leader of the metadata log as far as this node knows, or -1."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        raise NotImplementedError

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, as far as this node knows; -1 if it does not yet."""
        raise NotImplementedError

    def address_of(self, node_id: int) -> Address | None:
        """Where a controller is reached: told by itself, in the log, or in the configuration."""
        raise NotImplementedError

    def controller_address(self) -> Address | None:
        """Where the leader is reached, if one is known."""
        raise NotImplementedError

    async def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Answer a Fetch of the metadata log, of a follower or of an observer."""
        raise NotImplementedError
