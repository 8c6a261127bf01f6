"""A fetcher's side of a fetch session, alone and against the broker's side of it."""

from random import Random

import pytest

from headrace.broker.fetch_purgatory import FetchPurgatory
from headrace.broker.fetch_sessions import FetchSessions
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse
from headrace.replication.follower import FollowerFetchSession, PartitionKey

ORDERS = bytes(15) + b"\x0a"
AUDIT = bytes(15) + b"\x0b"


def want(session: FollowerFetchSession, topic_id: bytes, partition: int, offset: int = 0) -> None:
    key = PartitionKey(topic_id, partition)
    name = "orders" if topic_id == ORDERS else "audit"
    session.want(key, name, FetchPartition(partition=partition, fetch_offset=offset))


def filled(session: FollowerFetchSession) -> FetchRequest:
    request = FetchRequest()
    session.fill(request)
    return request


def named(request: FetchRequest) -> dict[tuple[bytes, int], int]:
    return {
        (topic.topic_id, partition.partition): partition.fetch_offset
        for topic in request.topics
        for partition in topic.partitions
    }


def forgotten(request: FetchRequest) -> list[tuple[bytes, int]]:
    return [
        (entry.topic_id, index)
        for entry in request.forgotten_topics_data
        for index in entry.partitions
    ]


def opened(session: FollowerFetchSession) -> FollowerFetchSession:
    filled(session)
    assert session.accept(FetchResponse(session_id=7))
    return session


def test_the_first_request_names_everything_and_asks_for_a_session() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0, 5)
    want(session, ORDERS, 1)
    want(session, AUDIT, 0)
    request = filled(session)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert [(topic.topic, len(topic.partitions)) for topic in request.topics] == [
        ("orders", 2),
        ("audit", 1),
    ]
    assert named(request) == {(ORDERS, 0): 5, (ORDERS, 1): 0, (AUDIT, 0): 0}


def test_later_requests_name_what_changed() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    want(session, ORDERS, 1)
    opened(session)
    want(session, ORDERS, 1, 9)
    request = filled(session)
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert named(request) == {(ORDERS, 1): 9}
    assert session.accept(FetchResponse(session_id=7))
    idle = filled(session)
    assert idle.session_epoch == 2
    assert not idle.topics
    assert not idle.forgotten_topics_data


def test_what_is_dropped_is_forgotten_once_and_only_if_it_was_told() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    want(session, ORDERS, 1)
    opened(session)
    want(session, AUDIT, 0)
    session.drop(PartitionKey(AUDIT, 0))
    session.drop(PartitionKey(ORDERS, 0))
    assert forgotten(filled(session)) == [(ORDERS, 0)]
    assert session.accept(FetchResponse(session_id=7))
    assert not forgotten(filled(session))
    assert len(session) == 1


def test_what_is_wanted_again_is_not_forgotten() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    opened(session)
    session.drop(PartitionKey(ORDERS, 0))
    want(session, ORDERS, 0, 4)
    request = filled(session)
    assert named(request) == {(ORDERS, 0): 4}
    assert not forgotten(request)


def test_an_answer_is_for_what_was_asked_last() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    want(session, ORDERS, 1)
    assert not session.is_current(PartitionKey(ORDERS, 0))
    filled(session)
    want(session, ORDERS, 1, 8)
    assert session.is_current(PartitionKey(ORDERS, 0))
    assert not session.is_current(PartitionKey(ORDERS, 1))
    assert not session.is_current(PartitionKey(AUDIT, 0))


def test_a_topic_made_again_under_its_name_is_another_one() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0, 100)
    opened(session)
    session.drop(PartitionKey(ORDERS, 0))
    session.want(PartitionKey(AUDIT, 0), "orders", FetchPartition(partition=0))
    request = filled(session)
    assert named(request) == {(AUDIT, 0): 0}
    assert forgotten(request) == [(ORDERS, 0)]


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
def test_a_lost_session_is_begun_anew(code: ErrorCode) -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    want(session, ORDERS, 1)
    opened(session)
    filled(session)
    assert not session.accept(FetchResponse(error_code=code))
    request = filled(session)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert len(named(request)) == 2


def test_after_a_broken_connection_the_old_session_is_ended() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    opened(session)
    session.drop(PartitionKey(ORDERS, 0))
    want(session, AUDIT, 0)
    filled(session)
    session.restart()
    request = filled(session)
    assert (request.session_id, request.session_epoch) == (7, 0)
    assert named(request) == {(AUDIT, 0): 0}
    assert not request.forgotten_topics_data


def test_a_leader_without_room_for_sessions_is_told_everything_each_time() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    for _ in range(3):
        request = filled(session)
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert len(named(request)) == 1
        assert session.accept(FetchResponse(session_id=0))


def test_one_that_is_not_kept_leaves_no_session_behind() -> None:
    session = FollowerFetchSession(kept=False)
    want(session, ORDERS, 0)
    for _ in range(2):
        request = filled(session)
        assert (request.session_id, request.session_epoch) == (0, -1)
        assert len(named(request)) == 1
        assert session.accept(FetchResponse(session_id=0))


def test_epochs_of_a_session_begin_again_at_one() -> None:
    session = FollowerFetchSession()
    want(session, ORDERS, 0)
    opened(session)
    session._epoch = 2**31 - 1
    filled(session)
    assert session.accept(FetchResponse(session_id=7))
    assert filled(session).session_epoch == 1


@pytest.mark.parametrize("seed", range(20))
def test_both_sides_agree_on_what_is_wanted(seed: int) -> None:
    rng = Random(seed)
    session, broker = FollowerFetchSession(), FetchSessions(10, Random(seed), FetchPurgatory())
    wanted: dict[tuple[bytes, int], int] = {}
    for step in range(200):
        for _ in range(rng.randrange(4)):
            key = PartitionKey(rng.choice((ORDERS, AUDIT)), rng.randrange(4))
            if rng.random() < 0.6:
                wanted[key] = step
                want(session, *key, step)
            else:
                wanted.pop(key, None)
                session.drop(key)
        if not wanted:
            continue
        request = filled(session)
        fate = rng.random()
        if fate < 0.1:
            session.restart()
            continue
        try:
            plan = broker.plan(request, step)
        except KafkaError as error:
            session.accept(FetchResponse(error_code=error.code))
            continue
        assert {
            (partition.topic_id, partition.partition): partition.fetch_offset
            for partition in plan.partitions
        } == wanted
        if fate < 0.2:
            session.restart()
            continue
        session_id = 0 if plan.session is None else plan.session.id
        assert session.accept(FetchResponse(session_id=session_id))
