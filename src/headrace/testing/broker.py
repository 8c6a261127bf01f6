"""The broker of a test: start, stop, and faults."""

import atexit
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.config import broker_config
from headrace.config.monitoring import ADDRESS_FILE
from headrace.errors import ConfigError
from headrace.net.addresses import Address
from headrace.net.ports import HeldPort
from headrace.testing.access import access_to_brokers
from headrace.testing.broker_requests import create_topic
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.network import LinkConditions, Proxy
from headrace.testing.ports import HOST, BrokerError, PortTaken, hold_port

if TYPE_CHECKING:
    from headrace.testing.broker_runners import BrokerThread

_STOP_TIMEOUT_S = 30.0
_TOPIC_TIMEOUT_S = 30.0
_PORT_ATTEMPTS = 5

# A test should not wait for members that do not come, or for fifty partitions to be opened. And its
# records may have timestamps of years ago: whether they still exist must not depend on how long the
# broker has been running, so it checks retention only after a day.
DEFAULTS = {
    "log.format": "text",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "86400000",
    # Many brokers of tests leave their data behind.
    "log.dir.reserved.bytes": "1048576",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # A test does not wait for ten seconds until a transaction times out.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}

Value = str | int | float | bool
"""A setting's value in Python; the broker gets Kafka's text form of it."""


class Startable(ABC):
    """A broker or cluster that a `with` statement starts and closes."""

    @abstractmethod
    def start(self) -> Self:
        """Start it and return when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop it and remove its files."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Pausable(ABC):
    """A broker whose process can be frozen."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it was started and has not ended; a paused broker counts as running."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze its process by SIGSTOP: connections stay open and nothing is answered."""

    @abstractmethod
    def resume(self) -> None:
        """Resume a paused broker."""

    @contextmanager
    def paused(self) -> Iterator[Self]:
        """Pause it for the length of a `with` statement."""
        self.pause()
        try:
            yield self
        finally:
            if self.is_running:
                self.resume()


def read_admin_url(data_dir: Path) -> str:
    """The URL of the admin listener of a running broker, from its data directory."""
    try:
        return (data_dir / ADDRESS_FILE).read_text().strip()
    except FileNotFoundError:
        raise BrokerError(
            "the broker has no admin listener; give it config={'admin.listener': '127.0.0.1:0'}"
        ) from None


class Broker(Startable, Pausable):
    """A real broker for tests, usable by any Kafka client.

    >>> with Broker() as broker:
    ...     topic = broker.create_topic("orders", partitions=3)
    ...     broker.is_running, topic
    (True, 'orders')

    It listens on a free port of 127.0.0.1 and keeps its data in a new directory. Port and data stay
    the same through `restart()`, and through `kill()` and `start()`. Leaving the `with` statement,
    or `close()`, stops it and removes the directory; so does the end of this process, whatever ends
    it.

    `in_process=True` runs it on a thread of this process instead of one of its own: it starts in
    milliseconds and can be debugged, but it cannot be killed or paused. `config` has broker
    settings under Kafka's names. A `data_dir` that is given is kept afterwards. `proxied=True` puts
    a proxy before the broker, for `slow()` and `cut()`.

    `security=True` has its listener speak SASL_SSL and enforces ACLs. Clients connect with
    `client_options` or `client_config`, as a user who may do everything.
    """

    def __init__(
        self,
        *,
        in_process: bool = False,
        config: Mapping[str, Value] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        proxied: bool = False,
        security: bool = False,
        start_timeout_s: float = 10.0,
    ) -> None:
        self._config = {name: text_of(value) for name, value in (config or {}).items()}
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._access = access_to_brokers(secured=security)
        self._check_config(proxied)
        self._start_timeout_s = start_timeout_s
        self._proxied = proxied
        self._proxy: Proxy | None = None
        self._temporary: Path | None = None
        self._asked_port = port
        self._port = 0  # The port for clients: the proxy's if there is one.
        self._broker_port = 0
        self._held_port: HeldPort | None = None
        self._log = BrokerLog()
        self._topic_numbers = count(1)
        self._process = None if in_process else BrokerProcess(self._log, _STOP_TIMEOUT_S)
        self._thread = _new_thread(self._log) if in_process else None

    def __repr__(self) -> str:
        kind = "in-process " if self._thread else ""
        where = f" on {self.bootstrap_servers}" if self._port else ""
        return f"<{kind}Broker{where}, {'running' if self.is_running else 'not running'}>"

    # -- properties

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as `127.0.0.1:PORT`."""
        return f"{self.host}:{self.port}"

    @property
    def client_options(self) -> dict[str, Any]:
        """The keyword arguments by which headrace's clients connect, as the user `admin`."""
        return self._access.client_options(self.bootstrap_servers)

    @property
    def client_config(self) -> dict[str, str]:
        """The same under the names of librdkafka, which confluent-kafka takes."""
        return self._access.client_config(self.bootstrap_servers)

    @property
    def host(self) -> str:
        return HOST

    @property
    def port(self) -> int:
        """The port for clients; it stays the same until `close()`."""
        if not self._port:
            raise BrokerError("the broker has no port before it is started; call start() first")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the broker; in-process, that of this process."""
        return self._runner.pid

    @property
    def data_dir(self) -> Path:
        """The directory of its data."""
        given = self._config.get("log.dirs") or self._config.get("log.dir")
        directory = self._data_dir or self._temporary
        if given:
            return Path(given.partition(",")[0])
        if directory is None:
            raise BrokerError("the broker has no data before it is started; call start() first")
        return directory

    @property
    def admin_url(self) -> str:
        """The URL of its admin listener, where its config has `admin.listener`."""
        return read_admin_url(self.data_dir)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended; a paused broker counts as running."""
        return self._runner.is_running

    @property
    def log(self) -> str:
        """The output of the broker, through all its restarts.

        In-process it is the log of its thread, as far as the levels of `logging` allow.
        """
        return self._log.text

    def clear_log(self) -> None:
        """Clear the recorded output."""
        self._log.clear()

    # -- start and stop

    def start(self) -> Self:
        """Start it and return when it is ready; else BrokerError, with its log.

        A broker that was stopped or killed restarts on the same port with its data.
        """
        if self.is_running:
            raise BrokerError("the broker is running already; restart() stops and starts it")
        if self._data_dir is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="headrace-"))
        atexit.register(self._at_exit)
        started = False
        try:
            self._start()
            started = True
        finally:
            if not started and not self._port:
                self.close()
        return self

    def stop(self) -> None:
        """Stop it cleanly, and keep its port and data. Does nothing if it is not running."""
        self._runner.stop()

    def restart(self) -> Self:
        """Stop it cleanly if it runs, and start it again on the same port with its data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop it and release its port; temporary data are removed."""
        try:
            self.stop()
        finally:
            if self._proxy is not None:
                self._proxy.close()
                self._proxy = None
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None
            self._port = self._broker_port = 0
            self._release_port()
            atexit.unregister(self._at_exit)

    def create_topic(self, name: str | None = None, partitions: int = 1, **configs: Value) -> str:
        """Create a topic and return its name, a new one by default.

        Settings are given under Kafka's names with underscores: `retention_ms=60_000`. KafkaError
        has the reason if the topic cannot be created, also if it exists already.
        """
        if not self.is_running:
            raise BrokerError(
                f"the broker is not running; its log ends with:\n{self._log.tail(20)}"
            )
        name = name or f"topic-{next(self._topic_numbers)}"
        dotted = {key.replace("_", "."): text_of(value) for key, value in configs.items()}
        address, security = Address(HOST, self._broker_port), self._access.client_security()
        create_topic(address, name, partitions, dotted, _TOPIC_TIMEOUT_S, security=security)
        return name

    # -- faults

    def kill(self) -> None:
        """End its process by SIGKILL, like a crash. `start()` restarts it."""
        self._needs_process("kill").kill()

    def pause(self) -> None:
        """Freeze its process by SIGSTOP: connections stay open and nothing is answered."""
        self._needs_process("pause").pause()

    def resume(self) -> None:
        """Resume a paused broker."""
        self._needs_process("resume").resume()

    def slow(self, *, latency_ms: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Delay every response by `latency_ms`, and limit the rate of each connection.

        `bytes_per_s` applies to each connection and direction; None is no limit. It applies to open
        connections and new ones until the next `slow()` or `heal()`, and needs `proxied=True`.
        """
        if latency_ms < 0:
            raise ValueError(f"latency_ms={latency_ms!r} is below 0")
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s={bytes_per_s!r} is not above 0; cut() stops everything")
        self._needs_proxy("slow").slow(LinkConditions(latency_ms / 1000, bytes_per_s))

    @contextmanager
    def slowed(
        self, *, latency_ms: float = 0.0, bytes_per_s: float | None = None
    ) -> Iterator[Self]:
        """Slow it for the length of a `with` statement."""
        self.slow(latency_ms=latency_ms, bytes_per_s=bytes_per_s)
        try:
            yield self
        finally:
            self.slow()

    def cut(self) -> None:
        """Drop every connection and refuse new ones until `heal()`, while the broker keeps running.

        Needs `proxied=True`.
        """
        self._needs_proxy("cut").cut()

    @contextmanager
    def cut_off(self) -> Iterator[Self]:
        """Cut it off for the length of a `with` statement."""
        self.cut()
        try:
            yield self
        finally:
            self.heal()

    def heal(self) -> None:
        """Undo `slow()` and `cut()`."""
        self._needs_proxy("heal").heal()

    # -- implementation

    @property
    def _runner(self) -> "BrokerProcess | BrokerThread":
        runner = self._process or self._thread
        assert runner is not None
        return runner

    def _check_config(self, proxied: bool) -> None:
        config = self._config
        if "listeners" in config:
            raise ConfigError(
                "a broker of headrace.testing listens on 127.0.0.1; give its port=..."
            )
        if proxied and "advertised.listeners" in config:
            raise ConfigError("advertised.listeners is the proxy's address when proxied=True")
        directory = str(self._data_dir or "")
        if directory and ("log.dirs" in config or "log.dir" in config):
            raise ConfigError("data_dir=... and the setting log.dirs say the same thing; give one")
        if "," in directory:
            raise ConfigError(f"data_dir is one directory, and {directory!r} has a comma in it")
        broker_config(config)

    def _start(self) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            try:
                self._start_on_port()
                return
            except PortTaken:
                # Only a port that was never published may be replaced by another one.
                known = self._port and not self._proxied
                if known or self._asked_port or attempt == _PORT_ATTEMPTS - 1:
                    raise
                self._broker_port = 0

    def _start_on_port(self) -> None:
        if not self._broker_port:
            self._broker_port = (not self._proxied and self._asked_port) or self._new_port()
        target = Address(HOST, self._broker_port)
        if self._proxied and self._proxy is None:
            self._proxy = Proxy(target, self._asked_port)
        if self._proxy is not None:
            self._proxy.target = target
        port = self._proxy.address.port if self._proxy else self._broker_port
        properties = self._properties(port)
        if self._process is not None:
            self._process.start(properties, self._temporary, self._start_timeout_s)
        elif self._thread is not None:
            self._thread.start(properties, self._start_timeout_s)
        self._port = port

    def _new_port(self) -> int:
        self._release_port()
        self._held_port = hold_port()
        return self._held_port.number

    def _release_port(self) -> None:
        if self._held_port is not None:
            self._held_port.release()
            self._held_port = None

    def _properties(self, port: int) -> dict[str, str]:
        listener = self._access.listener
        properties = DEFAULTS | {"listeners": f"{listener}://{HOST}:{self._broker_port}"}
        properties |= self._access.broker_properties()
        if self._proxied:
            properties["advertised.listeners"] = f"{listener}://{HOST}:{port}"
        if not ("log.dirs" in self._config or "log.dir" in self._config):
            properties["log.dirs"] = str(self.data_dir)
        return properties | self._config

    def _needs_process(self, fault: str) -> BrokerProcess:
        if self._process is None:
            raise BrokerError(
                f"{fault}() needs a broker with a process of its own, and this one is in_process"
            )
        return self._process

    def _needs_proxy(self, fault: str) -> Proxy:
        if not self._proxied:
            raise BrokerError(f"{fault}() goes through a proxy; make the broker with proxied=True")
        if self._proxy is None:
            raise BrokerError(f"{fault}() needs a broker that was started; call start() first")
        return self._proxy

    def _at_exit(self) -> None:
        """Remove everything at the end of this process, if `close()` was not called."""
        if self._process is not None and self._process.is_running:
            self._process.kill()
        # A broker on a thread cannot stop cleanly any more: its worker threads have ended already.
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _new_thread(log: BrokerLog) -> "BrokerThread":
    # It imports the broker, which a test with a child process need not wait for.
    from headrace.testing.broker_runners import BrokerThread  # noqa: PLC0415

    return BrokerThread(log, _STOP_TIMEOUT_S)


def text_of(value: Value) -> str:
    """The value of a setting in Kafka's text form."""
    return str(value).lower() if isinstance(value, bool) else str(value)
