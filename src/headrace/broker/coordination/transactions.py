"""The transaction coordinator on this broker: its shards, what they order, and what they need."""

import asyncio
import logging
from collections.abc import Callable

from headrace.broker.coordination.completion_queue import CompletionQueue
from headrace.broker.coordination.coordinators import TRANSACTIONS_TOPIC, Coordinators
from headrace.broker.coordination.markers import MarkerSender, TransactionDriver
from headrace.broker.producer_ids import ProducerIds
from headrace.clock import Clock
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.values import TransactionSettings
from headrace.errors import KafkaError
from headrace.tasks import TaskScope

logger = logging.getLogger(__name__)


class Transactions:
    """The shards of `__transaction_state` that are led here. Used on the event loop's thread.

    Markers that a shard orders are sent, and it is kept in producer ids: it cannot wait for one.
    """

    def __init__(
        self,
        clock: Clock,
        settings: Callable[[], TransactionSettings],
        producer_ids: ProducerIds,
        markers: MarkerSender,
    ) -> None:
        self.shards: Coordinators[TransactionShard] = Coordinators(
            TRANSACTIONS_TOPIC,
            clock,
            lambda partition: TransactionShard(settings(), partition.leader_epoch),
            self._on_change,
        )
        self.completions = CompletionQueue(self._is_prepared)
        self._producer_ids = producer_ids
        self._markers = markers
        self._giving: dict[TransactionDriver, asyncio.Task[None]] = {}
        self._tasks = TaskScope("spare producer ids")

    async def stock(self, transactional_id: str) -> None:
        """See to it that the shard of an id has producer ids; KafkaError as `driver_of`."""
        driver = self.shards.driver_of(transactional_id)
        while (wanted := driver.shard.wants_producer_ids) > 0:
            await self._give(driver, wanted)

    def brokers_changed(self) -> None:
        """Wait no more for brokers that are gone."""
        self._markers.brokers_changed()

    async def stop(self) -> None:
        """Answer everybody who waits; order and give nothing any more."""
        self.shards.close()
        await self._tasks.close()
        await self._markers.stop()

    def _is_prepared(self, transactional_id: str) -> bool:
        try:
            return self.shards.driver_of(transactional_id).shard.is_prepared(transactional_id)
        except KafkaError:
            return False  # The request hears of it when it is asked again.

    def _on_change(self, driver: TransactionDriver) -> None:
        orders = driver.shard.take_orders()
        if orders:
            self._markers.send(driver, orders)
        for transactional_id in driver.shard.take_completed():
            self.completions.completed(transactional_id)
        if driver.shard.wants_producer_ids > 0 and driver not in self._giving:
            task = self._tasks.start(self._give_later(driver), str(driver.partition.name))
            self._giving[driver] = task
            task.add_done_callback(lambda _: self._giving.pop(driver, None))

    async def _give_later(self, driver: TransactionDriver) -> None:
        try:
            await self._give(driver, driver.shard.wants_producer_ids)
        except KafkaError as error:
            # The request that needs one asks again, and hears of it if there is none then.
            logger.info("%s has no spare producer ids: %s", driver.partition.name, error)

    async def _give(self, driver: TransactionDriver, count: int) -> None:
        for _ in range(count):
            driver.shard.give_producer_ids([await self._producer_ids.take()])
