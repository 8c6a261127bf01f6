"""Ids for idempotent producers, taken from blocks that the metadata log keeps."""

from headrace.broker.metadata_store import MetadataStore
from headrace.metadata.controller import ProducerIdBlock, allocate_producer_ids


class ProducerIds:
    """Never gives the same id twice, not even after a crash: a block is on disk before its use."""

    def __init__(self, store: MetadataStore, broker_id: int, broker_epoch: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        """A new producer id."""
        while self._next >= self._end:
            block: ProducerIdBlock = await self._store.submit(
                lambda image, _: allocate_producer_ids(
                    image, broker_id=self._broker_id, broker_epoch=self._broker_epoch
                )
            )
            # Another caller may have brought a block meanwhile; the later one is used, none twice.
            self._next, self._end = block.first_id, block.first_id + block.size
        producer_id = self._next
        self._next += 1
        return producer_id
