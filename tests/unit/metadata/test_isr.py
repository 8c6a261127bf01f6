"""What leaders may do to their ISRs."""

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import RECOVERED, RECOVERING
from headrace.metadata.image import PartitionImage
from headrace.metadata.isr import alter_partition
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponsePartitionData,
    PartitionData,
    TopicData,
)
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from tests.unit.metadata.active import Active
from tests.unit.metadata.clusters import id_of, standing


def led_by_one() -> Active:
    """A partition that was changed twice and elected once; broker 4 is no replica of it."""
    active = Active(1, 2, 3, 4, topics={"a": [[1, 2, 3]]})
    active.image = active.image.apply(
        [
            PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, leader=1),
            PartitionChangeRecord(topic_id=id_of("a"), partition_id=0, isr=[1, 2]),
        ]
    )
    assert standing(active.image, "a") == [(1, 1, 2, (1, 2))]
    return active


def test_the_answer_is_the_new_state() -> None:
    assert led_by_one().alter(1, [1, 3]) == AlterPartitionResponsePartitionData(
        partition_index=0,
        error_code=0,
        leader_id=1,
        leader_epoch=1,
        isr=[1, 3],
        leader_recovery_state=RECOVERED,
        partition_epoch=3,
    )


def test_what_is_so_already_is_answered_without_a_record() -> None:
    active = led_by_one()
    answer = active.alter(1, [1, 2])
    assert (answer.error_code, answer.partition_epoch) == (0, 2)
    assert active.records == []


@pytest.mark.parametrize(
    ("leader", "isr", "given", "code"),
    [
        (1, [1], {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        (1, [1], {"leader_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        (1, [1], {"partition_epoch": 3}, ErrorCode.NOT_CONTROLLER),
        (1, [1], {"partition_epoch": 1}, ErrorCode.INVALID_UPDATE_VERSION),
        (2, [2], {}, ErrorCode.INVALID_REQUEST),
        (1, [2], {}, ErrorCode.INVALID_REQUEST),
        (1, [], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 4], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 2, 2], {}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"recovery": RECOVERING}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"recovery": 2}, ErrorCode.INVALID_REQUEST),
        (1, [1, 3], {"broker_epochs": {3: 77}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_proposal_that_does_not_fit_is_refused(
    leader: int, isr: Sequence[int], given: dict[str, Any], code: ErrorCode
) -> None:
    active = led_by_one()
    before = active.image
    answer = active.alter(leader, isr, **given)
    assert answer == AlterPartitionResponsePartitionData(error_code=code)
    assert active.image is before or active.image == before


@pytest.mark.parametrize(("fenced", "leaving"), [(1, 0), (0, 1)], ids=["fenced", "shutting down"])
def test_a_broker_that_is_down_or_going_down_is_not_let_in(fenced: int, leaving: int) -> None:
    active = led_by_one()
    down = BrokerRegistrationChangeRecord(
        broker_id=3,
        broker_epoch=active.image.brokers[3].epoch,
        fenced=fenced,
        in_controlled_shutdown=leaving,
    )
    active.image = active.image.apply([down])
    assert active.alter(1, [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_that_restarted_since_it_was_seen_is_not_let_in() -> None:
    active = led_by_one()
    seen = active.image.brokers[3].epoch
    active.register(3, incarnation=9)
    active.beat(3)
    answer = active.alter(1, [1, 2, 3], broker_epochs={3: seen})
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA
    # A leader that does not know the epochs is believed.
    assert active.alter(1, [1, 2, 3], broker_epochs={3: -1}).isr == [1, 2, 3]


def test_a_leader_of_an_earlier_run_alters_nothing() -> None:
    active = led_by_one()
    request = AlterPartitionRequest(broker_id=1, broker_epoch=77)
    with pytest.raises(KafkaError) as caught:
        alter_partition(active.image, request, unclean_by_default=False)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_each_partition_has_its_own_outcome() -> None:
    active = Active(1, 2, topics={"a": [[1, 2], [2, 1]], "b": [[1, 2]]})

    def proposal(partition: int, isr: list[int]) -> PartitionData:
        return PartitionData(partition_index=partition, new_isr=isr)

    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=active.image.brokers[1].epoch,
        topics=[
            TopicData(
                topic_id=id_of("a"),
                partitions=[
                    proposal(0, [1]),
                    proposal(1, [1]),
                    proposal(2, [1]),
                    proposal(-1, [1]),
                    proposal(0, [1, 2]),
                ],
            ),
            TopicData(topic_id=id_of("gone"), partitions=[proposal(0, [1])]),
            TopicData(topic_id=id_of("b"), partitions=[proposal(0, [1])]),
        ],
    )
    response = active.commit(alter_partition(active.image, request, unclean_by_default=False))
    codes = [[partition.error_code for partition in topic.partitions] for topic in response.topics]
    unknown, twice = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST
    assert codes == [[0, twice, unknown, unknown, twice], [ErrorCode.UNKNOWN_TOPIC_ID], [0]]
    assert standing(active.image, "a") == [(1, 0, 1, (1,)), (2, 0, 0, (2, 1))]
    assert standing(active.image, "b") == [(1, 0, 1, (1,))]


def moving(*, leader: int, isr: Sequence[int]) -> Active:
    """A partition on its way from brokers 1 and 2 to 2 and 3."""
    active = Active(1, 2, 3, topics={"a": [[1, 2]]})
    move = PartitionChangeRecord(
        topic_id=id_of("a"),
        partition_id=0,
        leader=leader,
        replicas=[2, 3, 1],
        isr=list(isr),
        adding_replicas=[3],
        removing_replicas=[1],
    )
    active.image = active.image.apply([move])
    return active


def test_the_last_replica_in_sync_ends_a_reassignment() -> None:
    active = moving(leader=2, isr=[1, 2])
    answer = active.alter(2, [1, 2, 3])
    assert (answer.error_code, answer.isr, answer.leader_epoch) == (0, [2, 3], 2)
    [partition] = active.image.topics["a"].partitions
    assert partition == PartitionImage((2, 3), (2, 3), 2, leader_epoch=2, partition_epoch=2)


def test_a_reassignment_that_ends_without_its_leader_elects_another() -> None:
    active = moving(leader=1, isr=[1, 2])
    assert active.alter(1, [1, 2, 3]).error_code == ErrorCode.NEW_LEADER_ELECTED
    [partition] = active.image.topics["a"].partitions
    assert partition == PartitionImage((2, 3), (2, 3), 2, leader_epoch=2, partition_epoch=2)


def test_a_reassignment_goes_on_while_a_replica_is_missing() -> None:
    active = moving(leader=1, isr=[1])
    assert active.alter(1, [1, 3]).isr == [1, 3]
    [partition] = active.image.topics["a"].partitions
    assert (partition.adding_replicas, partition.removing_replicas) == ((3,), (1,))


def test_a_leader_that_recovered_from_an_unclean_election_says_so() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]}, unclean=True)
    active.alter(1, [1])
    active.pass_ms(2500, 2)
    [partition] = active.image.topics["a"].partitions
    assert (partition.leader, partition.isr) == (2, (2,))
    assert partition.leader_recovery_state == RECOVERING
    active.beat(1)
    assert active.alter(2, [2, 1], recovery=RECOVERING).error_code == ErrorCode.INVALID_REQUEST
    assert active.alter(2, [2], recovery=RECOVERING).partition_epoch == partition.partition_epoch
    answer = active.alter(2, [2, 1], recovery=RECOVERED)
    assert (answer.isr, answer.leader_recovery_state) == ([2, 1], RECOVERED)
