"""Images for tests, made the way the broker makes them: by applying records."""

from collections.abc import Mapping, Sequence

from headrace.errors import ErrorCode
from headrace.metadata.brokers import register_broker
from headrace.metadata.image import Image
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest, Listener
from headrace.protocol.messages.metadata_records import (
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace.protocol.schema import Message


def registration(
    broker_id: int,
    *,
    incarnation: int | None = None,
    rack: str | None = None,
    log_dirs: Sequence[bytes] | None = None,
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id="cluster",
        incarnation_id=bytes([incarnation or broker_id]) * 16,
        listeners=[Listener(name="PLAINTEXT", host=f"host-{broker_id}", port=9092)],
        rack=rack,
        log_dirs=[directory_of(broker_id)] if log_dirs is None else list(log_dirs),
    )


def directory_of(broker_id: int) -> bytes:
    """The id of a broker's log directory."""
    return bytes([broker_id]) * 16


def broker_records(*broker_ids: int, racks: Mapping[int, str] | None = None) -> list[Message]:
    """Registrations of brokers that are not fenced any more."""
    records: list[Message] = []
    for offset, broker_id in enumerate(broker_ids):
        [record] = register_broker(
            Image(),
            registration(broker_id, rack=(racks or {}).get(broker_id)),
            cluster_id="cluster",
            has_session=False,
            offset=offset,
            unclean_by_default=False,
        ).records
        assert isinstance(record, RegisterBrokerRecord)
        record.fenced = False
        records.append(record)
    return records


def topic_records(
    name: str,
    *replicas: Sequence[int],
    topic_id: bytes | None = None,
    configs: Mapping[str, str] | None = None,
) -> list[Message]:
    """A topic with one partition for each list of replicas, led by the first of each."""
    topic_id = topic_id or id_of(name)
    records: list[Message] = [TopicRecord(name=name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)
        for key, value in (configs or {}).items()
    ]
    records += [
        PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=list(brokers),
            isr=list(brokers),
            leader=brokers[0],
            leader_epoch=0,
            partition_epoch=0,
        )
        for partition, brokers in enumerate(replicas)
    ]
    return records


def id_of(name: str) -> bytes:
    return name.encode()[:16].rjust(16, b"\x01")


def cluster(*broker_ids: int, topics: Mapping[str, Sequence[Sequence[int]]] | None = None) -> Image:
    records = broker_records(*broker_ids)
    for name, replicas in (topics or {}).items():
        records += topic_records(name, *replicas)
    return Image().apply(records)


def standing(image: Image, topic: str) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """Leader, leader epoch, partition epoch and ISR of each partition."""
    return [
        (partition.leader, partition.leader_epoch, partition.partition_epoch, partition.isr)
        for partition in image.topics[topic].partitions
    ]


def told(error_code: int, error_message: str | None) -> str:
    """An answer's code and message as one text; empty for success."""
    if error_code == ErrorCode.NONE:
        assert error_message is None
        return ""
    [name] = [code.name for code in ErrorCode if code == error_code]
    return f"{name}: {error_message}"
