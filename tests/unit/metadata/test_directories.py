"""Replicas that their brokers cannot read from disk."""

from collections.abc import Mapping, Sequence

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import balance_leaders, elect_missing_leaders
from headrace.metadata.image import LOST_DIRECTORY, Image
from headrace.metadata.isr import assign_replicas_to_dirs
from headrace.metadata.snapshot import image_records
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from tests.unit.metadata.active import Active
from tests.unit.metadata.clusters import directory_of, id_of, standing

DISK = bytes([7]) * 16


def assign(
    active: Active,
    broker_id: int,
    directory: bytes,
    places: Mapping[str, Sequence[int]],
) -> list[int]:
    """The code for each partition."""
    topics = [
        TopicData(
            topic_id=id_of(name),
            partitions=[PartitionData(partition_index=index) for index in indexes],
        )
        for name, indexes in places.items()
    ]
    request = AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=active.image.brokers[broker_id].epoch,
        directories=[DirectoryData(id=directory, topics=topics)],
    )
    result = assign_replicas_to_dirs(active.image, request, unclean_by_default=active.unclean)
    [told] = active.commit(result).directories
    assert told.id == directory
    return [partition.error_code for topic in told.topics for partition in topic.partitions]


def lost(active: Active, broker_id: int, *indexes: int) -> list[int]:
    return assign(active, broker_id, LOST_DIRECTORY, {"a": indexes})


def test_a_lost_replica_leaves_the_leadership_and_the_isr_of_its_partition_alone() -> None:
    active = Active(1, 2, topics={"a": [[1, 2], [1, 2], [2, 1]]})
    assert lost(active, 1, 0) == [0]
    assert standing(active.image, "a") == [(2, 1, 1, (2,)), (1, 0, 0, (1, 2)), (2, 0, 0, (2, 1))]
    assert active.image.topics["a"].partitions[0].lost_replicas == (1,)
    assert not active.image.brokers[1].fenced
    told = active.offset
    lost(active, 1, 0)
    assert active.offset == told
    assert Image().apply(image_records(active.image)) == active.image


def test_the_last_replica_in_sync_leads_again_when_a_new_run_of_its_broker_finds_it() -> None:
    active = Active(1, 2, topics={"a": [[1]]}, unclean=True)
    lost(active, 1, 0)
    assert standing(active.image, "a") == [(-1, 1, 1, (1,))]
    active.beat(1)
    assert elect_missing_leaders(active.image, unclean_by_default=True).records == ()
    active.register(1, incarnation=9)
    active.beat(1)
    assert standing(active.image, "a")[0][0] == 1
    assert active.image.topics["a"].partitions[0].lost_replicas == ()


def test_a_replica_that_is_not_in_sync_is_found_again_too() -> None:
    active = Active(1, 2, topics={"a": [[2, 1]]})
    lost(active, 1, 0)
    assert standing(active.image, "a") == [(2, 0, 1, (2,))]
    active.register(1, incarnation=9)
    assert standing(active.image, "a") == [(2, 0, 2, (2,))]
    assert active.image.topics["a"].partitions[0].lost_replicas == ()


def test_no_election_chooses_a_lost_replica() -> None:
    active = Active(1, 2, 3, topics={"a": [[1, 2, 3]]}, unclean=True)
    lost(active, 1, 0)
    assert balance_leaders(active.image, 0).records == ()
    active.alter(2, [2])
    active.pass_ms(2500, 1, 3)
    # Broker 1 comes first and lives, but 3 is the one that can read its log.
    assert standing(active.image, "a")[0][0] == 3


def test_a_replica_that_moves_away_is_not_lost_any_more() -> None:
    active = Active(1, 2, 3, topics={"a": [[1, 2]]})
    lost(active, 1, 0)
    move = PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, replicas=[2, 3])
    [partition] = active.image.apply([move]).topics["a"].partitions
    assert partition.lost_replicas == ()


def test_a_replica_in_a_directory_that_works_is_not_lost() -> None:
    active = Active(1, 2, topics={"a": [[2, 1]]})
    active.register(1, incarnation=9, log_dirs=[directory_of(1), DISK])
    assert assign(active, 1, DISK, {"a": [0]}) == [0]
    assert not active.image.topics["a"].partitions[0].lost_replicas
    lost(active, 1, 0)
    assert active.image.topics["a"].partitions[0].lost_replicas
    assign(active, 1, DISK, {"a": [0]})
    assert not active.image.topics["a"].partitions[0].lost_replicas


def test_each_replica_has_its_own_outcome() -> None:
    active = Active(1, 2, topics={"a": [[1, 2], [2]]})
    places = {"gone": [0], "a": [0, 1, 2, -1]}
    assert assign(active, 1, LOST_DIRECTORY, places) == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        0,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    request = AssignReplicasToDirsRequest(broker_id=1, broker_epoch=99)
    with pytest.raises(KafkaError) as caught:
        assign_replicas_to_dirs(active.image, request, unclean_by_default=False)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
