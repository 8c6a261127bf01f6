"""Who leads a partition, chosen in this one place, and the commands that hold elections.

Rule: a leader is an active member of the ISR: the one that leads already, else the first in the
order of the replicas. With an empty ISR it is an eligible leader replica (KIP-966), which has every
committed record too. Any other replica leads only by an unclean election, which may lose
acknowledged records and is therefore off unless a topic or the operator asks for it, or by a
recovery election, when nobody is eligible any more: see `metadata/recovery_elections.py`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, IntEnum
from typing import NamedTuple

from headrace.config import TOPIC_SETTINGS
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    Image,
    PartitionImage,
    ResourceType,
    TopicImage,
    directories_of,
)
from headrace.metadata.records import Result
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.protocol.schema import Message

RECOVERED = 0
# The leader came from outside the ISR and has not yet made the log its own.
RECOVERING = 1

_UNCLEAN_SETTING = "unclean.leader.election.enable"
MIN_ISR_SETTING = "min.insync.replicas"


class Election(Enum):
    """What an election may do beyond keeping a leader that can stay."""

    ONLINE = "any member of the ISR"
    PREFERRED = "the first replica if it is in the ISR, whoever leads"
    UNCLEAN = "any replica, if nobody of the ISR is active"


class Elected(NamedTuple):
    """A leader, or NO_LEADER; `unclean` if it may lack acknowledged records."""

    leader: int
    unclean: bool


def elect(partition: PartitionImage, active: Collection[int], election: Election) -> Elected:
    """Who leads a partition of these replicas and this ISR, now led by `partition.leader`.

    An unclean election prefers those that were eligible until they restarted uncleanly.
    """
    able = [
        one for one in partition.replicas if one in active and one not in partition.lost_replicas
    ]
    first = partition.replicas[:1] if election is Election.PREFERRED else ()
    eligible = partition.isr or partition.elr
    for broker_id in (*first, partition.leader, *able):
        if broker_id in able and broker_id in eligible:
            return Elected(broker_id, unclean=False)
    if election is Election.UNCLEAN and able:
        known = [one for one in able if one in partition.last_known_elr]
        return Elected((known or able)[0], unclean=True)
    return Elected(NO_LEADER, unclean=False)


def elect_with_room(
    partition: PartitionImage,
    active: Collection[int],
    without_room: Collection[int],
    election: Election,
) -> Elected:
    """As `elect`; a replica on a full disk leads only where nobody else of the ISR can."""
    able = [one for one in active if one not in without_room]
    elected = elect(partition, able, election)
    if elected.leader == NO_LEADER or elected.unclean:
        return elect(partition, active, election)
    return elected


class Elections:
    """Changes to the partitions of one image, each with the leader it leads to.

    Only brokers that `image` has as active can lead; so what happens to a broker is applied to the
    image first. `unclean_by_default` holds for topics for which the image says nothing.
    """

    def __init__(self, image: Image, *, unclean_by_default: bool) -> None:
        self._image = image
        self._active = frozenset(image.active_racks())
        self._unclean_by_default = unclean_by_default
        self._has_elr = image.has_elr
        self._min_isrs: dict[str, int] = {}

    def change(
        self,
        topic: TopicImage,
        partition_id: int,
        *,
        election: Election | None = None,
        isr: Sequence[int] | None = None,
        replicas: Sequence[int] | None = None,
        adding_replicas: Sequence[int] | None = None,
        removing_replicas: Sequence[int] | None = None,
        lost_replicas: Sequence[int] | None = None,
        directories: Sequence[tuple[int, bytes]] | None = None,
        leader_recovery_state: int | None = None,
        unclean_restarts: Collection[int] = (),
        without_logs: Collection[int] = (),
    ) -> PartitionChangeRecord | None:
        """The record that makes a partition so, or None if it is so; what is None stays.

        Without an `election` it is the one the topic's settings allow. `unclean_restarts` are
        replicas that may have lost records, `without_logs` those that have none left.
        """
        old = topic.partitions[partition_id]
        target = replace(
            old,
            isr=_or(isr, old.isr),
            replicas=_or(replicas, old.replicas),
            lost_replicas=_or(lost_replicas, _kept_lost(old, replicas)),
            directories=old.directories_among(_or(replicas, old.replicas))
            if directories is None
            else tuple(directories),
            adding_replicas=_or(adding_replicas, old.adding_replicas),
            removing_replicas=_or(removing_replicas, old.removing_replicas),
            leader_recovery_state=old.leader_recovery_state
            if leader_recovery_state is None
            else leader_recovery_state,
        )
        gone = frozenset((*without_logs, *target.lost_replicas))
        if self._has_elr:
            target = self._with_elr(topic.name, old, target, frozenset(unclean_restarts), gone)
        else:
            target = _without_elr(old, target, gone)
        leader, unclean = elect_with_room(
            target,
            self._active,
            self._image.replicas_without_room(target),
            election or self.allowed(topic.name),
        )
        if unclean:
            target = _led_uncleanly(target, leader)
        elif leader in target.elr:
            target = replace(target, isr=(leader,), elr=_without(target.elr, (leader,)))
        # A replica that went must be shut out, so even a leader that stays gets a new epoch.
        named = leader != old.leader or not set(old.replicas) <= set(target.replicas)
        return _record(topic.topic_id, partition_id, old, target, leader if named else None)

    def recover(
        self, topic: TopicImage, partition_id: int, leader: int
    ) -> PartitionChangeRecord | None:
        """The record by which the winner of a recovery election leads."""
        old = topic.partitions[partition_id]
        return _record(topic.topic_id, partition_id, old, _led_uncleanly(old, leader), leader)

    def _with_elr(
        self,
        topic: str,
        old: PartitionImage,
        target: PartitionImage,
        unclean_restarts: Collection[int],
        gone: Collection[int],
    ) -> PartitionImage:
        """The partition with the ISR and the eligible replicas that a change leaves.

        Who leaves the ISR when it is smaller than `min.insync.replicas` stays eligible, unless it
        may have lost records. The only replica stays in any case: nobody has more.
        """
        is_only = len(target.replicas) == 1
        unsure = frozenset() if is_only else frozenset((*unclean_restarts, *gone))
        before = {*old.isr, *old.elr}
        isr = _without(target.isr, unsure)
        is_enough = len(isr) >= self._min_isr(topic, len(target.replicas))
        elr = set() if is_enough else before - unsure - set(isr)
        known = {*old.last_known_elr, *before.intersection(unclean_restarts)} - {*gone, *isr, *elr}
        if is_enough and not set(isr) <= set(old.isr):
            # So says a leader that lives: its ISR has whatever the others ever had.
            known = set()
        return replace(
            target,
            isr=isr,
            elr=tuple(one for one in target.replicas if one in elr),
            last_known_elr=tuple(one for one in target.replicas if one in known),
        )

    def _min_isr(self, topic: str, replica_count: int) -> int:
        """How many replicas must be in sync for records to be committed."""
        known = self._min_isrs.get(topic)
        if known is None:
            known = self._min_isrs[topic] = _setting_of(self._image, topic, MIN_ISR_SETTING)
        return min(known, replica_count)

    def allowed(self, topic: str) -> Election:
        """The election that happens by itself in a topic."""
        for resource, name in ((ResourceType.TOPIC, topic), (ResourceType.BROKER, "")):
            text = self._image.config_of(resource, name).get(_UNCLEAN_SETTING)
            if text is not None:
                unclean = TOPIC_SETTINGS[_UNCLEAN_SETTING].parse(text)
                return Election.UNCLEAN if unclean else Election.ONLINE
        return Election.UNCLEAN if self._unclean_by_default else Election.ONLINE

    def departures(
        self,
        broker_ids: Collection[int],
        *,
        new_runs: bool = False,
        unclean: bool = False,
        without_their_logs: bool = False,
    ) -> list[PartitionChangeRecord]:
        """The changes by which brokers leave every ISR, and with it every leadership.

        New runs of brokers have opened their logs again, and say so if they could not. If the run
        before ended uncleanly, or all logs are lost, they are not eligible any more either.
        """
        gone = frozenset(broker_ids)
        unsure = gone if unclean or without_their_logs else frozenset[int]()
        changes = []
        for topic, partition_id, partition in self._partitions(
            lambda partition: (
                not gone.isdisjoint(partition.isr)
                or not unsure.isdisjoint(partition.elr)
                or (new_runs and not gone.isdisjoint(partition.lost_replicas))
            )
        ):
            lost = partition.lost_replicas
            change = self.change(
                topic,
                partition_id,
                isr=_without(partition.isr, gone),
                lost_replicas=_without(lost, gone) if new_runs else lost,
                unclean_restarts=gone if unclean and not without_their_logs else (),
                without_logs=gone if without_their_logs else (),
            )
            if change is not None:
                changes.append(change)
        return changes

    def arrivals(self) -> list[PartitionChangeRecord]:
        """Leaders for partitions that have none and can have one now."""
        return [
            change
            for topic, partition_id, _ in self._partitions(
                lambda partition: partition.leader == NO_LEADER
            )
            if (change := self.change(topic, partition_id))
        ]

    def to_brokers_with_room(self) -> list[PartitionChangeRecord]:
        """Leaders with room for partitions led from a directory that is full, if there are any.

        Who stays in sync, their new leaders see: a replica that lacks nothing is as good as before.
        """
        full = self._image.brokers_without_room()
        return [
            change
            for topic, partition_id, _ in self._partitions(
                lambda partition: (
                    partition.leader in full
                    and partition.leader in self._image.replicas_without_room(partition)
                )
            )
            if (change := self.change(topic, partition_id))
        ]

    def _partitions(
        self, wanted: Callable[[PartitionImage], bool]
    ) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        for topic in self._image.topics.values():
            for partition_id, partition in enumerate(topic.partitions):
                if wanted(partition):
                    yield topic, partition_id, partition


def elr_removals(image: Image) -> list[PartitionChangeRecord]:
    """The records that end the keeping of eligible replicas.

    Where nobody is in sync the eligible ones are: what they are for an image without them.
    """
    return [
        record
        for topic in image.topics.values()
        for partition_id, old in enumerate(topic.partitions)
        if (record := _record(topic.topic_id, partition_id, old, _merged(old), None))
    ]


def _merged(partition: PartitionImage) -> PartitionImage:
    isr = partition.isr or partition.elr or partition.last_known_elr
    return replace(partition, isr=isr, elr=(), last_known_elr=())


def elr_clearings(image: Image, topics: Iterable[TopicImage]) -> list[PartitionChangeRecord]:
    """The records by which a new `min.insync.replicas` takes effect in topics.

    Who was eligible by the old one may miss what is committed by the new one. Unlike Kafka: with an
    empty ISR nothing is committed until an eligible replica leads, so there they stay.
    """
    return [
        record
        for topic in topics
        for partition_id, old in enumerate(topic.partitions)
        if image.has_elr
        and old.isr
        and (
            record := _record(
                topic.topic_id, partition_id, old, replace(old, elr=(), last_known_elr=()), None
            )
        )
    ]


def _without_elr(
    old: PartitionImage, target: PartitionImage, gone: Collection[int]
) -> PartitionImage:
    """The partition with the ISR that a change leaves where eligible replicas are not kept.

    An ISR that would become empty stays as it was, though nobody in it leads: its members are who
    may lead later. Unless none of them has a log any more, and others may.
    """
    has_others = not set(target.replicas) <= set(gone)
    isr = target.isr
    if not isr and not (has_others and set(old.isr) <= set(gone)):
        isr = old.isr
    return replace(target, isr=isr, elr=(), last_known_elr=())


def _led_uncleanly(partition: PartitionImage, leader: int) -> PartitionImage:
    return replace(
        partition,
        isr=(leader,),
        elr=(),
        last_known_elr=(),
        leader_recovery_state=RECOVERING,
    )


def _setting_of(image: Image, topic: str, name: str) -> int:
    """The value of a topic's setting by the metadata: the topic's own, or the cluster's."""
    setting = TOPIC_SETTINGS[name]
    for resource, resource_name in ((ResourceType.TOPIC, topic), (ResourceType.BROKER, "")):
        text = image.config_of(resource, resource_name).get(name)
        if text is not None:
            return int(setting.parse(text))
    return int(setting.default)


def _record(
    topic_id: bytes, partition_id: int, old: PartitionImage, new: PartitionImage, leader: int | None
) -> PartitionChangeRecord | None:
    if leader is None and new == old:
        return None
    recovery = new.leader_recovery_state
    directories = None
    is_kept = new.directories == old.directories_among(new.replicas)
    if not is_kept or new.lost_replicas != _kept_lost(old, new.replicas):
        directories = directories_of(new)
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition_id=partition_id,
        isr=_changed(old.isr, new.isr),
        leader=NO_LEADER_CHANGE if leader is None else leader,
        replicas=_changed(old.replicas, new.replicas),
        adding_replicas=_changed(old.adding_replicas, new.adding_replicas),
        removing_replicas=_changed(old.removing_replicas, new.removing_replicas),
        directories=directories,
        eligible_leader_replicas=_changed(old.elr, new.elr),
        last_known_elr=_changed(old.last_known_elr, new.last_known_elr),
        leader_recovery_state=-1 if recovery == old.leader_recovery_state else recovery,
    )


def _changed(old: tuple[int, ...], new: tuple[int, ...]) -> list[int] | None:
    return None if old == new else list(new)


def _kept_lost(old: PartitionImage, replicas: Sequence[int] | None) -> tuple[int, ...]:
    """The lost replicas that are still replicas, which a record need not tell."""
    kept = old.replicas if replicas is None else replicas
    return tuple(one for one in old.lost_replicas if one in kept)


def _without(members: Sequence[int], gone: Collection[int]) -> tuple[int, ...]:
    return tuple(one for one in members if one not in gone)


def _or(given: Sequence[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if given is None else tuple(given)


# So many leaderships move at once that everybody can follow; the others come with the next round.
ELECTIONS_MAX = 1000


class ElectionType(IntEnum):
    """Kafka's codes for what ElectLeaders is to do."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    image: Image, request: ElectLeadersRequest, *, unclean_by_default: bool
) -> Result[ElectLeadersResponse]:
    """Hold the elections asked for; each partition has its own outcome.

    Asked for all partitions, it tells only of those that needed an election.
    """
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}"
        ) from None
    elections = Elections(image, unclean_by_default=unclean_by_default)
    changes: dict[tuple[str, int], PartitionChangeRecord] = {}
    response = ElectLeadersResponse()
    for name, partition_ids in _asked(image, request):
        results = ReplicaElectionResult(topic=name)
        for partition_id in partition_ids:
            result = PartitionResult(partition_id=partition_id, error_message=None)
            try:
                if (name, partition_id) in changes:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "the request names the partition more than once"
                    )
                topic = _topic(image, name, partition_id)
                changes[name, partition_id] = _elect(elections, topic, partition_id, election_type)
            except KafkaError as error:
                if error.code is ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
                    continue
                result.error_code, result.error_message = error.code, error.detail or None
            results.partition_result.append(result)
        if results.partition_result or request.topic_partitions is not None:
            response.replica_election_results.append(results)
    return Result(tuple(changes.values()), response)


def _asked(image: Image, request: ElectLeadersRequest) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        for name, topic in sorted(image.topics.items()):
            yield name, range(len(topic.partitions))
    else:
        for wanted in request.topic_partitions:
            yield wanted.topic, wanted.partitions


def _topic(image: Image, name: str, partition_id: int) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None or not 0 <= partition_id < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition_id}"
        )
    return topic


def _elect(
    elections: Elections, topic: TopicImage, partition_id: int, election_type: ElectionType
) -> PartitionChangeRecord:
    partition = topic.partitions[partition_id]
    if election_type is ElectionType.PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the preferred leader leads")
        change = elections.change(topic, partition_id, election=Election.PREFERRED)
        if change is None:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {partition.replicas[0]} is not in sync, or not active",
            )
        return change
    if partition.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the partition has a leader")
    change = elections.change(topic, partition_id, election=Election.UNCLEAN)
    if change is None:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is on an active broker"
        )
    return change


def balance_leaders(image: Image, percentage: int) -> Result[int]:
    """Give brokers back the leaderships of which they are the first replica.

    A broker of which others lead no more than `percentage` of its partitions is left alone, and so
    is every partition whose first replica could not lead it. Answers how many leaderships move.
    """
    owned = Counter[int]()
    strayed: dict[int, list[tuple[TopicImage, int]]] = {}
    active = image.active_racks()
    for topic in image.topics.values():
        for partition_id, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            owned[preferred] += 1
            if partition.leader == preferred:
                continue
            without_room = image.replicas_without_room(partition)
            elected = elect_with_room(partition, active, without_room, Election.PREFERRED)
            if elected.leader == preferred:
                strayed.setdefault(preferred, []).append((topic, partition_id))
    elections = Elections(image, unclean_by_default=False)
    records: list[Message] = []
    for broker_id in sorted(strayed):
        if len(strayed[broker_id]) * 100 <= owned[broker_id] * percentage:
            continue
        for topic, partition_id in strayed[broker_id][: ELECTIONS_MAX - len(records)]:
            change = elections.change(topic, partition_id, election=Election.PREFERRED)
            assert change is not None, (topic.name, partition_id)
            records.append(change)
    return Result(tuple(records), len(records))


def elect_missing_leaders(image: Image, *, unclean_by_default: bool) -> Result[int]:
    """Leaders for partitions without one, where topics came to allow it after they lost theirs.

    Answers how many partitions got one.
    """
    changes = Elections(image, unclean_by_default=unclean_by_default).arrivals()[:ELECTIONS_MAX]
    return Result(tuple(changes), len(changes))
