"""Which brokers live: what the active controller remembers of their heartbeats, and the command.

What is remembered is not in the log. A controller that becomes active begins anew, and gives every
broker a fresh session. Time is a steady clock's milliseconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.metadata.brokers import fence_brokers, registered, unfence_broker
from headrace.metadata.elections import Elections
from headrace.metadata.features import CORDONED_DIRECTORIES_SINCE
from headrace.metadata.image import NO_LEADER_CHANGE, BrokerImage, Image
from headrace.metadata.result import Result
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.metadata_records import BrokerRegistrationChangeRecord
from headrace.protocol.schema import Message

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
