import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.failures import TimedOut, UnknownTopic
from headrace.client.writer import Failure, Writer, WriterOptions
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.compression import Compression
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.murmur2 import partition_for_key
from headrace.protocol.records import decode_rows, read_header
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import ANSWER, LOSE, LOSE_ANSWER, FakeBrokers

TP = TopicPartition("t", 0)
# The last one is given although the batch was written.
ANSWERS = [ANSWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]
SMALL = WriterOptions(batch_bytes=100, linger_ms=0)


class Bench:
    """A writer on fake brokers, and what failed."""

    def __init__(
        self,
        options: WriterOptions = SMALL,
        *,
        partitions: int = 1,
        nodes: int = 1,
        timeout_s: float = 30.0,
        produce_version: int = 13,
    ) -> None:
        self.brokers = FakeBrokers(nodes, versions={ApiKey.PRODUCE: produce_version})
        self.brokers.add_topic("t", partitions)
        self.failures: list[Failure] = []
        self.cluster = self.brokers.cluster(timeout_s)
        self.writer = Writer(self.cluster, options, self.failures.append)

    def send(self, *values: bytes, partition: int | None = None) -> None:
        for value in values:
            self.writer.send("t", value, partition=partition, tag=value)

    def values(self, partition: int = 0) -> list[bytes | None]:
        return self.brokers.logs[TopicPartition("t", partition)].values()

    @property
    def failed_tags(self) -> list[object]:
        return [tag for failure in self.failures for tag in failure.tags]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("produce_version", [3, 12, 13])
def test_records_arrive_in_order_whether_topics_go_by_name_or_by_id(produce_version: int) -> None:
    bench = Bench(produce_version=produce_version)
    bench.send(*numbers(50))
    bench.writer.flush()
    assert bench.values() == numbers(50)
    assert bench.writer.records_written == 50
    assert bench.writer.bytes_written == sum(map(len, numbers(50)))
    assert bench.failures == []


def test_everything_about_a_record_arrives() -> None:
    bench = Bench(WriterOptions(compression=Compression.ZSTD))
    headers = [("a", b"1"), ("a", None)]
    bench.writer.send("t", None, key=b"k", headers=headers, timestamp=5)
    bench.writer.send("t", b"")
    bench.writer.flush()
    (batch,) = bench.brokers.logs[TP].batches
    first, second = decode_rows(batch)
    assert tuple(first) == (0, 5, b"k", None, (("a", b"1"), ("a", None)))
    assert (second.timestamp, second.key, second.value) == (
        bench.brokers.clock.now_ms(),
        None,
        b"",
    )
    assert read_header(batch).compression == Compression.ZSTD


def test_a_key_always_goes_to_the_same_partition() -> None:
    bench = Bench(partitions=5)
    for key in numbers(40):
        bench.writer.send("t", key, key=key)
    bench.writer.flush()
    for partition in range(5):
        assert all(
            partition_for_key(value or b"", 5) == partition for value in bench.values(partition)
        )


def test_records_without_key_fill_one_batch_and_then_change_the_partition() -> None:
    bench = Bench(WriterOptions(batch_bytes=400), partitions=3)
    bench.send(*[bytes(10)] * 100)
    bench.writer.flush()
    logs = [bench.brokers.logs[TopicPartition("t", number)] for number in range(3)]
    assert all(log.batches for log in logs)
    counts = [read_header(batch).record_count for log in logs for batch in log.batches]
    assert sorted(counts) == [1, *[9] * 11]


def test_batches_go_to_the_leaders_of_their_partitions_together() -> None:
    bench = Bench(WriterOptions(), partitions=4, nodes=2)
    for partition in range(4):
        bench.send(b"x", partition=partition)
    bench.writer.flush()
    produced = [
        (node, [data.index for topic in request.topic_data for data in topic.partition_data])
        for node, request in bench.brokers.requests
        if isinstance(request, ProduceRequest)
    ]
    assert produced == [(1, [0, 2]), (2, [1, 3])]


def test_no_more_than_five_requests_are_in_flight_and_the_buffer_is_bounded() -> None:
    bench = Bench(WriterOptions(batch_bytes=1000, buffer_bytes=20_000, linger_ms=0))
    bench.brokers.is_slow = True
    for _ in range(200):
        bench.send(bytes(900))
        assert bench.writer._buffered_bytes <= 20_000
    bench.writer.flush()
    assert bench.brokers.most_in_flight == 5
    assert len(bench.values()) == 200
    assert bench.writer._buffered_bytes == 0


def test_lingering_records_leave_when_their_time_has_come() -> None:
    bench = Bench(WriterOptions(linger_ms=10))
    bench.send(b"a")
    bench.writer.poll()
    assert bench.brokers.sent(ProduceRequest) == []
    bench.brokers.clock.seconds += 0.011
    bench.writer.poll()
    assert bench.values() == [b"a"]
    bench.send(b"b")
    bench.brokers.clock.seconds += 0.011
    bench.send(b"c")
    assert bench.values() == [b"a", b"b", b"c"]


def test_acks_zero_counts_what_was_sent() -> None:
    bench = Bench(WriterOptions(acks=0, idempotent=False))
    bench.send(*numbers(3))
    bench.writer.flush()
    assert bench.values() == numbers(3)
    assert bench.writer.records_written == 3
    assert bench.brokers.sent(InitProducerIdRequest) == []


@given(
    faults=st.lists(st.sampled_from([ANSWER, LOSE, LOSE_ANSWER]), max_size=12),
    answers=st.lists(st.sampled_from(ANSWERS), max_size=12),
    count=st.integers(1, 60),
    step=st.integers(1, 30),
    is_slow=st.booleans(),
)
def test_an_idempotent_writer_writes_each_record_once_and_in_order_whatever_is_lost(
    faults: list[str], answers: list[str | ErrorCode], count: int, step: int, is_slow: bool
) -> None:
    bench = Bench(timeout_s=120)
    bench.brokers.is_slow = is_slow
    bench.brokers.faults.extend(faults)
    bench.brokers.produce_faults.extend(answers)
    expected = numbers(count)
    for start in range(0, count, step):
        bench.send(*expected[start : start + step])
        bench.writer.poll()
    bench.writer.flush()
    assert bench.values() == expected
    assert bench.failures == []
    assert bench.writer._buffered_bytes == 0


@given(
    large=st.sets(st.integers(0, 39), max_size=10),
    refused=st.sets(st.integers(0, 39), max_size=5),
    answers=st.lists(st.sampled_from(ANSWERS), max_size=6),
    batch_bytes=st.integers(100, 3000),
    is_slow=st.booleans(),
)
def test_refused_records_are_named_and_the_rest_keeps_its_order(
    large: set[int],
    refused: set[int],
    answers: list[str | ErrorCode],
    batch_bytes: int,
    is_slow: bool,
) -> None:
    bench = Bench(WriterOptions(batch_bytes=batch_bytes, linger_ms=0), timeout_s=120)
    bench.brokers.is_slow = is_slow
    bench.brokers.max_message_bytes = 600
    values = [b"%d" % number + (bytes(600) if number in large else b"") for number in range(40)]
    bench.brokers.refused_values = {values[number] for number in refused - large}
    bench.brokers.produce_faults.extend(answers)
    bench.send(*values)
    bench.writer.flush()
    failed = set(bench.failed_tags)
    assert {values[number] for number in large | refused} <= failed
    written = bench.values()
    assert written == [value for value in values if value not in failed]
    assert len(bench.failed_tags) == len(failed)
    # A batch is refused with the record that is at fault, but never for another's size.
    if not refused:
        assert failed == {values[number] for number in large}


def test_the_record_at_fault_is_named_apart_from_the_rest_of_its_batch() -> None:
    bench = Bench(WriterOptions())
    bench.brokers.refused_values = {b"1"}
    bench.send(*numbers(3))
    bench.writer.flush()
    assert [(failure.tags, str(failure.error)) for failure in bench.failures] == [
        ([b"1"], "INVALID_RECORD: t-0: bad"),
        ([b"0", b"2"], "INVALID_RECORD: t-0: refused with another record of its batch"),
    ]


def test_a_leader_that_moved_is_followed() -> None:
    bench = Bench(nodes=2)
    bench.send(b"a")
    bench.writer.flush()
    bench.brokers.logs[TP].leader = 2
    bench.send(b"b")
    bench.writer.flush()
    assert bench.values() == [b"a", b"b"]


def test_records_that_cannot_be_written_in_time_fail_with_the_reason() -> None:
    bench = Bench(timeout_s=5)
    bench.send(b"a")
    bench.writer.flush()
    bench.brokers.down = {1}
    bench.send(b"b")
    begun = bench.brokers.clock.seconds
    bench.writer.flush()
    assert bench.brokers.clock.seconds - begun < 12
    (failure,) = bench.failures
    assert failure.tags == [b"b"]
    assert isinstance(failure.error, TimedOut)
    assert "5 s" in str(failure.error)


def test_a_topic_that_is_deleted_fails_its_records_at_once() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.writer.flush()
    del bench.brokers.topics["t"], bench.brokers.logs[TP]
    bench.send(b"b")
    bench.writer.flush()
    (failure,) = bench.failures
    assert isinstance(failure.error, UnknownTopic)


def test_a_partition_that_does_not_exist_is_refused_when_the_record_is_added() -> None:
    bench = Bench()
    with pytest.raises(UnknownTopic, match="no partition 4"):
        bench.send(b"a", partition=4)


def test_without_a_handler_the_first_failure_is_raised() -> None:
    bench = Bench()
    bench.brokers.produce_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    writer = Writer(bench.cluster, SMALL)
    writer.send("t", b"a")
    with pytest.raises(KafkaError, match="t-0: topic authorization failed"):
        writer.flush()


@given(answers=st.lists(st.sampled_from([ANSWER, ErrorCode.NOT_LEADER_OR_FOLLOWER]), max_size=20))
def test_a_writer_without_idempotence_keeps_the_order_through_retries(
    answers: list[str | ErrorCode],
) -> None:
    bench = Bench(WriterOptions(idempotent=False, batch_bytes=100, linger_ms=0), timeout_s=120)
    bench.brokers.produce_faults.extend(answers)
    bench.send(*numbers(40))
    bench.writer.flush()
    assert bench.values() == numbers(40)
