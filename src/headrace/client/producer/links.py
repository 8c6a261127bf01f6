"""The way to one broker: its connection, and the partitions that want to use it."""

import asyncio

from headrace.client.producer.buffers import Slot
from headrace.net.outgoing import Connection


class Link:
    """A broker as the sender uses it. `ready` are the partitions that may have a batch to send.

    A link without an open connection has a task that opens one, as soon as somebody is ready.
    """

    def __init__(self, node_id: int, in_flight_max: int) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.draining: asyncio.Task[None] | None = None
        self.in_flight = 0
        self.ready: dict[Slot, None] = {}
        self._in_flight_max = in_flight_max

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that works."""
        return self.connection is not None and self.connection.is_open

    @property
    def has_room(self) -> bool:
        """Whether another request may leave."""
        return self.in_flight < self._in_flight_max and self.draining is None

    def rotate(self, slot: Slot) -> None:
        """Let the other partitions have their turn before this one's next."""
        del self.ready[slot]
        self.ready[slot] = None
