"""Moving replicas: what is recorded, what is refused, and when a move is over."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode
from headrace.metadata.image import Image, PartitionImage
from headrace.metadata.reassignments import (
    alter_partition_reassignments,
    finished_reassignment,
    is_moving,
    list_partition_reassignments,
    origin_of,
    target_of,
)
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from headrace.protocol.messages.metadata_records import (
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from tests.unit.metadata.clusters import cluster, id_of, told

ORDERS = {"orders": [[1, 2, 3], [2, 3, 1]]}


def alter(
    image: Image, *wanted: tuple[int, Sequence[int] | None], resize: bool = True
) -> CommandResult[AlterPartitionReassignmentsResponse]:
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=resize,
        topics=[
            ReassignableTopic(
                name="orders",
                partitions=[
                    ReassignablePartition(
                        partition_index=index, replicas=None if replicas is None else list(replicas)
                    )
                    for index, replicas in wanted
                ],
            )
        ],
    )
    return alter_partition_reassignments(image, request)


def moved(image: Image, index: int, replicas: Sequence[int] | None) -> Image:
    result = alter(image, (index, replicas))
    [topic] = result.response.responses
    [partition] = topic.partitions
    assert told(partition.error_code, partition.error_message) == ""
    return image.apply(result.records)


def refused(image: Image, index: int, replicas: Sequence[int] | None, resize: bool = True) -> str:
    result = alter(image, (index, replicas), resize=resize)
    assert result.records == ()
    [topic] = result.response.responses
    [partition] = topic.partitions
    assert partition.partition_index == index
    return told(partition.error_code, partition.error_message)


def partition_of(image: Image, index: int = 0) -> PartitionImage:
    return image.topics["orders"].partitions[index]


def with_isr(image: Image, *isr: int, leader: int = -2) -> Image:
    record = PartitionChangeRecord(
        topic_id=id_of("orders"), partition_id=0, isr=list(isr), leader=leader
    )
    return image.apply([record])


def test_a_move_puts_the_target_first_and_keeps_what_is_to_go_behind_it() -> None:
    image = moved(cluster(1, 2, 3, 4, 5, topics=ORDERS), 0, [4, 3, 5])
    assert partition_of(image) == PartitionImage(
        replicas=(4, 3, 5, 1, 2),
        isr=(1, 2, 3),
        leader=1,
        leader_epoch=0,
        partition_epoch=1,
        adding_replicas=(4, 5),
        removing_replicas=(1, 2),
    )
    assert target_of(partition_of(image)) == (4, 3, 5)
    assert sorted(origin_of(partition_of(image))) == [1, 2, 3]


def test_a_move_is_over_only_when_every_target_replica_is_in_sync() -> None:
    partition = partition_of(moved(cluster(1, 2, 3, 4, 5, topics=ORDERS), 0, [4, 3, 5]))
    assert finished_reassignment(partition, (1, 2, 3)) is None
    assert finished_reassignment(partition, (1, 2, 3, 4)) is None
    assert finished_reassignment(partition, (1, 2, 4, 5)) is None, "3 stays, but it is behind"
    end = finished_reassignment(partition, (5, 4, 3, 2, 1))
    assert end is not None
    assert (end.replicas, end.isr) == ((4, 3, 5), (5, 4, 3))


def test_what_does_not_move_never_finishes() -> None:
    assert finished_reassignment(partition_of(cluster(1, 2, 3, topics=ORDERS)), (1, 2, 3)) is None


def test_only_a_new_order_is_there_at_once() -> None:
    image = moved(cluster(1, 2, 3, topics=ORDERS), 0, [3, 1, 2])
    partition = partition_of(image)
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 1, 2), (1, 2, 3), 1)
    assert (partition.leader_epoch, is_moving(partition)) == (0, False)


def test_fewer_replicas_in_sync_are_there_at_once_with_a_new_leader_epoch() -> None:
    partition = partition_of(moved(cluster(1, 2, 3, topics=ORDERS), 0, [1, 2]))
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (1, 2), 1)
    assert (partition.leader_epoch, is_moving(partition)) == (1, False)


def test_a_leader_that_goes_hands_over_to_the_first_of_the_target() -> None:
    partition = partition_of(moved(cluster(1, 2, 3, topics=ORDERS), 0, [3, 2]))
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((3, 2), 3, 1)


def test_fewer_replicas_wait_for_one_that_is_behind() -> None:
    image = with_isr(cluster(1, 2, 3, topics=ORDERS), 1, 2)
    partition = partition_of(moved(image, 0, [2, 3]))
    assert (partition.replicas, partition.removing_replicas) == ((2, 3, 1), (1,))
    assert partition.leader == 1


def test_a_replica_that_is_only_added_ends_the_move_when_it_is_in_sync() -> None:
    image = moved(cluster(1, 2, 3, 4, topics=ORDERS), 0, [1, 2, 3, 4])
    partition = partition_of(image)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4,), ())
    end = finished_reassignment(partition, (1, 2, 3, 4))
    assert end is not None
    assert end.replicas == end.isr == (1, 2, 3, 4)


def test_the_same_target_again_changes_nothing() -> None:
    image = moved(cluster(1, 2, 3, 4, topics=ORDERS), 0, [1, 2, 4])
    assert alter(image, (0, [1, 2, 4])).records == ()
    assert alter(image, (1, [2, 3, 1])).records == ()


def test_a_new_target_forgets_what_the_old_one_was_adding() -> None:
    image = moved(cluster(1, 2, 3, 4, 5, topics=ORDERS), 0, [1, 2, 4])
    image = with_isr(image, 1, 2, 3, 4)
    partition = partition_of(moved(image, 0, [1, 2, 5]))
    assert partition.replicas == (1, 2, 5, 3)
    assert partition.isr == (1, 2, 3)
    assert (partition.adding_replicas, partition.removing_replicas) == ((5,), (3,))
    assert partition.leader_epoch == 1, "4 is shut out"


def test_a_target_that_is_back_where_it_began_ends_the_move() -> None:
    image = moved(cluster(1, 2, 3, 4, topics=ORDERS), 0, [1, 2, 4])
    partition = partition_of(moved(image, 0, [1, 2, 3]))
    assert (partition.replicas, partition.isr) == ((1, 2, 3), (1, 2, 3))
    assert not is_moving(partition)


def test_cancelling_takes_back_what_was_added() -> None:
    image = moved(cluster(1, 2, 3, 4, topics=ORDERS), 0, [4, 1, 2])
    image = with_isr(image, 1, 2, 3, 4, leader=4)
    partition = partition_of(moved(image, 0, None))
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2, 3), (1, 2, 3), 1)
    assert not is_moving(partition)
    assert partition.leader_epoch == 2


def test_cancelling_is_refused_if_only_what_was_added_is_in_sync() -> None:
    image = moved(cluster(1, 2, 3, 4, topics=ORDERS), 0, [4, 1, 2])
    image = with_isr(image, 4, leader=4)
    assert refused(image, 0, None) == (
        "INVALID_REPLICA_ASSIGNMENT: only 4, which would go, is in sync: records would be lost"
    )


def test_a_partition_that_nobody_has_in_sync_can_be_cancelled_too() -> None:
    image = moved(cluster(1, 2, 3, 4, topics=ORDERS), 0, [4, 1, 2])
    image = with_isr(image, leader=-1)
    partition = partition_of(moved(image, 0, None))
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2, 3), (), -1)


def test_a_leader_that_goes_when_nobody_of_the_rest_is_alive_leaves_none() -> None:
    image = cluster(1, 2, 3, topics=ORDERS)
    brokers = {key: replace(broker, fenced=key == 2) for key, broker in image.brokers.items()}
    partition = partition_of(moved(replace(image, brokers=brokers), 0, [2]))
    assert (partition.replicas, partition.isr, partition.leader) == ((2,), (2,), -1)


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ([], "the new assignment has no replicas"),
        ([1, 2, 1], "the new assignment names a broker more than once"),
        ([1, 9], "the new assignment names broker 9, which is not registered"),
        ([-1], "the new assignment names broker -1, which is not registered"),
    ],
)
def test_replicas_that_cannot_be_served_are_refused(replicas: list[int], message: str) -> None:
    image = cluster(1, 2, 3, topics=ORDERS)
    assert refused(image, 0, replicas) == f"INVALID_REPLICA_ASSIGNMENT: {message}"


def test_a_broker_that_was_removed_is_no_target() -> None:
    image = cluster(1, 2, 3, topics=ORDERS)
    image = image.apply([UnregisterBrokerRecord(broker_id=3, broker_epoch=2)])
    assert "names broker 3" in refused(image, 0, [1, 3])


def test_another_number_of_replicas_is_refused_if_the_request_forbids_it() -> None:
    image = cluster(1, 2, 3, 4, topics=ORDERS)
    assert refused(image, 0, [1, 2], resize=False).startswith("INVALID_REPLICATION_FACTOR: ")
    assert alter(image, (0, [1, 2, 4]), resize=False).records != ()
    # What counts is where the partition is going, not the replicas it has on the way.
    moving = moved(image, 0, [1, 2, 4])
    assert alter(moving, (0, [2, 3, 4]), resize=False).records != ()


@pytest.mark.parametrize("index", [-1, 2])
def test_an_unknown_partition_is_refused(index: int) -> None:
    image = cluster(1, 2, 3, topics=ORDERS)
    for replicas in ([1, 2, 3], None):
        assert refused(image, index, replicas).startswith("UNKNOWN_TOPIC_OR_PARTITION: ")


def test_an_unknown_topic_is_refused() -> None:
    assert refused(cluster(1, 2, 3), 0, [1]).startswith("UNKNOWN_TOPIC_OR_PARTITION: ")


def test_nothing_to_cancel_is_told() -> None:
    image = cluster(1, 2, 3, topics=ORDERS)
    assert refused(image, 0, None).startswith("NO_REASSIGNMENT_IN_PROGRESS: ")


def test_an_error_of_one_partition_leaves_the_others_alone() -> None:
    image = cluster(1, 2, 3, 4, topics=ORDERS)
    result = alter(image, (0, [9]), (1, [2, 3, 4]))
    [topic] = result.response.responses
    assert [partition.error_code for partition in topic.partitions] == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NONE,
    ]
    assert len(result.records) == 1
    assert is_moving(partition_of(image.apply(result.records), 1))


def test_a_partition_named_twice_is_refused_the_second_time() -> None:
    result = alter(cluster(1, 2, 3, topics=ORDERS), (0, [1, 2]), (0, [3]))
    [topic] = result.response.responses
    assert [partition.error_code for partition in topic.partitions] == [
        0,
        ErrorCode.INVALID_REQUEST,
    ]
    assert len(result.records) == 1


def listed(image: Image, **asked: list[int]) -> list[tuple[str, int, list[int], list[int]]]:
    topics = [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
        for name, indexes in asked.items()
    ]
    request = ListPartitionReassignmentsRequest(topics=topics or None)
    return [
        (
            topic.name,
            partition.partition_index,
            partition.adding_replicas,
            partition.removing_replicas,
        )
        for topic in list_partition_reassignments(image, request).topics
        for partition in topic.partitions
    ]


def test_what_moves_is_listed() -> None:
    image = cluster(1, 2, 3, 4, topics=ORDERS | {"clicks": [[1]]})
    assert listed(image) == []
    image = moved(image, 1, [2, 3, 4])
    assert listed(image) == [("orders", 1, [4], [1])]
    assert listed(image, orders=[0, 1]) == [("orders", 1, [4], [1])]
    assert listed(image, orders=[0]) == []
    assert listed(image, clicks=[0], gone=[0]) == []
    assert listed(image, orders=[7, -1]) == []


@given(
    moves=st.lists(
        st.one_of(
            st.none(),
            st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True),
            st.sets(st.integers(1, 6), min_size=1).map(frozenset),
        ),
        max_size=12,
    )
)
def test_whatever_is_asked_for_a_partition_keeps_a_replica_in_sync_and_a_leader(
    moves: list[list[int] | frozenset[int] | None],
) -> None:
    """Lists are targets, sets are what comes in sync, None cancels."""
    image = cluster(1, 2, 3, 4, 5, 6, topics=ORDERS)
    for move in moves:
        before = partition_of(image)
        if isinstance(move, frozenset):
            grown = before.isr + tuple(sorted((move & set(before.replicas)) - set(before.isr)))
            end = finished_reassignment(before, grown)
            record = PartitionChangeRecord(
                topic_id=id_of("orders"), partition_id=0, isr=list(grown)
            )
            if end is not None:
                record.replicas, record.isr = list(end.replicas), list(end.isr)
                record.adding_replicas, record.removing_replicas = [], []
                stays = before.leader in end.isr
                record.leader = before.leader if stays else end.replicas[0]
            image = image.apply([record])
        else:
            image = image.apply(alter(image, (0, move)).records)
        after = partition_of(image)
        assert set(after.isr) <= set(after.replicas)
        assert after.leader in after.isr
        assert set(after.adding_replicas) <= set(after.replicas)
        assert set(after.removing_replicas) <= set(after.replicas)
        assert not set(after.adding_replicas) & set(after.removing_replicas)
        if move and not isinstance(move, frozenset):
            assert target_of(after) == tuple(move) or after == before
