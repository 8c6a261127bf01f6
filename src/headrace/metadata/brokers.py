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
    supported_ranges,
    unsupported_reason,
)
from headrace.metadata.image import NO_LEADER_CHANGE, BrokerImage, Image
from headrace.metadata.records import CommandResult
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
) -> CommandResult[int]:
    """Register an incarnation of a broker; the result is its epoch, the offset of its record.

    A new incarnation is fenced and in no ISR. If it names the epoch of the incarnation before it,
    it found the mark of a clean shutdown: it has every record it had, and stays in the ELR. Any
    other may have lost records that were not flushed, and leaves the ELR (KIP-966); without that
    feature it stays in an ISR of which it was the last member. A retry by the same incarnation
    keeps its epoch, and stays fenced or unfenced as it was.

    While the earlier incarnation has a session, a new incarnation is refused as a duplicate. Unlike
    Kafka, it is accepted at once if it has a directory of the earlier incarnation: a directory is
    locked by the process that uses it, so that process has ended, and a restart after a kill need
    not wait for the session to expire.
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
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ],
        features=[
            BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
        rack=request.rack,
        fenced=known.fenced if known and same_run else True,
        in_controlled_shutdown=known.in_controlled_shutdown if known and same_run else False,
        log_dirs=list(request.log_dirs),
        cordoned_log_dirs=list(known.cordoned_log_dirs) or None if known and same_run else None,
    )
    after = image.apply([record])
    if same_run:
        return CommandResult((record,) if after != image else (), record.broker_epoch)
    elections = Elections(after, unclean_by_default=unclean_by_default)
    lost = known is not None and _all_directories_replaced(known.log_dirs, request.log_dirs)
    removals = elections.remove_from_isrs(
        [request.broker_id],
        new_runs=True,
        unclean=known is None or request.previous_broker_epoch != known.epoch,
        without_their_logs=lost,
    )
    return CommandResult((record, *removals), offset)


def _refuse_duplicate(known: BrokerImage, request: BrokerRegistrationRequest) -> None:
    """Raise KafkaError if a broker with a session is another process than the sender."""
    if known.incarnation_id == request.incarnation_id:
        return
    if set(known.log_dirs).isdisjoint(request.log_dirs):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process runs as broker {known.broker_id}, with other log directories",
        )


def _all_directories_replaced(before: Collection[bytes], now: Collection[bytes]) -> bool:
    """Whether a broker lost all its directories; False if it registered without any before."""
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
    ranges = supported_ranges(
        {
            feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version)
            for feature in request.features
        }
    )
    for name, level in levels_of(image.features).items():
        reason = unsupported_reason(ranges, name, level)
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


def registered_broker(image: Image, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker registered with this epoch; KafkaError if there is none."""
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
) -> CommandResult[None]:
    """Fence brokers: take them out of every ISR and leadership until they send heartbeats."""
    fenced: list[Message] = [
        BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=FENCE)
        for broker_id in sorted(broker_ids)
        if (broker := image.brokers.get(broker_id)) is not None and not broker.fenced
    ]
    if not fenced:
        return CommandResult((), None)
    elections = Elections(image.apply(fenced), unclean_by_default=unclean_by_default)
    return CommandResult((*fenced, *elections.remove_from_isrs(broker_ids)), None)


def unfence_broker(
    image: Image, broker: BrokerImage, *, unclean_by_default: bool
) -> CommandResult[None]:
    """Unfence a broker, and elect it leader of partitions that had no electable replica."""
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE
    )
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    return CommandResult((record, *elections.elect_leaderless()), None)


def unregister_broker(
    image: Image, request: UnregisterBrokerRequest, *, unclean_by_default: bool
) -> CommandResult[None]:
    """Remove the registration of a broker. Its replicas stay assigned to it: move them first."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered"
        )
    record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    return CommandResult((record, *elections.remove_from_isrs([broker.broker_id])), None)


def allocate_producer_ids(
    image: Image, *, broker_id: int, broker_epoch: int
) -> CommandResult[ProducerIdBlock]:
    """Give a broker the next block of producer ids; KafkaError if it is not registered."""
    registered_broker(image, broker_id, broker_epoch)
    first_id = image.next_producer_id
    if first_id > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "every producer id has been given out")
    record = ProducerIdsRecord(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        next_producer_id=first_id + PRODUCER_ID_BLOCK_SIZE,
    )
    return CommandResult((record,), ProducerIdBlock(first_id, PRODUCER_ID_BLOCK_SIZE))


# Sessions of brokers, kept by the active controller, and the BrokerHeartbeat command.
#
# Sessions are not in the metadata log. A controller that becomes active gives every unfenced broker
# a fresh session. Time is in milliseconds of a monotonic clock.


# The number of checks for expired sessions in the time of one session.
SESSION_CHECKS = 10

_BEGIN_SHUTDOWN = 1


@dataclass(slots=True)
class _BrokerContact:
    """The heartbeats of one broker. They grant a later incarnation nothing."""

    at_ms: int
    # Part of the time since the last heartbeat that does not count as silence, because the
    # controller's own check was late.
    forgiven_ms: int = 0
    # Heartbeats that have arrived and are not answered yet.
    unanswered: int = 0
    # The last offset of the metadata log that the broker has applied.
    metadata_offset: int = -1
    # Offsets of the metadata log: the broker may be unfenced once it has applied `return_offset`,
    # and may shut down once all others have applied `leave_offset`.
    return_offset: int = -1
    leave_offset: int = -1


class Heartbeats:
    """The time of each broker's last heartbeat, and the metadata offset that it has applied.

    Invariant: a session expires only after the session timeout without a heartbeat, measured while
    the controller itself was running. The delay of late checks that does not count is limited, for
    the time between two heartbeats, to the session timeout or the longest single delay.
    """

    def __init__(self, session_timeout_ms: int, image: Image, offset: int, now_ms: int) -> None:
        """Begin a session for every unfenced broker; `offset` is the log's end offset."""
        self.session_timeout_ms = session_timeout_ms
        self._checked_ms = now_ms
        # A fenced broker must apply the record that fenced it before it may lead again. It has no
        # session until it sends a heartbeat.
        over_ms = now_ms - session_timeout_ms
        self._brokers = {
            broker.broker_id: _BrokerContact(
                over_ms if broker.fenced else now_ms, return_offset=offset - 1
            )
            for broker in image.brokers.values()
        }

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Whether the session of a broker has neither expired nor ended by a shutdown."""
        known = self._brokers.get(broker_id)
        return known is not None and now_ms - known.at_ms < self.session_timeout_ms

    def begin_session(self, broker_id: int, now_ms: int) -> None:
        """Begin the session of a broker that registered."""
        known = self._brokers.setdefault(broker_id, _BrokerContact(now_ms))
        known.at_ms, known.forgiven_ms = now_ms, 0

    def end_session(self, broker_id: int) -> None:
        """End the session of a broker that may shut down: it can register again at once."""
        if broker_id in self._brokers:
            self._brokers[broker_id].at_ms -= self.session_timeout_ms

    def arrived(self, image: Image, request: BrokerHeartbeatRequest, now_ms: int) -> None:
        """Note that a heartbeat arrived; until it is answered the session does not expire."""
        self._contact(image, request, now_ms, 1)

    def answered(self, image: Image, request: BrokerHeartbeatRequest, now_ms: int) -> None:
        """Note that a heartbeat was answered, or failed and never will be."""
        self._contact(image, request, now_ms, -1)

    def _contact(
        self, image: Image, request: BrokerHeartbeatRequest, now_ms: int, waiting: int
    ) -> None:
        broker = image.brokers.get(request.broker_id)
        if broker is None:
            return
        known = self._session_of(broker, now_ms)
        known.unanswered = max(known.unanswered + waiting, 0)
        if not broker.fenced and broker.epoch == request.broker_epoch:
            known.at_ms, known.forgiven_ms = now_ms, 0

    def renew_session(self, broker: BrokerImage, metadata_offset: int, now_ms: int) -> None:
        """Renew the session of a broker that has applied the log up to `metadata_offset`."""
        known = self._session_of(broker, now_ms)
        known.at_ms = now_ms
        known.forgiven_ms = 0
        known.metadata_offset = max(known.metadata_offset, metadata_offset)

    def expired_brokers(self, image: Image, now_ms: int) -> tuple[int, ...]:
        """The brokers to fence: unfenced, and with an expired session.

        To be called SESSION_CHECKS times in a session timeout. A late call means that this process
        was stopped or busy and could not receive heartbeats, so the delay does not count as
        silence. The total that is not counted is limited for each silence: a controller that is
        always late would otherwise never fence a dead broker.
        """
        planned_ms = self.session_timeout_ms // SESSION_CHECKS
        delay_ms = now_ms - self._checked_ms - planned_ms
        self._drop_unregistered(image)
        if delay_ms > 0:
            self._extend_sessions(delay_ms, now_ms)
        self._checked_ms = now_ms
        return tuple(
            broker.broker_id
            for broker in sorted(image.brokers.values(), key=lambda broker: broker.broker_id)
            if not broker.fenced and self._is_expired(self._session_of(broker, now_ms), now_ms)
        )

    def _is_expired(self, known: _BrokerContact, now_ms: int) -> bool:
        return not known.unanswered and now_ms - known.at_ms >= self.session_timeout_ms

    def _extend_sessions(self, delay_ms: int, now_ms: int) -> None:
        limit_ms = max(self.session_timeout_ms, delay_ms)
        for known in self._brokers.values():
            if self._checked_ms - known.at_ms >= self.session_timeout_ms:
                continue  # Its session was over before the delay.
            forgiven_ms = min(delay_ms, limit_ms - known.forgiven_ms, now_ms - known.at_ms)
            if forgiven_ms > 0:
                known.at_ms += forgiven_ms
                known.forgiven_ms += forgiven_ms

    def fenced(self, broker_ids: Iterable[int], offset: int) -> None:
        """Note that brokers are fenced by the records from `offset` on."""
        for broker_id in broker_ids:
            if broker_id in self._brokers:
                self._brokers[broker_id].return_offset = offset

    def leaving(self, broker: BrokerImage, offset: int) -> None:
        """Note that the records up to `offset` move the leaderships of a broker away."""
        self._brokers[broker.broker_id].leave_offset = offset

    def may_unfence(self, broker: BrokerImage) -> bool:
        """Whether a fenced broker has applied the record that fenced it, and leads nothing."""
        known = self._brokers[broker.broker_id]
        return known.metadata_offset >= max(known.return_offset, broker.epoch)

    def may_shut_down(self, image: Image, broker: BrokerImage) -> bool:
        """Whether every other active broker has applied the elections of the new leaders."""
        offset = self._brokers[broker.broker_id].leave_offset
        return all(
            other.broker_id in self._brokers
            and self._brokers[other.broker_id].metadata_offset >= offset
            for other in image.brokers.values()
            if other.is_active and other.broker_id != broker.broker_id
        )

    def _session_of(self, broker: BrokerImage, now_ms: int) -> _BrokerContact:
        return self._brokers.setdefault(broker.broker_id, _BrokerContact(now_ms))

    def _drop_unregistered(self, image: Image) -> None:
        for broker_id in [known_id for known_id in self._brokers if known_id not in image.brokers]:
            del self._brokers[broker_id]


def heartbeat(
    image: Image,
    request: BrokerHeartbeatRequest,
    heartbeats: Heartbeats,
    *,
    offset: int,
    now_ms: int,
    unclean_by_default: bool,
) -> CommandResult[BrokerHeartbeatResponse]:
    """Renew the session of a broker, and fence it, unfence it or let it shut down as it asks.

    A broker that wants to shut down first loses its leaderships, and may shut down when the other
    brokers have applied that.
    """
    broker = registered_broker(image, request.broker_id, request.broker_epoch)
    heartbeats.renew_session(broker, request.current_metadata_offset, now_ms)
    caught_up = heartbeats.may_unfence(broker)
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
            gone = heartbeats.may_shut_down(image, broker)
        if gone:
            after = image.apply(records)
            heartbeats.fenced([broker.broker_id], offset + len(records))
            records += fence_brokers(
                after, [broker.broker_id], unclean_by_default=unclean_by_default
            ).records
            response.is_fenced = True
            response.should_shut_down = request.want_shut_down
    if response.should_shut_down:
        heartbeats.end_session(broker.broker_id)
    return CommandResult(tuple(records), response)


def _offline_records(broker: BrokerImage, request: BrokerHeartbeatRequest) -> tuple[Message, ...]:
    """The record that removes failed directories from the broker's registration."""
    online = [
        directory for directory in broker.log_dirs if directory not in request.offline_log_dirs
    ]
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
    """Records that note the full directories of a broker and move leaderships away from them.

    Elections are held after every change: leaders on full disks may have waited for this broker.
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
    return (record, *elections.leave_full_directories())


def _leaving_records(
    image: Image,
    broker: BrokerImage,
    heartbeats: Heartbeats,
    offset: int,
    unclean_by_default: bool,
) -> tuple[Message, ...]:
    """Records that begin a controlled shutdown and move the leaderships of a broker away."""
    if broker.in_controlled_shutdown:
        return ()
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        in_controlled_shutdown=_BEGIN_SHUTDOWN,
    )
    elections = Elections(image.apply([record]), unclean_by_default=unclean_by_default)
    changes = elections.remove_from_isrs([broker.broker_id])
    if any(change.leader != NO_LEADER_CHANGE for change in changes):
        heartbeats.leaving(broker, offset + len(changes))
    return (record, *changes)
