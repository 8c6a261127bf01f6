"""Moves, cancellations, deaths and returns in any order: what holds always, and in the end."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode
from headrace.metadata.brokers import fence_brokers, unfence_broker
from headrace.metadata.image import NO_LEADER, Image, PartitionImage
from headrace.metadata.isr import alter_partition
from headrace.metadata.reassignments import (
    alter_partition_reassignments,
    is_moving,
    origin_of,
    target_of,
)
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.unit.metadata.clusters import cluster, id_of

BROKERS = (1, 2, 3, 4, 5)
Step = tuple[str, tuple[int, ...]]

brokers = st.sampled_from(BROKERS)
steps = st.one_of(
    st.tuples(st.just("move"), st.lists(brokers, min_size=1, max_size=3, unique=True).map(tuple)),
    st.tuples(st.just("cancel"), st.just(())),
    st.tuples(st.just("die"), st.tuples(brokers)),
    st.tuples(st.just("return"), st.tuples(brokers)),
    st.tuples(st.just("catch up"), st.lists(brokers, unique=True).map(tuple)),
)


def partition_of(image: Image) -> PartitionImage:
    return image.topics["orders"].partitions[0]


def reassigned(image: Image, replicas: tuple[int, ...] | None) -> Image:
    wanted = ReassignablePartition(
        partition_index=0, replicas=None if replicas is None else list(replicas)
    )
    topic = ReassignableTopic(name="orders", partitions=[wanted])
    request = AlterPartitionReassignmentsRequest(topics=[topic])
    return image.apply(alter_partition_reassignments(image, request).records)


def caught_up(image: Image, followers: tuple[int, ...]) -> Image:
    """The leader proposes that these, as far as they live and are replicas, are in sync too."""
    partition = partition_of(image)
    if partition.leader == NO_LEADER:
        return image
    alive = image.active_racks()
    isr = [
        replica
        for replica in partition.replicas
        if replica in alive and (replica in followers or replica in partition.isr)
    ]
    leader = image.brokers[partition.leader]
    wanted = PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=broker_id, broker_epoch=image.brokers[broker_id].epoch)
            for broker_id in isr
        ],
    )
    request = AlterPartitionRequest(
        broker_id=leader.broker_id,
        broker_epoch=leader.epoch,
        topics=[TopicData(topic_id=id_of("orders"), partitions=[wanted])],
    )
    result = alter_partition(image, request, unclean_by_default=False)
    [answer] = result.response.topics[0].partitions
    assert answer.error_code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)
    return image.apply(result.records)


def done(image: Image, step: Step) -> Image:
    kind, named = step
    match kind:
        case "move":
            return reassigned(image, named)
        case "cancel":
            return reassigned(image, None)
        case "die":
            result = fence_brokers(image, named, unclean_by_default=False)
            return image.apply(result.records)
        case "return":
            broker = image.brokers[named[0]]
            result = unfence_broker(image, broker, unclean_by_default=False)
            return image.apply(result.records) if broker.fenced else image
        case _:
            return caught_up(image, named)


def check(image: Image, before: PartitionImage, proposed: tuple[int, ...]) -> None:
    after = partition_of(image)
    assert after.isr
    assert set(after.isr) <= set(after.replicas)
    assert after.leader == NO_LEADER or (
        after.leader in after.isr and image.brokers[after.leader].is_active
    )
    assert len(set(after.replicas)) == len(after.replicas)
    assert set(after.adding_replicas) | set(after.removing_replicas) <= set(after.replicas)
    assert not set(after.adding_replicas) & set(after.removing_replicas)
    # What is committed is on every member of the ISR, and of the one that is proposed.
    assert (set(before.isr) | set(proposed)) & set(after.isr)
    assert after.leader_epoch >= before.leader_epoch
    assert after.partition_epoch - before.partition_epoch in (0, 1)
    if not set(before.replicas) <= set(after.replicas):
        assert after.leader_epoch > before.leader_epoch, "who went is shut out"
    if is_moving(before) and not is_moving(after):
        assert set(after.replicas) in (set(target_of(before)), set(origin_of(before))) or (
            set(after.replicas) <= set(after.isr)
        )


@given(st.lists(steps, max_size=25))
def test_moves_keep_every_rule_and_come_to_an_end_when_all_live(history: list[Step]) -> None:
    image = cluster(*BROKERS, topics={"orders": [[1, 2, 3]]})
    for step in history:
        before = partition_of(image)
        image = done(image, step)
        check(image, before, step[1] if step[0] == "catch up" else ())
    for broker in BROKERS:
        image = done(image, ("return", (broker,)))
    target = target_of(partition_of(image))
    image = caught_up(image, BROKERS)
    after = partition_of(image)
    assert not is_moving(after)
    assert after.replicas == target
    assert set(after.isr) == set(target)
    assert after.leader != NO_LEADER
