"""Quotas of clients and limits on connections, with real clients against a real broker."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest

import headrace
from headrace.errors import ErrorCode
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.records import encode_batch
from headrace.testing import Cluster
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.wire import (
    LATEST,
    PRODUCE_BY_NAME,
    Wire,
    create_topic,
    list_offset,
    produce_request,
)
from tests.support import BrokerProcess

RATE = 500_000
TOTAL = 1_500_000
VALUE = bytes(10_000)
# A client may use one second of its quota at once, and does not wait after its last batch.
LEAST_SECONDS = (TOTAL - RATE - 200_000) / RATE


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker at which every client id has a quota.

    With one window a client that is slow to begin saves up no credit meanwhile.
    """
    directory = tmp_path_factory.mktemp("limited")
    with BrokerProcess(directory, {"quota.window.num": "1"}) as broker:
        rates = {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}
        set_quotas(broker.address, "client-id", None, **rates)
        yield broker.address


def set_quotas(address: str, kind: str, name: str | None, **quotas: float | None) -> None:
    """Set quotas of a user, a client id or an address; None removes one."""
    with Wire(address, client_id="quotas") as wire:
        ops = [
            OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in quotas.items()
        ]
        entry = EntryData(entity=[EntityData(entity_type=kind, entity_name=name)], ops=ops)
        [answer] = wire.ask(AlterClientQuotasRequest(entries=[entry])).entries
        assert answer.error_code == 0, answer


def batch(size: int) -> bytearray:
    now_ms = int(time.time() * 1000)
    return encode_batch([(now_ms, None, bytes(size), ())])


def fetch_request(topic: str, offset: int = 0, **fields: Any) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=50 << 20)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    return FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=50 << 20, topics=topics, **fields)


FETCH_BY_NAME = 12


def fetched_bytes(response: FetchResponse) -> int:
    return sum(
        len(partition.records or b"")
        for topic in response.responses
        for partition in topic.partitions
    )


# -- other people's clients, and ours


def produce_with_librdkafka(address: str, topic: str) -> float:
    throttled: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "client.id": "librdkafka",
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
            "queue.buffering.max.kbytes": 100_000,
            "message.max.bytes": 200_000,
        }
    )
    began = time.monotonic()
    for _ in range(TOTAL // len(VALUE)):
        producer.produce(topic, VALUE)
    assert producer.flush(scaled(30)) == 0
    assert max(throttled) > 0
    return time.monotonic() - began


def longest_throttle(client: kafka.KafkaProducer | kafka.KafkaConsumer) -> float:
    """The longest wait that a client of kafka-python was told, in milliseconds."""
    groups = client.metrics().values()
    return max(group["throttle-time-max"] for group in groups if "throttle-time-max" in group)


def produce_with_kafka_python(address: str, topic: str) -> float:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address, client_id="kafka-python", batch_size=100_000
    )
    began = time.monotonic()
    for _ in range(TOTAL // len(VALUE)):
        producer.send(topic, VALUE)
    producer.flush(scaled(30))
    taken_s = time.monotonic() - began
    assert longest_throttle(producer) > 0
    producer.close()
    return taken_s


def produce_with_headrace(address: str, topic: str) -> float:
    with headrace.Producer(bootstrap_servers=address, client_id="headrace") as producer:
        began = time.monotonic()
        for _ in range(TOTAL // len(VALUE)):
            producer.send(topic, VALUE)
        producer.flush()
        return time.monotonic() - began


@pytest.mark.parametrize(
    "produce", [produce_with_librdkafka, produce_with_kafka_python, produce_with_headrace]
)
def test_a_producer_is_held_to_its_quota_and_loses_nothing(
    limited: str, topic: str, produce: Callable[[str, str], float]
) -> None:
    create_topic(limited, topic)
    assert produce(limited, topic) >= LEAST_SECONDS
    with Wire(limited, client_id=f"count-{topic}") as wire:
        assert list_offset(wire, topic, LATEST) == TOTAL // len(VALUE)


def consume_with_librdkafka(address: str, topic: str) -> float:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "client.id": "librdkafka consumer", "group.id": topic}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    began = time.monotonic()
    for _ in range(TOTAL // len(VALUE)):
        message = consumer.poll(scaled(30))
        assert message is not None
        assert message.error() is None
    taken_s = time.monotonic() - began
    consumer.close()
    return taken_s


def consume_with_headrace(address: str, topic: str) -> float:
    with headrace.Consumer(
        bootstrap_servers=address, client_id="headrace consumer", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([headrace.TopicPartition(topic, 0)])
        began = time.monotonic()
        found, deadline = 0, Deadline(30)
        while found < TOTAL // len(VALUE):
            found += len(consumer.poll(1.0))
            assert not deadline.has_passed
        return time.monotonic() - began


def consume_with_kafka_python(address: str, topic: str) -> float:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, client_id="kafka-python consumer", auto_offset_reset="earliest"
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    began = time.monotonic()
    for _ in range(TOTAL // len(VALUE)):
        next(consumer)
    taken_s = time.monotonic() - began
    assert longest_throttle(consumer) > 0
    consumer.close()
    return taken_s


def test_consumers_are_held_to_their_quotas(limited: str, topic: str) -> None:
    create_topic(limited, topic)
    with Wire(limited, client_id="filler") as wire:
        set_quotas(limited, "client-id", "filler", producer_byte_rate=1e9)
        for _ in range(TOTAL // len(VALUE)):
            wire.ask(produce_request(topic, batch(len(VALUE))), PRODUCE_BY_NAME)
    jobs = (consume_with_librdkafka, consume_with_kafka_python, consume_with_headrace)
    with ThreadPoolExecutor() as threads:
        for taken in [threads.submit(job, limited, topic) for job in jobs]:
            assert taken.result() >= LEAST_SECONDS


# -- byte by byte


def test_the_answer_goes_out_at_once_and_the_next_request_waits(limited: str, topic: str) -> None:
    create_topic(limited, topic)
    with Wire(limited, client_id=topic) as wire:
        began = time.monotonic()
        wire.send(produce_request(topic, batch(RATE + RATE // 2)), PRODUCE_BY_NAME)
        wire.send(MetadataRequest(topics=[]))
        response = wire.receive()
        answered_s = time.monotonic() - began
        assert 400 <= response.throttle_time_ms <= 510
        wire.receive()
        assert time.monotonic() - began >= response.throttle_time_ms / 1000 - 0.05
        assert answered_s < scaled(0.4)


def test_a_fetch_above_the_quota_is_empty_and_its_session_goes_on(limited: str, topic: str) -> None:
    create_topic(limited, topic)
    with Wire(limited, client_id=topic) as first, Wire(limited, client_id=topic) as second:
        set_quotas(limited, "client-id", topic, producer_byte_rate=1e9, consumer_byte_rate=RATE)
        for _ in range(4):
            first.ask(produce_request(topic, batch(RATE)), PRODUCE_BY_NAME)
        opened = second.ask(fetch_request(topic, 10**9, session_epoch=0), FETCH_BY_NAME)
        assert opened.session_id
        whole = first.ask(fetch_request(topic, session_epoch=-1), FETCH_BY_NAME)
        # One batch is always given: it is larger than what was left.
        assert RATE <= fetched_bytes(whole) <= 2 * RATE
        first.send(fetch_request(topic, session_epoch=-1), FETCH_BY_NAME)
        again = first.receive()
        assert fetched_bytes(again) > 0
        again = second.ask(
            fetch_request(topic, session_id=opened.session_id, session_epoch=1), FETCH_BY_NAME
        )
        assert fetched_bytes(again) == 0
        assert again.error_code == 0
        assert again.session_id == opened.session_id
        assert again.throttle_time_ms > 0
        set_quotas(limited, "client-id", topic, consumer_byte_rate=1e9)
        epochs = iter(range(2, 100))
        deadline = Deadline(10)
        while not fetched_bytes(again):
            request = fetch_request(topic, session_id=opened.session_id, session_epoch=next(epochs))
            again = second.ask(request, FETCH_BY_NAME)
            assert again.error_code == 0
            assert not deadline.has_passed


def test_a_quota_that_is_raised_or_removed_ends_a_wait_within_a_second(
    limited: str, topic: str
) -> None:
    create_topic(limited, topic)
    for change in (1e9, None):
        set_quotas(limited, "user", "ANONYMOUS", producer_byte_rate=1.0)
        with Wire(limited, client_id=topic) as wire:
            response = wire.ask(produce_request(topic, batch(100_000)), PRODUCE_BY_NAME)
            assert response.throttle_time_ms > 60_000
            wire.send(MetadataRequest(topics=[]))
            began = time.monotonic()
            set_quotas(limited, "user", "ANONYMOUS", producer_byte_rate=change)
            wire.receive()
            assert time.monotonic() - began < scaled(1.0)
    set_quotas(limited, "user", "ANONYMOUS", producer_byte_rate=None)


def test_the_time_of_requests_is_limited(limited: str, topic: str) -> None:
    set_quotas(limited, "client-id", topic, request_percentage=0.01)
    with Wire(limited, client_id=topic) as wire:
        deadline = Deadline(30)
        while not wire.ask(MetadataRequest(topics=None)).throttle_time_ms:
            assert not deadline.has_passed
    set_quotas(limited, "client-id", topic, request_percentage=None)


def test_quotas_outlive_a_restart_and_defaults_of_the_broker_apply_below_them(
    tmp_path: Path,
) -> None:
    settings = {"quota.producer.default": "1000", "quota.consumer.default": "2000"}
    with BrokerProcess(tmp_path, settings) as broker:
        create_topic(broker.address, "orders")
        set_quotas(broker.address, "client-id", "batch", producer_byte_rate=1e9)
        broker.restart()
        with Wire(broker.address, client_id="batch") as wire:
            [entry] = wire.ask(DescribeClientQuotasRequest()).entries
            assert [(value.key, value.value) for value in entry.values] == [
                ("producer_byte_rate", 1e9)
            ]
            answer = wire.ask(produce_request("orders", batch(10_000)), PRODUCE_BY_NAME)
            assert answer.throttle_time_ms == 0
            answer = wire.ask(fetch_request("orders", session_epoch=-1), FETCH_BY_NAME)
            assert answer.throttle_time_ms > 2000
        with Wire(broker.address, client_id="another") as wire:
            answer = wire.ask(produce_request("orders", batch(10_000)), PRODUCE_BY_NAME)
            assert 8_000 < answer.throttle_time_ms < 10_000


# -- changes of topics


# From this version on clients know THROTTLING_QUOTA_EXCEEDED.
STRICT = 7


def create_request(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def test_changes_of_topics_are_limited_at_every_broker_of_a_cluster() -> None:
    with Cluster(brokers=2, config={"controller.quota.window.num": 1}) as cluster:
        first, second = (cluster.broker(number).bootstrap_servers for number in (1, 2))
        for number, address in enumerate((first, second)):
            maker = f"maker-{number}"
            set_quotas(first, "client-id", maker, controller_mutation_rate=0.1)
            with Wire(address, client_id=maker) as wire:
                answer = wire.ask(create_request(f"topic-{number}", 6), STRICT)
                assert answer.topics[0].error_code == 0
                assert answer.throttle_time_ms == 0
                answer = wire.ask(create_request(f"refused-{number}", 1), STRICT)
                assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
                assert answer.throttle_time_ms > 10_000
                # Whichever broker the connection is to: it is not read until the quota is raised.
                wire.send(create_request(f"old-{number}", 1), STRICT - 2)
                assert not wire.closed_within(0.2)
                set_quotas(first, "client-id", maker, controller_mutation_rate=100)
                assert wire.receive().topics[0].error_code == 0
        set_quotas(first, "client-id", "maker", controller_mutation_rate=0.1)
        # Older versions do not know the error: what they ask is done, and waited for afterwards.
        with Wire(second, client_id="maker") as wire:
            answer = wire.ask(create_request("first-old", 6), STRICT - 2)
            assert answer.topics[0].error_code == 0
            assert answer.throttle_time_ms > 10_000
        with Wire(first, client_id="other") as wire:
            assert wire.ask(create_request("free", 6), STRICT).topics[0].error_code == 0


# -- one noisy client, and many bad ones


def test_ten_clients_keep_their_rate_beside_one_at_fifty_times_its_quota(
    limited: str, topic: str
) -> None:
    create_topic(limited, topic)
    quota, seconds = 200_000, 5.0
    set_quotas(limited, "client-id", "noisy", producer_byte_rate=quota)
    end = time.monotonic() + seconds

    def noisy() -> int:
        """Send as fast as the socket takes it, whatever the answers say."""
        accepted = 0
        request, size = produce_request(topic, batch(20_000)), 20_000
        with Wire(limited, client_id="noisy") as wire:
            while time.monotonic() < end:
                wire.send(request, PRODUCE_BY_NAME)
                if wire.receive().responses[0].partition_responses[0].error_code == 0:
                    accepted += size
        return accepted

    def polite(number: int) -> tuple[float, int]:
        """Send twenty requests a second; how late the last answer is, and the waits asked for."""
        throttled = 0
        with Wire(limited, client_id=f"polite-{number}") as wire:
            due = time.monotonic()
            for _ in range(int(seconds / 0.05)):
                time.sleep(max(due - time.monotonic(), 0))
                answer = wire.ask(produce_request(topic, batch(1000)), PRODUCE_BY_NAME)
                throttled += answer.throttle_time_ms > 0
                due += 0.05
        return time.monotonic() - due, throttled

    with ThreadPoolExecutor(11) as threads:
        loud = threads.submit(noisy)
        quiet = [threads.submit(polite, number) for number in range(10)]
        for late_s, throttled in [done.result() for done in quiet]:
            assert late_s < scaled(0.5)
            assert throttled == 0
        # A second of credit at its start, and the request that is in flight at the end.
        assert loud.result() <= quota * (seconds + 1) + 20_000
        assert loud.result() >= quota * seconds * 0.9


def test_a_thousand_bad_connections_cost_little_and_a_good_one_is_served(
    tmp_path: Path,
) -> None:
    settings = {
        "request.receive.timeout.ms": "1000",
        "connections.first.request.timeout.ms": "1000",
        "max.connections.per.ip.overrides": "127.0.0.1:1100",
    }
    with BrokerProcess(tmp_path, settings) as broker:
        create_topic(broker.address, "orders")
        before = resident_bytes(broker.pid)
        with ExitStack() as stack:
            good = stack.enter_context(Wire(broker.address))
            bad = []
            for number in range(1000):
                wire = stack.enter_context(Wire(broker.address))
                # A length and no more, a length that is a lie, garbage, or nothing at all.
                wire.send_bytes(
                    ((1000).to_bytes(4, "big"), (90 << 20).to_bytes(4, "big") + b"\0", b"GET / H")[
                        number % 3
                    ]
                    if number % 4
                    else b""
                )
                bad.append(wire)
                if number % 50 == 0:
                    assert good.ask(produce_request("orders", batch(100)), PRODUCE_BY_NAME)
            assert resident_bytes(broker.pid) - before < 64 * 1024 * 1024
            deadline = Deadline(40)
            while any(not wire.closed_within(0.001) for wire in bad[::7]):
                assert good.ask(produce_request("orders", batch(100)), PRODUCE_BY_NAME)
                assert not deadline.has_passed
                time.sleep(0.05)


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_an_address_above_its_rate_of_connections_is_closed_and_comes_in_later(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        set_quotas(broker.address, "ip", "127.0.0.1", connection_creation_rate=5)

        def is_served() -> bool:
            with Wire(broker.address) as wire:
                try:
                    wire.ask(MetadataRequest(topics=[]))
                except (AssertionError, OSError):
                    return False
                return True

        with ThreadPoolExecutor(20) as threads:
            served = [threads.submit(is_served) for _ in range(20)]
            assert 5 <= sum(done.result() for done in served) <= 15
        deadline = Deadline(20)
        while not is_served():
            assert not deadline.has_passed
        assert "connection_creation_rate of the address is reached" in broker.log_text
