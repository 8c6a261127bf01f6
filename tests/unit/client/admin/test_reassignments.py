import pytest

from headrace.client.admin.reassignments import Reassignment
from headrace.client.errors import SomeFailed
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace.types import TopicPartition
from tests.unit.client.admin.moving import MovingBrokers

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def brokers() -> MovingBrokers:
    found = MovingBrokers(4, {"a": [[1, 2, 3], [2, 3, 1]], "b": [[3, 1]]})
    found.is_quick = False
    return found


def test_partitions_begin_to_move_and_are_listed_until_they_are_there() -> None:
    cluster = brokers()
    cluster.admin(lambda admin: admin.alter_partition_reassignments({A0: [4, 2, 3], B0: [1, 3]}))
    moving = cluster.admin(lambda admin: admin.list_partition_reassignments())
    assert moving == {A0: Reassignment((4, 2, 3, 1), (4,), (1,))}
    assert moving[A0].target == (4, 2, 3)
    assert cluster.admin(lambda admin: admin.list_partition_reassignments([A1, B0])) == {}
    cluster.arrive()
    assert cluster.admin(lambda admin: admin.list_partition_reassignments()) == {}
    assert cluster.replicas("a") == [(4, 2, 3), (2, 3, 1)]


def test_a_move_is_cancelled_with_none() -> None:
    cluster = brokers()
    cluster.admin(lambda admin: admin.alter_partition_reassignments({A0: [4, 2, 3]}))
    cluster.admin(lambda admin: admin.alter_partition_reassignments({A0: None}))
    assert sorted(cluster.replicas("a")[0]) == [1, 2, 3]


def test_each_partition_has_its_own_outcome() -> None:
    cluster = brokers()
    with pytest.raises(SomeFailed) as caught:
        cluster.admin(
            lambda admin: admin.alter_partition_reassignments(
                {A0: [9], A1: [2, 3, 4], TopicPartition("a", 7): [1], B0: None}
            )
        )
    codes = {str(tp): error.code.name for tp, error in caught.value.errors.items()}
    assert codes == {
        "a-0": "INVALID_REPLICA_ASSIGNMENT",
        "a-7": "UNKNOWN_TOPIC_OR_PARTITION",
        "b-0": "NO_REASSIGNMENT_IN_PROGRESS",
    }
    assert cluster.partition("a", 1).adding_replicas == (4,)


def test_a_controller_that_moved_is_asked_again() -> None:
    cluster = brokers()
    answer = cluster._AlterPartitionReassignments

    def refuse_once(node: int, request: AlterPartitionReassignmentsRequest) -> object:
        cluster._AlterPartitionReassignments = answer  # type: ignore[method-assign]
        return AlterPartitionReassignmentsResponse(
            error_code=ErrorCode.NOT_CONTROLLER, error_message=None
        )

    cluster._AlterPartitionReassignments = refuse_once  # type: ignore[method-assign]
    cluster.admin(lambda admin: admin.alter_partition_reassignments({A0: [4, 2, 3]}))
    assert cluster.partition("a", 0).adding_replicas == (4,)


def test_the_number_of_replicas_may_be_held() -> None:
    cluster = brokers()
    with pytest.raises(SomeFailed, match="INVALID_REPLICATION_FACTOR"):
        cluster.admin(
            lambda admin: admin.alter_partition_reassignments(
                {A0: [1]}, allow_replication_factor_change=False
            )
        )


@pytest.mark.parametrize("wrong", [1, "1", [True], [-1]])
def test_targets_that_are_no_brokers_are_refused_before_anything_is_sent(wrong: object) -> None:
    cluster = brokers()
    with pytest.raises((TypeError, ValueError), match="replicas of a-0"):
        cluster.admin(
            lambda admin: admin.alter_partition_reassignments({A0: wrong})  # type: ignore[dict-item]
        )
    assert cluster.sent(AlterPartitionReassignmentsRequest) == []


def test_preferred_leaders_are_elected_where_others_lead() -> None:
    cluster = brokers()
    cluster.admin(lambda admin: admin.alter_partition_reassignments({A0: [3, 2, 1]}))
    elected = cluster.admin(lambda admin: admin.elect_leaders([A0, A1]))
    assert elected == {A0: True, A1: False}
    assert cluster.leaders("a") == [3, 2]
    assert cluster.admin(lambda admin: admin.elect_leaders()) == {}
    assert [request.election_type for request in cluster.sent(ElectLeadersRequest)] == [0, 0]


def test_a_preferred_leader_that_is_away_is_told_at_once() -> None:
    cluster = brokers()
    cluster.admin(lambda admin: admin.alter_partition_reassignments({A0: [3, 2, 1]}))
    cluster.fenced.add(3)
    begun = cluster.clock.seconds
    with pytest.raises(SomeFailed, match="partition a-0: preferred leader not available"):
        cluster.admin(lambda admin: admin.elect_leaders([A0]))
    assert cluster.clock.seconds == begun


def test_fenced_brokers_are_told_if_asked_for() -> None:
    cluster = brokers()
    cluster.fenced.add(2)
    known = cluster.admin(lambda admin: admin.describe_cluster())
    assert [broker.node_id for broker in known.brokers] == [1, 3, 4]
    every = cluster.admin(lambda admin: admin.describe_cluster(include_fenced=True))
    assert [(broker.node_id, broker.is_fenced) for broker in every.brokers] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
    ]


def test_a_broker_is_unregistered() -> None:
    cluster = brokers()
    cluster.admin(lambda admin: admin.unregister_broker(4))
    assert list(cluster.nodes) == [1, 2, 3]
    with pytest.raises(KafkaError, match="broker 4: broker id not registered"):
        cluster.admin(lambda admin: admin.unregister_broker(4))


def test_the_disks_of_brokers_are_described() -> None:
    cluster = brokers()
    found = cluster.admin(lambda admin: admin.describe_log_dirs([1, 4]))
    [directory] = found[1]
    assert (directory.path, directory.error, directory.total_bytes) == ("/data", None, None)
    assert directory.replicas == {A0: 1000, A1: 1000, B0: 1000}
    assert found[4][0].replicas == {}
    assert list(cluster.admin(lambda admin: admin.describe_log_dirs())) == [1, 2, 3, 4]


def test_a_broker_that_is_away_does_not_hide_the_disks_of_others() -> None:
    cluster = brokers()
    cluster.down = {3}
    with pytest.raises(SomeFailed, match=r"broker 3: .*nothing is listening") as caught:
        cluster.admin(lambda admin: admin.describe_log_dirs())
    assert list(caught.value.errors) == [3]
    assert len(caught.value.outcomes[1][0].replicas) == 3
