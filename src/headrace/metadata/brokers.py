"""Commands of brokers: registration, fencing, departure, and blocks of producer ids."""

from collections.abc import Collection
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import Elections
from headrace.metadata.features import VersionRange, levels_of, ranges_told, unsupported
from headrace.metadata.image import BrokerImage, Image
from headrace.metadata.result import Result
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.schema import Message
from headrace.types import uuid_text

PRODUCER_ID_BLOCK_SIZE = 1000

FENCE = 1
UNFENCE = -1

_PRODUCER_ID_MAX = 2**63 - 1


class ProducerIdBlock(NamedTuple):
    """Producer ids [first_id, first_id + size), given to one broker and never again."""

    first_id: int
    size: int


def register_broker(
    image: Image,
    request: BrokerRegistrationRequest,
    *,
    cluster_id: str | None,
    has_session: bool,
    offset: int,
    unclean_by_default: bool,
) -> Result[int]:
    """Register a run of a broker, and answer its epoch: the offset its record will have in the log.

    A new run is fenced and in no ISR. One that names the epoch of the run before found the mark of
    a clean shutdown, so it has all it had, and stays eligible. Any other may have lost what was not
    flushed, and is eligible nowhere (KIP-966); without that feature, it stays where it was the last
    one in sync. A retry of the same run keeps its epoch and how it stands.

    While the earlier run has a session, a new one is refused as a duplicate. Unlike Kafka, it is
    taken at once if it has a directory of the earlier run: a directory is locked by the process
    that uses it, so that run is over, and a restart after a kill need not wait for the session.
    """
    _check_registration(image, request, cluster_id)
    known = image.brokers.get(request.broker_id)
    if known is not None and has_session:
        _refuse_duplicate(known, request)
    same_run = known is not None and known.incarnation_id == request.incarnation_id
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=known.epoch if known and same_run else offset,
        end_points=[
            BrokerEndpoint(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in request.listeners
        ],
        features=[
            BrokerFeature(
                name=one.name,
                min_supported_version=one.min_supported_version,
                max_supported_version=one.max_supported_version,
            )
            for one in request.features
        ],
        rack=request.rack,
        fenced=known.fenced if known and same_run else True,
        in_controlled_shutdown=known.in_controlled_shutdown if known and same_run else False,
        log_dirs=list(request.log_dirs),
        cordoned_log_dirs=list(known.cordoned_log_dirs) or None if known and same_run else None,
    )
    after = image.apply([record])
    if same_run:
        return Result((record,) if after != image else (), record.broker_epoch)
    elections = Elections(after, unclean_by_default=unclean_by_default)
    lost = known is not None and _all_new(known.log_dirs, request.log_dirs)
    departures = elections.departures(
        [request.broker_id],
        new_runs=True,
        unclean=known is None or request.previous_broker_epoch != known.epoch,
        without_their_logs=lost,
    )
    return Result((record, *departures), offset)


def _refuse_duplicate(known: BrokerImage, request: BrokerRegistrationRequest) -> None:
    """KafkaError if a broker that lives is another process than the one that registers."""
    if known.incarnation_id == request.incarnation_id:
        return
    if set(known.log_dirs).isdisjoint(request.log_dirs):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process runs as broker {known.broker_id}, with other log directories",
        )


def _all_new(before: Collection[bytes], now: Collection[bytes]) -> bool:
    """Whether a broker has none of the directories left that it had; not if it never told."""
    return bool(before) and bool(now) and set(before).isdisjoint(now)


def _check_registration(
    image: Image, request: BrokerRegistrationRequest, cluster_id: str | None
) -> None:
    if cluster_id is not None and request.cluster_id != cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {request.broker_id} belongs to the cluster {request.cluster_id!r}, this is"
            f" {cluster_id!r}",
        )
    if not request.listeners:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION, f"broker {request.broker_id} names no listener"
        )
    ranges = ranges_told(
        {
            one.name: VersionRange(one.min_supported_version, one.max_supported_version)
            for one in request.features
        }
    )
    for name, level in levels_of(image.features).items():
        reason = unsupported(ranges, name, level)
        if reason is not None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster has {name} at level {level}, and broker {request.broker_id} {reason}",
            )
    for other in image.brokers.values():
        shared = sorted(set(other.log_dirs) & set(request.log_dirs))
        if shared and other.broker_id != request.broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION,
                f"broker {other.broker_id} has the log directory {uuid_text(shared[0])} already;"
                f" broker {request.broker_id} must not run on a copy of it",
            )


def registered(image: Image, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker as it is registered; KafkaError if that was another run, or none."""
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
    return broker


def fence_brokers(
    image: Image, broker_ids: Collection[int], *, unclean_by_default: bool
) -> Result[None]:
    """Take brokers out of every ISR and leadership, until they are heard of again."""
    fenced: list[Message] = [
        BrokerRegistrationChangeRecord(broker_id=one, broker_epoch=broker.epoch, fenced=FENCE)
        for one in sorted(broker_ids)
        if (broker := image.brokers.get(one)) is not None and not broker.fenced
    ]
    if not fenced:
        return Result((), None)
    elections = Elections(image.apply(fenced), unclean_by_default=unclean_by_default)
    return Result((*fenced, *elections.departures(broker_ids)), None)


def unfence_broker(image: Image, broker: BrokerImage, *, unclean_by_default: bool) -> Result[None]:
    """Let a broker lead and be seen; partitions nobody could lead may have it as their leader."""
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE
    )
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    return Result((record, *elections.arrivals()), None)


def unregister_broker(
    image: Image, request: UnregisterBrokerRequest, *, unclean_by_default: bool
) -> Result[None]:
    """Forget a broker. Its replicas stay assigned to it: move them away before."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered"
        )
    record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    return Result((record, *elections.departures([broker.broker_id])), None)


def allocate_producer_ids(
    image: Image, *, broker_id: int, broker_epoch: int
) -> Result[ProducerIdBlock]:
    """Give a broker the next block of producer ids; KafkaError if it may not have one."""
    registered(image, broker_id, broker_epoch)
    first_id = image.next_producer_id
    if first_id > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "every producer id has been given out")
    record = ProducerIdsRecord(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        next_producer_id=first_id + PRODUCER_ID_BLOCK_SIZE,
    )
    return Result((record,), ProducerIdBlock(first_id, PRODUCER_ID_BLOCK_SIZE))
