"""Whatever happens to a cluster: leaders are in sync, epochs grow, and a snapshot has it all."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.config import BrokerConfig
from headrace.errors import KafkaError
from headrace.metadata.elections import balance_leaders, elect_leaders, elect_missing_leaders
from headrace.metadata.image import Image, PartitionImage
from headrace.metadata.reassignments import alter_partition_reassignments
from headrace.metadata.records import CommandResult, decode_record, encode_record
from headrace.metadata.snapshot import image_records
from headrace.metadata.topics import create_topics, delete_topics
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from tests.unit.metadata.active import SESSION_MS, Active

BROKERS = [1, 2, 3, 4]
broker_ids = st.sampled_from(BROKERS)
names = st.sampled_from(["a", "b"])


class ClusterLife(RuleBasedStateMachine):
    """Every rule is a command of the active controller."""

    @initialize(seed=st.integers(0, 2**32), unclean=st.booleans())
    def start(self, seed: int, unclean: bool) -> None:
        self.random = Random(seed)
        self.active = Active(*BROKERS, unclean=unclean)
        self.incarnation = 100
        self.seen: dict[tuple[bytes, int], PartitionImage] = {}

    @property
    def image(self) -> Image:
        return self.active.image

    def commit(self, result: CommandResult[object]) -> None:
        self.active.commit(result)

    @rule(name=names, partitions=st.integers(1, 3), replicas=st.integers(1, 3), safe=st.booleans())
    def create(self, name: str, partitions: int, replicas: int, safe: bool) -> None:
        unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value="false")
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[unclean] if safe else [],
        )
        request = CreateTopicsRequest(topics=[topic])
        config = BrokerConfig()
        self.commit(create_topics(self.image, request, config=config, random=self.random))

    @rule(name=names)
    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        self.commit(delete_topics(self.image, request, config=BrokerConfig()))

    @rule(broker_id=broker_ids, directory=st.sampled_from([b"", b"x", b"y"]))
    def register(self, broker_id: int, directory: bytes) -> None:
        self.incarnation = 100 + (self.incarnation - 99) % 150
        own = bytes([broker_id]) + directory * 15
        directories = [own] if directory else []
        before = self.image
        if self.active.heartbeats.has_session(broker_id, self.active.now_ms):
            if set(before.brokers[broker_id].log_dirs).isdisjoint(directories):
                with pytest.raises(KafkaError, match="DUPLICATE_BROKER_REGISTRATION"):
                    self.active.register(broker_id, self.incarnation, directories)
                assert self.image is before
                return
        self.active.register(broker_id, self.incarnation, directories)

    @rule(broker_id=broker_ids, behind=st.integers(0, 3), leave=st.booleans())
    def beat(self, broker_id: int, behind: int, leave: bool) -> None:
        self.active.beat(broker_id, self.active.offset - 1 - behind, want_shut_down=leave)

    @rule(heard=st.lists(broker_ids, unique=True))
    def silence(self, heard: list[int]) -> None:
        silent = {broker for broker in BROKERS if broker not in heard}
        self.active.pass_ms(SESSION_MS, *heard)
        assert all(self.image.brokers[entry].fenced for entry in silent)

    @rule()
    def new_controller(self) -> None:
        self.active.take_office()

    @rule(name=names, data=st.data(), stale=st.integers(0, 3))
    def alter(self, name: str, data: st.DataObject, stale: int) -> None:
        topic = self.image.topics.get(name)
        if topic is None:
            return
        partition = data.draw(st.integers(0, len(topic.partitions) - 1))
        known = topic.partitions[partition]
        leader = known.leader if known.leader > 0 else data.draw(broker_ids)
        others = [replica for replica in known.replicas if replica != leader]
        isr = (
            [leader, *data.draw(st.lists(st.sampled_from(others), unique=True))]
            if others
            else [leader]
        )
        epoch = known.partition_epoch - (stale == 1)
        answer = self.active.alter(
            leader, isr, topic=name, partition=partition, partition_epoch=epoch
        )
        if leader != known.leader or stale == 1:
            assert answer.error_code != 0
        down = [broker_id for broker_id in isr if not self.image.brokers[broker_id].is_active]
        assert not down or answer.error_code != 0

    @rule(
        name=names, replicas=st.none() | st.lists(broker_ids, unique=True, min_size=1, max_size=3)
    )
    def reassign(self, name: str, replicas: list[int] | None) -> None:
        wanted = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=name, partitions=[wanted])]
        )
        self.commit(alter_partition_reassignments(self.image, request))

    @rule(kind=st.integers(0, 1))
    def elect(self, kind: int) -> None:
        request = ElectLeadersRequest(election_type=kind, topic_partitions=None)
        self.commit(elect_leaders(self.image, request, unclean_by_default=self.active.unclean))

    @rule(percentage=st.integers(0, 50))
    def balance(self, percentage: int) -> None:
        self.commit(balance_leaders(self.image, percentage))
        if percentage == 0:
            assert balance_leaders(self.image, 0).records == ()

    @rule()
    def elect_missing(self) -> None:
        unclean = self.active.unclean
        self.commit(elect_missing_leaders(self.image, unclean_by_default=unclean))
        assert elect_missing_leaders(self.image, unclean_by_default=unclean).records == ()

    def partitions(self) -> Iterator[tuple[tuple[bytes, int], PartitionImage]]:
        for topic in self.image.topics.values():
            for partition_id, partition in enumerate(topic.partitions):
                yield (topic.topic_id, partition_id), partition

    @invariant()
    def who_leads_is_active_and_in_sync(self) -> None:
        for place, partition in self.partitions():
            assert len(set(partition.isr)) == len(partition.isr), place
            assert set(partition.isr) <= set(partition.replicas), place
            able = [
                broker_id for broker_id in partition.isr if self.image.brokers[broker_id].is_active
            ]
            assert partition.leader in able if able else partition.leader == -1, place

    @invariant()
    def epochs_grow_with_what_they_count(self) -> None:
        for place, partition in self.partitions():
            old = self.seen.get(place)
            if old is not None and partition != old:
                assert partition.partition_epoch > old.partition_epoch
                assert partition.leader_epoch >= old.leader_epoch
                if partition.leader != old.leader:
                    assert partition.leader_epoch > old.leader_epoch
                if not set(old.replicas) <= set(partition.replicas):
                    assert partition.leader_epoch > old.leader_epoch
        self.seen = dict(self.partitions())

    def teardown(self) -> None:
        if hasattr(self, "active"):
            stored = [encode_record(record) for record in image_records(self.image)]
            assert Image().apply(map(decode_record, stored)) == self.image


TestClusterLife = pytest.mark.timeout(60)(ClusterLife.TestCase)
TestClusterLife.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
