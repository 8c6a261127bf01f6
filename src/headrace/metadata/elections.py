"""Leader election: the choice of a partition's leader, and the commands that hold elections.

Rule: a leader is an active member of the ISR: the present leader, else the first in the order of
the replicas. With an empty ISR it is an eligible leader replica (KIP-966), which has every
committed record too. Any other replica leads only by an unclean election, which may lose
acknowledged records and is therefore off unless a topic or the operator asks for it, or by a
recovery election, when no replica is eligible any more: see `metadata/recovery_elections.py`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, IntEnum
from typing import NamedTuple

from headrace.config import TOPIC_SETTINGS
from headrace.errors import ErrorCode, KafkaError, unknown_partition, unknown_topic
from headrace.metadata.image import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    ConfigResourceType,
    Image,
    PartitionImage,
    TopicImage,
    directories_of,
)
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.protocol.schema import Message

RECOVERED = 0
# The leader came from outside the ISR, and its log is not yet recovered.
RECOVERING = 1

_UNCLEAN_SETTING = "unclean.leader.election.enable"
MIN_ISR_SETTING = "min.insync.replicas"


class ElectionKind(Enum):
    """The replicas that an election may choose from, if the leader cannot stay."""

    ONLINE = "any member of the ISR"
    PREFERRED = "the first replica if it is in the ISR, whoever leads"
    UNCLEAN = "any replica, if nobody of the ISR is active"


class ElectionResult(NamedTuple):
    """A leader, or NO_LEADER; `unclean` if it may lack acknowledged records."""

    leader: int
    unclean: bool


def elect(
    partition: PartitionImage, active: Collection[int], election: ElectionKind
) -> ElectionResult:
    """Choose the leader of a partition, whose present leader is `partition.leader`.

    An unclean election prefers replicas that were in the ELR until they restarted uncleanly.
    """
    able = [
        broker_id
        for broker_id in partition.replicas
        if broker_id in active and broker_id not in partition.lost_replicas
    ]
    first = partition.replicas[:1] if election is ElectionKind.PREFERRED else ()
    eligible = partition.isr or partition.elr
    for broker_id in (*first, partition.leader, *able):
        if broker_id in able and broker_id in eligible:
            return ElectionResult(broker_id, unclean=False)
    if election is ElectionKind.UNCLEAN and able:
        known = [broker_id for broker_id in able if broker_id in partition.last_known_elr]
        return ElectionResult((known or able)[0], unclean=True)
    return ElectionResult(NO_LEADER, unclean=False)


def elect_with_room(
    partition: PartitionImage,
    active: Collection[int],
    without_room: Collection[int],
    election: ElectionKind,
) -> ElectionResult:
    """As `elect`, but a replica on a full disk leads only if no other of the ISR can."""
    able = [broker_id for broker_id in active if broker_id not in without_room]
    elected = elect(partition, able, election)
    if elected.leader == NO_LEADER or elected.unclean:
        return elect(partition, active, election)
    return elected


class Elections:
    """Changes to the partitions of an image, each with the election that it causes.

    Only brokers that are active in `image` can lead, so the record of a broker that is fenced or
    unfenced is applied to the image first. `unclean_by_default` is the value of
    `unclean.leader.election.enable` for topics that do not set it.
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
        election: ElectionKind | None = None,
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
        """The record that changes a partition, None if there is no change. A field of None stays.

        `election` is by default the kind that the topic's settings allow. `unclean_restarts` are
        replicas that may have lost records, `without_logs` replicas that have lost their logs.
        """
        old = topic.partitions[partition_id]
        target = replace(
            old,
            isr=_new_or_old(isr, old.isr),
            replicas=_new_or_old(replicas, old.replicas),
            lost_replicas=_new_or_old(lost_replicas, _kept_lost(old, replicas)),
            directories=old.directories_among(_new_or_old(replicas, old.replicas))
            if directories is None
            else tuple(directories),
            adding_replicas=_new_or_old(adding_replicas, old.adding_replicas),
            removing_replicas=_new_or_old(removing_replicas, old.removing_replicas),
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
            election or self.allowed_election(topic.name),
        )
        if unclean:
            target = _led_uncleanly(target, leader)
        elif leader in target.elr:
            target = replace(target, isr=(leader,), elr=_without(target.elr, (leader,)))
        # A removed replica must be fenced, so even a leader that stays gets a new epoch.
        named = leader != old.leader or not set(old.replicas) <= set(target.replicas)
        return _record(topic.topic_id, partition_id, old, target, leader if named else None)

    def recover(
        self, topic: TopicImage, partition_id: int, leader: int
    ) -> PartitionChangeRecord | None:
        """The record that makes the winner of a recovery election the leader.

        If its log is damaged it counts as lost no more: it is cut off where the damage begins.
        """
        old = topic.partitions[partition_id]
        new = _led_uncleanly(
            replace(old, lost_replicas=_without(old.lost_replicas, (leader,))), leader
        )
        return _record(topic.topic_id, partition_id, old, new, leader)

    def _with_elr(
        self,
        topic: str,
        old: PartitionImage,
        target: PartitionImage,
        unclean_restarts: Collection[int],
        gone: Collection[int],
    ) -> PartitionImage:
        """The partition with the ISR and the ELR after a change.

        A replica that leaves the ISR when it is smaller than `min.insync.replicas` joins the ELR,
        unless it may have lost records. The only replica always stays: no other has more.
        """
        is_only = len(target.replicas) == 1
        unsure = frozenset() if is_only else frozenset((*unclean_restarts, *gone))
        before = {*old.isr, *old.elr}
        isr = _without(target.isr, unsure)
        is_enough = len(isr) >= self._min_isr(topic, len(target.replicas))
        elr = set() if is_enough else before - unsure - set(isr)
        known = {*old.last_known_elr, *before.intersection(unclean_restarts)} - {*gone, *isr, *elr}
        if is_enough and not set(isr) <= set(old.isr):
            # A live leader reports this ISR, so its members have every record the others had.
            known = set()
        return replace(
            target,
            isr=isr,
            elr=tuple(broker_id for broker_id in target.replicas if broker_id in elr),
            last_known_elr=tuple(broker_id for broker_id in target.replicas if broker_id in known),
        )

    def _min_isr(self, topic: str, replica_count: int) -> int:
        """The number of replicas that must be in sync for records to be committed."""
        known = self._min_isrs.get(topic)
        if known is None:
            known = self._min_isrs[topic] = _setting_of(self._image, topic, MIN_ISR_SETTING)
        return min(known, replica_count)

    def allowed_election(self, topic: str) -> ElectionKind:
        """The kind of election that a topic allows without a request of an operator."""
        for resource, name in ((ConfigResourceType.TOPIC, topic), (ConfigResourceType.BROKER, "")):
            text = self._image.config_of(resource, name).get(_UNCLEAN_SETTING)
            if text is not None:
                unclean = TOPIC_SETTINGS[_UNCLEAN_SETTING].parse(text)
                return ElectionKind.UNCLEAN if unclean else ElectionKind.ONLINE
        return ElectionKind.UNCLEAN if self._unclean_by_default else ElectionKind.ONLINE

    def remove_from_isrs(
        self,
        broker_ids: Collection[int],
        *,
        new_runs: bool = False,
        unclean: bool = False,
        without_their_logs: bool = False,
    ) -> list[PartitionChangeRecord]:
        """The changes that remove brokers from every ISR and every leadership.

        With `new_runs` the brokers have restarted and opened their logs again; they report lost
        logs anew. If the incarnation before ended uncleanly (`unclean`), or all its logs are lost,
        the brokers leave the ELR too.
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

    def elect_leaderless(self) -> list[PartitionChangeRecord]:
        """The elections of leaders for partitions without a leader, where a replica can lead."""
        return [
            change
            for topic, partition_id, _ in self._partitions(
                lambda partition: partition.leader == NO_LEADER
            )
            if (change := self.change(topic, partition_id))
        ]

    def leave_full_directories(self) -> list[PartitionChangeRecord]:
        """The elections that move leaderships from full directories to replicas with room.

        The ISR stays: the new leader removes a replica in a full directory once it falls behind.
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
    """The records that clear every ELR when the feature is switched off.

    An empty ISR becomes the ELR: without the feature, an ISR is never empty.
    """
    return [
        record
        for topic in image.topics.values()
        for partition_id, old in enumerate(topic.partitions)
        if (record := _record(topic.topic_id, partition_id, old, _with_elr_in_isr(old), None))
    ]


def _with_elr_in_isr(partition: PartitionImage) -> PartitionImage:
    isr = partition.isr or partition.elr or partition.last_known_elr
    return replace(partition, isr=isr, elr=(), last_known_elr=())


def elr_clearings(image: Image, topics: Iterable[TopicImage]) -> list[PartitionChangeRecord]:
    """The records that clear the ELR of topics whose `min.insync.replicas` changes.

    A replica that was eligible by the old value may lack records committed by the new value. Unlike
    Kafka: with an empty ISR nothing is committed until an eligible replica leads, so the ELR stays.
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
    """The partition with the ISR after a change, while the ELR feature is off.

    An ISR that would become empty stays as it was, without a leader: only its members may lead
    later. It does become empty if all its members lost their logs and other replicas did not.
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
    """The value of a topic's setting in the image: the topic's own, or the cluster-wide default."""
    setting = TOPIC_SETTINGS[name]
    for resource, resource_name in (
        (ConfigResourceType.TOPIC, topic),
        (ConfigResourceType.BROKER, ""),
    ):
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
        isr=_list_if_changed(old.isr, new.isr),
        leader=NO_LEADER_CHANGE if leader is None else leader,
        replicas=_list_if_changed(old.replicas, new.replicas),
        adding_replicas=_list_if_changed(old.adding_replicas, new.adding_replicas),
        removing_replicas=_list_if_changed(old.removing_replicas, new.removing_replicas),
        directories=directories,
        eligible_leader_replicas=_list_if_changed(old.elr, new.elr),
        last_known_elr=_list_if_changed(old.last_known_elr, new.last_known_elr),
        leader_recovery_state=-1 if recovery == old.leader_recovery_state else recovery,
    )


def _list_if_changed(old: tuple[int, ...], new: tuple[int, ...]) -> list[int] | None:
    return None if old == new else list(new)


def _kept_lost(old: PartitionImage, replicas: Sequence[int] | None) -> tuple[int, ...]:
    """The lost replicas that remain replicas, which a change record need not repeat."""
    kept = old.replicas if replicas is None else replicas
    return tuple(broker_id for broker_id in old.lost_replicas if broker_id in kept)


def _without(members: Sequence[int], gone: Collection[int]) -> tuple[int, ...]:
    return tuple(broker_id for broker_id in members if broker_id not in gone)


def _new_or_old(given: Sequence[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if given is None else tuple(given)


# Bounds one batch of elections, so that brokers can follow; the rest waits for the next check.
ELECTIONS_MAX = 1000


class ElectionType(IntEnum):
    """Kafka's codes for the elections of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    image: Image, request: ElectLeadersRequest, *, unclean_by_default: bool
) -> CommandResult[ElectLeadersResponse]:
    """Hold the elections that a request asks for; each partition has its own result.

    If the request asks for all partitions, the response has only those that needed an election.
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
    for name, partition_ids in _requested_partitions(image, request):
        results = ReplicaElectionResult(topic=name)
        for partition_id in partition_ids:
            result = PartitionResult(partition_id=partition_id, error_message=None)
            try:
                if (name, partition_id) in changes:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "the request names the partition more than once"
                    )
                topic = topic_with_partition(image, name, partition_id)
                changes[name, partition_id] = _elect(elections, topic, partition_id, election_type)
            except KafkaError as error:
                if error.code is ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
                    continue
                result.error_code, result.error_message = error.code, error.detail or None
            results.partition_result.append(result)
        if results.partition_result or request.topic_partitions is not None:
            response.replica_election_results.append(results)
    return CommandResult(tuple(changes.values()), response)


def _requested_partitions(
    image: Image, request: ElectLeadersRequest
) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        return partition_indexes(image)
    return ((wanted.topic, wanted.partitions) for wanted in request.topic_partitions)


def partition_indexes(image: Image) -> Iterator[tuple[str, Sequence[int]]]:
    """The name of every topic, in order, and the indexes of its partitions."""
    for name, topic in sorted(image.topics.items()):
        yield name, range(len(topic.partitions))


def topic_with_partition(image: Image, name: str, partition_id: int) -> TopicImage:
    """The topic of a partition; KafkaError if there is no such topic or partition."""
    topic = image.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    if not 0 <= partition_id < len(topic.partitions):
        raise unknown_partition(name, partition_id, len(topic.partitions))
    return topic


def _elect(
    elections: Elections, topic: TopicImage, partition_id: int, election_type: ElectionType
) -> PartitionChangeRecord:
    partition = topic.partitions[partition_id]
    if election_type is ElectionType.PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the preferred leader leads")
        change = elections.change(topic, partition_id, election=ElectionKind.PREFERRED)
        if change is None:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {partition.replicas[0]} is not in sync, or not active",
            )
        return change
    if partition.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the partition has a leader")
    change = elections.change(topic, partition_id, election=ElectionKind.UNCLEAN)
    if change is None:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is on an active broker"
        )
    return change


def balance_leaders(image: Image, percentage: int) -> CommandResult[int]:
    """Move leaderships back to the preferred leaders, the first replicas of partitions.

    Brokers are skipped if others lead no more than `percentage` of the partitions that prefer them,
    and partitions whose first replica cannot lead. The result is the number of moved leaderships.
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
            elected = elect_with_room(partition, active, without_room, ElectionKind.PREFERRED)
            if elected.leader == preferred:
                strayed.setdefault(preferred, []).append((topic, partition_id))
    elections = Elections(image, unclean_by_default=False)
    records: list[Message] = []
    for broker_id in sorted(strayed):
        if len(strayed[broker_id]) * 100 <= owned[broker_id] * percentage:
            continue
        for topic, partition_id in strayed[broker_id][: ELECTIONS_MAX - len(records)]:
            change = elections.change(topic, partition_id, election=ElectionKind.PREFERRED)
            assert change is not None, (topic.name, partition_id)
            records.append(change)
    return CommandResult(tuple(records), len(records))


def elect_missing_leaders(image: Image, *, unclean_by_default: bool) -> CommandResult[int]:
    """Elect leaders for partitions without a leader, e.g. after their topics came to allow it.

    The result is the number of partitions that got a leader.
    """
    elections = Elections(image, unclean_by_default=unclean_by_default)
    changes = elections.elect_leaderless()[:ELECTIONS_MAX]
    return CommandResult(tuple(changes), len(changes))
