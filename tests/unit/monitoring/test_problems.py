"""Severity and subjects; what is told of each is tested with `headrace doctor`."""

import pytest

from headrace.client.cluster_metadata import BrokerInfo, PartitionInfo, TopicInfo
from headrace.monitoring.problems import CRITICAL, WARNING, ClusterFacts, numbers_text, problems
from headrace.net.addresses import Address


def facts(isr: tuple[int, ...], leader: int = 1, least: int = 1) -> ClusterFacts:
    partitions = tuple(PartitionInfo(number, leader, 0, (1, 2), isr, ()) for number in range(3))
    brokers = {node: BrokerInfo(node, Address("h", node), None) for node in (1, 2)}
    topics = {"a": TopicInfo("a", bytes(16), False, partitions)}
    return ClusterFacts(brokers, topics, min_in_sync={"a": least})


def test_nothing_is_wrong_with_all_in_sync() -> None:
    assert problems(facts((1, 2))) == []
    assert facts((1, 2)).lacking_topics() == []


@pytest.mark.parametrize(
    ("told", "check", "severity"),
    [
        (facts((1,)), "under-replicated", WARNING),
        (facts((1,), least=2), "under-min-isr", CRITICAL),
        (facts((1,), leader=-1), "offline-partition", CRITICAL),
    ],
)
def test_partitions_that_refuse_requests_are_critical(
    told: ClusterFacts, check: str, severity: str
) -> None:
    [problem] = problems(told)
    assert (problem.check, problem.severity) == (check, severity)
    assert (problem.subject, problem.kind, problem.name) == ("a:0-2", "topic", "a")


def test_numbers_in_a_row_are_told_by_the_first_and_the_last() -> None:
    assert numbers_text([0, 1, 2, 3, 7]) == "0-3,7"
    assert numbers_text([4, 5]) == "4,5"
