"""A shard's shell that writes transactions too: what is written is kept by the batch."""

from headrace.coordinator.shard import GroupSettings, ShardEffects
from headrace.errors import ErrorCode, error_code
from headrace.protocol.markers import Marker
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.unit.coordinator.driving import GROUP, SETTINGS, Shell


class TransactionalShell(Shell):
    """As `Shell`; `reload` gives a shard that has read the transactions and their markers."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.settings = settings
        self.batches: list[ShardEffects] = []

    def perform(self, effects: ShardEffects) -> None:
        if effects.records or effects.marker is not None:
            self.batches.append(effects)
        if effects.marker is not None and self.is_holding:
            self.held.append(effects)
        else:
            super().perform(effects)

    def reload(self) -> "TransactionalShell":
        other = TransactionalShell(self.settings)
        shard = other.shard = type(self.shard)(self.settings, self.shard._random)
        for batch in self.batches:
            for record in batch.records:
                shard.replay(record, batch.producer.producer_id)
            if batch.marker is not None:
                shard.end_transaction(batch.marker.producer_id, batch.marker.committed)
        other.batches = list(self.batches)
        other.now_ms = self.now_ms
        shard.loaded(other.now_ms)
        return other

    def send_txn_commit(
        self,
        producer_id: int,
        offset: int,
        *,
        partition: int = 0,
        topic: str = "t",
        group: str = GROUP,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = None,
    ) -> int:
        request = TxnOffsetCommitRequest(
            transactional_id="copier",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=3,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        return self.send(request, 3)

    def txn_commit(self, producer_id: int, offset: int = 1, **options: object) -> ErrorCode:
        """Commit one offset in a transaction: what its partition is answered."""
        answer = self.answers[self.send_txn_commit(producer_id, offset, **options)]  # type: ignore[arg-type]
        assert isinstance(answer, TxnOffsetCommitResponse)
        [[done]] = [topic.partitions for topic in answer.topics]
        return error_code(done.error_code)

    def end(self, producer_id: int, committed: bool = True) -> None:
        """Write the marker of a transaction."""
        self.perform(ShardEffects(marker=Marker(producer_id, 3, 0, committed)))

    def stable(
        self, partition: int = 0, topic: str = "t", group: str = GROUP
    ) -> OffsetFetchResponsePartitions:
        """What a fetch of one offset with `require_stable` gets."""
        wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequestGroup(group_id=group, topics=[wanted])
        [[found]] = [
            topic.partitions
            for topic in self.shard.fetch_offsets(request, require_stable=True).topics
        ]
        return found
