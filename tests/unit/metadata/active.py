"""An active controller for tests: commands one after another, each applied before the next."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from headrace.metadata.brokers import Heartbeats, fence_brokers, heartbeat, register_broker
from headrace.metadata.feature_updates import bootstrap
from headrace.metadata.features import SUPPORTED
from headrace.metadata.image import Image
from headrace.metadata.isr import alter_partition
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponsePartitionData,
    BrokerState,
    PartitionData,
    TopicData,
)
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.broker_registration import Feature
from headrace.protocol.schema import Message
from tests.unit.metadata.clusters import cluster, id_of, registration

Response = TypeVar("Response")

SESSION_MS = 2500


class Active:
    """A cluster and its controller; `offset` is the end of the metadata log."""

    def __init__(
        self,
        *broker_ids: int,
        topics: Mapping[str, Sequence[Sequence[int]]] | None = None,
        unclean: bool = False,
        min_isr: int | None = None,
    ) -> None:
        """With a `min_isr` eligible leader replicas are kept."""
        self.image = cluster(*broker_ids, topics=topics)
        if min_isr is not None:
            levels = bootstrap(Image(), min_insync_replicas=min_isr)
            self.image = self.image.apply(levels)
        self.offset = 100
        self.now_ms = 50_000
        self.unclean = unclean
        self.records: list[Message] = []
        self.take_office()

    def take_office(self) -> None:
        self.heartbeats = Heartbeats(SESSION_MS, self.image, self.offset, self.now_ms)

    def commit(self, result: CommandResult[Response]) -> Response:
        self.image = self.image.apply(result.records)
        self.offset += len(result.records)
        self.records += result.records
        return result.response

    def register(
        self,
        broker_id: int,
        incarnation: int,
        log_dirs: Sequence[bytes] | None = None,
        *,
        clean: bool = False,
    ) -> int:
        request = registration(broker_id, incarnation=incarnation, log_dirs=log_dirs)
        if clean:
            request.previous_broker_epoch = self.image.brokers[broker_id].epoch
        request.features = [
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED.items()
        ]
        epoch = self.commit(
            register_broker(
                self.image,
                request,
                cluster_id="cluster",
                has_session=self.heartbeats.has_session(broker_id, self.now_ms),
                offset=self.offset,
                unclean_by_default=self.unclean,
            )
        )
        self.heartbeats.begin_session(broker_id, self.now_ms)
        return epoch

    def beat(
        self,
        broker_id: int,
        at_offset: int | None = None,
        *,
        want_fence: bool = False,
        want_shut_down: bool = False,
        offline: Sequence[bytes] = (),
        full: Sequence[bytes] | None = None,
    ) -> BrokerHeartbeatResponse:
        """A heartbeat of a broker that has applied the whole log, or up to `at_offset`."""
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            current_metadata_offset=self.offset - 1 if at_offset is None else at_offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=list(offline),
            cordoned_log_dirs=None if full is None else list(full),
        )
        return self.commit(
            heartbeat(
                self.image,
                request,
                self.heartbeats,
                offset=self.offset,
                now_ms=self.now_ms,
                unclean_by_default=self.unclean,
            )
        )

    def pass_ms(self, duration_ms: int, *heard: int) -> tuple[int, ...]:
        """Let time pass in which only `heard` are heard of; the brokers that were fenced."""
        fenced: tuple[int, ...] = ()
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + SESSION_MS // 10, end_ms)
            for broker_id in heard:
                self.beat(broker_id)
            silent = self.heartbeats.expired_brokers(self.image, self.now_ms)
            self.heartbeats.fenced(silent, self.offset)
            result = fence_brokers(self.image, silent, unclean_by_default=self.unclean)
            self.commit(result)
            fenced += silent
        return fenced

    def alter(
        self,
        leader: int,
        isr: Sequence[int],
        *,
        topic: str = "a",
        partition: int = 0,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        broker_epochs: Mapping[int, int] | None = None,
        recovery: int = 0,
    ) -> AlterPartitionResponsePartitionData:
        """What a leader's proposal comes to; what is not given is what the image has."""
        known = self.image.topics[topic].partitions[partition]
        epochs = {value.broker_id: value.epoch for value in self.image.brokers.values()}
        epochs |= broker_epochs or {}
        wanted = PartitionData(
            partition_index=partition,
            leader_epoch=known.leader_epoch if leader_epoch is None else leader_epoch,
            partition_epoch=known.partition_epoch if partition_epoch is None else partition_epoch,
            new_isr_with_epochs=[
                BrokerState(broker_id=broker_id, broker_epoch=epochs.get(broker_id, -1))
                for broker_id in isr
            ],
            leader_recovery_state=recovery,
        )
        request = AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=self.image.brokers[leader].epoch,
            topics=[TopicData(topic_id=id_of(topic), partitions=[wanted])],
        )
        result = alter_partition(self.image, request, unclean_by_default=self.unclean)
        [answered] = self.commit(result).topics
        [answer] = answered.partitions
        return answer
