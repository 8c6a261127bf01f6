"""The image: what each record does to it, and what it refuses."""

import pytest

from headrace.metadata.image import (
    ConfigKey,
    ConfigResourceType,
    EndpointImage,
    Image,
    PartitionImage,
    TopicImage,
)
from headrace.metadata.records import MetadataError
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.schema import Message
from tests.unit.metadata.clusters import broker_records, cluster, id_of, topic_records


def config(name: str, key: str, value: str | None, resource_type: int = 2) -> ConfigRecord:
    return ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=value)


def test_a_created_topic_is_found_by_name_and_by_id() -> None:
    image = Image().apply(topic_records("orders", [1, 2], [2, 1]))
    expected = TopicImage(
        "orders",
        id_of("orders"),
        (PartitionImage((1, 2), (1, 2), 1), PartitionImage((2, 1), (2, 1), 2)),
    )
    assert image.topics == {"orders": expected}
    assert image.topics_by_id == {id_of("orders"): expected}
    assert image.partition_count == 2


def test_a_removed_topic_leaves_nothing_behind() -> None:
    records = topic_records("a.b", [1], [1], configs={"retention.ms": "1"})
    image = Image().apply([*records, RemoveTopicRecord(topic_id=id_of("a.b"))])
    assert image == Image()
    assert Image().apply(records).apply([RemoveTopicRecord(topic_id=id_of("a.b"))]) == Image()


def test_removing_a_topic_keeps_the_collision_key_of_another() -> None:
    records = [*topic_records("a.b", [1]), *topic_records("a_b", [1])]
    image = Image().apply([*records, RemoveTopicRecord(topic_id=id_of("a.b"))])
    assert image.collisions == {"a_b": "a_b"}


def test_an_image_never_changes() -> None:
    before = cluster(1, topics={"orders": [[1]], "payments": [[1]]})
    topics, brokers, configs = dict(before.topics), dict(before.brokers), dict(before.configs)
    after = before.apply(
        [
            config("orders", "retention.ms", "5"),
            PartitionChangeRecord(topic_id=id_of("orders"), partition_id=0, leader=-1),
            RemoveTopicRecord(topic_id=id_of("payments")),
            *broker_records(2),
        ]
    )
    assert (before.topics, before.brokers, before.configs) == (topics, brokers, configs)
    assert after.topics["orders"].partitions[0].leader == -1


def test_maps_no_record_touched_are_shared() -> None:
    before = cluster(1, topics={"orders": [[1]]})
    after = before.apply([config("orders", "retention.ms", "5")])
    assert after.topics is before.topics
    assert after.topics_by_id is before.topics_by_id
    assert after.brokers is before.brokers
    assert after.configs is not before.configs


def test_a_change_of_isr_keeps_the_leader_epoch() -> None:
    image = cluster(1, 2, topics={"orders": [[1, 2]]})
    change = PartitionChangeRecord(topic_id=id_of("orders"), partition_id=0, isr=[1])
    [partition] = image.apply([change]).topics["orders"].partitions
    assert partition == PartitionImage((1, 2), (1,), 1, leader_epoch=0, partition_epoch=1)


def test_every_election_makes_a_new_leader_epoch_even_of_the_same_leader() -> None:
    image = cluster(1, 2, topics={"orders": [[1, 2]]})
    changes = [
        PartitionChangeRecord(topic_id=id_of("orders"), partition_id=0, leader=leader)
        for leader in (2, 2, -1)
    ]
    for applied in (image.apply(changes), image.apply(changes[:1]).apply(changes[1:])):
        [partition] = applied.topics["orders"].partitions
        assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (-1, 3, 3)


def test_a_change_record_sets_the_lists_it_gives_and_keeps_the_others() -> None:
    image = cluster(1, 2, topics={"orders": [[1, 2]]})
    change = PartitionChangeRecord(
        topic_id=id_of("orders"),
        partition_id=0,
        replicas=[2, 3, 1],
        adding_replicas=[3],
        removing_replicas=[1],
        leader_recovery_state=1,
    )
    changed = image.apply([change])
    [partition] = changed.topics["orders"].partitions
    assert partition == PartitionImage(
        replicas=(2, 3, 1),
        isr=(1, 2),
        leader=1,
        partition_epoch=1,
        leader_recovery_state=1,
        adding_replicas=(3,),
        removing_replicas=(1,),
    )
    done = PartitionChangeRecord(
        topic_id=id_of("orders"), partition_id=0, adding_replicas=[], removing_replicas=[]
    )
    [partition] = changed.apply([done]).topics["orders"].partitions
    assert (partition.adding_replicas, partition.removing_replicas) == ((), ())
    assert partition.leader_recovery_state == 1


def test_a_partition_record_for_a_known_partition_replaces_it() -> None:
    image = cluster(1, topics={"orders": [[1], [1]]})
    record = PartitionRecord(
        topic_id=id_of("orders"), partition_id=1, replicas=[7], isr=[7], leader=7,
        leader_epoch=4, partition_epoch=9,
    )  # fmt: skip
    after = image.apply([record])
    assert after.topics["orders"].partitions[1] == PartitionImage((7,), (7,), 7, 4, 9)
    assert after.partition_count == 2


def test_settings_are_added_changed_and_removed_one_by_one() -> None:
    image = Image().apply(
        [config("a", "x", "1"), config("a", "y", "2"), config("a", "x", "3"), config("b", "x", "4")]
    )
    assert image.config_of(ConfigResourceType.TOPIC, "a") == {"x": "3", "y": "2"}
    image = image.apply([config("a", "x", None), config("b", "x", None), config("b", "z", None)])
    assert image.configs == {ConfigKey(2, "a"): {"y": "2"}}
    assert image.config_of(ConfigResourceType.TOPIC, "b") == {}


def test_a_brokers_overrides_are_its_own_and_the_clusters() -> None:
    image = Image().apply(
        [config("7", "x", "1", 4), config("", "x", "2", 4), config("8", "x", "3", 4)]
    )
    assert image.broker_overrides(7) == ({"x": "1"}, {"x": "2"})
    assert image.broker_overrides(9) == ({}, {"x": "2"})


def test_a_registered_broker_has_what_it_registered_with() -> None:
    image = cluster(3)
    broker = image.brokers[3]
    assert broker.endpoints == (EndpointImage("PLAINTEXT", "host-3", 9092, 0),)
    assert (broker.incarnation_id, broker.epoch, broker.rack) == (bytes([3]) * 16, 0, None)
    assert broker.is_active


def test_only_brokers_that_are_up_and_staying_can_be_given_replicas() -> None:
    image = cluster(1, 2, 3)
    epochs = {value.broker_id: value.epoch for value in image.brokers.values()}
    fenced = image.apply([FenceBrokerRecord(id=1, epoch=epochs[1])])
    assert fenced.active_racks() == {2: None, 3: None}
    assert fenced.apply([UnfenceBrokerRecord(id=1, epoch=epochs[1])]) == image
    leaving = BrokerRegistrationChangeRecord(
        broker_id=2, broker_epoch=epochs[2], in_controlled_shutdown=1
    )
    assert fenced.apply([leaving]).active_racks() == {3: None}


@pytest.mark.parametrize(("change", "fenced"), [(1, True), (0, True), (-1, False)])
def test_a_registration_change_fences_keeps_or_unfences(change: int, fenced: bool) -> None:
    image = cluster(1).apply([FenceBrokerRecord(id=1, epoch=0)])
    directory = bytes([9]) * 16
    record = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=0, fenced=change, log_dirs=[directory]
    )
    after = image.apply([record, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0)])
    assert after.brokers[1].fenced is fenced
    assert after.brokers[1].log_dirs == (directory,)


def test_an_unregistered_broker_is_gone() -> None:
    image = cluster(1, 2)
    epoch = image.brokers[1].epoch
    after = image.apply([UnregisterBrokerRecord(broker_id=1, broker_epoch=epoch)])
    assert set(after.brokers) == {2}


def test_features_have_a_level_until_it_is_zero() -> None:
    image = Image().apply([FeatureLevelRecord(name="transaction.version", feature_level=2)])
    assert image.features == {"transaction.version": 2}
    assert image.apply([FeatureLevelRecord(name="transaction.version")]).features == {}


def test_a_no_op_record_changes_nothing() -> None:
    image = cluster(1)
    assert image.apply([NoOpRecord()]) == image


ORDERS = id_of("orders")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (TopicRecord(name="orders", topic_id=id_of("new")), "topic orders is created twice"),
        (TopicRecord(name="new", topic_id=ORDERS), "topic new is created twice"),
        (RemoveTopicRecord(topic_id=id_of("new")), "no topic has the id AQEBAQEBAQEBAQEBAW5ldw"),
        (PartitionRecord(topic_id=id_of("new"), partition_id=0), "no topic has the id"),
        (
            PartitionRecord(topic_id=ORDERS, partition_id=2),
            "partition 2 of orders comes when 1 would be the next",
        ),
        (PartitionRecord(topic_id=ORDERS, partition_id=-1), "partition -1 of orders"),
        (PartitionChangeRecord(topic_id=id_of("new"), partition_id=0), "no topic has the id"),
        (
            PartitionChangeRecord(topic_id=ORDERS, partition_id=1),
            "orders has no partition 1 to change",
        ),
        (ProducerIdsRecord(next_producer_id=1000), "next producer id 1000 is not after 1000"),
        (UnregisterBrokerRecord(broker_id=5), "broker 5 is not registered"),
        (UnregisterBrokerRecord(broker_id=1, broker_epoch=6), "broker 1 has epoch 0, not 6"),
        (FenceBrokerRecord(id=1, epoch=6), "broker 1 has epoch 0, not 6"),
        (UnfenceBrokerRecord(id=5, epoch=6), "broker 5 is not registered"),
        (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2), "has epoch 0, not 2"),
        (ProduceRequest(), "no image can hold a ProduceRequest"),
    ],
)
def test_a_record_that_cannot_follow_is_refused(record: Message, message: str) -> None:
    image = cluster(1, topics={"orders": [[1]]}).apply([ProducerIdsRecord(next_producer_id=1000)])
    with pytest.raises(MetadataError, match=message):
        image.apply([record])


def test_a_topic_can_be_removed_and_made_again_in_one_go() -> None:
    image = cluster(1, topics={"orders": [[1], [1]]})
    records = [RemoveTopicRecord(topic_id=ORDERS), *topic_records("orders", [1])]
    after = image.apply(records)
    assert len(after.topics["orders"].partitions) == after.partition_count == 1


def test_registering_again_replaces_the_broker() -> None:
    again = RegisterBrokerRecord(broker_id=1, broker_epoch=9, rack="r", fenced=False)
    assert cluster(1).apply([again]).brokers[1].epoch == 9
