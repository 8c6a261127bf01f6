"""Brokers whose data directories are full: others lead, and get the new replicas."""

from random import Random

import pytest

from headrace.config import BrokerConfig
from headrace.metadata.elections import balance_leaders
from headrace.metadata.image import Image
from headrace.metadata.snapshot import image_records
from headrace.metadata.topics import create_topics
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
)
from tests.unit.metadata.active import Active
from tests.unit.metadata.clusters import directory_of, id_of, standing
from tests.unit.metadata.test_directories import assign, lost

OTHER_DIRECTORY = bytes([77]) * 16


def full(active: Active, broker_id: int) -> None:
    active.beat(broker_id, full=[directory_of(broker_id)])


def leaders(active: Active) -> list[int]:
    return [entry[0] for entry in standing(active.image, "a")]


def test_leaderships_move_to_replicas_in_sync_that_have_room() -> None:
    active = Active(1, 2, 3, topics={"a": [[1, 2, 3], [2, 1, 3], [1, 3], [1]]})
    full(active, 1)
    # In sync is still who lacks nothing; and whoever has no peer goes on to be read.
    assert [(entry[0], entry[3]) for entry in standing(active.image, "a")] == [
        (2, (1, 2, 3)),
        (2, (2, 1, 3)),
        (3, (1, 3)),
        (1, (1,)),
    ]
    assert not active.image.brokers[1].has_room
    count = len(active.records)
    full(active, 1)
    assert len(active.records) == count, "it is told once"


def test_a_full_broker_leads_where_no_other_can_until_one_has_room() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    full(active, 2)
    full(active, 1)
    assert leaders(active) == [1]
    active.beat(2, full=[])
    assert leaders(active) == [2]
    active.beat(1, full=[])
    assert active.image.brokers_without_room() == frozenset()
    assert leaders(active) == [2]
    # It gets back what it is the first replica of, as after any absence.
    assert balance_leaders(active.image, 0).response == 1


def test_leaderships_do_not_go_back_to_a_broker_that_is_full() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    full(active, 1)
    assert balance_leaders(active.image, 0).response == 0
    active.pass_ms(10_000, 1)
    assert leaders(active) == [1], "full, but the only one that lives"


@pytest.mark.parametrize("is_told_first", [True, False])
def test_of_several_directories_only_a_full_one_loses_its_leaderships(is_told_first: bool) -> None:
    active = Active(1, 2, topics={"a": [[1, 2], [1, 2], [1, 2]]})
    first = directory_of(1)
    record = BrokerRegistrationChangeRecord(
        broker_id=1,
        broker_epoch=active.image.brokers[1].epoch,
        log_dirs=[first, OTHER_DIRECTORY],
    )
    active.image = active.image.apply([record])
    if is_told_first:
        assign(active, 1, OTHER_DIRECTORY, {"a": [1]})
        assert leaders(active) == [1, 1, 1], "it is not full yet"
    active.beat(1, full=[OTHER_DIRECTORY])
    if not is_told_first:
        assert leaders(active) == [1, 1, 1], "nobody knows yet what is in it"
        assign(active, 1, OTHER_DIRECTORY, {"a": [1]})
    assert leaders(active) == [1, 2, 1]
    assert balance_leaders(active.image, 0).response == 0
    assert active.image.replicas_without_room(active.image.topics["a"].partitions[1]) == {1}
    assert Image().apply(image_records(active.image)) == active.image
    # A move to the other directory makes it as good as the others.
    assign(active, 1, first, {"a": [1]})
    assert balance_leaders(active.image, 0).response == 1
    active.beat(1, full=[first, OTHER_DIRECTORY])
    assert leaders(active) == [2, 2, 2], "every directory is full"


def test_a_broker_with_room_in_one_directory_gets_new_replicas_in_sync() -> None:
    active = Active(1, 2)
    record = BrokerRegistrationChangeRecord(
        broker_id=1,
        broker_epoch=active.image.brokers[1].epoch,
        log_dirs=[directory_of(1), OTHER_DIRECTORY],
    )
    active.image = active.image.apply([record])
    active.beat(1, full=[OTHER_DIRECTORY])
    for partition in create(active.image, 2).topics["new"].partitions:
        assert sorted(partition.isr) == [1, 2]


def test_the_directory_of_a_replica_is_forgotten_with_the_replica() -> None:
    active = Active(1, 2, 3, topics={"a": [[1, 2]]})
    assign(active, 1, directory_of(1), {"a": [0]})
    [partition] = active.image.topics["a"].partitions
    assert partition.directories == ((1, directory_of(1)),)
    move = PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, replicas=[2, 3])
    [moved] = active.image.apply([move]).topics["a"].partitions
    assert moved.directories == ()
    assert lost(active, 1, 0) == [0]
    [partition] = active.image.topics["a"].partitions
    assert (partition.lost_replicas, partition.directories) == ((1,), ())


def create(image: Image, replicas: int) -> Image:
    wanted = CreatableTopic(name="new", num_partitions=6, replication_factor=replicas)
    result = create_topics(
        image, CreateTopicsRequest(topics=[wanted]), config=BrokerConfig(), random=Random(1)
    )
    assert not result.response.topics[0].error_code, result.response
    return image.apply(result.records)


def test_new_replicas_go_where_room_is() -> None:
    active = Active(1, 2, 3)
    full(active, 2)
    made = create(active.image, 2).topics["new"].partitions
    assert {replica for partition in made for replica in partition.replicas} == {1, 3}
    # Where every broker is needed it is not in sync, and so not waited for.
    for partition in create(active.image, 3).topics["new"].partitions:
        assert sorted(partition.replicas) == [1, 2, 3]
        assert sorted(partition.isr) == [1, 3]
        assert partition.leader != 2


def test_a_cluster_without_room_can_have_new_topics_all_the_same() -> None:
    active = Active(1)
    full(active, 1)
    [first, *_] = create(active.image, 1).topics["new"].partitions
    assert (first.leader, first.isr) == (1, (1,))


def test_a_new_run_has_room_until_it_says_otherwise() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    full(active, 1)
    active.register(1, 8)
    assert active.image.brokers[1].has_room
    full(active, 1)
    assert not active.image.brokers[1].fenced
    assert leaders(active) == [2]


def test_below_the_level_that_knows_them_full_directories_are_not_told() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    level = FeatureLevelRecord(name="metadata.version", feature_level=29)
    active.image = active.image.apply([level])
    full(active, 1)
    assert not any(isinstance(record, BrokerRegistrationChangeRecord) for record in active.records)
