"""Commands of brokers: registration, heartbeats, fencing, departure, blocks of producer ids."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import Elections
from headrace.metadata.features import (
    CORDONED_DIRECTORIES_SINCE,
    VersionRange,
    levels_of,
    ranges_told,
    unsupported,
)
from headrace.metadata.image import NO_LEADER_CHANGE, BrokerImage, Image
from headrace.metadata.records import Result
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
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


# Which brokers live: what the active controller remembers of their heartbeats, and the command.
#
# What is remembered is not in the log. A controller that becomes active begins anew, and gives
# every broker a fresh session. Time is a steady clock's milliseconds.


# How often in a session the controller is to look for silent brokers.
SESSION_CHECKS = 10

_BEGIN_SHUTDOWN = 1


@dataclass(slots=True)
class _Heard:
    """One broker. What an earlier run of it has left here allows a later one nothing."""

    at_ms: int
    # Time since the last heartbeat that does not count as silence, because the controller was late.
    forgiven_ms: int = 0
    # Heartbeats that have arrived and are not answered yet.
    unanswered: int = 0
    # The last offset of the metadata log that the broker has applied.
    metadata_offset: int = -1
    # What it must have applied before it may be unfenced, and before it may shut down.
    return_offset: int = -1
    leave_offset: int = -1


class Heartbeats:
    """Who was heard of when, and how far each broker has followed the metadata log.

    Invariant: a broker is silent only after a whole session without a heartbeat, measured by a
    controller that was itself running. What a late controller forgives a broker between two of its
    heartbeats is no more than a session, or than the longest single delay.
    """

    def __init__(self, session_timeout_ms: int, image: Image, offset: int, now_ms: int) -> None:
        """Begin with a fresh session for every broker; `offset` is where the log ends."""
        self.session_timeout_ms = session_timeout_ms
        self._checked_ms = now_ms
        # Whoever was fenced before must have seen that it was before it may lead again, and has no
        # session until it is heard of.
        over_ms = now_ms - session_timeout_ms
        self._brokers = {
            one.broker_id: _Heard(over_ms if one.fenced else now_ms, return_offset=offset - 1)
            for one in image.brokers.values()
        }

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Whether a run of a broker was heard of lately, and has not left."""
        known = self._brokers.get(broker_id)
        return known is not None and now_ms - known.at_ms < self.session_timeout_ms

    def registered(self, broker_id: int, now_ms: int) -> None:
        """Begin the session of a broker's run."""
        known = self._brokers.setdefault(broker_id, _Heard(now_ms))
        known.at_ms, known.forgiven_ms = now_ms, 0

    def left(self, broker_id: int) -> None:
        """End the session of a broker that goes with our consent: it may be back at once."""
        if broker_id in self._brokers:
            self._brokers[broker_id].at_ms -= self.session_timeout_ms

    def arrived(self, image: Image, request: BrokerHeartbeatRequest, now_ms: int) -> None:
        """A heartbeat is here; until it is answered its broker is not silent."""
        self._contact(image, request, now_ms, 1)

    def answered(self, image: Image, request: BrokerHeartbeatRequest, now_ms: int) -> None:
        """A heartbeat that arrived is answered, or will never be."""
        self._contact(image, request, now_ms, -1)

    def _contact(
        self, image: Image, request: BrokerHeartbeatRequest, now_ms: int, waiting: int
    ) -> None:
        broker = image.brokers.get(request.broker_id)
        if broker is None:
            return
        known = self._of(broker, now_ms)
        known.unanswered = max(known.unanswered + waiting, 0)
        if not broker.fenced and broker.epoch == request.broker_epoch:
            known.at_ms, known.forgiven_ms = now_ms, 0

    def heard(self, broker: BrokerImage, metadata_offset: int, now_ms: int) -> None:
        """A broker lives, and has applied the log up to `metadata_offset`."""
        known = self._of(broker, now_ms)
        known.at_ms = now_ms
        known.forgiven_ms = 0
        known.metadata_offset = max(known.metadata_offset, metadata_offset)

    def silent(self, image: Image, now_ms: int) -> tuple[int, ...]:
        """The brokers to fence; to be asked SESSION_CHECKS times in a session.

        A check that comes later than planned means that we were stopped, or busy: heartbeats that
        came meanwhile could not be heard, so the delay does not count as silence. It counts once
        the same silence has had its share of forgiveness, or a controller that is always late would
        never fence a dead broker.
        """
        planned_ms = self.session_timeout_ms // SESSION_CHECKS
        delay_ms = now_ms - self._checked_ms - planned_ms
        self._forget(image)
        if delay_ms > 0:
            self._forgive(delay_ms, now_ms)
        self._checked_ms = now_ms
        return tuple(
            one.broker_id
            for one in sorted(image.brokers.values(), key=lambda one: one.broker_id)
            if not one.fenced and self._is_silent(self._of(one, now_ms), now_ms)
        )

    def _is_silent(self, known: _Heard, now_ms: int) -> bool:
        return not known.unanswered and now_ms - known.at_ms >= self.session_timeout_ms

    def _forgive(self, delay_ms: int, now_ms: int) -> None:
        limit_ms = max(self.session_timeout_ms, delay_ms)
        for known in self._brokers.values():
            if self._checked_ms - known.at_ms >= self.session_timeout_ms:
                continue  # Its session was over before the delay.
            forgiven_ms = min(delay_ms, limit_ms - known.forgiven_ms, now_ms - known.at_ms)
            if forgiven_ms > 0:
                known.at_ms += forgiven_ms
                known.forgiven_ms += forgiven_ms

    def fenced(self, broker_ids: Iterable[int], offset: int) -> None:
        """Brokers are fenced by the records from `offset` on."""
        for broker_id in broker_ids:
            if broker_id in self._brokers:
                self._brokers[broker_id].return_offset = offset

    def leaving(self, broker: BrokerImage, offset: int) -> None:
        """What a broker led is given away by the records up to `offset`."""
        self._brokers[broker.broker_id].leave_offset = offset

    def may_return(self, broker: BrokerImage) -> bool:
        """Whether a fenced broker knows that it is fenced, and so what it no longer leads."""
        known = self._brokers[broker.broker_id]
        return known.metadata_offset >= max(known.return_offset, broker.epoch)

    def may_leave(self, image: Image, broker: BrokerImage) -> bool:
        """Whether every other active broker knows who leads in its place."""
        offset = self._brokers[broker.broker_id].leave_offset
        return all(
            one.broker_id in self._brokers
            and self._brokers[one.broker_id].metadata_offset >= offset
            for one in image.brokers.values()
            if one.is_active and one.broker_id != broker.broker_id
        )

    def _of(self, broker: BrokerImage, now_ms: int) -> _Heard:
        return self._brokers.setdefault(broker.broker_id, _Heard(now_ms))

    def _forget(self, image: Image) -> None:
        for broker_id in [one for one in self._brokers if one not in image.brokers]:
            del self._brokers[broker_id]


def heartbeat(
    image: Image,
    request: BrokerHeartbeatRequest,
    heartbeats: Heartbeats,
    *,
    offset: int,
    now_ms: int,
    unclean_by_default: bool,
) -> Result[BrokerHeartbeatResponse]:
    """Note that a broker lives, and fence it, unfence it or let it go as it asks for.

    A broker that wants to shut down first loses its leaderships, and may go when the others know.
    """
    broker = registered(image, request.broker_id, request.broker_epoch)
    heartbeats.heard(broker, request.current_metadata_offset, now_ms)
    caught_up = heartbeats.may_return(broker)
    response = BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=broker.fenced)
    records = list(_offline_records(broker, request))
    records += _cordon_records(image.apply(records), broker, request, unclean_by_default)
    if broker.fenced:
        response.should_shut_down = request.want_shut_down
        if caught_up and not request.want_fence and not request.want_shut_down:
            response.is_fenced = False
            unfenced = unfence_broker(
                image.apply(records), broker, unclean_by_default=unclean_by_default
            )
            records += unfenced.records
    elif request.want_shut_down or request.want_fence:
        gone = request.want_fence
        if not gone:
            first = offset + len(records)
            leaving = _leaving_records(
                image.apply(records), broker, heartbeats, first, unclean_by_default
            )
            records += leaving
            gone = heartbeats.may_leave(image, broker)
        if gone:
            after = image.apply(records)
            heartbeats.fenced([broker.broker_id], offset + len(records))
            records += fence_brokers(
                after, [broker.broker_id], unclean_by_default=unclean_by_default
            ).records
            response.is_fenced = True
            response.should_shut_down = request.want_shut_down
    if response.should_shut_down:
        heartbeats.left(broker.broker_id)
    return Result(tuple(records), response)


def _offline_records(broker: BrokerImage, request: BrokerHeartbeatRequest) -> tuple[Message, ...]:
    """What takes directories that failed off the broker's registration."""
    online = [one for one in broker.log_dirs if one not in request.offline_log_dirs]
    # A broker all of whose directories failed stops by itself.
    if len(online) == len(broker.log_dirs) or not online:
        return ()
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, log_dirs=online
    )
    return (change,)


def _cordon_records(
    image: Image, broker: BrokerImage, request: BrokerHeartbeatRequest, unclean_by_default: bool
) -> tuple[Message, ...]:
    """What notes which directories of a broker are full, and moves leaderships to where room is.

    Any change is an occasion: a broker that has room again may be what others waited for.
    """
    full = request.cordoned_log_dirs
    if (
        full is None
        or set(full) == set(broker.cordoned_log_dirs)
        or image.metadata_version < CORDONED_DIRECTORIES_SINCE
    ):
        return ()
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=sorted(full)
    )
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    return (record, *elections.to_brokers_with_room())


def _leaving_records(
    image: Image,
    broker: BrokerImage,
    heartbeats: Heartbeats,
    offset: int,
    unclean_by_default: bool,
) -> tuple[Message, ...]:
    """What gives away what a broker leads, if that has not been done."""
    if broker.in_controlled_shutdown:
        return ()
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        in_controlled_shutdown=_BEGIN_SHUTDOWN,
    )
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    changes = elections.departures([broker.broker_id])
    if any(one.leader != NO_LEADER_CHANGE for one in changes):
        heartbeats.leaving(broker, offset + len(changes))
    return (record, *changes)
