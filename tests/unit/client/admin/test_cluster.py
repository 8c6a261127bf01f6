from typing import Any

import pytest

from headrace.client.admin.cluster import QuorumDescription, QuorumReplica
from headrace.errors import ErrorCode, KafkaError
from headrace.net.addresses import Address
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from headrace.protocol.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from headrace.types import uuid_text
from tests.unit.client.admin.fakes import AdminBrokers

ONE, FOUR = b"1" * 16, b"4" * 16


class QuorumBrokers(AdminBrokers):
    """Brokers 1 and 4, the first of which is the only voter, unless both are."""

    def __init__(self) -> None:
        super().__init__(4)
        self.code = ErrorCode.NONE
        self.added = list[ErrorCode]()
        self.has_two_voters = False

    def _DescribeQuorum(self, node: int, request: Any) -> DescribeQuorumResponse:
        assert [topic.topic_name for topic in request.topics] == ["__cluster_metadata"]
        voters = [ReplicaState(replica_id=1, replica_directory_id=ONE, log_end_offset=9)]
        if self.has_two_voters:
            voters.append(ReplicaState(replica_id=4, replica_directory_id=FOUR))
        observer = ReplicaState(
            replica_id=4,
            replica_directory_id=FOUR,
            log_end_offset=7,
            last_fetch_timestamp=500,
            last_caught_up_timestamp=400,
        )
        partition = DescribeQuorumResponsePartitionData(
            error_code=self.code,
            error_message=None,
            leader_id=1,
            leader_epoch=3,
            high_watermark=8,
            current_voters=voters,
            observers=[] if self.has_two_voters else [observer],
        )
        topic = DescribeQuorumResponseTopicData(
            topic_name="__cluster_metadata", partitions=[partition]
        )
        address = self.nodes[1]
        listener = Listener(name="CONTROLLER", host=address.host, port=address.port)
        return DescribeQuorumResponse(
            error_message=None, topics=[topic], nodes=[Node(node_id=1, listeners=[listener])]
        )

    def _AddRaftVoter(self, node: int, request: Any) -> AddRaftVoterResponse:
        code = self.added.pop(0) if self.added else ErrorCode.NONE
        return AddRaftVoterResponse(error_code=code, error_message=None)

    def _RemoveRaftVoter(self, node: int, request: Any) -> RemoveRaftVoterResponse:
        return RemoveRaftVoterResponse(error_message=None)


def test_the_quorum_is_described() -> None:
    brokers = QuorumBrokers()
    assert brokers.admin(lambda admin: admin.describe_quorum()) == QuorumDescription(
        leader_id=1,
        leader_epoch=3,
        high_watermark=8,
        voters=(QuorumReplica(1, ONE, 9, None, None),),
        observers=(QuorumReplica(4, FOUR, 7, 500, 400),),
        endpoints={1: {"CONTROLLER": Address("10.0.0.1", 9092)}},
    )


def test_an_error_of_the_quorum_is_raised() -> None:
    brokers = QuorumBrokers()
    brokers.code = ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError, match="quorum: invalid request"):
        brokers.admin(lambda admin: admin.describe_quorum())


def test_a_voter_is_added_with_its_directory_and_addresses() -> None:
    brokers = QuorumBrokers()
    brokers.admin(lambda admin: admin.add_voter(4, uuid_text(FOUR), {"CONTROLLER": "h:9093"}))
    [request] = brokers.sent(AddRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (4, FOUR)
    assert [(listener.name, listener.host, listener.port) for listener in request.listeners] == [
        ("CONTROLLER", "h", 9093)
    ]


def test_a_voter_is_removed() -> None:
    brokers = QuorumBrokers()
    brokers.admin(lambda admin: admin.remove_voter(1, ONE))
    [request] = brokers.sent(RemoveRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (1, ONE)


def test_a_change_is_tried_again_only_if_it_was_surely_not_made() -> None:
    brokers = QuorumBrokers()
    brokers.added = [ErrorCode.NOT_CONTROLLER]
    brokers.admin(lambda admin: admin.add_voter(4, FOUR, {"CONTROLLER": Address("h", 1)}))
    assert len(brokers.sent(AddRaftVoterRequest)) == 2
    brokers.added = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    with pytest.raises(KafkaError, match="voter 4: request timed out"):
        brokers.admin(lambda admin: admin.add_voter(4, FOUR, {"CONTROLLER": Address("h", 1)}))
    assert len(brokers.sent(AddRaftVoterRequest)) == 3


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    brokers = QuorumBrokers()
    with pytest.raises(ValueError, match="is no directory id"):
        brokers.admin(lambda admin: admin.remove_voter(1, "short"))
    with pytest.raises(TypeError, match="endpoints is"):
        brokers.admin(lambda admin: admin.add_voter(1, ONE, {}))
    with pytest.raises(ValueError, match="is no address"):
        brokers.admin(lambda admin: admin.add_voter(1, ONE, {"CONTROLLER": "a:b:c"}))
    assert brokers.requests == []
