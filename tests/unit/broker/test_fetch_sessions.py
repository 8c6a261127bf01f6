"""Incremental fetch sessions (KIP-227): what is read, what is told, who may stay."""

from random import Random
from typing import cast
from unittest.mock import Mock

import pytest

from headrace.broker.fetch_purgatory import FetchPurgatory
from headrace.broker.fetch_sessions import FetchIsolation, FetchSession, FetchSessions
from headrace.broker.replication.partition import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)


def request(
    session_id: int = 0,
    epoch: int = 0,
    offsets: dict[int, int] | None = None,
    forget: list[int] | None = None,
    replica: int = -1,
) -> FetchRequest:
    partitions = [FetchPartition(partition=p, fetch_offset=o) for p, o in (offsets or {}).items()]
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica),
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=forget)] if forget else [],
    )


def data(
    partition: int, *, watermark: int = 0, records: bytes = b"", error: int = 0
) -> PartitionData:
    return PartitionData(
        partition_index=partition, high_watermark=watermark, records=records, error_code=error
    )


def make_sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, Random(1), FetchPurgatory())


def test_a_fetch_without_a_session_is_told_everything() -> None:
    sessions = make_sessions()
    plan = sessions.plan(request(epoch=-1, offsets={0: 0, 1: 0}), 0)
    response = plan.respond([data(0), data(1)])
    assert response.session_id == 0
    assert [partition.partition_index for partition in response.responses[0].partitions] == [0, 1]
    assert len(sessions) == 0


def test_later_fetches_name_nothing_and_are_told_only_changes() -> None:
    sessions = make_sessions()
    first = sessions.plan(request(offsets={0: 5, 1: 7}), 0)
    session_id = first.respond([data(0, watermark=5), data(1, watermark=7)]).session_id
    assert session_id > 0
    second = sessions.plan(request(session_id, 1), 0)
    assert [(partition.partition, partition.fetch_offset) for partition in second.partitions] == [
        (0, 5),
        (1, 7),
    ]
    response = second.respond([data(0, watermark=5), data(1, watermark=8, records=b"x")])
    assert [partition.partition_index for partition in response.responses[0].partitions] == [1]
    quiet = sessions.plan(request(session_id, 2, {1: 8}), 0)
    assert {partition.partition: partition.fetch_offset for partition in quiet.partitions} == {
        0: 5,
        1: 8,
    }
    watermarks = {0: 5, 1: 8}
    results = [
        data(partition.partition, watermark=watermarks[partition.partition])
        for partition in quiet.partitions
    ]
    assert quiet.respond(results).responses == []


def test_an_error_is_told_again_until_it_is_gone() -> None:
    sessions = make_sessions()
    session_id = sessions.plan(request(offsets={0: 0}), 0).respond([data(0)]).session_id
    for epoch in (1, 2):
        plan = sessions.plan(request(session_id, epoch), 0)
        assert plan.respond([data(0, watermark=-1, error=3)]).responses != []
    assert sessions.plan(request(session_id, 3), 0).respond([data(0)]).responses != []


def test_partitions_with_data_go_to_the_back() -> None:
    sessions = make_sessions()
    first = sessions.plan(request(offsets={0: 0, 1: 0, 2: 0}), 0)
    session_id = first.respond([data(0, records=b"x"), data(1), data(2)]).session_id
    second = sessions.plan(request(session_id, 1), 0)
    assert [partition.partition for partition in second.partitions] == [1, 2, 0]


def test_forgotten_partitions_are_not_read() -> None:
    sessions = make_sessions()
    session_id = (
        sessions.plan(request(offsets={0: 0, 1: 0}), 0).respond([data(0), data(1)]).session_id
    )
    plan = sessions.plan(request(session_id, 1, forget=[0]), 0)
    assert [partition.partition for partition in plan.partitions] == [1]


def test_a_wrong_session_or_epoch_is_refused() -> None:
    sessions = make_sessions()
    with pytest.raises(KafkaError) as unknown:
        sessions.plan(request(99, 1), 0)
    assert unknown.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session_id = sessions.plan(request(offsets={0: 0}), 0).respond([data(0)]).session_id
    with pytest.raises(KafkaError) as stale:
        sessions.plan(request(session_id, 2), 0)
    assert stale.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.plan(request(session_id, 1), 0).incremental


def test_the_final_epoch_ends_a_session() -> None:
    sessions = make_sessions()
    session_id = sessions.plan(request(offsets={0: 0}), 0).respond([data(0)]).session_id
    sessions.plan(request(session_id, -1), 0)
    assert len(sessions) == 0


def test_only_an_old_session_makes_room_for_a_new_one() -> None:
    sessions = make_sessions(slots=1)
    first = sessions.plan(request(offsets={0: 0}), 0).respond([data(0)]).session_id
    assert sessions.plan(request(offsets={0: 0}), 1000).respond([data(0)]).session_id == 0
    third = sessions.plan(request(offsets={0: 0}), 120_000).respond([data(0)]).session_id
    assert third not in (0, first)
    assert len(sessions) == 1


def test_no_slots_means_no_sessions() -> None:
    sessions = make_sessions(slots=0)
    assert sessions.plan(request(offsets={0: 0}), 0).respond([data(0)]).session_id == 0


def test_sessions_together_remember_a_bounded_number_of_partitions() -> None:
    sessions = FetchSessions(10, Random(1), FetchPurgatory(), partitions_max=5)
    first = sessions.plan(request(offsets={0: 0, 1: 0, 2: 0}), 0)
    assert first.session is not None
    assert sessions.plan(request(offsets={0: 0, 1: 0, 2: 0}), 0).session is None
    second = sessions.plan(request(offsets={0: 0, 1: 0}), 0)
    assert second.session is not None
    # One that grows past the bound is ended; its consumer begins again, and others have room.
    with pytest.raises(KafkaError) as error:
        sessions.plan(request(second.session.id, 1, offsets={2: 0}), 0)
    assert error.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 1
    sessions.plan(request(first.session.id, 1, forget=[1, 2]), 0)
    assert sessions.plan(request(offsets={0: 0, 1: 0, 2: 0, 3: 0}), 0).session is not None


def test_an_old_session_makes_room_for_the_partitions_of_a_new_one() -> None:
    sessions = FetchSessions(10, Random(1), FetchPurgatory(), partitions_max=3)
    assert sessions.plan(request(offsets={0: 0, 1: 0}), 0).session is not None
    assert sessions.plan(request(offsets={0: 0, 1: 0}), 100_000).session is None
    assert sessions.plan(request(offsets={0: 0, 1: 0}), 200_000).session is not None
    assert len(sessions) == 1


class Setting:
    """Sessions, the purgatory that watches their partitions, and one of these."""

    def __init__(self) -> None:
        self.purgatory = FetchPurgatory()
        self.sessions = FetchSessions(10, Random(1), self.purgatory)
        self.partition = cast("Partition", Mock(last_stable_offset=5, waiting_fetches=None))

    def settled_session(self, replica: int = -1) -> FetchSession:
        """A session of partitions 0 and 1, whose reader knows all of the first."""
        plan = self.sessions.plan(request(offsets={0: 5, 1: 7}, replica=replica), 0)
        plan.respond([data(0, watermark=5), data(1, watermark=7)])
        assert plan.session is not None
        if replica >= 0:
            plan.partitions[0].limit = FetchIsolation.LOG_END
        assert plan.session.mark_up_to_date(plan.partitions[0])
        self.purgatory.watch(self.partition, plan.partitions[0])
        return plan.session

    @property
    def is_watched(self) -> bool:
        return self.partition.waiting_fetches is self.purgatory


def test_a_settled_partition_is_left_alone_until_it_has_news() -> None:
    setting = Setting()
    sessions, session = setting.sessions, setting.settled_session()
    assert [
        partition.partition for partition in sessions.plan(request(session.id, 1), 0).partitions
    ] == [1]
    setting.purgatory.committed(setting.partition, 10)
    assert [
        partition.partition for partition in sessions.plan(request(session.id, 2), 0).partitions
    ] == [1, 0]
    assert not setting.is_watched, "a reader that never comes again costs nothing more"


def test_a_settled_partition_that_is_named_is_read() -> None:
    setting = Setting()
    session = setting.settled_session()
    plan = setting.sessions.plan(request(session.id, 1, offsets={0: 4}), 0)
    assert [(partition.partition, partition.fetch_offset) for partition in plan.partitions] == [
        (1, 7),
        (0, 4),
    ]


@pytest.mark.parametrize("replica", [-1, 2])
def test_consumers_watch_commits_and_followers_appends_too(replica: int) -> None:
    for tell, changed in (
        (FetchPurgatory.committed, [1, 0]),
        (FetchPurgatory.appended, [1] if replica < 0 else [1, 0]),
    ):
        setting = Setting()
        session = setting.settled_session(replica)
        assert setting.is_watched
        tell(setting.purgatory, setting.partition, 10)
        assert [value.partition for value in session.changed.values()] == changed


def test_nothing_is_watched_for_what_is_forgotten_or_ended() -> None:
    setting = Setting()
    session = setting.settled_session(replica=2)
    assert setting.is_watched
    setting.sessions.plan(request(session.id, 1, forget=[0]), 0)
    assert not setting.is_watched
    session = setting.settled_session(replica=2)
    assert setting.is_watched
    setting.sessions.plan(request(session.id, -1), 0)
    assert not setting.is_watched


def test_a_follower_takes_the_place_of_a_consumer_and_not_the_other_way() -> None:
    sessions = make_sessions(slots=2)
    follower = sessions.plan(request(offsets={0: 0}, replica=2), 0).session
    assert sessions.plan(request(offsets={0: 0}), 0).session is not None
    second = sessions.plan(request(offsets={0: 0}, replica=3), 0).session
    assert follower is not None and second is not None
    assert sessions.plan(request(offsets={0: 0}), 0).session is None
    assert sessions.plan(request(offsets={0: 0}, replica=4), 0).session is None
    assert sessions.plan(request(follower.id, 1), 0).session is follower
