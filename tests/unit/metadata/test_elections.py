"""Who is elected, and the record of it."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.elections import RECOVERING, ElectionKind, ElectionResult, Elections, elect
from headrace.metadata.image import Image, PartitionImage
from headrace.protocol.messages.metadata_records import (
    ConfigRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
)
from tests.unit.metadata.clusters import broker_records, id_of, topic_records

ONLINE, PREFERRED, UNCLEAN = ElectionKind


@pytest.mark.parametrize(
    ("leader", "isr", "active", "election", "elected"),
    [
        (2, [1, 2, 3], [1, 2, 3], ONLINE, ElectionResult(2, False)),
        (2, [1, 2, 3], [1, 2, 3], PREFERRED, ElectionResult(1, False)),
        (2, [2, 3], [1, 2, 3], PREFERRED, ElectionResult(2, False)),
        (1, [2, 3], [1, 2, 3], ONLINE, ElectionResult(2, False)),
        (1, [3, 2], [1, 2, 3], ONLINE, ElectionResult(2, False)),
        (1, [1, 2, 3], [3], ONLINE, ElectionResult(3, False)),
        (-1, [1], [2, 3], ONLINE, ElectionResult(-1, False)),
        (-1, [1], [2, 3], PREFERRED, ElectionResult(-1, False)),
        (-1, [1], [2, 3], UNCLEAN, ElectionResult(2, True)),
        (-1, [1], [1, 2, 3], UNCLEAN, ElectionResult(1, False)),
        (-1, [], [3], UNCLEAN, ElectionResult(3, True)),
        (1, [1], [], UNCLEAN, ElectionResult(-1, False)),
    ],
)
def test_the_leader_stays_or_the_first_in_sync_follows(
    leader: int, isr: list[int], active: list[int], election: ElectionKind, elected: ElectionResult
) -> None:
    assert elect(PartitionImage((1, 2, 3), tuple(isr), leader), active, election) == elected


brokers = st.lists(st.integers(1, 5), unique=True)


@given(
    st.lists(st.integers(1, 5), unique=True, min_size=1),
    brokers,
    brokers,
    st.integers(-1, 5),
    st.sampled_from(ElectionKind),
)
def test_no_election_but_an_unclean_one_leaves_the_isr(
    replicas: list[int], isr: list[int], active: list[int], leader: int, election: ElectionKind
) -> None:
    in_sync = tuple(broker_id for broker_id in isr if broker_id in replicas)
    able = set(in_sync) & set(active)
    elected = elect(PartitionImage(tuple(replicas), in_sync, leader), active, election)
    if elected.unclean:
        assert election is UNCLEAN
        assert not able
        assert elected.leader in set(replicas) & set(active)
    elif elected.leader == -1:
        assert not able
    else:
        assert elected.leader in able
        assert elected.leader == leader or leader not in able or election is PREFERRED


def image_of(
    partition: Sequence[int], fenced: Sequence[int] = (), configs: Mapping[str, str] | None = None
) -> Image:
    image = Image().apply(
        [*broker_records(1, 2, 3), *topic_records("a", partition, configs=configs)]
    )
    return image.apply(
        [FenceBrokerRecord(id=entry, epoch=image.brokers[entry].epoch) for entry in fenced]
    )


def change(image: Image, unclean: bool = False, **wanted: Sequence[int]) -> PartitionImage:
    """The partition after a change."""
    elections = Elections(image, unclean_by_default=unclean)
    record = elections.change(image.topics["a"], 0, **wanted)  # type: ignore[arg-type]
    assert record is not None
    [partition] = image.apply([record]).topics["a"].partitions
    return partition


def test_nothing_is_recorded_when_nothing_changes() -> None:
    image = image_of([1, 2, 3])
    elections = Elections(image, unclean_by_default=True)
    assert elections.change(image.topics["a"], 0) is None
    assert elections.change(image.topics["a"], 0, isr=[1, 2, 3], replicas=[1, 2, 3]) is None
    assert elections.remove_from_isrs([4]) == elections.elect_leaderless() == []


def test_a_smaller_isr_keeps_the_leader_epoch() -> None:
    assert change(image_of([1, 2, 3]), isr=[1, 3]) == PartitionImage(
        (1, 2, 3), (1, 3), 1, leader_epoch=0, partition_epoch=1
    )


def test_a_replica_that_goes_makes_a_new_leader_epoch() -> None:
    after = change(image_of([1, 2, 3]), replicas=[1, 2], isr=[1, 2])
    assert after == PartitionImage((1, 2), (1, 2), 1, leader_epoch=1, partition_epoch=1)


def test_a_replica_that_comes_makes_none() -> None:
    after = change(image_of([1, 2]), replicas=[1, 2, 3], adding_replicas=[3])
    assert after == PartitionImage(
        (1, 2, 3), (1, 2), 1, leader_epoch=0, partition_epoch=1, adding_replicas=(3,)
    )


def test_an_isr_does_not_become_empty() -> None:
    after = change(image_of([1], fenced=[1]), isr=[])
    assert after == PartitionImage((1,), (1,), -1, leader_epoch=1, partition_epoch=1)


def test_an_unclean_leader_is_alone_in_sync_and_has_to_recover() -> None:
    image = image_of([1, 2], fenced=[1])
    alone = PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, isr=[1], leader=-1)
    after = change(image.apply([alone]), unclean=True)
    assert after == PartitionImage(
        (1, 2), (2,), 2, leader_epoch=2, partition_epoch=2, leader_recovery_state=RECOVERING
    )


@pytest.mark.parametrize(
    ("default", "cluster_wide", "topic", "allowed"),
    [
        (False, None, None, ONLINE),
        (True, None, None, UNCLEAN),
        (True, "false", None, ONLINE),
        (False, "true", None, UNCLEAN),
        (False, "true", "false", ONLINE),
        (False, None, "true", UNCLEAN),
    ],
)
def test_an_unclean_election_happens_where_the_settings_allow_it(
    default: bool, cluster_wide: str | None, topic: str | None, allowed: ElectionKind
) -> None:
    name = "unclean.leader.election.enable"
    image = image_of([1], configs={} if topic is None else {name: topic})
    if cluster_wide is not None:
        record = ConfigRecord(resource_type=4, resource_name="", name=name, value=cluster_wide)
        image = image.apply([record])
    assert Elections(image, unclean_by_default=default).allowed_election("a") is allowed
