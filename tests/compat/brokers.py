"""A broker of Apache Kafka and one of ours, started with the same settings and asked the same."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.ports import hold_port
from tests.compat.apache import apache_kafka
from tests.compat.differences import Difference, differing, without
from tools.kafka_broker import server_properties

Asked = TypeVar("Asked")

_START_S_MAX = 60.0
_STOP_S_MAX = 30.0
SNAPSHOT_BYTES = 20_000

# Share groups work on one broker, and a large record brings a snapshot of the metadata.
_SETTINGS = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
}


class Node(NamedTuple):
    """A running broker: its addresses, and its directories, of which the first has the metadata."""

    server: str
    controller: str
    directories: tuple[Path, Path]

    @property
    def home(self) -> Path:
        """A directory that is the test's own."""
        return self.directories[0].parent


class Both(NamedTuple):
    """A thing of Kafka's broker and the same of ours."""

    kafka: str
    headrace: str


@contextmanager
def both_brokers(directory: Path) -> Iterator[tuple[Node, Node]]:
    """Kafka's broker and ours."""
    with _kafka(directory / "kafka") as kafka, _headrace(directory / "headrace") as ours:
        yield kafka, ours


def ask_both(
    ask: Callable[[Asked], Mapping[str, str]], brokers: tuple[Asked, Asked]
) -> dict[str, Both]:
    """Have a function ask both brokers at the same time; its answers, side by side."""
    with ThreadPoolExecutor(2) as pool:
        kafka, ours = pool.map(ask, brokers)
    return {name: Both(kafka[name], ours[name]) for name in kafka}


def check(name: str, answers: Both, differences: tuple[Difference, ...]) -> None:
    """Require that answers differ in what is listed, and in nothing else."""
    print(f"-- Kafka\n{answers.kafka}\n-- headrace\n{answers.headrace}")
    for difference in differences:
        print(f"{name} differs: {difference.reason}")
        kafka, ours = (differing(difference, answer) for answer in answers)
        assert kafka != ours, f"no difference any more; take it off the list: {difference.reason}"
    kafka, ours = (without(differences, answer) for answer in answers)
    assert ours == kafka


@contextmanager
def _kafka(directory: Path) -> Iterator[Node]:
    directories = directory / "data", directory / "more"
    with apache_kafka(directory, settings=_settings(directories)) as kafka:
        yield Node(kafka.bootstrap_servers, kafka.bootstrap_controllers, directories)


@contextmanager
def _headrace(directory: Path) -> Iterator[Node]:
    directories = directory / "data", directory / "more"
    directory.mkdir()
    held = hold_port(), hold_port()
    port, controller_port = (each.number for each in held)
    log = BrokerLog()
    process = BrokerProcess(log, _STOP_S_MAX)
    properties = server_properties(directory, port, controller_port) | _settings(directories)
    process.start(properties, None, _START_S_MAX)
    try:
        server, controller = f"127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
        yield Node(server, controller, directories)
        process.stop()
    finally:
        if process.is_running:
            process.kill()
        assert "Traceback (most recent call last)" not in log.text, log.text
        print(log.text)


def _settings(directories: tuple[Path, Path]) -> dict[str, str]:
    return _SETTINGS | {"log.dirs": ",".join(str(each) for each in directories)}
