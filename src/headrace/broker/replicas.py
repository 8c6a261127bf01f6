"""The partitions this broker holds, kept in step with the metadata image."""

import logging
from collections import deque
from collections.abc import Iterator

from headrace.broker.flusher import Flusher
from headrace.broker.partition import Partition
from headrace.clock import Clock
from headrace.config import BrokerConfig, TopicConfig, topic_config
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.metadata.image import Image, PartitionImage, ResourceType, TopicImage
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)


class Replicas:
    """Used on the event loop's thread only.

    Invariant: every partition of the image that this broker replicates is in `_topics`, or in
    `_offline` with the reason why its log cannot be used.
    """

    def __init__(self, node_id: int, logs: LogManager, flusher: Flusher, clock: Clock) -> None:
        self._node_id = node_id
        self._logs = logs
        self._flusher = flusher
        self._clock = clock
        self._topics: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, str] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._lost: list[str] = []

    def __iter__(self) -> Iterator[Partition]:
        for partitions in tuple(self._topics.values()):
            yield from tuple(partitions.values())

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with an id, or None."""
        return self._names.get(topic_id)

    def leader_of(self, topic: str, index: int) -> Partition:
        """The partition, if this broker leads it; KafkaError tells a client what else to do."""
        partitions = self._topics.get(topic)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                return partition
        offline = self._offline.get(TopicPartition(topic, index))
        if offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, offline)
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}"
        )

    def led_partitions(self, topic: str) -> dict[int, Partition]:
        """The partitions of a topic that this broker leads, by index."""
        return dict(self._topics.get(topic, {}))

    def offline_replicas(self, topic: str, index: int) -> list[int]:
        """The ids of brokers whose disk has failed for a partition."""
        partition = self._topics.get(topic, {}).get(index)
        if partition is not None:
            return [self._node_id] if partition.log.offline is not None else []
        return [self._node_id] if TopicPartition(topic, index) in self._offline else []

    def load(self, image: Image, config: BrokerConfig) -> None:
        """Take up the logs of all partitions, at the start of the broker.

        One without a log may have it in a directory that is offline. An empty log in another place
        would take new records under old offsets, so such a partition stays offline.
        """
        self._lost = [one.path for one in self._logs.directories if one.error is not None]
        deque(self.apply(Image(), image, config), maxlen=0)
        self._lost = []

    def apply(self, old: Image, new: Image, config: BrokerConfig) -> Iterator[None]:
        """Open, change and delete partitions so that they are those of the new image.

        One partition at a time: thousands may be asked for at once, and making the files of one
        takes a while, so the caller lets others have a turn in between.
        """
        for topic in old.topics.values():
            if topic.topic_id not in new.topics_by_id:
                yield from self._delete(topic)
        for topic in new.topics.values():
            known = old.topics_by_id.get(topic.topic_id)
            overrides = new.config_of(ResourceType.TOPIC, topic.name)
            if known is topic and overrides is old.config_of(ResourceType.TOPIC, topic.name):
                continue
            yield from self._update(topic, topic_config(config, overrides))

    def reconfigure(self, image: Image, config: BrokerConfig) -> Iterator[None]:
        """Follow changed broker defaults in every topic; a partition at a time, as `apply`."""
        for topic in image.topics.values():
            overrides = image.config_of(ResourceType.TOPIC, topic.name)
            yield from self._update(topic, topic_config(config, overrides))

    def delete_strays(self) -> None:
        """Delete logs of topics that the image does not have: their deletion was cut short."""
        for name in tuple(self._logs.logs):
            if name.partition not in self._topics.get(name.topic, {}):
                logger.warning("%s belongs to no topic and is deleted", name)
                self._logs.delete(name, self._clock.now_ms())

    def close(self) -> None:
        """Answer everybody who waits for data or for a commit."""
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")
        for partition in self:
            partition.stop(error)

    def _update(self, topic: TopicImage, config: TopicConfig) -> Iterator[None]:
        partitions = self._topics.setdefault(topic.name, {})
        self._names[topic.topic_id] = topic.name
        for index, image in enumerate(topic.partitions):
            if self._node_id not in image.replicas:
                continue
            yield
            partition = partitions.get(index)
            if partition is not None:
                partition.reconfigure(config)
                continue
            name = TopicPartition(topic.name, index)
            if name in self._offline:
                continue  # Until a restart: nobody knows what its log holds.
            opened = self._open(name, topic.topic_id, image, config)
            if opened is not None:
                partitions[index] = opened

    def _open(
        self, name: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Partition | None:
        try:
            log = self._log_of(name, topic_id, config)
            opened = Partition(name, log, config, self._flusher, log.log_end_offset)
            opened.lead(image, self._clock.now_ms())
        except HeadraceError as error:
            self._offline[name] = str(error)
            logger.error("%s is offline: %s", name, error)
            return None
        return opened

    def _log_of(self, name: TopicPartition, topic_id: bytes, config: TopicConfig) -> Log:
        now_ms = self._clock.now_ms()
        log = self._logs.get(name)
        if log is not None and log.topic_id != topic_id:
            # A crash came between the deletion of a topic and that of its files.
            self._logs.delete(name, now_ms)
            log = None
        if log is None and self._lost:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"its log must be in {' or '.join(self._lost)}, which cannot be used:"
                " repair it, then restart the broker",
            )
        return log or self._logs.create(name, topic_id, config, now_ms)

    def _delete(self, topic: TopicImage) -> Iterator[None]:
        self._names.pop(topic.topic_id, None)
        error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} was deleted")
        for partition in self._topics.pop(topic.name, {}).values():
            partition.stop(error)
        for index in range(len(topic.partitions)):
            yield
            name = TopicPartition(topic.name, index)
            self._offline.pop(name, None)
            if name not in self._logs.logs and name not in self._logs.failed:
                continue  # It has no files here: they could not be made, or their disk is lost.
            try:
                self._logs.delete(name, self._clock.now_ms())
            except HeadraceError as failure:
                logger.error("the files of %s cannot be deleted: %s", name, failure)
