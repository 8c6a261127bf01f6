"""Ids for idempotent producers, taken from blocks that the controller allocates."""

import asyncio
from collections.abc import Callable

from headrace.broker.cluster.channels import ControllerChannel
from headrace.errors import ErrorCode, KafkaError, error_code
from headrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

_REQUEST_S_MAX = 5.0


class ProducerIds:
    """New producer ids, unique even after a crash: a block is committed before its use."""

    def __init__(
        self, controllers: ControllerChannel, broker_id: int, broker_epoch: Callable[[], int]
    ) -> None:
        self._controllers = controllers
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = 0
        self._end = 0
        self._asking = asyncio.Lock()

    async def next_id(self) -> int:
        """A new producer id."""
        async with self._asking:
            if self._next >= self._end:
                await self._allocate_block()
            producer_id = self._next
            self._next += 1
        return producer_id

    async def _allocate_block(self) -> None:
        request = AllocateProducerIdsRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch()
        )
        block: AllocateProducerIdsResponse = await self._controllers.ask(request, _REQUEST_S_MAX)
        if block.error_code:
            # Any error ends once this broker is registered again; clients retry until then.
            code = error_code(block.error_code)
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"no producer ids were given out: {code.name}",
            )
        self._next = block.producer_id_start
        self._end = block.producer_id_start + block.producer_id_len
