"""What a cluster of headrace.testing refuses, and how it understands what brokers say."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.testing import BrokerError, Cluster
from headrace.testing.broker_requests import NOBODY, PartitionView, quorum_leader, topic_view
from headrace.testing.network import CLIENTS, node_of


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"brokers": 0}, ValueError, "brokers=0 is below 1"),
        ({"config": {"node.id": 3}}, ConfigError, "node.id is given to each broker"),
        ({"config": {"num.partitons": 3}}, ConfigError, "did you mean num.partitions"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Cluster(**options)


@pytest.mark.parametrize("fault", ["isolate", "slow", "heal"])
def test_faults_of_the_network_need_proxies(fault: str) -> None:
    arguments = [] if fault == "heal" else [1]
    cluster = Cluster()
    cluster._members = {1: SimpleNamespace(node_id=1)}  # type: ignore[dict-item]
    with pytest.raises(BrokerError, match="proxied=True"):
        getattr(cluster, fault)(*arguments)


def test_a_cluster_that_was_not_started_has_no_brokers() -> None:
    assert repr(Cluster(5)) == "<Cluster of 5 brokers, 0 running>"
    with pytest.raises(BrokerError, match=r"call start\(\) first"):
        _ = Cluster().brokers


@pytest.mark.parametrize(("latency", "rate"), [(-1, None), (0, 0)])
def test_a_way_cannot_be_faster_than_light(latency: float, rate: float | None) -> None:
    with pytest.raises(ValueError):
        Cluster().slow(1, latency_ms=latency, bytes_per_s=rate)


@pytest.mark.parametrize(
    ("client_id", "node"),
    [("node-2-fetcher", 2), ("node-12-quorum", 12), ("rdkafka", CLIENTS), (None, CLIENTS)],
)
def test_who_connects_is_known_from_the_client_id(client_id: str | None, node: int) -> None:
    first = b"".join(encode_request(MetadataRequest(topics=None), 12, 7, client_id))
    assert node_of(first) == node


def test_bytes_that_are_no_request_come_from_clients() -> None:
    assert node_of(b"") == node_of(b"GET / HTTP/1.1") == node_of(bytes(14)) == CLIENTS


def metadata(leader: int, epoch: int, isr: list[int], error: int = 0) -> Any:
    partition = SimpleNamespace(
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1, 2, 3],
        isr_nodes=isr,
    )
    topic = SimpleNamespace(name="t", error_code=error, partitions=[partition])
    return SimpleNamespace(topics=[topic])


def test_of_a_partition_the_view_with_the_highest_epoch_holds() -> None:
    old, new = metadata(1, 4, [1, 2, 3]), metadata(2, 5, [2, 3])
    expected = {0: PartitionView(2, 5, (1, 2, 3), (2, 3))}
    assert topic_view([old, new], "t") == topic_view([new, old], "t") == expected
    assert topic_view([old, new], "u") == topic_view([metadata(1, 4, [1], 3)], "t") == {}


def test_a_partition_is_whole_with_a_leader_and_all_in_sync() -> None:
    assert PartitionView(1, 0, (1, 2), (2, 1)).is_whole
    assert not PartitionView(1, 0, (1, 2), (1,)).is_whole
    assert not PartitionView(NOBODY, 0, (1, 2), (1, 2)).is_whole


def quorum(leader: int, epoch: int, error: int = 0) -> Any:
    one = SimpleNamespace(leader_id=leader, leader_epoch=epoch, error_code=error)
    return SimpleNamespace(error_code=0, topics=[SimpleNamespace(partitions=[one])])


def test_of_the_controllers_the_one_with_the_highest_epoch_leads() -> None:
    assert quorum_leader([quorum(1, 4), quorum(3, 6), quorum(1, 5)]) == (3, 6)
    assert quorum_leader([quorum(NOBODY, 7), quorum(3, 7), quorum(3, 6)]) == (3, 7)
    assert quorum_leader([quorum(2, 9, error=41)]) == (NOBODY, NOBODY)
    assert quorum_leader([]) == (NOBODY, NOBODY)
