"""Who leads a partition, chosen in this one place, and the record that says so.

Rule: a leader is an active member of the ISR: the one that leads already, else the first in the
order of the replicas. Somebody from outside the ISR leads only by an unclean election, which may
lose acknowledged records and is therefore off unless a topic or the operator asks for it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from headrace.config import TOPIC_SETTINGS
from headrace.metadata.image import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    Image,
    PartitionImage,
    ResourceType,
    TopicImage,
    directories_of,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord

RECOVERED = 0
# The leader came from outside the ISR and has not yet made the log its own.
RECOVERING = 1

_UNCLEAN_SETTING = "unclean.leader.election.enable"


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
    """Who leads a partition of these replicas and this ISR, now led by `partition.leader`."""
    able = [
        one for one in partition.replicas if one in active and one not in partition.lost_replicas
    ]
    first = partition.replicas[:1] if election is Election.PREFERRED else ()
    for broker_id in (*first, partition.leader, *able):
        if broker_id in able and broker_id in partition.isr:
            return Elected(broker_id, unclean=False)
    if election is Election.UNCLEAN and able:
        return Elected(able[0], unclean=True)
    return Elected(NO_LEADER, unclean=False)


class Elections:
    """Changes to the partitions of one image, each with the leader it leads to.

    Only brokers that `image` has as active can lead; so what happens to a broker is applied to the
    image first. `unclean_by_default` holds for topics for which the image says nothing.
    """

    def __init__(self, image: Image, *, unclean_by_default: bool) -> None:
        self._image = image
        self._active = frozenset(image.active_racks())
        self._unclean_by_default = unclean_by_default

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
        leader_recovery_state: int | None = None,
        may_empty_isr: bool = False,
    ) -> PartitionChangeRecord | None:
        """The record that makes a partition so, or None if it is so; what is None stays.

        Without an `election` it is the one the topic's settings allow. An ISR that would become
        empty stays as it was, though nobody in it leads: its members are who may lead later.
        Unless it `may_empty_isr`: then only an unclean election helps.
        """
        old = topic.partitions[partition_id]
        target = replace(
            old,
            isr=_or(isr, old.isr),
            replicas=_or(replicas, old.replicas),
            lost_replicas=_or(lost_replicas, _kept_lost(old, replicas)),
            adding_replicas=_or(adding_replicas, old.adding_replicas),
            removing_replicas=_or(removing_replicas, old.removing_replicas),
            leader_recovery_state=old.leader_recovery_state
            if leader_recovery_state is None
            else leader_recovery_state,
        )
        leader, unclean = elect(target, self._active, election or self.allowed(topic.name))
        if unclean:
            target = replace(target, isr=(leader,), leader_recovery_state=RECOVERING)
        elif not target.isr and not may_empty_isr:
            target = replace(target, isr=old.isr)
        # A replica that went must be shut out, so even a leader that stays gets a new epoch.
        named = leader != old.leader or not set(old.replicas) <= set(target.replicas)
        return _record(topic.topic_id, partition_id, old, target, leader if named else None)

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
        without_their_logs: bool = False,
    ) -> list[PartitionChangeRecord]:
        """The changes by which brokers leave every ISR, and with it every leadership.

        New runs of brokers have opened their logs again, and say so if they could not. Brokers that
        lost all their logs leave even as the last ones, wherever another replica may have more than
        nothing.
        """
        gone = frozenset(broker_ids)
        changes = []
        for topic, partition_id, partition in self._partitions(
            lambda partition: (
                not gone.isdisjoint(partition.isr)
                or (new_runs and not gone.isdisjoint(partition.lost_replicas))
            )
        ):
            lost = partition.lost_replicas
            change = self.change(
                topic,
                partition_id,
                isr=_without(partition.isr, gone),
                lost_replicas=_without(lost, gone) if new_runs else lost,
                may_empty_isr=without_their_logs and not gone.issuperset(partition.replicas),
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

    def _partitions(
        self, wanted: Callable[[PartitionImage], bool]
    ) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        for topic in self._image.topics.values():
            for partition_id, partition in enumerate(topic.partitions):
                if wanted(partition):
                    yield topic, partition_id, partition


def _record(
    topic_id: bytes, partition_id: int, old: PartitionImage, new: PartitionImage, leader: int | None
) -> PartitionChangeRecord | None:
    if leader is None and new == old:
        return None
    recovery = new.leader_recovery_state
    lost = None
    if new.lost_replicas != _kept_lost(old, new.replicas):
        lost = directories_of(new.replicas, new.lost_replicas)
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition_id=partition_id,
        isr=_changed(old.isr, new.isr),
        leader=NO_LEADER_CHANGE if leader is None else leader,
        replicas=_changed(old.replicas, new.replicas),
        adding_replicas=_changed(old.adding_replicas, new.adding_replicas),
        removing_replicas=_changed(old.removing_replicas, new.removing_replicas),
        directories=lost,
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
