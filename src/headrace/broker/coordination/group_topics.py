"""The topics known to group coordinators; offsets of deleted topics are removed."""

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TypeAlias

from headrace.broker.coordination.runtime import ShardDriver
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.groups.topic_catalog import CatalogTopic
from headrace.errors import KafkaError
from headrace.metadata.image import Image, TopicImage

logger = logging.getLogger(__name__)

GroupDriver: TypeAlias = ShardDriver[GroupShard]

_RETRY_SECONDS = 5.0


class GroupTopics:
    """The topics in the image by which this broker leads partitions of `__consumer_offsets`.

    Invariant: that image is replaced after the coordinators it takes away are dropped, never
    before. So the next leader of a partition knows at least the topics that its offsets were
    committed for, and takes missing topics for deleted. Used on the event loop's thread only.
    """

    def __init__(self) -> None:
        self.image = Image()
        # Offsets of the metadata log: as of which any topic changed, and a topic came, at last.
        self.version = 0
        self.names_version = 0

    def id_of(self, name: str) -> bytes | None:
        """The id of the topic with a name; None if there is none."""
        topic = self.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def by_name(self, name: str) -> CatalogTopic | None:
        return _catalogued(self.image.topics.get(name))

    def by_id(self, topic_id: bytes) -> CatalogTopic | None:
        return _catalogued(self.image.topics_by_id.get(topic_id))

    def names(self) -> Collection[str]:
        return self.image.topics.keys()

    def follow(self, image: Image, offset: int, drivers: Iterable[GroupDriver]) -> None:
        """Take over the image at an offset, and remove the offsets of topics deleted in it."""
        old, self.image = self.image, image
        if old.topics_by_id is image.topics_by_id:
            return
        self.version = offset
        if image.topics_by_id.keys() - old.topics_by_id.keys():
            self.names_version = offset
        gone = old.topics_by_id.keys() - image.topics_by_id.keys()
        if not gone:
            return
        deleted = sorted(old.topics_by_id[topic_id].name for topic_id in gone)
        for driver in drivers:
            if not driver.loading:
                self._remove(driver, deleted)

    def on_change(self, driver: GroupDriver) -> None:
        """Remove offsets of topics deleted while the just loaded shard had no leader."""
        if driver.shard.has_to_remove_stale_offsets:
            self._remove(driver, None)

    def _remove(self, driver: GroupDriver, deleted: Collection[str] | None) -> None:
        if driver.closed:
            return
        try:
            driver.partition.check_in_sync()
        except KafkaError:
            # A refused append would end the shard. Clients do not see stale offsets meanwhile.
            driver.shard.has_to_remove_stale_offsets = False
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_SECONDS, self._remove, driver, None)
            return
        # If it fails, the driver has answered all requests, and is loaded again later.
        with suppress(KafkaError):
            effects = driver.ask(lambda shard: shard.remove_stale_offsets(deleted))
            if not effects.records:
                return
            logger.info(
                "%s: %d offsets of deleted topics are removed",
                driver.partition.name,
                len(effects.records),
            )
            driver.perform(effects)


def _catalogued(topic: TopicImage | None) -> CatalogTopic | None:
    if topic is None:
        return None
    return CatalogTopic(topic.topic_id, topic.name, len(topic.partitions))
