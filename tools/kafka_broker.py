"""A broker of Apache Kafka for comparisons: its jars, fetched once with Maven, and a process.

`python -m tools.kafka_broker` runs one until it is interrupted.
"""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import headrace
from headrace.pipelines.java import java_home
from headrace.testing.ports import hold_port

VERSION = "4.3.1"
DIRECTORY = Path(__file__).parent.parent / "build" / "kafka-broker"
_FETCH_S_MAX = 300
_START_S_MAX = 60
_STOP_S_MAX = 20

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>kafka-broker</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-shell</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

# A small program that ends soon is not worth the work of an optimising compiler.
_QUICK_JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class KafkaMissing(Exception):
    """Apache Kafka is not installed and cannot be fetched; the text says why."""


def kafka_jars(directory: Path = DIRECTORY) -> Path:
    """The directory with the jars of a broker and of Kafka's commands, fetched if missing."""
    jars = directory / VERSION
    if not (jars / f"kafka-shell-{VERSION}.jar").is_file():
        if shutil.which("mvn") is None:
            raise KafkaMissing(
                "Apache Kafka is fetched with Maven, which is not installed:"
                " sudo apt-get install -y maven"
            )
        _fetch(jars)
    return jars


def _fetch(jars: Path) -> None:
    """Fetch the jars, atomically, so that an interrupted fetch leaves none."""
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as unfinished:
        pom = Path(unfinished, "pom.xml")
        pom.write_text(_POM)
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={unfinished}/jars"],
                capture_output=True,
                text=True,
                timeout=_FETCH_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KafkaMissing(f"Maven did not fetch Kafka in {_FETCH_S_MAX} s") from None
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise KafkaMissing(f"Maven cannot fetch Kafka: {lines[0] if lines else 'no word'}")
        shutil.rmtree(jars, ignore_errors=True)
        Path(unfinished, "jars").rename(jars)


def server_properties(
    directory: Path,
    port: int,
    controller_port: int,
    listeners: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The settings of a broker that is its own controller, with a listener for each role.

    `listeners` are the addresses of further listeners of the broker, by name.
    """
    more = "".join(f",{name}://{address}" for name, address in (listeners or {}).items())
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}{more}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}{more}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{directory}/data",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
    }


class KafkaBroker:
    """One broker of Apache Kafka that is its own controller, with its own data.

    Transactions are of version 2, as in any new cluster, unless `transaction_version` is another.
    `settings` are added to those of `server_properties`, or replace them; `listeners` are further
    listeners; `java_options` are of its Java.
    """

    def __init__(
        self,
        directory: Path,
        *,
        transaction_version: int = 2,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        self._listeners = listeners
        self._java_options = java_options
        self._transaction_version = transaction_version
        self._process: subprocess.Popen[bytes] | None = None
        self._topics = 0
        self._held_ports = hold_port(), hold_port()
        self._port, self._controller_port = (held_port.number for held_port in self._held_ports)
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self.bootstrap_controllers = f"127.0.0.1:{self._controller_port}"

    @property
    def data(self) -> Path:
        """The directory of its logs."""
        return self._directory / "data"

    @property
    def pid(self) -> int:
        """The number of its process; it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """The output of the broker."""
        return self._directory / "kafka.log"

    def start(self) -> None:
        """Start it, with its earlier data if there are any, and return when it answers."""
        properties = self._directory / "server.properties"
        if not properties.exists():
            settings = server_properties(
                self._directory, self._port, self._controller_port, self._listeners
            )
            settings |= self._settings
            properties.write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
            self._format(properties)
        with self.log.open("ab") as log:
            options = ["-Xmx512m", *self._java_options, "-cp", f"{kafka_jars()}/*"]
            self._process = subprocess.Popen(
                [java(), *options, "kafka.Kafka", str(properties)],
                stdout=log,
                stderr=log,
            )
        self._wait()

    def create_topic(self, name: str | None = None, *, partitions: int = 1) -> str:
        """Create a topic, and return its name, by default a generated one."""
        self._topics += 1
        name = name or f"topic-{self._topics}"
        with headrace.Admin(bootstrap_servers=self.bootstrap_servers) as admin:
            admin.create_topic(name, partitions=partitions)
            # The broker learns of the topic from its controller a moment after the response.
            deadline = time.monotonic() + _START_S_MAX
            while name not in admin.list_topics():
                assert time.monotonic() < deadline, f"no topic {name}"
        return name

    def stop(self) -> None:
        """Stop it cleanly, or by force if it does not end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S_MAX)
            self.kill()

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _format(self, properties: Path) -> None:
        arguments = ["format", "-t", "headraceheadraceheadra", "-c", str(properties)]
        arguments += ["--feature", f"transaction.version={self._transaction_version}"]
        done = subprocess.run(
            java_command("kafka.tools.StorageTool", *arguments), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S_MAX
        while True:
            assert self._process.poll() is None, self.log.read_text()
            try:
                with headrace.Admin(
                    bootstrap_servers=self.bootstrap_servers, request_timeout_ms=1000
                ) as admin:
                    admin.list_topics()
                return
            except headrace.HeadraceError:
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.2)


def java() -> str:
    """The program that runs Java."""
    home = java_home()
    return "java" if home is None else f"{home}/bin/java"


def java_command(main: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's commands, by its main class."""
    return [java(), *_QUICK_JAVA, "-cp", f"{kafka_jars()}/*", main, *arguments]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, KafkaBroker(Path(place)) as broker:
        print(f"Apache Kafka {VERSION} answers at {broker.bootstrap_servers}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            signal.pause()
