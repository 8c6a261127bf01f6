"""The cluster of a test: real brokers that replicate, and faults of brokers and network."""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from headrace.cli.supervisor import ASSIGNED, REPLICAS_MAX, cluster_defaults, voter_count
from headrace.config import broker_config
from headrace.errors import ConfigError
from headrace.net.addresses import Address
from headrace.net.ports import HeldPort
from headrace.protocol.messages import describe_quorum as quorum
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.schema import Message
from headrace.testing.access import access_to_brokers
from headrace.testing.broker import (
    DEFAULTS,
    Pausable,
    Startable,
    Value,
    read_admin_url,
    text_of,
)
from headrace.testing.broker_requests import (
    NOBODY,
    PartitionView,
    ask_all,
    create_topic,
    quorum_leader,
    topic_view,
)
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.network import CLIENTS, LinkConditions, Network
from headrace.testing.ports import HOST, BrokerError, PortTaken, hold_port
from headrace.testing.time_limits import Deadline, scaled

STOP_TIMEOUT_S = 30.0


class ClusterBroker(Pausable):
    """A broker with its own process. Its ports and its data stay through all restarts."""

    def __init__(
        self,
        node_id: int,
        *,
        address: Address,
        listens_on: Address,
        data_dir: Path,
        remove: Path | None,
        start_timeout_s: float,
        properties: Callable[["ClusterBroker"], Mapping[str, str]],
        log: BrokerLog,
        prefix: Sequence[str] = (),
    ) -> None:
        self.node_id = node_id
        self.host, self.port = address
        self.listens_on = listens_on
        """The broker's own address: behind the network, if there is one."""
        self.data_dir = data_dir
        self.is_paused = False
        self.is_reachable = True
        """Whether no fault is between it and clients."""
        self._remove = remove
        self._start_timeout_s = start_timeout_s
        self._properties = properties
        self._log = log
        self._process = BrokerProcess(self._log, STOP_TIMEOUT_S, prefix)

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "running" if self.is_running else "not running"
        return f"<broker {self.node_id} on {self.bootstrap_servers}, {state}>"

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as `127.0.0.1:PORT`."""
        return str(Address(self.host, self.port))

    @property
    def admin_url(self) -> str:
        """The URL of its admin listener, where its config has `admin.listener`."""
        return read_admin_url(self.data_dir)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended; a paused broker counts as running."""
        return self._process.is_running

    @property
    def answers(self) -> bool:
        """Whether it can respond to requests."""
        return self.is_running and self.is_reachable and not self.is_paused

    @property
    def log(self) -> str:
        """The output of the broker, through all its restarts."""
        return self._log.text

    def clear_log(self) -> None:
        """Clear the recorded output."""
        self._log.clear()

    def start(self) -> Self:
        """Start it and return when it is ready, which takes a majority of the controllers."""
        self.launch()
        self.wait_until_ready(self._start_timeout_s)
        return self

    def launch(self) -> None:
        """Start its process without waiting; `wait_until_ready` must follow."""
        if self.is_running:
            raise BrokerError(f"broker {self.node_id} is running already")
        self.is_paused = False
        self._process.launch(self._properties(self), self._remove)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when it has reported to be ready; BrokerError, with its log, if it does not."""
        self._process.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """Stop it cleanly: its partitions get other leaders first."""
        self.request_stop()
        self.wait_until_stopped()

    def request_stop(self) -> None:
        """Tell it to stop; `wait_until_stopped` must follow."""
        self.is_paused = False
        self._process.request_stop()

    def wait_until_stopped(self) -> None:
        """Return when it has ended; BrokerError if it did not end cleanly."""
        self._process.wait_until_stopped()

    def restart(self) -> Self:
        """Stop it cleanly if it runs, and start it again."""
        self.stop()
        return self.start()

    def kill(self) -> None:
        """End its process by SIGKILL, as a crash would. `start()` brings it back."""
        self._process.kill()
        self.is_paused = False

    def pause(self) -> None:
        """Freeze its process by SIGSTOP: connections stay open and nothing is answered."""
        self._process.pause()
        self.is_paused = True

    def resume(self) -> None:
        """Resume a paused broker."""
        self._process.resume()
        self.is_paused = False

    def wipe(self) -> None:
        """Empty its data directory, like a replaced disk. It must not be running."""
        if self.is_running:
            raise BrokerError(f"broker {self.node_id} is running; stop() or kill() it first")
        shutil.rmtree(self.data_dir, ignore_errors=True)


Found = TypeVar("Found")

_TOPIC_TIMEOUT_S = 30.0
_ASK_S = 2.0
_PAUSE_S = 0.02
_PORT_ATTEMPTS = 5
_METADATA_TOPIC = "__cluster_metadata"


class Cluster(Startable):
    """Real brokers for tests, each in its own process, usable by any Kafka client.

    >>> with Cluster(brokers=3) as cluster:
    ...     topic = cluster.create_topic("orders", partitions=2)
    ...     cluster.broker(cluster.leader_of(topic)).kill()
    ...     len(cluster.wait_for_isr(topic, 2)[0].isr)
    2

    Brokers have the node ids 1 to `brokers`; the first of them, up to five, are controllers too.
    New topics have three replicas, if there are so many brokers, and `min.insync.replicas` is one
    less. `config` has settings for all of them under Kafka's names. Leaving the `with` statement,
    or `close()`, stops all and removes their data; a `data_dir` that is given is kept.

    `proxied=True` puts a network between them, for `cut()`, `isolate()`, `slow()` and `heal()`. It
    is made of proxies in this process, so it needs no rights and slows brokers and clients down.

    `security=True` has all listeners speak SASL_SSL and enforces ACLs. Clients connect with
    `client_options` or `client_config`, as a user who may do everything.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        config: Mapping[str, Value] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        proxied: bool = False,
        security: bool = False,
        start_timeout_s: float = 30.0,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers!r} is below 1")
        self._count = brokers
        self._access = access_to_brokers(secured=security)
        self._config = {name: text_of(value) for name, value in (config or {}).items()}
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._proxied = proxied
        self._start_timeout_s = start_timeout_s
        self._network: Network | None = None
        self._temporary: Path | None = None
        self._members: dict[int, ClusterBroker] = {}
        self._held_ports: list[HeldPort] = []
        self._logs: dict[int, BrokerLog] = {}
        self._topic_numbers = count(1)
        if given := [name for name in ASSIGNED if name in self._config]:
            raise ConfigError(f"{given[0]} is given to each broker by its cluster")
        broker_config(self._config)

    def __repr__(self) -> str:
        running = sum(member.is_running for member in self._members.values())
        return f"<Cluster of {len(self._members) or self._count} brokers, {running} running>"

    # -- properties

    @property
    def brokers(self) -> tuple[ClusterBroker, ...]:
        """Its brokers in the order of their node ids."""
        if not self._members:
            raise BrokerError("the cluster has no brokers before it is started; call start() first")
        return tuple(self._members.values())

    def broker(self, node_id: int) -> ClusterBroker:
        """The broker with a node id; the first is 1."""
        known = {broker.node_id: broker for broker in self.brokers}
        if node_id not in known:
            raise BrokerError(f"there is no broker {node_id}; there are {sorted(known)}")
        return known[node_id]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all its brokers, for clients."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    @property
    def client_options(self) -> dict[str, Any]:
        """The keyword arguments by which headrace's clients connect, as the user `admin`."""
        return self._access.client_options(self.bootstrap_servers)

    @property
    def client_config(self) -> dict[str, str]:
        """The same under the names of librdkafka, which confluent-kafka takes."""
        return self._access.client_config(self.bootstrap_servers)

    @property
    def logs(self) -> dict[int, str]:
        """The output of its brokers, by node id; also after `close()`."""
        return {node_id: log.text for node_id, log in self._logs.items()}

    # -- start and stop

    def start(self) -> Self:
        """Start the brokers that are not running, concurrently, and return when all are ready."""
        if self._data_dir is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="headrace-"))
        atexit.register(self._at_exit)
        if self._members:
            self._start_members()
            return self
        started = False
        try:
            self._start_on_new_ports()
            started = True
        finally:
            if not started:
                self._kill()
                self.close()
        return self

    def stop(self) -> None:
        """Stop all brokers cleanly, and keep their ports and data."""
        members = [member for member in self._members.values() if member.is_running]
        if all(member.answers for member in self._members.values()):
            # Sequential is fastest, as long as there are controllers for each controlled shutdown.
            _do_all([member.stop for member in reversed(members)])
            return
        for member in members:
            member.request_stop()
        _do_all([member.wait_until_stopped for member in members])

    def restart(self) -> Self:
        """Stop all brokers and start them again."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the brokers and remove their files."""
        try:
            if self._network is not None:
                self._network.heal()
            self.stop()
        finally:
            self._kill()
            if self._network is not None:
                self._network.close()
                self._network = None
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None
            self._members = {}
            self._release_ports()
            atexit.unregister(self._at_exit)

    def add_broker(self) -> ClusterBroker:
        """Start an additional broker, which is no controller and has no data."""
        node_id = max(broker.node_id for broker in self.brokers) + 1
        broker = self._new_member(node_id)
        self._members[node_id] = broker
        return broker.start()

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        replication_factor: int | None = None,
        **configs: Value,
    ) -> str:
        """Create a topic, wait until all partitions have a leader, and return its name.

        By default it has three replicas, or as many as there are brokers. Settings are given under
        Kafka's names with underscores: `min_insync_replicas=1`.
        """
        name = name or f"topic-{next(self._topic_numbers)}"
        dotted = {key.replace("_", "."): text_of(value) for key, value in configs.items()}
        replicas = replication_factor or min(len(self.brokers), REPLICAS_MAX)
        address = self._asked()[0].listens_on
        security = self._access.client_security()
        create_topic(address, name, partitions, dotted, _TOPIC_TIMEOUT_S, replicas, security)
        self.wait_for_isr(name, replicas, partitions=range(partitions))
        return name

    # -- state of the cluster

    def partitions_of(self, topic: str) -> dict[int, PartitionView]:
        """The partitions of a topic, by index, from the brokers with the newest metadata."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        controller, answers = self._controller(), self._ask_all(request)
        # Only the controller knows the ISR for sure: ISR changes do not change the leader epoch.
        known = [answers[controller]] if controller in answers else answers.values()
        return topic_view(known, topic)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The node id of a partition's leader; BrokerError while it has none."""
        found = self.partitions_of(topic).get(partition)
        if found is None or found.leader == NOBODY:
            raise BrokerError(f"nobody leads partition {partition} of {topic}")
        return found.leader

    def wait_for_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: Collection[int] = (),
        timeout_s: float = 30.0,
    ) -> int:
        """Wait for a leader of a partition that is none of `other_than`, and return it."""

        def found() -> int | None:
            view = self.partitions_of(topic).get(partition)
            led = view is not None and view.leader not in (NOBODY, *other_than)
            return view.leader if view is not None and led else None

        return self.wait_until(found, timeout_s, f"a leader of {topic}-{partition}")

    def wait_for_isr(
        self,
        topic: str,
        size: int | None = None,
        *,
        partitions: Iterable[int] | None = None,
        timeout_s: float = 30.0,
    ) -> dict[int, PartitionView]:
        """Wait until `size` replicas of each partition, or all, are in sync; returns the
        partitions.
        """
        wanted = None if partitions is None else set(partitions)

        def found() -> dict[int, PartitionView] | None:
            views = self.partitions_of(topic)
            if not views or (wanted is not None and not wanted <= views.keys()):
                return None
            chosen = [views[index] for index in wanted] if wanted is not None else views.values()
            whole = all(
                view.leader != NOBODY and (view.is_whole if size is None else len(view.isr) == size)
                for view in chosen
            )
            return views if whole else None

        what = "all replicas" if size is None else f"{size} replicas"
        return self.wait_until(found, timeout_s, f"{what} of {topic} in sync")

    @property
    def controller_id(self) -> int:
        """The node id of the active controller; BrokerError while there is none."""
        found = self._controller()
        if found == NOBODY:
            raise BrokerError("there is no active controller")
        return found

    def wait_for_controller(
        self, *, other_than: Collection[int] = (), timeout_s: float = 30.0
    ) -> int:
        """Wait for an active controller that is none of `other_than`, and return it."""

        def found() -> int | None:
            controller = self._controller()
            return None if controller in (NOBODY, *other_than) else controller

        return self.wait_until(found, timeout_s, "an active controller")

    def wait_until(self, found: Callable[[], Found | None], timeout_s: float, what: str) -> Found:
        """The result of `found` as soon as it is not None; BrokerError at the timeout."""
        deadline = Deadline(timeout_s)
        while (result := found()) is None:
            if deadline.has_passed:
                raise BrokerError(f"not seen within {timeout_s:g} s: {what}; {self._situation()}")
            time.sleep(_PAUSE_S)
        deadline.end()
        return result

    # -- faults of the network

    def cut(self, a: int, b: int, *, one_way: bool = False) -> None:
        """Lose every packet between two brokers; with `one_way` only those from `a` to `b`.

        Connections stay open without any data, as when a cable is pulled. Needs `proxied=True`.
        """
        ways = [(self.broker(a).node_id, self.broker(b).node_id)]
        self._needs_network("cut").set(ways if one_way else [*ways, (b, a)], _BLOCKED)

    def isolate(self, node_id: int, *, clients: bool = False) -> None:
        """Cut a broker off from all others, and with `clients` from all clients too."""
        others = [broker.node_id for broker in self.brokers if broker.node_id != node_id]
        others += [CLIENTS] if clients else []
        ways = [pair for other in others for pair in ((node_id, other), (other, node_id))]
        self._needs_network("isolate").set(ways, _BLOCKED)

    def slow(
        self, node_id: int, *, latency_ms: float = 0.0, bytes_per_s: float | None = None
    ) -> None:
        """Delay everything a broker sends by `latency_ms`, and limit its rate.

        The rate applies to each connection; None is no limit. Needs `proxied=True`.
        """
        if latency_ms < 0:
            raise ValueError(f"latency_ms={latency_ms!r} is below 0")
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s={bytes_per_s!r} is not above 0; isolate() stops all")
        others = [
            CLIENTS,
            *(broker.node_id for broker in self.brokers if broker.node_id != node_id),
        ]
        conditions = LinkConditions(latency_ms / 1000, bytes_per_s)
        self._needs_network("slow").set([(node_id, other) for other in others], conditions)

    def heal(self) -> None:
        """Undo `cut()`, `isolate()` and `slow()`."""
        self._needs_network("heal").heal()

    # -- implementation

    def _start_on_new_ports(self) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            if self._proxied:
                self._network = Network()
            self._members = {
                number: self._new_member(number) for number in range(1, self._count + 1)
            }
            try:
                self._start_members()
                return
            except PortTaken:
                self._kill()
                self._release_ports()
                if self._network is not None:
                    self._network.close()
                if attempt == _PORT_ATTEMPTS - 1:
                    raise

    def _release_ports(self) -> None:
        for port in self._held_ports:
            port.release()
        self._held_ports.clear()

    def _new_member(self, node_id: int) -> ClusterBroker:
        self._held_ports.append(hold_port())
        listens_on = Address(HOST, self._held_ports[-1].number)
        network = self._network
        address = listens_on if network is None else network.attach(node_id, listens_on)
        return self._member_at(node_id, address, listens_on)

    def _member_at(
        self, node_id: int, address: Address, listens_on: Address, prefix: Sequence[str] = ()
    ) -> ClusterBroker:
        root = self._data_dir or self._temporary
        assert root is not None
        return ClusterBroker(
            node_id,
            address=address,
            listens_on=listens_on,
            data_dir=root / f"broker-{node_id}",
            remove=self._temporary,
            start_timeout_s=self._start_timeout_s,
            properties=self._properties,
            log=self._logs.setdefault(node_id, BrokerLog()),
            prefix=prefix,
        )

    def _start_members(self) -> None:
        launched = [member for member in self._members.values() if not member.is_running]
        for member in launched:
            member.launch()
        deadline = Deadline(self._start_timeout_s)
        _do_all(
            [
                lambda member=member: member.wait_until_ready(max(deadline.left_s, 0.001))  # type: ignore[misc]
                for member in launched
            ]
        )

    def _properties(self, member: ClusterBroker) -> dict[str, str]:
        voters = [
            voter for voter in self._members.values() if voter.node_id <= voter_count(self._count)
        ]
        return (
            DEFAULTS
            | cluster_defaults(self._count)
            | self._access.broker_properties()
            | self._config
            | {
                "node.id": str(member.node_id),
                "process.roles": "broker,controller" if member in voters else "broker",
                "controller.quorum.voters": ",".join(
                    f"{voter.node_id}@{voter.bootstrap_servers}" for voter in voters
                ),
                "listeners": f"{self._access.listener}://{member.listens_on}",
                "advertised.listeners": f"{self._access.listener}://{member.bootstrap_servers}",
                "log.dirs": str(member.data_dir),
            }
        )

    def _asked(self) -> list[ClusterBroker]:
        """The brokers that may respond."""
        answering = [broker for broker in self.brokers if broker.answers]
        if not answering:
            raise BrokerError("no broker of the cluster is running")
        return answering

    def _ask_all(self, request: Message) -> dict[int, Any]:
        """The responses of brokers, by node id; a starting or stopping broker may give none."""
        asked = self._asked()
        addresses = [broker.listens_on for broker in asked]
        answers = ask_all(addresses, request, scaled(_ASK_S), self._access.client_security())
        return {
            broker.node_id: answer
            for broker, answer in zip(asked, answers, strict=True)
            if answer is not None
        }

    def _controller(self) -> int:
        topic = quorum.TopicData(
            topic_name=_METADATA_TOPIC, partitions=[quorum.PartitionData(partition_index=0)]
        )
        answers = self._ask_all(quorum.DescribeQuorumRequest(topics=[topic]))
        return quorum_leader(answers.values())[0]

    def _situation(self) -> str:
        return "there are " + ", ".join(map(repr, self._members.values()))

    def _needs_network(self, fault: str) -> Network:
        if not self._proxied:
            raise BrokerError(f"{fault}() goes through proxies; make the cluster with proxied=True")
        if self._network is None:
            raise BrokerError(f"{fault}() needs a cluster that was started; call start() first")
        return self._network

    def _kill(self) -> None:
        for member in self._members.values():
            if member.is_running:
                member.kill()

    def _at_exit(self) -> None:
        """Remove everything at the end of this process, if `close()` was not called."""
        self._kill()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


_BLOCKED = LinkConditions(blocked=True)


def _do_all(steps: list[Callable[[], None]]) -> None:
    """Run every step, even after failures; then raise the first failure."""
    failures: list[BrokerError] = []
    for step in steps:
        try:
            step()
        except BrokerError as error:
            failures.append(error)
    if failures:
        raise failures[0]
