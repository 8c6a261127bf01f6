from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from headrace.cli import clients
from headrace.cli import consume as reading_module
from headrace.cli.consume import PartitionReader, SkippedOffsets
from headrace.client.errors import TimedOut, Unreachable
from headrace.errors import CorruptBatch, ErrorCode, KafkaError
from headrace.protocol.apis import Api
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.protocol.records import encode_batch
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition
from tests.unit.cli.invoking import use
from tests.unit.client.admin.fakes import AdminBrokers

TP = TopicPartition("t", 0)
Open = Callable[..., PartitionReader]


def brokers_with(
    *batches: list[bytes], nodes: int = 1, partitions: int = 1, fetch_version: int = 17
) -> AdminBrokers:
    brokers = AdminBrokers(nodes, versions={Api.FETCH: fetch_version})
    brokers.add_topic("t", partitions)
    for values in batches:
        append(brokers, TP, values)
    return brokers


def append(brokers: AdminBrokers, tp: TopicPartition, values: list[bytes], **options: bool) -> None:
    rows = [(100 + number, b"k", value, [("h", b"1")]) for number, value in enumerate(values)]
    brokers.logs[tp].append(bytes(encode_batch(rows, **options)))


@pytest.fixture
def skipped() -> list[SkippedOffsets]:
    return []


@pytest.fixture
def open_reading(monkeypatch: pytest.MonkeyPatch, skipped: list[SkippedOffsets]) -> Iterator[Open]:
    """Reads partition t-0, or others, of brokers in memory."""
    monkeypatch.setattr(reading_module, "POLL_MS", 20)
    with ExitStack() as stack:

        def open_one(
            brokers: AdminBrokers,
            start: int = 0,
            until: int | None = None,
            partitions: tuple[TopicPartition, ...] = (TP,),
            timeout_s: float = 30.0,
        ) -> PartitionReader:
            use(brokers, monkeypatch, "consume")
            admin = stack.enter_context(clients.open_admin("", timeout_s))
            # As finding out where to begin does.
            admin.describe_cluster()
            consumer = stack.enter_context(clients.open_consumer("b:1", timeout_s))
            return PartitionReader(
                consumer,
                admin,
                dict.fromkeys(partitions, start),
                until=None if until is None else dict.fromkeys(partitions, until),
                timeout_s=timeout_s,
                on_skip=skipped.append,
            )

        yield open_one


def read_all(reading: PartitionReader) -> list[ConsumerRecord]:
    records = []
    while reading.unfinished:
        records += reading.poll()
    return records


def values(records: list[ConsumerRecord]) -> list[bytes]:
    return [record.value for record in records]


def poll_until(reading: PartitionReader, count: int) -> list[bytes]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += reading.poll()
    return values(records)


@pytest.mark.parametrize("fetch_version", [4, 12, 13, 17])
def test_records_come_with_all_they_have(open_reading: Open, fetch_version: int) -> None:
    brokers = brokers_with([b"a", b"b"], fetch_version=fetch_version)
    first, second = read_all(open_reading(brokers, until=2))
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("t", 0, 0, 100)
    assert (first.key, first.value, first.headers) == (b"k", b"a", (("h", b"1"),))
    assert (second.offset, second.timestamp, second.value) == (1, 101, b"b")


def test_reading_begins_and_ends_within_batches(open_reading: Open) -> None:
    brokers = brokers_with([b"a", b"b", b"c"], [b"d", b"e", b"f"])
    assert values(read_all(open_reading(brokers, 1, 5))) == [b"b", b"c", b"d", b"e"]
    assert open_reading(brokers, 5, 5).unfinished == []


def test_what_is_written_later_is_not_read_to_an_end(open_reading: Open) -> None:
    brokers = brokers_with([b"a"], partitions=2)
    other = TopicPartition("t", 1)
    append(brokers, other, [b"b"])
    reading = open_reading(brokers, until=1, partitions=(TP, other))
    append(brokers, TP, [b"late"])
    append(brokers, other, [b"late"])
    assert sorted(values(read_all(reading))) == [b"a", b"b"]


def test_an_end_that_is_no_record_is_noticed(open_reading: Open) -> None:
    brokers = brokers_with([b"a"])
    append(brokers, TP, [b"control"], control=True)
    assert values(read_all(open_reading(brokers, until=2))) == [b"a"]


def test_following_sees_what_is_written_later(open_reading: Open) -> None:
    brokers = brokers_with([b"a"])
    reading = open_reading(brokers)
    assert poll_until(reading, 1) == [b"a"]
    assert reading.poll() == []
    append(brokers, TP, [b"b"])
    assert poll_until(reading, 1) == [b"b"]
    assert reading.unfinished == [TP]


def test_partitions_of_several_leaders_are_read_together(open_reading: Open) -> None:
    brokers = brokers_with(nodes=2, partitions=4)
    partitions = tuple(TopicPartition("t", number) for number in range(4))
    for tp in partitions:
        append(brokers, tp, [b"%d" % tp.partition, b"x"])
    records = read_all(open_reading(brokers, until=1, partitions=partitions))
    assert sorted(values(records)) == [b"0", b"1", b"2", b"3"]


def test_deleted_records_are_skipped_and_reported(
    open_reading: Open, skipped: list[SkippedOffsets]
) -> None:
    brokers = brokers_with([b"a", b"b"], [b"c"])
    brokers.logs[TP].start_offset = 2
    del brokers.logs[TP].batches[0]
    assert values(read_all(open_reading(brokers, until=3))) == [b"c"]
    assert skipped == [SkippedOffsets(TP, 0, 2)]


def test_nothing_is_left_to_read_when_everything_was_deleted(
    open_reading: Open, skipped: list[SkippedOffsets]
) -> None:
    brokers = brokers_with([b"a", b"b"], [b"c"])
    brokers.logs[TP].start_offset = 3
    brokers.logs[TP].batches.clear()
    assert read_all(open_reading(brokers, until=3)) == []
    assert skipped == [SkippedOffsets(TP, 0, 3)]


def test_an_offset_past_the_end_is_an_error(open_reading: Open) -> None:
    brokers = brokers_with([b"a"])
    with pytest.raises(KafkaError, match="t-0 has no offset 5: its log ends before it"):
        read_all(open_reading(brokers, 5, 9))


def test_a_leader_that_moved_is_followed_without_loss(open_reading: Open) -> None:
    brokers = brokers_with([b"a"], nodes=2)
    reading = open_reading(brokers)
    assert poll_until(reading, 1) == [b"a"]
    brokers.logs[TP].leader = 2
    append(brokers, TP, [b"b"])
    assert poll_until(reading, 1) == [b"b"]


def test_errors_that_pass_only_cost_time(open_reading: Open) -> None:
    brokers = brokers_with([b"a"])
    brokers.fetch_faults.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
    assert values(read_all(open_reading(brokers, until=1))) == [b"a"]


def test_an_error_that_stays_is_raised_with_its_place(open_reading: Open) -> None:
    brokers = brokers_with([b"a"])
    brokers.fetch_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match=r"TOPIC_AUTHORIZATION_FAILED.*t-0"):
        read_all(open_reading(brokers, until=1))


def test_brokers_that_are_gone_for_too_long_end_reading_with_the_reason(
    open_reading: Open,
) -> None:
    brokers = brokers_with([b"a"])
    reading = open_reading(brokers, timeout_s=scaled(0.2))
    assert poll_until(reading, 1) == [b"a"]
    brokers.down = {1}
    with pytest.raises((TimedOut, Unreachable), match="gave up after "):
        read_all(reading)


def test_following_goes_on_though_nobody_writes(open_reading: Open) -> None:
    brokers = brokers_with([b"a"])
    reading = open_reading(brokers, timeout_s=scaled(0.05))
    assert poll_until(reading, 1) == [b"a"]
    for _ in range(5):
        assert reading.poll() == []
    append(brokers, TP, [b"b"])
    assert poll_until(reading, 1) == [b"b"]


def test_a_corrupt_batch_is_named_and_its_records_are_not_returned(open_reading: Open) -> None:
    brokers = brokers_with([b"a"], [b"b"])
    brokers.logs[TP].batches[1][-1] ^= 1
    reading = open_reading(brokers, until=2)
    assert poll_until(reading, 1) == [b"a"]
    with pytest.raises(CorruptBatch, match="t-0"):
        read_all(reading)
