"""An image as records: replaying them gives the image."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, BrokerImage, Image
from headrace.metadata.image import PartitionImage as Partition
from headrace.metadata.records import decode_record, encode_record
from headrace.metadata.snapshot import image_records
from headrace.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    ClientQuotaRecord,
    ConfigRecord,
    EntityData,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace.protocol.schema import Message
from tests.unit.metadata.clusters import id_of

texts = st.text("ab", min_size=1, max_size=3)
ids = st.integers(0, 5)
uuids = st.sampled_from([bytes([number]) * 16 for number in range(1, 5)])
epochs = st.integers(0, 9)
replica_lists = st.lists(ids, unique=True, max_size=4)

broker_records = st.builds(
    RegisterBrokerRecord,
    broker_id=ids,
    incarnation_id=uuids,
    broker_epoch=epochs,
    end_points=st.lists(
        st.builds(
            BrokerEndpoint,
            name=texts,
            host=texts,
            port=st.integers(0, 65_535),
            security_protocol=st.integers(0, 3),
        ),
        max_size=2,
    ),
    features=st.lists(
        st.builds(
            BrokerFeature,
            name=texts,
            min_supported_version=st.integers(0, 2),
            max_supported_version=st.integers(2, 4),
        ),
        max_size=2,
        unique_by=lambda topic: topic.name,
    ),
    rack=st.none() | texts,
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
    log_dirs=st.lists(uuids, unique=True, max_size=2),
    cordoned_log_dirs=st.none() | st.lists(uuids, unique=True, max_size=2),
)
config_records = st.builds(
    ConfigRecord,
    resource_type=st.sampled_from([2, 4]),
    resource_name=st.just("") | texts,
    name=texts,
    value=st.none() | texts,
)


quota_keys = st.tuples(st.none() | texts, texts)


@st.composite
def topics(draw: st.DrawFn) -> list[Message]:
    records: list[Message] = []
    for name in draw(st.lists(texts, unique=True, max_size=3)):
        records.append(TopicRecord(name=name, topic_id=id_of(name)))
        for number in range(draw(st.integers(0, 3))):
            replicas = draw(replica_lists)
            places = st.sampled_from([LOST_DIRECTORY, UNASSIGNED_DIRECTORY]) | uuids
            directories = draw(st.lists(places, min_size=len(replicas), max_size=len(replicas)))
            records.append(
                PartitionRecord(
                    partition_id=number,
                    topic_id=id_of(name),
                    replicas=replicas,
                    isr=draw(replica_lists),
                    removing_replicas=draw(replica_lists),
                    adding_replicas=draw(replica_lists),
                    leader=draw(st.integers(-1, 5)),
                    leader_recovery_state=draw(st.integers(0, 1)),
                    leader_epoch=draw(epochs),
                    partition_epoch=draw(epochs),
                    directories=directories,
                    eligible_leader_replicas=draw(replica_lists) or None,
                    last_known_elr=draw(replica_lists) or None,
                )
            )
    return records


@given(
    st.lists(broker_records, max_size=3),
    topics(),
    st.lists(config_records, max_size=5),
    st.fixed_dictionaries(
        {},
        optional={"transaction.version": st.integers(0, 2), "metadata.version": st.just(30)},
    ),
    st.integers(0, 5000),
    st.dictionaries(quota_keys, st.floats(0.5, 9.5), max_size=4),
)
def test_replaying_the_records_of_an_image_gives_it_back(
    brokers: list[Message],
    made: list[Message],
    configs: list[Message],
    features: dict[str, int],
    next_producer_id: int,
    quotas: dict[tuple[str | None, str], float],
) -> None:
    levels = [
        FeatureLevelRecord(name=name, feature_level=feature) for name, feature in features.items()
    ]
    image = Image().apply([*configs, *made, *brokers, *levels])
    if next_producer_id:
        image = image.apply([ProducerIdsRecord(next_producer_id=next_producer_id)])
    image = image.apply(
        ClientQuotaRecord(
            entity=[EntityData(entity_type="user", entity_name=name)], key=key, value=value
        )
        for (name, key), value in quotas.items()
    )
    stored = [encode_record(record) for record in image_records(image)]
    again = Image().apply(map(decode_record, stored))
    assert again == image
    # What is gone through in the order of an image must not depend on how the image came to be.
    assert [list(again.brokers), list(again.topics), list(again.configs)] == [
        list(image.brokers),
        list(image.topics),
        list(image.configs),
    ]


def test_an_empty_image_has_no_records() -> None:
    assert list(image_records(Image())) == []


def test_the_test_above_knows_every_field() -> None:
    """Whoever adds one to the image has to tell how a snapshot keeps it."""
    told = {
        Image: "brokers topics topics_by_id configs features collisions partition_count"
        " next_producer_id scram_credentials delegation_tokens acls client_quotas",
        BrokerImage: "broker_id epoch incarnation_id endpoints rack fenced in_controlled_shutdown"
        " log_dirs features cordoned_log_dirs",
        Partition: "replicas isr leader leader_epoch partition_epoch leader_recovery_state"
        " adding_replicas removing_replicas lost_replicas elr last_known_elr"
        " directories",
    }
    for kind, names in told.items():
        assert [field.name for field in fields(kind)] == names.split()
