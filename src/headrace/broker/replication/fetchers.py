"""Which partitions are fetched from which broker, as leaders come and go.

A fetch that finds nothing new is kept by the leader for a while, and a partition that is added then
or is to be tried again would wait for its answer. So it is fetched in a second stream, without a
session, until the first one takes it over with its next request.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.cluster.endpoints import endpoint_of
from headrace.broker.cluster.link import Link
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.replication.fetcher import Fetcher, Surroundings
from headrace.broker.replication.partition import Partition
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.net.addresses import Address
from headrace.replication.fetch_session import FetchSession, PartitionKey
from headrace.replication.follower import Followed, position_of
from headrace.replication.throttle import Throttle
from headrace.types import TopicPartition

# How long a leader may keep the fetch of newcomers: others may come meanwhile.
_NEWCOMERS_WAIT_MS = 50

NewLink = Callable[[Callable[[], Address | None], str], Link]
"""Makes a link to where the first argument says, under a client id."""


class _Source:
    """A broker that others are followed at: the steady stream of fetches, and the newcomers'."""

    def __init__(self, source_id: int, around: Surroundings, new_link: NewLink) -> None:
        config = around.config
        self.broker_epoch = -1
        self._source_id = source_id
        self._around = around
        self._steady = Fetcher(
            source_id,
            new_link(self._address, f"node-{config.node_id}-fetcher"),
            around,
            FetchSession(),
            config.replica_fetch_wait_max_ms,
            self._share,
        )
        self._newcomers = Fetcher(
            source_id,
            new_link(self._address, f"node-{config.node_id}-fetcher"),
            around,
            FetchSession(kept=False),
            min(_NEWCOMERS_WAIT_MS, config.replica_fetch_wait_max_ms),
        )

    def __len__(self) -> int:
        return len(self._steady.partitions) + len(self._newcomers.partitions)

    def add(self, followed: Followed, partition: Partition) -> None:
        self.remove(followed.key)
        fetcher = self._newcomers if self._steady.is_asking else self._steady
        fetcher.add(followed, partition)

    def remove(self, key: PartitionKey) -> None:
        self._steady.remove(key)
        self._newcomers.remove(key)

    def reconnect(self) -> None:
        self._steady.reconnect()
        self._newcomers.reconnect()

    def stop(self) -> list[asyncio.Task[None]]:
        tasks = (self._steady.stop(), self._newcomers.stop())
        return [task for task in tasks if task is not None]

    def _share(self) -> None:
        """Before a steady fetch: take over who gets on well, leave who has to be tried again."""
        for key in self._steady.follower.delayed:
            _move(key, self._steady, self._newcomers)
        if self._newcomers.is_writing:
            return  # What it writes is not known to be flushed yet.
        delayed = frozenset(self._newcomers.follower.delayed)
        for key in tuple(self._newcomers.partitions):
            if key not in delayed:
                _move(key, self._newcomers, self._steady)

    def _address(self) -> Address | None:
        broker = self._around.store.image.brokers.get(self._source_id)
        if broker is None:
            return None
        endpoint = endpoint_of(broker, self._around.config.inter_broker_listener_name)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)


def _move(key: PartitionKey, old: Fetcher, new: Fetcher) -> None:
    moved = old.remove(key)
    if moved is not None:
        new.add(*moved)


class _Home(NamedTuple):
    source_id: int
    key: PartitionKey


class Fetchers:
    """The followers of a broker. Used on the event loop's thread only.

    Invariant: a partition is fetched from at most one broker, and a broker that nothing is fetched
    from has no task and no connection.
    """

    def __init__(
        self, config: BrokerConfig, store: MetadataStore, clock: Clock, new_link: NewLink = Link
    ) -> None:
        throttle = Throttle(config.follower_replication_throttled_rate)
        self._new_link = new_link
        self._around = Surroundings(config, store, clock, throttle)
        self._sources: dict[int, _Source] = {}
        self._homes: dict[TopicPartition, _Home] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def follow(self, partition: Partition, topic_id: bytes) -> None:
        """Fetch a partition from its leader, in its epoch; from nobody if it has no leader."""
        key = PartitionKey(topic_id, partition.name.partition)
        home = self._homes.get(partition.name)
        if home is not None and home != (partition.leader_id, key):
            self.forget(partition.name)
        if partition.leader_id < 0 or partition.log.offline is not None or self._stopped:
            self.forget(partition.name)
            return
        source = self._sources.get(partition.leader_id)
        if source is None:
            source = _Source(partition.leader_id, self._around, self._new_link)
            source.broker_epoch = self._epoch_of(partition.leader_id)
            self._sources[partition.leader_id] = source
        self._homes[partition.name] = _Home(partition.leader_id, key)
        source.add(self._followed(key, partition), partition)

    def forget(self, name: TopicPartition) -> None:
        """Fetch a partition no more; nothing is written to its log after that."""
        home = self._homes.pop(name, None)
        if home is None:
            return
        source = self._sources[home.source_id]
        source.remove(home.key)
        if not len(source):
            del self._sources[home.source_id]
            self._end(source)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Follow changed settings."""
        self._around.config = config
        rate = config.follower_replication_throttled_rate
        if rate != self._around.throttle.rate:
            self._around.throttle.change_rate(rate, asyncio.get_running_loop().time())

    def brokers_changed(self) -> None:
        """Leave the connections to brokers that were started again: the old ones may be silent."""
        for source_id, source in self._sources.items():
            epoch = self._epoch_of(source_id)
            if epoch != source.broker_epoch:
                source.broker_epoch = epoch
                source.reconnect()

    async def stop(self) -> None:
        """Fetch nothing any more."""
        self._stopped = True
        self._homes.clear()
        for source in self._sources.values():
            self._end(source)
        self._sources.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, source: _Source) -> None:
        for task in source.stop():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _epoch_of(self, broker_id: int) -> int:
        broker = self._around.store.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    def _followed(self, key: PartitionKey, partition: Partition) -> Followed:
        config, throttle = self._around.config, self._around.throttle
        bytes_max, delayed_until = config.replica_fetch_max_bytes, None
        if self._around.is_throttled(partition):
            bytes_max = min(bytes_max, throttle.rate)
            now = asyncio.get_running_loop().time()
            wait_s = throttle.wait_s(now)
            delayed_until = now + wait_s if wait_s else None
        return Followed(
            key,
            partition.name.topic,
            partition.leader_epoch,
            position_of(partition.log),
            bytes_max,
            delayed_until,
        )
