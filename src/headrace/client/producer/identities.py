"""Who brokers know an idempotent producer as: asked for once, and moved on when that is needed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.client.outcomes import check
from headrace.client.producer.batches import Identity, PartitionQueue
from headrace.client.transport.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest


class Identities:
    """The identity of a producer without transactions; those have their own way to one.

    `start` runs a coroutine; `answered` is told when there is an identity, or why there is none.
    """

    def __init__(
        self,
        cluster: Cluster,
        start: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        answered: Callable[[HeadraceError | None], None],
    ) -> None:
        self.current: Identity | None = None
        self._cluster = cluster
        self._start = start
        self._answered = answered
        self._asking: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Have a broker asked, unless one is."""
        if self._asking is None:
            self._asking = self._start(self._ask())

    def lose(self, queue: PartitionQueue) -> None:
        """A partition needs other numbers than those it had.

        They are of the next epoch: what was sent in this one and comes late is then refused.
        """
        if self.current is not None and queue.identity == self.current:
            self.current = self.current.next_epoch()
        queue.use_identity(None)

    async def _ask(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        error: HeadraceError | None = None
        try:
            response = await self._cluster.call(request, self._cluster.deadline())
            check(response.error_code, subject="asking for a producer id")
            self.current = Identity(response.producer_id, response.producer_epoch)
        except HeadraceError as caught:
            error = caught
        self._asking = None
        self._answered(error)
