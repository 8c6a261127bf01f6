"""Random commands against a model made of dicts, and the log they leave replayed from scratch."""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.config import BrokerConfig
from headrace.metadata.brokers import allocate_producer_ids
from headrace.metadata.configs import incremental_alter_configs
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult, decode_record, encode_record
from headrace.metadata.topics import create_partitions, create_topics, delete_topics
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from tests.unit.metadata.clusters import broker_records

NAMES = ["a", "b", "a.b", "a_b", "no name"]
names = st.sampled_from(NAMES)
settings_texts = st.dictionaries(
    st.sampled_from(["retention.ms", "flush.ms", "no.such"]), st.sampled_from(["5", "-9"])
)


class MetadataLog(RuleBasedStateMachine):
    """Every rule runs one command and predicts from the model what it must come to."""

    @initialize(seed=st.integers(0, 2**32), brokers=st.integers(1, 3))
    def start(self, seed: int, brokers: int) -> None:
        self.random = Random(seed)
        self.brokers = brokers
        self.log = list(broker_records(*range(1, brokers + 1)))
        self.image = Image().apply(self.log)
        self.counts: dict[str, int] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.producer_ids = 0

    def commit(self, result: CommandResult[object]) -> None:
        self.log += result.records
        self.image = self.image.apply(result.records)

    def creatable(self, name: str, partitions: int, replicas: int, given: dict[str, str]) -> bool:
        collides = any(name.replace(".", "_") == count.replace(".", "_") for count in self.counts)
        good_settings = all(key != "no.such" and value == "5" for key, value in given.items())
        return (
            " " not in name
            and not collides
            and partitions != 0
            and 0 < replicas <= self.brokers
            and good_settings
        )

    @rule(
        name=names,
        partitions=st.integers(0, 4),
        replicas=st.integers(0, 4),
        given=settings_texts,
        only_validate=st.booleans(),
    )
    def create(
        self, name: str, partitions: int, replicas: int, given: dict[str, str], only_validate: bool
    ) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in given.items()],
        )
        request = CreateTopicsRequest(topics=[topic], validate_only=only_validate)
        result = create_topics(self.image, request, config=BrokerConfig(), random=self.random)
        good = self.creatable(name, partitions, replicas, given)
        assert (result.response.topics[0].error_code == 0) == good
        self.commit(result)
        if good and not only_validate:
            self.counts[name] = partitions
            self.settings[name] = dict(given)

    @rule(wanted=st.lists(names, max_size=3), by_id=st.booleans())
    def delete(self, wanted: list[str], by_id: bool) -> None:
        states = [
            DeleteTopicState(topic_id=self.image.topics[name].topic_id)
            if by_id and name in self.image.topics
            else DeleteTopicState(name=name)
            for name in wanted
        ]
        request = DeleteTopicsRequest(topics=states)
        result = delete_topics(self.image, request, config=BrokerConfig())
        gone = {name for name in wanted if wanted.count(name) == 1 and name in self.counts}
        answered = {
            response.name for response in result.response.responses if response.error_code == 0
        }
        assert answered == gone
        self.commit(result)
        for name in gone:
            del self.counts[name], self.settings[name]

    @rule(name=names, count=st.integers(0, 8), only_validate=st.booleans())
    def grow(self, name: str, count: int, only_validate: bool) -> None:
        topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], validate_only=only_validate)
        result = create_partitions(self.image, request)
        good = name in self.counts and count > self.counts[name]
        assert (result.response.results[0].error_code == 0) == good
        self.commit(result)
        if good and not only_validate:
            self.counts[name] = count

    @rule(name=names, changes=settings_texts, delete=st.booleans())
    def configure(self, name: str, changes: dict[str, str], delete: bool) -> None:
        configs = [
            AlterableConfig(name=key, config_operation=int(delete), value=value)
            for key, value in changes.items()
        ]
        wanted = AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[wanted])
        result = incremental_alter_configs(self.image, request)
        # Deleting a setting that is not there succeeds, also one that nobody knows.
        settable = "no.such" not in changes and "-9" not in changes.values()
        good = name in self.counts and (delete or settable)
        assert (result.response.responses[0].error_code == 0) == good
        self.commit(result)
        if good and delete:
            for key in changes:
                self.settings[name].pop(key, None)
        elif good:
            self.settings[name] |= changes

    @rule(broker_id=st.integers(1, 3))
    def allocate(self, broker_id: int) -> None:
        if broker_id <= self.brokers:
            epoch = self.image.brokers[broker_id].epoch
            result = allocate_producer_ids(self.image, broker_id=broker_id, broker_epoch=epoch)
            assert result.response.first_id == self.producer_ids
            self.commit(result)
            self.producer_ids += 1000

    @rule(name=names, leader=st.integers(-2, 3))
    def elect(self, name: str, leader: int) -> None:
        if name in self.counts:
            topic = self.image.topics[name]
            change = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=0, leader=leader)
            self.commit(CommandResult((change,), None))
            old, new = topic.partitions[0], self.image.topics[name].partitions[0]
            assert new.leader == (old.leader if leader == -2 else leader)
            assert new.leader_epoch == old.leader_epoch + (leader != -2)

    @invariant()
    def the_image_is_what_the_model_says(self) -> None:
        topics = self.image.topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == self.counts
        assert self.image.partition_count == sum(self.counts.values())
        assert self.image.topics_by_id == {value.topic_id: value for value in topics.values()}
        given = {name: texts for name, texts in self.settings.items() if texts}
        assert {name: texts for (_, name), texts in self.image.configs.items()} == given
        assert self.image.next_producer_id == self.producer_ids

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        stored = [encode_record(record) for record in self.log]
        replayed = [decode_record(value) for value in stored]
        assert Image().apply(replayed) == self.image
        one_by_one = Image()
        for record in replayed:
            one_by_one = one_by_one.apply([record])
        assert one_by_one == self.image


TestMetadataLog = pytest.mark.timeout(60)(MetadataLog.TestCase)
TestMetadataLog.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
