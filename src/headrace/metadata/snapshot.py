"""Snapshots of an image: the fewest records that replay into it, and the file of their batches."""

from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.errors import CorruptBatch
from headrace.metadata.acl_entries import acl_records
from headrace.metadata.client_quotas import quota_records
from headrace.metadata.delegation_tokens import token_records
from headrace.metadata.features import METADATA_VERSION, METADATA_VERSION_MAX
from headrace.metadata.image import BrokerImage, Image, PartitionImage, directories_of
from headrace.metadata.records import (
    MetadataError,
    decode_control_batch,
    decode_record,
    encode_control_batch,
    encode_record,
)
from headrace.metadata.scram_credentials import credential_records
from headrace.protocol.batch import assign, check_batch, scan_headers
from headrace.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace.protocol.messages.quorum_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from headrace.protocol.records import decode_rows, encode_batch
from headrace.protocol.schema import Message


def image_records(image: Image) -> Iterator[Message]:
    """The records of a snapshot: `Image().apply(image_records(image)) == image`."""
    # `metadata.version` first: Kafka reads the other records by its level.
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for broker in image.brokers.values():
        yield _broker_record(broker)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for partition_id, partition in enumerate(topic.partitions):
            yield _partition_record(topic.topic_id, partition_id, partition)
    for resource, settings in image.configs.items():
        for name, value in settings.items():
            yield ConfigRecord(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                name=name,
                value=value,
            )
    yield from acl_records(image.acls)
    yield from quota_records(image.client_quotas)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id)
    yield from credential_records(image.scram_credentials)
    yield from token_records(image.delegation_tokens)


def _broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints
        ],
        features=[
            BrokerFeature(
                name=name,
                min_supported_version=supported.min,
                max_supported_version=supported.max,
            )
            for name, supported in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=list(broker.cordoned_log_dirs) or None,
    )


def _partition_record(
    topic_id: bytes, partition_id: int, partition: PartitionImage
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition_id,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=directories_of(partition)
        if partition.lost_replicas or partition.directories
        else [],
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


# The content of a snapshot file: a header, the voters, the records of an image, and a footer.
#
# Rule: a snapshot without its footer is incomplete. Its offsets count its own records from 0.


_RECORDS_PER_BATCH = 1024


def encode_snapshot(
    records: Iterable[Message],
    voters: VotersRecord | None,
    *,
    epoch: int,
    now_ms: int,
    metadata_version: int = METADATA_VERSION_MAX,
) -> Iterator[bytearray]:
    """Encode the batches of a snapshot; without `voters` those of the configuration apply."""
    offset = 0
    for batch in _batches(records, voters, now_ms, metadata_version):
        (header,) = scan_headers(batch)
        assign(batch, header, offset, epoch)
        offset = header.next_offset
        yield batch


def _batches(
    records: Iterable[Message], voters: VotersRecord | None, now_ms: int, metadata_version: int
) -> Iterator[bytearray]:
    head: list[Message] = [SnapshotHeaderRecord(last_contained_log_timestamp=now_ms)]
    if voters is not None:
        head += [KRaftVersionRecord(k_raft_version=1), voters]
    yield encode_control_batch(head, now_ms)
    rest = iter(records)
    while rows := [
        (now_ms, None, encode_record(record, metadata_version), ())
        for record in islice(rest, _RECORDS_PER_BATCH)
    ]:
        yield encode_batch(rows)
    yield encode_control_batch([SnapshotFooterRecord()], now_ms)


class SnapshotContent:
    """The content of a snapshot file: `voters`, and an iterator of `records`.

    MetadataError if the file is cut short, damaged or written by a newer version.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.voters: VotersRecord | None = None
        try:
            self._headers = scan_headers(data)
            for header in self._headers:
                check_batch(data, header)
        except CorruptBatch as error:
            raise MetadataError(f"the snapshot is damaged: {error}") from error
        whole = False
        for header in self._headers:
            if header.is_control:
                for message in decode_control_batch(data, header):
                    whole = isinstance(message, SnapshotFooterRecord)
                    if isinstance(message, VotersRecord):
                        self.voters = message
        end = self._headers[-1].position + self._headers[-1].size if self._headers else 0
        if not whole or end != len(data):
            raise MetadataError("the snapshot is cut short")

    def records(self) -> Iterator[Message]:
        """The records of the image."""
        for header in self._headers:
            if not header.is_control:
                for row in decode_rows(self._data, header):
                    if row.value is not None:
                        yield decode_record(row.value)
