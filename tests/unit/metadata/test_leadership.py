"""Elections on request, balance, and leaders for who has none."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata import elections
from headrace.metadata.elections import balance_leaders, elect_leaders, elect_missing_leaders
from headrace.metadata.image import Image
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.metadata_records import ConfigRecord, PartitionChangeRecord
from tests.unit.metadata.active import SESSION_MS, Active
from tests.unit.metadata.clusters import id_of, standing

PREFERRED, UNCLEAN = 0, 1


def elect(
    image: Image, kind: int, wanted: Mapping[str, Sequence[int]] | None
) -> tuple[Image, dict[tuple[str, int], int]]:
    """The image afterwards, and the code of each answer."""
    topics = None
    if wanted is not None:
        topics = [TopicPartitions(topic=name, partitions=list(ids)) for name, ids in wanted.items()]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics)
    result = elect_leaders(image, request, unclean_by_default=False)
    codes = {
        (topic.topic, answer.partition_id): answer.error_code
        for topic in result.response.replica_election_results
        for answer in topic.partition_result
    }
    return image.apply(result.records), codes


def restarted() -> Active:
    """Broker 1 is back in sync, and 2 leads what it led; 3 is fenced and led what 1 follows."""
    active = Active(1, 2, 3, topics={"a": [[1, 2], [2, 1], [3, 1]], "b": [[3]]})
    active.register(1, incarnation=9)
    active.beat(1)
    active.alter(2, [2, 1], partition=0)
    active.pass_ms(SESSION_MS, 1, 2)
    assert [entry[0] for entry in standing(active.image, "a")] == [2, 2, -1]
    return active


def test_preferred_leaders_are_elected_where_they_can_lead() -> None:
    active = restarted()
    after, codes = elect(active.image, PREFERRED, {"a": [0, 1, 2, 3], "gone": [0]})
    assert codes == {
        ("a", 0): 0,
        ("a", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("a", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("a", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert standing(after, "a")[0] == (1, 2, 3, (2, 1))
    assert standing(after, "a")[1:] == standing(active.image, "a")[1:]


def test_asked_for_all_it_tells_of_those_that_need_an_election() -> None:
    after, codes = elect(restarted().image, PREFERRED, None)
    assert codes == {
        ("a", 0): 0,
        ("a", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("b", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert standing(after, "a")[0][0] == 1


def test_an_operator_can_have_an_unclean_leader() -> None:
    after, codes = elect(restarted().image, UNCLEAN, {"a": [0, 2], "b": [0]})
    assert codes == {
        ("a", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("a", 2): 0,
        ("b", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
    leader, _, _, isr = standing(after, "a")[2]
    assert (leader, isr) == (1, (1,))
    assert after.topics["a"].partitions[2].leader_recovery_state == 1


def test_a_partition_named_twice_is_elected_once() -> None:
    active = restarted()
    after, codes = elect(active.image, PREFERRED, {"a": [0, 0]})
    assert codes == {("a", 0): ErrorCode.INVALID_REQUEST}
    assert standing(after, "a")[0][1] == standing(active.image, "a")[0][1] + 1


def test_an_election_of_no_known_type_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        elect(restarted().image, 7, None)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def leaders(image: Image) -> Counter[int]:
    return Counter(
        partition.leader for topic in image.topics.values() for partition in topic.partitions
    )


def test_leaderships_go_back_to_a_broker_that_is_back() -> None:
    spread = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [2, 1, 3], [3, 2, 1]]
    active = Active(1, 2, 3, topics={"a": spread})
    even = leaders(active.image)
    active.pass_ms(SESSION_MS, 2, 3)
    assert leaders(active.image) == {2: 3, 3: 3}
    assert balance_leaders(active.image, 10).records == ()
    active.beat(1)
    # Not before it is in sync.
    assert balance_leaders(active.image, 10).records == ()
    for partition, (_, _, _, isr) in enumerate(standing(active.image, "a")):
        leader = active.image.topics["a"].partitions[partition].leader
        active.alter(leader, [*isr, 1], partition=partition)
    balanced = balance_leaders(active.image, 10)
    # Only what must move moves: the two partitions that broker 1 is the first replica of.
    assert balanced.response == len(balanced.records) == 2
    after = active.image.apply(balanced.records)
    assert leaders(after) == even == {1: 2, 2: 2, 3: 2}
    assert balance_leaders(after, 0).records == ()


def strayed(count: int) -> Image:
    """Ten partitions of broker 1, of which another one leads `count`."""
    image = Active(1, 2, topics={"a": [[1, 2]] * 10}).image
    return image.apply(
        PartitionChangeRecord(topic_id=id_of("a"), partition_id=index, leader=2)
        for index in range(count)
    )


def test_a_few_that_strayed_are_left_alone() -> None:
    assert balance_leaders(strayed(1), 10).response == 0
    assert balance_leaders(strayed(1), 9).response == 1
    assert balance_leaders(strayed(2), 10).response == 2


def test_many_leaderships_move_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "ELECTIONS_MAX", 3)
    image = strayed(5)
    for moved in (3, 2, 0):
        balanced = balance_leaders(image, 0)
        assert balanced.response == moved
        image = image.apply(balanced.records)


def test_a_topic_that_comes_to_allow_it_gets_an_unclean_leader() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]], "b": [[1, 2]]})
    active.pass_ms(SESSION_MS, 1)
    active.pass_ms(SESSION_MS)
    active.beat(2)
    assert elect_missing_leaders(active.image, unclean_by_default=False).response == 0
    name = "unclean.leader.election.enable"
    allow = ConfigRecord(resource_type=2, resource_name="b", name=name, value="true")
    image = active.image.apply([allow])
    elected = elect_missing_leaders(image, unclean_by_default=False)
    assert elected.response == 1
    after = image.apply(elected.records)
    assert (standing(after, "a")[0][0], standing(after, "b")[0][0]) == (-1, 2)
