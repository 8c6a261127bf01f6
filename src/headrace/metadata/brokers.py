"""Commands of brokers: registration, and blocks of producer ids."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.config import Listener
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image
from headrace.metadata.result import Result
from headrace.protocol.messages.metadata_records import (
    BrokerEndpoint,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)

PRODUCER_ID_BLOCK_SIZE = 1000

_PRODUCER_ID_MAX = 2**63 - 1
_SECURITY_PROTOCOLS = {"PLAINTEXT": 0}


class ProducerIdBlock(NamedTuple):
    """Producer ids [first_id, first_id + size), given to one broker and never again."""

    first_id: int
    size: int


def register_broker(
    image: Image,
    *,
    broker_id: int,
    incarnation_id: bytes,
    endpoints: Sequence[Listener],
    rack: str | None,
    log_dirs: Sequence[bytes],
    offset: int,
) -> Result[int]:
    """Register a broker, and answer its epoch: the offset its record will have in the log.

    A registration replaces the one of an earlier run of the same broker. A retry of the same run
    keeps its epoch.
    """
    known = image.brokers.get(broker_id)
    retried = known is not None and known.incarnation_id == incarnation_id
    epoch = known.epoch if known is not None and retried else offset
    record = RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=incarnation_id,
        broker_epoch=epoch,
        end_points=[
            BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=_SECURITY_PROTOCOLS[endpoint.name],
            )
            for endpoint in endpoints
        ],
        rack=rack,
        # There is no heartbeat yet that would unfence it.
        fenced=False,
        log_dirs=list(log_dirs),
    )
    return Result((record,), epoch)


def allocate_producer_ids(
    image: Image, *, broker_id: int, broker_epoch: int
) -> Result[ProducerIdBlock]:
    """Give a broker the next block of producer ids; KafkaError if it may not have one."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered"
        )
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} registered again, with epoch {broker.epoch}",
        )
    first_id = image.next_producer_id
    if first_id > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "every producer id has been given out")
    record = ProducerIdsRecord(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        next_producer_id=first_id + PRODUCER_ID_BLOCK_SIZE,
    )
    return Result((record,), ProducerIdBlock(first_id, PRODUCER_ID_BLOCK_SIZE))
