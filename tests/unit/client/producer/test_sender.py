import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import BatchRefused, Closed, TimedOut
from headrace.client.options import producer_options
from headrace.client.producer.delivery import Future
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.batch import read_header
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import LeaderIdAndEpoch, ProduceRequest
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import ANSWER, LOSE, LOSE_ANSWER
from tests.unit.client.producer.harness import Sending, brokers_with, sending, written
from tests.unit.client.virtual_time import Brokers

SMALL = {"batch_size": 300, "linger_ms": 0}


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def send_all(engine: Sending, values: Sequence[bytes], **record: Any) -> list[Future]:
    return [engine.send(value, **record) for value in values]


def test_records_are_written_in_order_and_their_futures_know_where() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> list[int]:
        futures = send_all(engine, numbered(200))
        await engine.flush()
        return [future.result().offset for future in futures]

    assert sending(brokers, scenario, **SMALL) == list(range(200))
    assert written(brokers) == numbered(200)
    assert brokers.most_in_flight <= 5


def test_a_batch_lingers_for_more_records_and_then_leaves() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        begun = brokers.clock.seconds
        first = engine.send(b"a")
        await asyncio.sleep(0.03)
        second = engine.send(b"b")
        await first
        assert second.done()
        assert brokers.clock.seconds - begun == pytest.approx(0.05, abs=0.003)

    sending(brokers, scenario, linger_ms=50)
    assert len(brokers.sent(ProduceRequest)) == 1


def test_a_full_batch_does_not_linger() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        begun = brokers.clock.seconds
        first = engine.send(bytes(200))
        engine.send(bytes(200))
        await first
        assert brokers.clock.seconds == begun

    sending(brokers, scenario, linger_ms=10_000, batch_size=300)


def test_a_burst_wakes_the_sender_once() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> int:
        send_all(engine, numbered(500))
        return engine.wakes

    assert sending(brokers, scenario, linger_ms=0) == 1
    assert sending(brokers, scenario, linger_ms=5) == 1
    assert sending(brokers, scenario, **SMALL) == 1


def test_batches_for_several_leaders_leave_in_one_request_to_each() -> None:
    brokers = brokers_with(partitions=6, nodes=3)

    async def scenario(engine: Sending) -> None:
        for partition in range(6):
            engine.send(b"x", partition=partition)
        await engine.flush()

    sending(brokers, scenario)
    assert [node for node, request in brokers.requests if isinstance(request, ProduceRequest)] == [
        1,
        2,
        3,
    ]
    assert all(written(brokers, partition) == [b"x"] for partition in range(6))


def test_a_request_is_bounded_and_partitions_take_turns() -> None:
    brokers = brokers_with(partitions=3)

    async def scenario(engine: Sending) -> None:
        for _ in range(3):
            for partition in range(3):
                engine.send(bytes(3_000_000), partition=partition)
        await engine.flush()

    sending(brokers, scenario, max_request_size=4_000_000, batch_size=1, buffer_memory=40_000_000)
    requests = brokers.sent(ProduceRequest)
    assert [len(request.topic_data[0].partition_data) for request in requests] == [1] * 9
    assert all(len(written(brokers, partition)) == 3 for partition in range(3))


@pytest.mark.parametrize("fault", [LOSE, LOSE_ANSWER])
def test_a_lost_request_or_answer_is_repeated_without_duplicates(fault: str) -> None:
    brokers = brokers_with()
    brokers.faults.extend([ANSWER, fault])

    async def scenario(engine: Sending) -> None:
        futures = send_all(engine, numbered(100))
        await engine.flush()
        assert all(future.exception() is None for future in futures)

    sending(brokers, scenario, **SMALL)
    assert written(brokers) == numbered(100)


FAULTS = st.lists(
    st.sampled_from(
        [
            ANSWER,
            ANSWER,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
        ]
    ),
    max_size=12,
)


@given(faults=FAULTS, losses=st.lists(st.sampled_from([ANSWER, ANSWER, LOSE, LOSE_ANSWER])))
def test_whatever_fails_each_record_is_written_once_and_in_order(
    faults: list[str | ErrorCode], losses: list[str]
) -> None:
    brokers = brokers_with(partitions=2)
    brokers.produce_faults.extend(faults)
    brokers.faults.extend(losses)

    async def scenario(engine: Sending) -> None:
        futures = [
            engine.send(value, partition=number % 2) for number, value in enumerate(numbered(120))
        ]
        await engine.flush()
        assert [future.exception() for future in futures] == [None] * 120

    sending(brokers, scenario, **SMALL)
    for partition in range(2):
        assert written(brokers, partition) == numbered(120)[partition::2]


@given(faults=FAULTS)
def test_without_idempotence_order_holds_and_nothing_is_lost(
    faults: list[str | ErrorCode],
) -> None:
    brokers = brokers_with()
    brokers.produce_faults.extend(faults)

    async def scenario(engine: Sending) -> None:
        send_all(engine, numbered(100))

    sending(brokers, scenario, acks=1, **SMALL)
    found = written(brokers)
    assert set(found) == set(numbered(100))
    # A batch may be there twice in a row, but never before an earlier one.
    firsts = list(dict.fromkeys(found))
    assert firsts == numbered(100)


def test_a_partition_that_moved_is_found_at_its_new_leader() -> None:
    brokers = brokers_with(nodes=2)

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.logs[TopicPartition("t", 0)].leader = 2
        await engine.send(b"b")

    sending(brokers, scenario)
    assert written(brokers) == [b"a", b"b"]
    assert brokers.requests[-1][0] == 2


def test_a_leader_that_cannot_be_reached_is_asked_about() -> None:
    brokers = brokers_with(nodes=2)

    async def scenario(engine: Sending) -> None:
        # Known from the start as the leader, and gone before it was ever connected to.
        brokers.down = {1}
        brokers.logs[TopicPartition("t", 0)].leader = 2
        await engine.send(b"a")

    begun = brokers.clock.seconds
    sending(brokers, scenario)
    assert written(brokers) == [b"a"]
    assert brokers.clock.seconds - begun < 1


def test_requests_that_fail_together_make_one_pause() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"first")
        brokers.faults.append(LOSE)
        send_all(engine, numbered(200))
        begun = brokers.clock.seconds
        await engine.flush()
        assert brokers.clock.seconds - begun < 0.1

    sending(brokers, scenario, **SMALL)
    assert written(brokers) == [b"first", *numbered(200)]


def test_a_leader_that_is_down_is_waited_for() -> None:
    brokers = brokers_with(nodes=2)

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.down = {1}
        brokers.faults.append(LOSE)
        asyncio.get_running_loop().call_later(20, brokers.down.clear)
        await engine.send(b"b")

    begun = brokers.clock.seconds
    sending(brokers, scenario)
    assert written(brokers) == [b"a", b"b"]
    assert 20 <= brokers.clock.seconds - begun < 23


def test_what_no_broker_takes_in_time_fails_on_time_and_says_why() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.down = {1}
        brokers.faults.append(LOSE)
        begun = brokers.clock.seconds
        with pytest.raises(
            TimedOut, match=r"t-0: not written within delivery_timeout_ms \(9000 ms"
        ):
            await engine.send(b"b")
        assert brokers.clock.seconds - begun == pytest.approx(9, abs=0.01)

    sending(brokers, scenario, delivery_timeout_ms=9_000, request_timeout_ms=1_000)


def test_records_behind_one_that_expired_still_arrive() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.down = {1}
        brokers.faults.append(LOSE)
        lost = engine.send(b"b")
        await asyncio.sleep(5)
        kept = engine.send(b"c")
        await asyncio.sleep(6)
        assert isinstance(lost.exception(), TimedOut)
        brokers.down = set()
        assert (await kept).offset == 1

    sending(brokers, scenario, delivery_timeout_ms=10_000, request_timeout_ms=1_000)
    assert written(brokers) == [b"a", b"c"]


def test_a_batch_that_is_never_answered_fails_on_time_and_others_go_on() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.is_slow = True
        begun = brokers.clock.seconds
        stuck = engine.send(b"b")
        with pytest.raises(TimedOut, match="not written within"):
            await stuck
        assert brokers.clock.seconds - begun == pytest.approx(5, abs=0.01)
        brokers.is_slow = False
        after = engine.send(b"c")
        connection = await engine.cluster.connection(1, engine.cluster.deadline(), lane="produce")
        connection.release(2)  # type: ignore[attr-defined]
        assert (await after).offset == 2

    sending(brokers, scenario, delivery_timeout_ms=5_000, request_timeout_ms=1_000)
    assert written(brokers) == [b"a", b"b", b"c"]


def test_at_most_so_many_requests_are_in_flight() -> None:
    brokers = brokers_with(partitions=2)

    async def scenario(engine: Sending) -> None:
        await engine.send(b"elsewhere", partition=1)
        connection = await engine.cluster.connection(1, engine.cluster.deadline(), lane="produce")
        brokers.is_slow = True
        first = engine.send(b"first", partition=0)
        await asyncio.sleep(0.01)
        # Until the partition knows the producer, nothing may overtake the first batch.
        send_all(engine, numbered(200), partition=0)
        await asyncio.sleep(0.01)
        assert connection.in_flight == 1
        connection.release()  # type: ignore[attr-defined]
        await first
        await asyncio.sleep(0.01)
        assert connection.in_flight == 3
        brokers.is_slow = False
        connection.release(3)  # type: ignore[attr-defined]
        await engine.flush()

    sending(brokers, scenario, max_in_flight=3, **SMALL)
    assert written(brokers) == [b"first", *numbered(200)]


def test_a_batch_the_broker_finds_too_large_is_split_and_later_ones_are_smaller() -> None:
    brokers = brokers_with()
    brokers.max_message_bytes = 400

    async def scenario(engine: Sending) -> list[int]:
        futures = send_all(engine, numbered(300))
        await engine.flush()
        first = len(brokers.sent(ProduceRequest))
        futures += send_all(engine, numbered(20))
        await engine.flush()
        assert len(brokers.sent(ProduceRequest)) - first <= 4
        return [future.result().offset for future in futures]

    assert sending(brokers, scenario) == list(range(320))
    assert written(brokers) == numbered(300) + numbered(20)


def test_a_single_record_that_is_too_large_fails_with_advice() -> None:
    brokers = brokers_with()
    brokers.max_message_bytes = 400

    async def scenario(engine: Sending) -> None:
        with pytest.raises(KafkaError, match=r"max\.message\.bytes: raise that") as caught:
            await engine.send(bytes(1000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await engine.send(b"small")

    sending(brokers, scenario)
    assert written(brokers) == [b"small"]


def test_a_record_the_broker_blames_has_its_own_error() -> None:
    brokers = brokers_with()
    brokers.refused_values = {b"bad"}

    async def scenario(engine: Sending) -> None:
        good, bad = engine.send(b"good"), engine.send(b"bad")
        await engine.flush()
        refused = bad.exception()
        assert isinstance(refused, KafkaError)
        assert (refused.code, refused.detail) == (ErrorCode.INVALID_RECORD, "t-0: bad")
        innocent = good.exception()
        assert isinstance(innocent, BatchRefused)
        assert "t-0: not written, since another record of its batch" in str(innocent)
        # The broker misses the numbers of what it refused.
        assert (await engine.send(b"next")).offset == 0

    sending(brokers, scenario)
    assert written(brokers) == [b"next"]


def test_batches_behind_a_refused_one_are_numbered_anew_and_written_once() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"first")
        brokers.refused_values = {b"00010"}
        futures = send_all(engine, numbered(100))
        await engine.flush()
        failed = [entry for entry, future in enumerate(futures) if future.exception()]
        kept = [value for entry, value in enumerate(numbered(100)) if entry not in failed]
        assert 10 in failed and len(failed) < 30
        assert written(brokers) == [b"first", *kept]

    sending(brokers, scenario, **SMALL)


def test_a_broker_that_forgot_the_producer_gets_its_next_epoch() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.produce_faults.append(ErrorCode.UNKNOWN_PRODUCER_ID)
        await engine.send(b"b")

    sending(brokers, scenario)
    assert written(brokers) == [b"a", b"b"]
    assert len(brokers.sent(InitProducerIdRequest)) == 1
    batches = brokers.logs[TopicPartition("t", 0)].batches
    assert [read_header(batch).producer_epoch for batch in batches] == [0, 1]


def test_a_batch_that_a_forgetful_broker_may_have_is_not_sent_again() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.produce_faults.extend([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_PRODUCER_ID])
        with pytest.raises(KafkaError, match="may have been written, so it is not sent again"):
            await engine.send(b"b")
        await engine.send(b"c")

    sending(brokers, scenario)
    assert written(brokers) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "told", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR], ids=lambda code: code.name
)
def test_batches_a_restarted_broker_may_have_are_not_sent_under_other_numbers(
    told: ErrorCode,
) -> None:
    """It remembers the last batch of a producer, and those before it seem out of order."""
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"first")
        brokers.produce_faults.extend([told] * 5)
        brokers.produce_faults.append(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        futures = send_all(engine, numbered(100))
        await engine.flush()
        failed = [str(future.exception()) for future in futures if future.exception()]
        assert failed and all("may have been written" in text for text in failed)

    sending(brokers, scenario, **SMALL)
    values = [value for value in written(brokers) if value is not None]
    assert values[1:] == sorted(set(values[1:]))


def test_retries_are_counted() -> None:
    brokers = brokers_with()
    brokers.produce_faults.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3)

    async def scenario(engine: Sending) -> None:
        with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
            await engine.send(b"a")
        assert engine.metrics.snapshot()["record-retry-total"] == 2
        assert engine.metrics.snapshot()["record-error-total"] == 1
        await engine.send(b"b")

    sending(brokers, scenario, retries=2)
    assert written(brokers) == [b"b"]


def test_an_error_that_does_not_pass_fails_at_once() -> None:
    brokers = brokers_with()
    brokers.produce_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def scenario(engine: Sending) -> None:
        begun = brokers.clock.seconds
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: partition t-0"):
            await engine.send(b"a")
        assert brokers.clock.seconds - begun < 0.1

    sending(brokers, scenario)


def test_records_are_sent_without_answers_when_nobody_has_to_acknowledge() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        futures = send_all(engine, numbered(100))
        await engine.flush()
        assert {future.result().offset for future in futures} == {-1}

    sending(brokers, scenario, acks=0, **SMALL)
    assert written(brokers) == numbered(100)
    # Closing asks something and waits for the answer, so that what came before has arrived.
    assert isinstance(brokers.requests[-1][1], MetadataRequest)


def test_a_topic_nobody_creates_is_unknown_and_the_error_says_what_to_do() -> None:
    brokers = Brokers()

    async def scenario() -> None:
        engine = Sending(brokers, producer_options())
        with pytest.raises(UnknownTopic, match=r"topic nope does not exist.*create_topic"):
            await engine.sender.load_topic("nope", 60)
        await engine.sender.stop(1)

    brokers.run(scenario())


def test_new_partitions_are_noticed_when_metadata_is_old() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        await engine.send(b"a")
        brokers.add_topic("t", 3)
        await asyncio.sleep(200)
        await engine.send(b"b")
        await asyncio.sleep(0)
        assert engine.accumulator.partition_count("t") == 3

    sending(brokers, scenario, metadata_max_age_ms=100_000)


def test_what_is_left_when_the_sender_stops_fails() -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> Future:
        await engine.send(b"first")
        brokers.is_slow = True
        futures = send_all(engine, numbered(100))
        await asyncio.sleep(1)
        await engine.sender.stop(1)
        assert all(isinstance(future.exception(), Closed) for future in futures)
        return futures[0]

    assert "closed before" in str(sending(brokers, scenario, **SMALL).exception())


def test_a_bug_fails_what_waits_instead_of_leaving_it(caplog: pytest.LogCaptureFixture) -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        engine.sender._compose = None  # type: ignore[assignment,method-assign]
        with pytest.raises(Closed, match="by a bug of its own"):
            await engine.send(b"a")
        with pytest.raises(Closed):
            engine.send(b"b")

    sending(brokers, scenario)
    assert "the producer cannot go on" in caplog.text


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(codec: str) -> None:
    brokers = brokers_with()

    async def scenario(engine: Sending) -> None:
        send_all(engine, [bytes(1000)] * 50)
        await engine.flush()
        assert engine.metrics.snapshot()["compression-rate-avg"] < 0.5

    sending(brokers, scenario, compression_type=codec)
    assert written(brokers) == [bytes(1000)] * 50


def test_a_leader_that_an_answer_names_gets_the_batch_at_once() -> None:
    brokers = brokers_with(nodes=2)
    append = brokers._produce_one

    def naming(node: int, topic: Any, data: Any) -> Any:
        answer = append(node, topic, data)
        if answer.error_code:
            answer.current_leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        return answer

    brokers._produce_one = naming  # type: ignore[method-assign]

    async def scenario(engine: Sending) -> tuple[int, float]:
        await engine.send(b"before")
        for log in brokers.logs.values():
            log.leader = 2
        asked, begun = len(brokers.sent(MetadataRequest)), brokers.clock.seconds
        futures = send_all(engine, numbered(20))
        await engine.flush()
        assert [future.result().offset for future in futures] == list(range(1, 21))
        return len(brokers.sent(MetadataRequest)) - asked, brokers.clock.seconds - begun

    assert sending(brokers, scenario, **SMALL) == (0, 0)
    assert written(brokers) == [b"before", *numbered(20)]
