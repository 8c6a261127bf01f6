"""The replicas on this broker, kept up to date with the metadata image."""

import logging
import shlex
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import IsrListener, Partition
from headrace.clock import Clock
from headrace.config import BrokerConfig, TopicConfig, topic_config
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    UnknownTopic,
    unknown_partition,
    unknown_topic,
)
from headrace.metadata.elections import RECOVERING
from headrace.metadata.image import (
    NO_LEADER,
    ConfigKey,
    ConfigResourceType,
    Image,
    PartitionImage,
    TopicImage,
)
from headrace.replication.log_ownership import LogOwnership, ownership
from headrace.storage.damage import DamagedLog
from headrace.storage.files import ResourceShortage
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.repair import IntactPrefix
from headrace.types import TopicPartition, uuid_text

if TYPE_CHECKING:
    from headrace.broker.replication.replica_fetchers import ReplicaFetchers

logger = logging.getLogger(__name__)

_NAMED_PER_LINE = 20


class LostLog(KafkaError):
    """A lost or damaged log, which can be replaced by another replica's records."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, detail)


class ReplicaState(StrEnum):
    """The reason why a replica serves no requests, for operators."""

    STOPPED = "stopped"  # Its leader lacks committed records that it has.
    DAMAGED = "damaged"
    LOST = "lost"
    OFFLINE = "offline"  # Its disk fails, is full or is not there.


class OfflineReplica(NamedTuple):
    """A replica that serves no requests; `reason` says why, and what to do."""

    partition: TopicPartition
    state: ReplicaState
    reason: str


class ReplicaManager:
    """The replicas of this broker. Used on the event loop's thread only.

    Invariant: every partition of the applied image that this broker replicates is in `_topics`, or
    in `_offline` with the reason why its log cannot be used.

    A start deletes no log: a log that belongs to no replica of this broker is set aside. A replica
    whose log is lost is created again, empty, only when the metadata has it as lost and another
    broker leads: before that, a restart could take the empty log for the whole partition.

    The first image to be applied has this run of the broker registered. Applying an older image
    would delete logs that are needed, or lead in a past epoch.
    """

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        flusher: FlushQueue,
        fetchers: "ReplicaFetchers",
        isr: IsrListener,
        clock: Clock,
        incarnation_id: bytes,
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._flush_queue = flusher
        self._fetchers = fetchers
        self._isr = isr
        self._clock = clock
        self._incarnation_id = incarnation_id
        self._image: Image | None = None
        self._topics: dict[str, dict[int, Partition]] = {}
        self._offline: dict[TopicPartition, str] = {}
        # The replicas in `_offline` that only lack disk space, and whether they lack no records:
        # their log exists, or their topic is so new that no record was written.
        self._short_of_space: dict[TopicPartition, bool] = {}
        # Replicas that lacked disk space, have it again and lack no records.
        self._regained: set[TopicPartition] = set()
        # Directories that could not be opened, while the first image is applied.
        self._failed_paths: list[str] = []
        # The replicas in `_offline` whose log is gone for good or damaged.
        self._lost_logs: set[TopicPartition] = set()
        # The sound parts of damaged logs that were reported to the controller: it may elect them.
        self._prefixes: dict[TopicPartition, IntactPrefix] = {}
        # Replicas that were created again in this run; the metadata may still have them as lost.
        self._rebuilt: set[TopicPartition] = set()
        # Partitions that this broker leads by an election that may have lost records, with the end
        # of the log; not logged yet.
        self._led_unsurely: list[str] = []
        # Replicas in sync that partitions led here lost and gained since the start.
        self.isr_shrinks = 0
        self.isr_expands = 0
        # Whether an image of this run was applied, so that every loss is known.
        self.is_applied = False
        self._is_first_image = False

    def __iter__(self) -> Iterator[Partition]:
        for partitions in tuple(self._topics.values()):
            yield from tuple(partitions.values())

    def topics(self) -> Iterator[tuple[str, list[Partition]]]:
        """The topics with replicas here, each with its replicas; it may be read in parts."""
        for name, partitions in tuple(self._topics.items()):
            if partitions:
                yield name, list(partitions.values())

    @property
    def unopened_count(self) -> int:
        """The number of replicas whose log could not be opened."""
        return len(self._offline)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with an id, or None."""
        topic = None if self._image is None else self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def replica_of(self, topic: str, index: int) -> Partition:
        """The partition, if this broker holds it; else KafkaError with the code for clients."""
        partition = self._topics.get(topic, {}).get(index)
        if partition is not None:
            return partition
        offline = self._offline.get(TopicPartition(topic, index))
        if offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, offline)
        known = None if self._image is None else self._image.topics.get(topic)
        if known is None:
            raise unknown_topic(topic)
        if not 0 <= index < len(known.partitions):
            raise unknown_partition(topic, index, len(known.partitions))
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is on other brokers")

    def leader_of(self, topic: str, index: int) -> Partition:
        """The partition, if this broker leads it; else KafkaError with the code for clients."""
        # Called for each partition of each request, so the usual case comes first.
        partitions = self._topics.get(topic)
        partition = None if partitions is None else partitions.get(index)
        if partition is None:
            partition = self.replica_of(topic, index)
        if not partition.is_leader:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {partition.leader_id} leads it"
            )
        return partition

    def led_partitions(self, topic: str) -> dict[int, Partition]:
        """The partitions of a topic that this broker leads, by index."""
        held = self._topics.get(topic, {})
        return {index: partition for index, partition in held.items() if partition.is_leader}

    def offline_replicas(self, topic: str, index: int) -> list[int]:
        """This broker's id if its log of a partition cannot be used; else none."""
        partition = self._topics.get(topic, {}).get(index)
        if partition is not None:
            is_down = partition.log.offline is not None or partition.diverged is not None
            return [self._node_id] if is_down else []
        return [self._node_id] if TopicPartition(topic, index) in self._offline else []

    def offline_partitions(self) -> list[TopicPartition]:
        """The replicas of this broker on a failed disk."""
        failed = [partition.name for partition in self if partition.log.offline is not None]
        return failed + list(self._offline)

    def is_lost(self, topic: str, index: int) -> bool:
        """Whether a replica's log is lost or damaged, rather than its disk failing."""
        return TopicPartition(topic, index) in self._lost_logs

    def offer_prefix(self, name: TopicPartition, prefix: IntactPrefix) -> None:
        """Note that the controller may elect a lost replica for the sound part of its log."""
        if name in self._lost_logs:
            self._prefixes[name] = prefix

    def awaits_truncation(self, name: TopicPartition, image: PartitionImage) -> bool:
        """Whether a damaged log was elected for its sound part, to which it must be truncated."""
        return name in self._prefixes and image.leader == self._node_id

    def problems(self) -> list[OfflineReplica]:
        """The replicas of this broker that serve no requests, with the reasons."""
        found = []
        for partition in self:
            if partition.log.offline is not None:
                reason = str(partition.log.offline)
                found.append(OfflineReplica(partition.name, ReplicaState.OFFLINE, reason))
            elif partition.diverged is not None:
                found.append(
                    OfflineReplica(partition.name, ReplicaState.STOPPED, partition.diverged)
                )
        for name, reason in self._offline.items():
            state = ReplicaState.OFFLINE
            if isinstance(self._logs.failed.get(name), DamagedLog):
                state = ReplicaState.DAMAGED
            elif name in self._lost_logs:
                state = ReplicaState.LOST
            found.append(OfflineReplica(name, state, reason))
        return found

    def rebuilt_partitions(self) -> list[tuple[TopicPartition, bytes]]:
        """The replicas that may wrongly be lost in the metadata, with their directory's id.

        They were created again and have caught up, or lacked disk space and lack no records.
        """
        rebuilt = []
        for name in self._rebuilt | self._regained:
            partition = self._topics.get(name.topic, {}).get(name.partition)
            if partition is None or partition.log.offline is not None:
                continue
            if name in self._regained or partition.is_caught_up:
                meta = self._logs.directory_of(name).meta
                if meta is not None:
                    rebuilt.append((name, meta.directory_id))
        return rebuilt

    def placed_partitions(self) -> Iterator[tuple[TopicPartition, bytes, bool]]:
        """The replicas with the id of their directory, and whether it is full.

        None of a broker with a single directory: the metadata need not have it.
        """
        if len(self._logs.directories) == 1:
            return
        for partition in self:
            home = self._logs.directory_of(partition.name)
            if home.meta is not None and partition.log.offline is None:
                yield partition.name, home.meta.directory_id, home.room.is_full

    def offline_directories(self) -> list[bytes]:
        """The ids of failed data directories, for reports to the controller."""
        return self._logs.offline_directories()

    def full_directories(self) -> list[bytes]:
        """The ids of data directories that take no records, for reports to the controller."""
        return self._logs.full_directories()

    def report_damage(self, name: TopicPartition, error: DamagedLog) -> None:
        """Take a replica with a damaged log offline, to be fetched again from another replica."""
        assert self._logs.logs[name].offline is None, name
        lost = LostLog(f"{error}; it is set aside and fetched again once another replica leads")
        self._take_offline(name, lost, until="it is fetched again")
        self._logs.fail(name, error, self._clock.now_ms())

    def reopen_after_shortage(self, config: BrokerConfig) -> Iterator[None]:
        """Reopen replicas that lacked disk space; a partition at a time, as `apply`."""
        if not self._logs.has_room:
            return
        for partition in [partition for partition in self if partition.log.may_reopen]:
            self._close_offline(partition)
        for name, is_whole in list(self._short_of_space.items()):
            yield
            image = self._image
            topic = None if image is None else image.topics.get(name.topic)
            if image is None or topic is None or name not in self._short_of_space:
                continue  # Deleted meanwhile.
            del self._offline[name], self._short_of_space[name]
            self._logs.open_failed(name, self._clock.now_ms())
            overrides = image.config_of(ConfigResourceType.TOPIC, name.topic)
            self._apply_partition(
                topic, name.partition, topic_config(config, overrides), is_new=is_whole
            )
            if name not in self._offline:
                logger.info("%s is held again: there is room for its log", name)
                # A log that was created again must not lead before it has the records it lacks.
                (self._regained if is_whole else self._rebuilt).add(name)
        self._report_elections()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermark of each partition, for the checkpoint."""
        return {partition.name: partition.high_watermark for partition in self}

    def apply(self, new: Image, config: BrokerConfig) -> Iterator[None]:
        """Open, change and delete partitions to match a new image.

        One partition at a time: thousands may change at once, and creating the files of each takes
        a while, so the caller yields to other tasks of the loop in between.
        """
        old = self._image
        if old is not None:
            self._image = new
            yield from self._change(old, new, config)
            self._report_elections()
            return
        broker = new.brokers.get(self._node_id)
        if broker is None or broker.incarnation_id != self._incarnation_id:
            return
        self._image = new
        # A partition without a log may have it in a directory that is offline. An empty log in
        # another directory would take new records under old offsets, so it stays offline.
        self._failed_paths = [
            directory.path for directory in self._logs.directories if directory.error is not None
        ]
        self._is_first_image = True
        yield from self._change(Image(), new, config)
        self._is_first_image = False
        self._failed_paths = []
        self._report_elections()
        yield from self._set_strays_aside(new)
        self.is_applied = True

    def reconfigure(self, config: BrokerConfig) -> Iterator[None]:
        """Apply changed broker settings to every topic; a partition at a time, as `apply`."""
        self._fetchers.reconfigure(config)
        if self._image is None:
            return
        for topic in self._image.topics.values():
            overrides = self._image.config_of(ConfigResourceType.TOPIC, topic.name)
            yield from self._reconfigure(topic, topic_config(config, overrides))

    def close(self) -> None:
        """End all roles; requests that wait for records or for a commit are answered."""
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is shutting down")
        for partition in self:
            partition.stop(error)

    def _change(self, old: Image, new: Image, config: BrokerConfig) -> Iterator[None]:
        if new.brokers is not old.brokers:
            self._fetchers.brokers_changed()
        if new.topics is old.topics and new.configs is old.configs:
            return
        for topic in old.topics.values():
            if topic.topic_id not in new.topics_by_id:
                yield from self._delete_topic(topic)
        for topic in new.topics.values():
            known = old.topics_by_id.get(topic.topic_id)
            resource = ConfigKey(ConfigResourceType.TOPIC, topic.name)
            overrides = new.configs.get(resource)
            has_new_config = overrides is not old.configs.get(resource)
            if known is topic and not has_new_config:
                continue
            settings = topic_config(config, overrides or {})
            if known is not topic:
                yield from self._update(known, topic, settings)
            if has_new_config:
                yield from self._reconfigure(topic, settings)

    def _update(
        self, known: TopicImage | None, topic: TopicImage, config: TopicConfig
    ) -> Iterator[None]:
        """Apply the partitions of a topic that changed; images share those that did not."""
        before = () if known is None else known.partitions
        held = self._topics.setdefault(topic.name, {})
        for index, image in enumerate(topic.partitions):
            if index < len(before) and before[index] is image:
                continue
            name = TopicPartition(topic.name, index)
            if self._node_id not in image.replicas:
                if index in held or name in self._offline:
                    yield
                    self._delete_moved(name)
                continue
            yield
            if (
                name in self._offline
                and not self._may_rebuild(name, image)
                and not self.awaits_truncation(name, image)
            ):
                continue  # Offline until a restart, or until there is disk space.
            self._apply_partition(
                topic, index, config, is_new=known is None and not self._is_first_image
            )

    def _apply_partition(
        self, topic: TopicImage, index: int, config: TopicConfig, *, is_new: bool
    ) -> None:
        """Open a replica and give it its role in the image, or take it offline."""
        name, held = TopicPartition(topic.name, index), self._topics.setdefault(topic.name, {})
        image = topic.partitions[index]
        try:
            partition = held.get(index)
            if partition is None:
                partition = held[index] = self._open(name, topic.topic_id, image, config)
            self._assign(partition, topic.topic_id, image)
        except HeadraceError as error:
            is_short = isinstance(error.__cause__, ResourceShortage)
            self._take_offline(name, error, until="there is room" if is_short else "a restart")
            if is_short:
                has_log = name in self._logs.logs or name in self._logs.failed
                self._short_of_space[name] = has_log or is_new

    def _reconfigure(self, topic: TopicImage, config: TopicConfig) -> Iterator[None]:
        for partition in tuple(self._topics.get(topic.name, {}).values()):
            yield
            partition.reconfigure(config)

    def _assign(self, partition: Partition, topic_id: bytes, image: PartitionImage) -> None:
        """Give a partition its role in an image."""
        is_same_epoch = image.leader_epoch == partition.leader_epoch
        if image.leader == self._node_id:
            self._count_isr_change(partition.image.isr, image.isr)
            if partition.is_leader and is_same_epoch:
                partition.update(image)
                return
            # Before the log gets another writer.
            self._fetchers.forget(partition.name)
            partition.lead(image, self._clock.now_ms())
            if image.leader_recovery_state == RECOVERING:
                self._led_unsurely.append(f"{partition.name} at {partition.log.log_end_offset}")
        elif partition.is_leader or not is_same_epoch:
            partition.follow(image)
            self._fetchers.follow(partition, topic_id)
        else:
            partition.update(image)

    def _report_elections(self) -> None:
        """Log the partitions that this broker leads by an election that may have lost records.

        The controller that held the election reports more about it, but may end before it does. The
        metadata has the election until another replica is in sync, so each leader reports it.
        """
        names, self._led_unsurely = self._led_unsurely, []
        for first in range(0, len(names), _NAMED_PER_LINE):
            logger.warning(
                "this broker leads partitions by an election in which no replica was sure to have"
                " every acknowledged record. If there were any after the end of its log, they are"
                " lost: %s",
                ", ".join(names[first : first + _NAMED_PER_LINE]),
            )

    def _count_isr_change(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        if before and before != after:  # A partition that was just opened had none.
            self.isr_shrinks += len(set(before) - set(after))
            self.isr_expands += len(set(after) - set(before))

    def _open(
        self, name: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Partition:
        if self.awaits_truncation(name, image):
            log = self._cut(name, topic_id, image, config)
        elif name in self._offline:
            log = self._rebuild(name, topic_id, image, config)
        else:
            log = self._log_of(name, topic_id, image, config)
        high_watermark = self._logs.high_watermark(name) or 0
        if high_watermark > log.log_end_offset:
            _report_missing(name, log.log_end_offset, high_watermark, len(image.replicas))
        return Partition(name, log, config, self._flush_queue, high_watermark, isr=self._isr)

    def _log_of(
        self, name: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Log:
        failure = self._logs.failed.get(name)
        if isinstance(failure, DamagedLog):
            raise LostLog(f"{failure}; {self._advice_on_damage(name, image)}")
        log = self._logs.get(name)
        if log is not None and log.topic_id != topic_id:
            log = self._check_ownership(name, log, topic_id, image)
        if log is not None:
            log.update_config(config)
            return log
        if self._failed_paths:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"its log must be in {' or '.join(self._failed_paths)}, which cannot be used:"
                " repair it, then restart the broker",
            )
        if name in self._logs.missing:
            raise LostLog(self._missing_text(name, image))
        return self._logs.create(name, topic_id, config, self._clock.now_ms())

    def _check_ownership(
        self, name: TopicPartition, log: Log, topic_id: bytes, image: PartitionImage
    ) -> Log | None:
        """The log with another topic id, or none, under a partition's name, if it is its own.

        None if it belongs to another topic, LostLog if that is unclear: then it is set aside.
        """
        found = log.topic_id
        stored = "no readable topic id" if found is None else f"the topic id {uuid_text(found)}"
        match ownership(found, log.latest_epoch, topic_id, image.leader_epoch):
            case LogOwnership.DAMAGED_ID:
                self._logs.set_topic_id(name, topic_id)
                logger.warning(
                    "%s: partition.metadata in %s had %s, and was written again with %s, which the"
                    " metadata has: the log's leader epochs agree with it",
                    name,
                    log.directory,
                    stored,
                    uuid_text(topic_id),
                )
                return log
            case LogOwnership.FOREIGN:
                self._set_aside(
                    name,
                    f"it has {stored}, and the topic has {uuid_text(topic_id)}: it belongs to"
                    " another topic, which was deleted",
                )
                return None
        self._set_aside(
            name,
            f"it has {stored}, and was written in leader epoch {log.latest_epoch}, while the topic"
            f" is at {image.leader_epoch}: it is not clear whose it is",
            is_lost=True,
        )
        raise LostLog(self._missing_text(name, image))

    def _missing_text(self, name: TopicPartition, image: PartitionImage) -> str:
        directory = self._logs.missing[name].path
        text = f"its log is lost: {directory} had it, and has no usable {name} any more; "
        if len(image.replicas) > 1:
            return text + "it is fetched again once another replica leads"
        quoted = shlex.quote(directory)
        return (
            f"{text}there is no other replica. Stop the broker, then restore {directory}/{name}"
            f" from a backup, or from what `headrace log strays list {quoted}` shows; or run"
            f" `headrace log strays forget {quoted} {name}` to begin with an empty log"
        )

    def _advice_on_damage(self, name: TopicPartition, image: PartitionImage) -> str:
        if len(image.replicas) > 1:
            return "it is set aside and fetched again once another replica leads"
        path = f"{self._logs.directory_of(name).path}/{name}"
        return (
            "there is no other replica. Stop the broker, and run"
            f" `headrace log repair {shlex.quote(path)}` to see what can be saved"
        )

    def _may_rebuild(self, name: TopicPartition, image: PartitionImage) -> bool:
        """Whether other replicas make a lost log dispensable, so that an empty one does no harm."""
        return (
            name in self._lost_logs
            and self._node_id in image.lost_replicas
            and image.leader not in (NO_LEADER, self._node_id)
            and self._node_id not in image.isr
            and self._node_id not in getattr(image, "elr", ())
        )

    def _rebuild(
        self, name: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Log:
        """Create an empty log in place of a lost log, to be filled from the leader."""
        reason = self._offline.pop(name)
        self._lost_logs.discard(name)
        self._prefixes.pop(name, None)
        if name in self._logs.failed:
            self._set_aside(name, reason, is_lost=True)
        log = self._logs.create(name, topic_id, config, self._clock.now_ms())
        self._rebuilt.add(name)
        logger.warning("%s begins with an empty log and is fetched from %d", name, image.leader)
        return log

    def _cut(
        self, name: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Log:
        """Truncate a damaged log to its sound part, for which this broker was elected to lead."""
        prefix = self._prefixes.pop(name)
        del self._offline[name]
        self._lost_logs.discard(name)
        self._logs.cut_damaged(name, prefix, self._clock.now_ms())
        return self._log_of(name, topic_id, image, config)

    def _take_offline(self, name: TopicPartition, error: HeadraceError, *, until: str) -> None:
        logger.error("%s is offline until %s: %s", name, until, error)
        self._offline[name] = str(error)
        self._regained.discard(name)
        if isinstance(error, LostLog):
            self._lost_logs.add(name)
        self._stop_partition(name, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))

    def _close_offline(self, partition: Partition) -> None:
        """Close a replica whose log a full disk took offline, to reopen it.

        The log then has what a restart of the broker would find: nothing that was written is
        missing.
        """
        name, reason = partition.name, str(partition.log.offline)
        self._logs.close_offline(name, self._clock.now_ms())
        self._offline[name], self._short_of_space[name] = reason, True
        self._stop_partition(name, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    def _stop_partition(self, name: TopicPartition, error: KafkaError) -> None:
        partition = self._topics.get(name.topic, {}).pop(name.partition, None)
        if partition is not None:
            self._fetchers.forget(name)
            partition.stop(error)

    def _delete_moved(self, name: TopicPartition) -> None:
        """Delete a replica that other brokers have taken over."""
        logger.info("%s was moved to other brokers and is deleted here", name)
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is on other brokers")
        self._stop_partition(name, error)
        self._delete_log(name)

    def _delete_topic(self, topic: TopicImage) -> Iterator[None]:
        error = UnknownTopic(f"topic {topic.name} was deleted")
        names = [TopicPartition(topic.name, index) for index in range(len(topic.partitions))]
        # All at once, so that no request finds half a topic.
        for name in names:
            self._stop_partition(name, error)
        self._topics.pop(topic.name, None)
        for name in names:
            yield
            self._delete_log(name)

    def _delete_log(self, name: TopicPartition) -> None:
        self._offline.pop(name, None)
        self._lost_logs.discard(name)
        self._prefixes.pop(name, None)
        self._rebuilt.discard(name)
        self._logs.missing.pop(name, None)
        self._short_of_space.pop(name, None)
        self._regained.discard(name)
        if name not in self._logs.logs and name not in self._logs.failed:
            return  # It has no files here: they could not be made, or their disk is lost.
        try:
            self._logs.delete(name, self._clock.now_ms())
        except HeadraceError as failure:
            logger.error("the files of %s cannot be deleted: %s", name, failure)

    def _set_strays_aside(self, image: Image) -> Iterator[None]:
        """Set aside the logs that belong to no replica here: they were deleted or moved meanwhile.

        They are not deleted, because the metadata may be wrong.
        """
        for name in (*self._logs.logs, *self._logs.failed):
            if name.partition in self._topics.get(name.topic, {}) or name in self._offline:
                continue
            yield
            topic = image.topics.get(name.topic)
            if topic is None or name.partition >= len(topic.partitions):
                reason = "the metadata knows no such partition: it was deleted meanwhile"
            else:
                reason = f"broker {self._node_id} is no replica of it: it was moved meanwhile"
            try:
                self._set_aside(name, reason)
            except HeadraceError as failure:
                logger.error("%s cannot be set aside: %s", name, failure)
        for name in [name for name in self._logs.missing if name not in self._offline]:
            del self._logs.missing[name]

    def _set_aside(self, name: TopicPartition, reason: str, *, is_lost: bool = False) -> None:
        log = self._logs.logs.get(name)
        held = (
            ""
            if log is None
            else (
                f" with {log.size_bytes} bytes at offsets {log.log_start_offset} to"
                f" {log.log_end_offset}"
            )
        )
        home = self._logs.directory_of(name).path
        aside = self._logs.set_aside(name, reason, self._clock.now_ms(), is_lost=is_lost)
        logger.warning(
            "%s: the log%s was set aside in %s, because %s. `headrace log strays list %s` shows it,"
            " `restore` gives it its name back, `discard` deletes it",
            name,
            held,
            aside,
            reason,
            home,
        )


def _report_missing(
    name: TopicPartition, log_end_offset: int, high_watermark: int, replica_count: int
) -> None:
    """Log that a replica lacks records that it knew to be committed when it last ran."""
    logger.error(
        "%s: the log ends at offset %d, and records up to offset %d were committed before this"
        " broker ended: %d offsets are missing here, %s",
        name,
        log_end_offset,
        high_watermark - 1,
        high_watermark - log_end_offset,
        "and lost, since there is no other replica"
        if replica_count == 1
        else "and fetched again if another replica has them, otherwise lost",
    )
