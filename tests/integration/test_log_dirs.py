"""Replicas that move between the data directories of a broker, while clients use them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from headrace import Admin, Consumer, Producer, TopicPartition
from headrace.client.admin.cluster import FutureReplica
from headrace.errors import ErrorCode, HeadraceError
from headrace.testing.time_limits import wait_until
from tests.support import BrokerProcess

WAIT_S = 120.0
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("disks")
    return [str(path / name) for name in ("one", "two", "three")]


@pytest.fixture(scope="module")
def broker(
    directories: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    settings = {"log.dirs": ",".join(directories)}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address) as admin:
        yield admin
        admin.alter_configs({THROTTLE: None}, broker=1)


def until(condition: Callable[[], bool], broker: BrokerProcess | None = None) -> None:
    """Wait for a condition; a failure shows what the broker has said."""
    wait_until(
        condition, WAIT_S, lambda: broker.log_text[-5000:] if broker else "the condition is false"
    )


def throttle(admin: Admin, rate: int) -> None:
    """Set the rate of moves, and wait until the broker keeps to it."""
    admin.alter_configs({THROTTLE: rate}, broker=1)
    until(lambda: admin.describe_configs(broker=1)[THROTTLE].value == str(rate))


def home_of(admin: Admin, tp: TopicPartition) -> str:
    [path] = [
        directory.path for directory in admin.describe_log_dirs([1])[1] if tp in directory.replicas
    ]
    return path


def futures_of(admin: Admin, tp: TopicPartition) -> dict[str, FutureReplica]:
    return {
        directory.path: directory.future_replicas[tp]
        for directory in admin.describe_log_dirs([1])[1]
        if tp in directory.future_replicas
    }


def other(directories: list[str], *paths: str) -> str:
    return next(path for path in directories if path not in paths)


def code_of(call: Callable[[], None]) -> ErrorCode:
    with pytest.raises(HeadraceError) as caught:
        call()
    [error] = caught.value.errors.values()  # type: ignore[attr-defined]
    code: ErrorCode = error.code
    return code


@contextmanager
def producing(address: str, tp: TopicPartition) -> Iterator[list[int]]:
    """Numbers that a producer has been acknowledged, in order, while the block runs."""
    sent: list[int] = []
    stopping = Event()

    def run() -> None:
        with Producer(bootstrap_servers=address, acks="all", linger_ms=0) as producer:
            while not stopping.is_set():
                number = len(sent)
                producer.send(tp.topic, b"%d" % number, partition=tp.partition).result()
                sent.append(number)

    thread = Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        thread.join()


def values_of(address: str, tp: TopicPartition, count: int) -> list[int]:
    values: list[int] = []
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        until(lambda: _take(consumer, values) >= count)
    return values


def _take(consumer: Consumer, values: list[int]) -> int:
    values += [int(record.value or b"-1") for record in consumer.poll(0.1)]
    return len(values)


def test_a_replica_moves_while_it_is_written_and_read(
    broker: BrokerProcess, admin: Admin, directories: list[str], topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    admin.create_topic(topic)
    with producing(broker.address, tp) as sent:
        until(lambda: len(sent) > 300)
        # Slow enough for the copy to be behind whenever it is looked at, on any machine.
        throttle(admin, 500)
        source = home_of(admin, tp)
        target = other(directories, source)
        admin.alter_replica_log_dirs(1, {tp: target})
        assert list(futures_of(admin, tp)) == [target]
        until(lambda: futures_of(admin, tp)[target].size > 0)
        assert futures_of(admin, tp)[target].offset_lag > 0
        assert home_of(admin, tp) == source
        admin.alter_configs({THROTTLE: None}, broker=1)
        until(lambda: home_of(admin, tp) == target)
        after = len(sent)
        until(lambda: len(sent) > after + 100)
    assert futures_of(admin, tp) == {}
    assert values_of(broker.address, tp, len(sent)) == list(range(len(sent)))
    names = [entry.name for entry in Path(target).iterdir()]
    assert f"{topic}-0" in names
    assert not [name for name in names if name.endswith("-future")]


def test_a_move_is_replaced_cancelled_and_goes_on_after_a_restart(
    broker: BrokerProcess, admin: Admin, directories: list[str], topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    admin.create_topic(topic)
    with Producer(bootstrap_servers=broker.address) as producer:
        for number in range(200):
            producer.send(topic, b"%d" % number, partition=0)
            if number % 50 == 0:
                producer.flush()  # A piece is one batch at least, and must not be all of them.
    source = home_of(admin, tp)
    first = other(directories, source)
    second = other(directories, source, first)
    throttle(admin, 1)
    admin.alter_replica_log_dirs(1, {tp: first})
    admin.alter_replica_log_dirs(1, {tp: second})
    assert list(futures_of(admin, tp)) == [second]
    admin.alter_replica_log_dirs(1, {tp: source})
    assert futures_of(admin, tp) == {}
    admin.alter_replica_log_dirs(1, {tp: first})
    broker.kill()
    broker.start()
    assert home_of(admin, tp) == source
    admin.alter_configs({THROTTLE: None}, broker=1)
    until(lambda: home_of(admin, tp) == first, broker)
    assert values_of(broker.address, tp, 200) == list(range(200))


def test_errors_are_those_of_kafka_and_a_replica_is_made_where_it_was_asked_for(
    admin: Admin, directories: list[str], topic: str
) -> None:
    tp = TopicPartition(topic, 0)

    def move(path: str) -> Callable[[], None]:
        return lambda: admin.alter_replica_log_dirs(1, {tp: path})

    assert code_of(move("/nowhere")) is ErrorCode.LOG_DIR_NOT_FOUND
    for path in (*directories, directories[1]):
        assert code_of(move(path)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    admin.create_topic(topic)
    assert home_of(admin, tp) == directories[1]
    assert code_of(move("/nowhere")) is ErrorCode.LOG_DIR_NOT_FOUND


def test_a_deleted_topic_takes_its_future_log_along(
    admin: Admin, directories: list[str], topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    admin.create_topic(topic)
    throttle(admin, 1)
    target = other(directories, home_of(admin, tp))
    admin.alter_replica_log_dirs(1, {tp: target})
    admin.delete_topic(topic)
    until(
        lambda: not any(tp in directory.replicas for directory in admin.describe_log_dirs([1])[1])
    )
    assert futures_of(admin, tp) == {}
    left = [
        entry.name
        for path in directories
        for entry in Path(path).iterdir()
        if entry.name.startswith(f"{topic}-0") and not entry.name.endswith("-delete")
    ]
    assert left == []
