"""A cluster on simulated hosts: production brokers, one on each host."""

import asyncio
import signal
from collections.abc import Iterator, Mapping

from headrace.broker.app import BrokerServer
from headrace.broker.node import Node
from headrace.config import BrokerConfig, broker_config
from headrace.errors import HeadraceError
from headrace.metadata.image import Image
from headrace.security.keyring import KEY_SIZE, KeyEncryptionKey, Keyring
from headrace.tasks import EXIT_BUG
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.machines import Process

PORT = 9092
DATA = "/data"
_RESTART_S = 1.0
_POLL_S = 0.1
# Every broker has it, for the runs whose topics are encrypted.
_KEYRING = Keyring([KeyEncryptionKey("simulated", bytes(range(KEY_SIZE)))])


class SimulatedCluster:
    """Brokers b1, b2 and so on, each of them a controller too.

    A broker that stops after a fatal error (such as a failed fsync) is restarted, as by a
    supervisor, unless it is held down.
    """

    def __init__(
        self, simulation: Simulation, brokers: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        self.simulation = simulation
        self.hosts = [
            simulation.host(f"b{number}", self._serve) for number in range(1, brokers + 1)
        ]
        # The reasons of brokers that stopped by themselves.
        self.fatal: list[str] = []
        self._settings = dict(settings or {})
        self._running: dict[Process, BrokerServer] = {}
        self._held_down: set[str] = set()
        # A machine on which a second process with the id of a broker may be started by mistake.
        self._impostor = simulation.host("impostor", self._serve)
        self._impersonated = self.hosts[0]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host.name}:{PORT}" for host in self.hosts)

    def start(self) -> None:
        for host in self.hosts:
            host.start()

    def node_of(self, host: Host) -> Node | None:
        """The parts of the broker that runs on a host now, once they exist."""
        if host.process is None:
            return None
        return getattr(self._running.get(host.process), "node", None)

    def nodes(self) -> Iterator[tuple[Host, Node]]:
        """The running brokers with their hosts."""
        for host in self.hosts:
            node = self.node_of(host)
            if node is not None:
                yield host, node

    def take_down(self, host: Host, *, power_loss: bool) -> None:
        """Kill a broker, or cut its machine's power, until `bring_up`."""
        self._held_down.add(host.name)
        host.crash(power_loss=power_loss)

    def bring_up(self, host: Host) -> None:
        """Start a broker if it does not run."""
        self._held_down.discard(host.name)
        if host.process is None:
            host.start()

    def start_impostor(self, host: Host) -> bool:
        """Start another process with the id of a broker and an empty disk, unless one runs."""
        if self._impostor.process is not None:
            return False
        self._impersonated = host
        self._held_down.add(self._impostor.name)
        self._impostor.start()
        return True

    def stop_impostor(self) -> None:
        """Kill the impostor, and wipe its disk."""
        self._impostor.crash(power_loss=False)
        self._impostor.disk.wipe()

    def image(self) -> Image | None:
        """The metadata image of the active controller, or None."""
        for _, node in self.nodes():
            if node.store.is_active:
                return node.store.image
        return None

    def is_whole(self) -> bool:
        """Whether every broker runs, and every replica is in sync."""
        return not self.missing()

    def missing(self) -> str:
        """The reason why the cluster is not whole; empty if it is."""
        down = [host.name for host in self.hosts if self.node_of(host) is None]
        if down:
            return f"{', '.join(down)} down"
        image = self.image()
        if image is None:
            return "no active controller"
        for _, node in self.nodes():
            broker = image.brokers.get(node.node_id)
            # The image may still have an earlier registration of the broker.
            if (
                broker is None
                or not broker.is_active
                or broker.epoch != node.membership.broker_epoch
            ):
                return f"broker {node.node_id} is not active"
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader < 0 or len(partition.isr) < len(partition.replicas):
                    leader, isr = partition.leader, partition.isr
                    return f"{topic.name}-{index} is led by {leader} with ISR {isr}"
        return ""

    async def whole(self, timeout_s: float) -> bool:
        """Wait until the cluster is whole; False if it is not in time."""
        simulation = self.simulation
        until = simulation.now + timeout_s
        while not self.is_whole():
            if simulation.now > until:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def config_of(self, host: Host) -> BrokerConfig:
        is_impostor = host is self._impostor
        node = self._impersonated if is_impostor else host
        # The impostor is no voter: no quorum survives two votes under one id.
        voters = ",".join(
            f"{number}@{voter.name}:{PORT}"
            for number, voter in enumerate(self.hosts, start=1)
            if not is_impostor or voter is not node
        )
        return broker_config(
            {
                "node.id": node.name.removeprefix("b"),
                "process.roles": "broker" if is_impostor else "broker,controller",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{host.name}:{PORT}",
                "log.dirs": DATA,
                "default.replication.factor": str(len(self.hosts)),
                "min.insync.replicas": str(len(self.hosts) // 2 + 1),
                "offsets.topic.num.partitions": "2",
                "offsets.topic.replication.factor": str(len(self.hosts)),
                "transaction.state.log.num.partitions": "2",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
                "transaction.state.log.replication.factor": str(len(self.hosts)),
            }
            | self._settings
        )

    async def _serve(self, host: Host) -> None:
        stopping = asyncio.Event()

        def on_fatal(reason: str) -> None:
            self.fatal.append(f"{host.loop.now:.3f} {host.name}: {reason}")
            host.loop.note("fatal", host.name, reason)
            host.loop.schedule(host.loop.now, lambda: self._end(host, boots))

        def on_bug(where: str, error: BaseException) -> None:
            if host.process is not None:
                host.process.on_bug = None
            on_fatal(f"stopped by itself with status {EXIT_BUG}: bug in {where}: {error!r}")

        boots = host.boots
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        broker = BrokerServer(
            self.config_of(host),
            files=host.files,
            clock=host,
            rng=host.rng,
            on_fatal=on_fatal,
            keyring=_KEYRING,
        )
        assert host.process is not None
        host.process.on_bug = on_bug
        self._running[host.process] = broker
        try:
            await broker.start()
        except HeadraceError as error:
            on_fatal(f"cannot start: {error}")
        await stopping.wait()
        await broker.stop()

    def _end(self, host: Host, boots: int) -> None:
        """Exit the process of a broker that must not go on, and restart it."""
        if host.boots != boots or host.process is None:
            return
        host.crash(power_loss=False)
        host.loop.schedule(host.loop.now + _RESTART_S, lambda: self._restart(host, boots))

    def _restart(self, host: Host, boots: int) -> None:
        if host.boots == boots and host.process is None and host.name not in self._held_down:
            host.start()
