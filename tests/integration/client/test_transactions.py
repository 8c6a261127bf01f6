"""Transactions of our client against a real broker, of both versions, read as rows and columns."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow
import pytest

import headrace
from headrace import ConsumerGroupMetadata, TopicPartition
from tests.integration.client.feeding import create_topic
from tests.support import BrokerProcess

WAIT_MS = 30_000

Open = Callable[..., headrace.Producer]


@pytest.fixture
def address(shared_broker: BrokerProcess) -> str:
    return shared_broker.address


@pytest.fixture
def tp(address: str, topic: str) -> TopicPartition:
    create_topic(address, topic, 1)
    return TopicPartition(topic, 0)


@pytest.fixture(params=[1, 2], ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> int:
    """The version of transactions that a producer uses at most."""
    return int(request.param)


@pytest.fixture
def open_producer(address: str, topic: str) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(version: int = 2, **options: Any) -> headrace.Producer:
            options = {"transactional_id": f"{topic}-writer", "linger_ms": 0, **options}
            producer = headrace.Producer(bootstrap_servers=address, **options)
            stack.enter_context(producer)
            assert producer._engine.sender.transactor is not None
            producer._engine.sender.transactor.version_max = version
            return producer

        yield opened


def reader(address: str, tp: TopicPartition, level: Any = "read_committed") -> headrace.Consumer:
    """A consumer of one partition, from its beginning on."""
    consumer = headrace.Consumer(
        bootstrap_servers=address, isolation_level=level, auto_offset_reset="earliest"
    )
    consumer.assign([tp])
    return consumer


def values_of(address: str, tp: TopicPartition, level: str = "read_committed") -> list[bytes]:
    """What a consumer sees, up to what it takes for the end."""
    found: list[bytes] = []
    with reader(address, tp, level) as consumer:
        end = consumer.end_offsets(tp)[tp]
        while consumer.position(tp) < end:
            found += [record.value for record in consumer.poll(100)]
    return found


def wait_until_complete(address: str, topic: str) -> None:
    """Wait until the last transaction of a test's producer has its markers in all partitions.

    A commit or abort of Apache Kafka is answered before that. A new producer with the same
    transactional id waits for it, and fences the old one.
    """
    with headrace.Producer(bootstrap_servers=address, transactional_id=f"{topic}-writer") as newer:
        newer.init_transactions()


def test_what_is_committed_counts_and_what_is_aborted_does_not(
    address: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    producer = open_producer(version)
    for number in range(6):
        try:
            with producer.transaction() as inside:
                assert inside is producer
                producer.send(tp.topic, f"{number}a")
                producer.send(tp.topic, f"{number}b")
                if number % 2:
                    producer.flush()
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert values_of(address, tp) == [b"0a", b"0b", b"2a", b"2b", b"4a", b"4b"]
    assert len(values_of(address, tp, "read_uncommitted")) == 12


def test_both_versions_were_used(address: str, tp: TopicPartition, open_producer: Open) -> None:
    for version in (1, 2):
        producer = open_producer(version, transactional_id=f"{tp.topic}-{version}")
        with producer.transaction():
            producer.send(tp.topic, str(version))
        assert producer._engine.sender.transactor is not None
        assert producer._engine.sender.transactor.state.version == version


def test_readers_see_up_to_what_is_open(
    address: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    producer = open_producer(version)
    with headrace.Producer(bootstrap_servers=address) as plain:
        plain.send(tp.topic, b"before").result()
        producer.begin_transaction()
        producer.send(tp.topic, b"inside").result()
        plain.send(tp.topic, b"behind").result()
    with reader(address, tp) as strict, reader(address, tp, "read_uncommitted") as lax:
        assert strict.end_offsets(tp) == {tp: 1}
        assert lax.end_offsets(tp) == {tp: 3}
        assert [record.value for record in strict.poll(WAIT_MS)] == [b"before"]
        assert strict.poll(100) == []
        assert (strict.position(tp), strict.lag()) == (1, {tp: 0})
        assert strict.offsets_for_times({tp: 0})[tp] is not None
        producer.commit_transaction()
        rest: list[bytes] = []
        while len(rest) < 2:
            rest += [record.value for record in strict.poll(WAIT_MS)]
        assert rest == [b"inside", b"behind"]
        # The marker has an offset of its own.
        assert strict.end_offsets(tp) == {tp: 4}


def test_columns_have_what_rows_have(
    address: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    producer = open_producer(version, compression_type="zstd")
    for number in range(4):
        rows = pyarrow.record_batch({"value": [b"%d-%d" % (number, row) for row in range(100)]})
        producer.begin_transaction()
        future = producer.send_arrow(tp.topic, rows)
        if number % 2:
            assert sum(entry.count for entry in future.result()) == 100
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    wait_until_complete(address, tp.topic)
    found: list[bytes] = []
    with reader(address, tp) as consumer:
        while len(found) < 200:
            found += consumer.poll_arrow(WAIT_MS).column("value").to_pylist()
        assert consumer.poll_arrow(100).num_rows == 0
        assert consumer.position(tp) == consumer.end_offsets(tp)[tp]
    assert found == [b"%d-%d" % (number, row) for number in (0, 2) for row in range(100)]


def test_a_copy_goes_on_where_its_offsets_are(
    address: str, topic: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    target = TopicPartition(f"{topic}-copy", 0)
    create_topic(address, target.topic, 1)
    with headrace.Producer(bootstrap_servers=address) as plain:
        for number in range(100):
            plain.send(topic, str(number))
    copied = 0
    while copied < 100:
        # The last transaction is left open: the next producer of this name fences this one.
        producer = open_producer(version)
        producer.init_transactions()
        with headrace.Consumer(
            topic,
            bootstrap_servers=address,
            group_id=f"{topic}-copiers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer:
            for fate in ("commit", "abort", "commit", "leave"):
                records = consumer.poll(WAIT_MS if copied < 100 else 0, max_records=20)
                producer.begin_transaction()
                for record in records:
                    producer.send(target.topic, record.value)
                producer.send_offsets_to_transaction(
                    consumer.positions(), consumer.group_metadata()
                )
                if fate == "commit":
                    producer.commit_transaction()
                    copied += len(records)
                elif fate == "abort":
                    producer.abort_transaction()
                    consumer.seek_to_committed()
                else:
                    producer.flush()
    assert values_of(address, target) == [b"%d" % number for number in range(100)]


def test_a_member_that_has_left_commits_nothing(
    address: str, topic: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    producer = open_producer(version)
    group = f"{topic}-group"
    producer.begin_transaction()
    producer.send(topic, b"never counts").result()
    gone = ConsumerGroupMetadata(group, 5, "somebody who is gone")
    with pytest.raises(headrace.TransactionAbortable) as caught:
        producer.send_offsets_to_transaction({tp: 1}, gone)
    assert caught.value.code.name in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
    with pytest.raises(headrace.TransactionAbortable):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send_offsets_to_transaction({tp: 1}, group)
    wait_until_complete(address, topic)
    with headrace.Admin(bootstrap_servers=address) as admin:
        assert admin.group_offsets(group)[tp].offset == 1
    assert values_of(address, tp) == []


def test_a_record_that_fails_aborts_its_block_and_not_the_next(
    address: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    with headrace.Admin(bootstrap_servers=address) as admin:
        admin.alter_configs({"max.message.bytes": 1000}, topic=tp.topic)
    producer = open_producer(version)

    def too_much() -> None:
        with producer.transaction():
            producer.send(tp.topic, b"small")
            producer.send(tp.topic, bytes(5000))

    with pytest.raises(headrace.TransactionAbortable, match=r"max\.message\.bytes"):
        too_much()
    with producer.transaction():
        producer.send(tp.topic, b"next")
    wait_until_complete(address, tp.topic)
    assert values_of(address, tp) == [b"next"]


def test_a_producer_that_is_replaced_learns_it_and_its_work_is_gone(
    address: str, tp: TopicPartition, open_producer: Open, version: int
) -> None:
    old, new = open_producer(version), open_producer(version)

    def replaced() -> None:
        with old.transaction():
            old.send(tp.topic, b"zombie").result()
            with new.transaction():
                new.send(tp.topic, b"new")

    with pytest.raises(headrace.ProducerFenced):
        replaced()
    with pytest.raises(headrace.ProducerFenced):
        old.begin_transaction()
    wait_until_complete(address, tp.topic)
    assert values_of(address, tp) == [b"new"]


def test_closing_in_a_transaction_aborts_it(
    address: str, tp: TopicPartition, open_producer: Open
) -> None:
    producer = open_producer()
    producer.begin_transaction()
    producer.send(tp.topic, b"never counts").result()
    unsent = producer.send(tp.topic, b"on its way")
    producer.close()
    assert unsent.done()
    with headrace.Admin(bootstrap_servers=address) as admin:
        [found] = admin.list_transactions(states=["Ongoing"]).values() or [None]
        assert found is None
    assert values_of(address, tp) == []


def test_without_a_transactional_id_there_are_no_transactions(address: str) -> None:
    with headrace.Producer(bootstrap_servers=address) as producer:
        with pytest.raises(headrace.IllegalState, match="give it a transactional_id"):
            with producer.transaction():
                pass


def test_asyncio_has_the_same(address: str, topic: str, tp: TopicPartition) -> None:
    options: dict[str, Any] = {"bootstrap_servers": address, "transactional_id": topic}

    async def failing(producer: headrace.aio.Producer) -> None:
        async with producer.transaction():
            await (await producer.send(topic, b"dropped"))
            raise ZeroDivisionError

    async def main() -> None:
        async with headrace.aio.Producer(**options) as producer:
            async with producer.transaction():
                await producer.send(topic, b"kept")
                await producer.send_offsets_to_transaction({tp: 7}, f"{topic}-group")
            with pytest.raises(ZeroDivisionError):
                await failing(producer)
            with pytest.raises(headrace.IllegalState, match="begin_transaction"):
                await producer.send(topic, b"outside")
            async with headrace.aio.Producer(**options) as newer:
                await newer.init_transactions()
                with pytest.raises(headrace.ProducerFenced):
                    async with producer.transaction():
                        await producer.send(topic, b"zombie")
        async with headrace.aio.Producer(bootstrap_servers=address) as plain:
            with pytest.raises(headrace.IllegalState, match="give it a transactional_id"):
                await plain.begin_transaction()

    asyncio.run(main())
    assert values_of(address, tp) == [b"kept"]
    with headrace.Admin(bootstrap_servers=address) as admin:
        assert admin.group_offsets(f"{topic}-group")[tp].offset == 7
