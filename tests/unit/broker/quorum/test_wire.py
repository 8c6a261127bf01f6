"""The core's values survive the wire."""

from typing import Any

import pytest

from headrace.broker.quorum import wire
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.records import encode_control_batch
from headrace.net.addresses import Address
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages import vote
from headrace.protocol.messages.quorum_records import LeaderChangeMessage
from headrace.protocol.records import decode_rows
from headrace.protocol.schema import Message, decode_message, encode_message
from headrace.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    Leadership,
    OffsetAndEpoch,
    Request,
    Response,
    Voter,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
)

DIRECTORY = bytes(range(16))
OWN = (VoterEndpoint("CONTROLLER", "host", 9093),)


def sent(message: Message) -> Any:
    version = type(message).versions[1]
    return decode_message(type(message), version, encode_message(message, version))


@pytest.mark.parametrize(
    "request_",
    [
        VoteRequest(3, 2, DIRECTORY, 1, 17, pre_vote=True),
        VoteRequest(3, 2, DIRECTORY, 1, 17, pre_vote=False),
        BeginEpochRequest(4, 1),
        EndEpochRequest(5, 1, (3, 2)),
    ],
)
def test_requests(request_: Request) -> None:
    message = sent(wire.encode_request(request_, Voter(9, DIRECTORY), OWN, "cluster"))
    decode: Any = {
        VoteRequest: wire.decode_vote,
        BeginEpochRequest: wire.decode_begin_epoch,
        EndEpochRequest: wire.decode_end_epoch,
    }[type(request_)]
    assert decode(message) == request_
    assert message.cluster_id == "cluster"


@pytest.mark.parametrize(
    "response",
    [
        VoteResponse(3, 1, granted=True),
        VoteResponse(3, -1, False, ErrorCode.FENCED_LEADER_EPOCH),
        BeginEpochResponse(4, 1),
        EndEpochResponse(5, -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_responses(response: Response) -> None:
    leader = Address("leader", 9093)
    decoded, addresses = wire.decode_response(sent(wire.encode_response(response, leader)))
    assert decoded == response
    assert addresses == ({} if response.leader_id < 0 else {response.leader_id: leader})


def test_fetches() -> None:
    request = FetchRequest(2, DIRECTORY, 5, 70, 4, 60)
    message = sent(wire.encode_fetch(request, None, 500, 1000))
    assert wire.decode_fetch(message) == (request, 1000)


@pytest.mark.parametrize(
    "response",
    [
        FetchResponse(5, 1, high_watermark=60, log_start_offset=3),
        FetchResponse(5, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        FetchResponse(5, 1, high_watermark=60, diverging=OffsetAndEpoch(40, 3)),
        FetchResponse(5, 1, high_watermark=-1, snapshot=OffsetAndEpoch(50, 4)),
    ],
)
def test_fetch_responses(response: FetchResponse) -> None:
    message = sent(wire.encode_fetched(response, b"records", Address("leader", 1)))
    assert wire.decode_fetched(message) == (response, b"records", {1: Address("leader", 1)})


def test_voters() -> None:
    voters = (Voter(1, DIRECTORY, OWN), Voter(2))
    assert wire.voters_in(sent(wire.voters_record(voters))) == voters


def test_leader_changes_are_what_kafkas_readers_take_them_for() -> None:
    """Kafka's `ControlRecordUtils` decodes every LeaderChangeMessage at version 0."""
    change = wire.leader_change(2, Leadership(5, (1, 2, 3), (2, 3)))
    [header] = scan_headers(batch := encode_control_batch([change], 0))
    [row] = decode_rows(batch, header)
    assert row.value is not None
    read = decode_message(LeaderChangeMessage, 0, row.value)
    assert (read.version, read.leader_id) == (0, 2)
    assert [voter.voter_id for voter in read.voters] == [1, 2, 3]
    assert [granting_voter.voter_id for granting_voter in read.granting_voters] == [2, 3]


def test_what_is_not_about_the_one_partition_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        wire.decode_vote(vote.VoteRequest())
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError) as refused:
        wire.decode_response(vote.VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
    assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
