"""DescribeCluster: brokers at a broker's listener, controllers at a controller's (KIP-919)."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.broker.handlers.metadata import describe_cluster
from headrace.errors import ErrorCode
from headrace.net.addresses import Address
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.raft.messages import LeaderAndEpoch, Voter
from tests.unit.broker.handling import OneNode

BROKERS, CONTROLLERS = 1, 2
VOTERS = {"controller_quorum_voters": "1@c1:9093,2@c2:9093,3@c3:9093"}
SEPARATE = {
    **VOTERS,
    "listeners": "PLAINTEXT://10.0.0.1:9092,CONTROLLER://10.0.0.1:9093",
    "controller_listener_names": "CONTROLLER",
}


def ask(
    path: Path, settings: dict[str, str], listener: str, endpoint_type: int, version: int = 2
) -> DescribeClusterResponse:
    node = OneNode(path, **settings)
    node.listener = listener
    node.node.cluster_id = "cluster"
    node.node.store = SimpleNamespace(image=node.node.store.image)
    known = {1: Address("c1", 9093), 2: Address("c2", 9093)}
    node.node.quorum = SimpleNamespace(
        leader=LeaderAndEpoch(2, 5),
        voters=tuple(Voter(number) for number in (1, 2, 3)),
        address_of=known.get,
    )
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    return describe_cluster(node.context(version), request)


def hosts(response: DescribeClusterResponse) -> list[str]:
    assert response.error_code == ErrorCode.NONE, response.error_message
    return [broker.host for broker in response.brokers]


def test_a_listener_for_controllers_describes_the_controllers(tmp_path: Path) -> None:
    response = ask(tmp_path, SEPARATE, "CONTROLLER", CONTROLLERS)
    # Of the third voter no address is known, so nobody can be sent to it.
    assert hosts(response) == ["c1", "c2"]
    assert (response.endpoint_type, response.controller_id) == (CONTROLLERS, 2)
    assert response.cluster_id == "cluster"


def test_a_listener_for_clients_describes_the_brokers(tmp_path: Path) -> None:
    response = ask(tmp_path, SEPARATE, "PLAINTEXT", BROKERS)
    assert hosts(response) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert response.endpoint_type == BROKERS


def test_a_listener_for_both_describes_what_is_asked_for(tmp_path: Path) -> None:
    assert hosts(ask(tmp_path, VOTERS, "PLAINTEXT", CONTROLLERS)) == ["c1", "c2"]
    assert len(hosts(ask(tmp_path, VOTERS, "PLAINTEXT", BROKERS))) == 3


@pytest.mark.parametrize(
    ("listener", "endpoint_type", "code"),
    [
        ("PLAINTEXT", CONTROLLERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        ("CONTROLLER", BROKERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        ("PLAINTEXT", 0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        ("CONTROLLER", 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_other_endpoints_are_refused(
    tmp_path: Path, listener: str, endpoint_type: int, code: ErrorCode
) -> None:
    assert ask(tmp_path, SEPARATE, listener, endpoint_type).error_code == code


def test_version_0_knows_no_codes_of_endpoint_types(tmp_path: Path) -> None:
    response = ask(tmp_path, SEPARATE, "CONTROLLER", BROKERS, 0)
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_broker_that_is_no_controller_describes_no_controllers(tmp_path: Path) -> None:
    settings = {"controller_quorum_voters": "2@c2:9093", "process_roles": "broker"}
    response = ask(tmp_path, settings, "PLAINTEXT", CONTROLLERS)
    assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
