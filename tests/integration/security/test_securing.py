"""A cluster in use goes from plain text to TLS, logins and ACLs, as docs/security.md tells it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.testing.broker import DEFAULTS
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.ports import HOST, hold_port
from headrace.testing.time_limits import scaled, wait_until

NODES = (1, 2, 3)
CONTROLLERS = (11, 12, 13)
START_S, STOP_S = 60.0, 60.0
# A leader change, in a process that has many neighbours.
OUTAGE_S = 10.0
PASSWORDS = {"node": "secret-of-nodes", "admin": "secret-of-admin", "app": "secret-of-app"}
MECHANISM = "SCRAM-SHA-512"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC, GROUP = "orders", "billing"
PLAIN_LISTENERS = ("PLAIN", "CONTROLLER")
SECURE_LISTENERS = ("SECURE", "SECURE_CONTROLLER")
LISTENERS = (*PLAIN_LISTENERS, *SECURE_LISTENERS)
LISTENERS_OF = {
    "broker": ("PLAIN", "SECURE"),
    "controller": ("CONTROLLER", "SECURE_CONTROLLER"),
    "broker,controller": LISTENERS,
}

PLAIN_SETTINGS = {
    "inter.broker.listener.name": "PLAIN",
    "controller.listener.names": "CONTROLLER",
}
SECURED_LISTENERS = {
    "sasl.enabled.mechanisms": MECHANISM,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "sasl.mechanism.controller.protocol": MECHANISM,
    "sasl.jaas.config": f'{SCRAM} required username="node" password="{PASSWORDS["node"]}";',
    "controller.listener.names": "CONTROLLER,SECURE_CONTROLLER",
}
SECURED_NODES = {
    "inter.broker.listener.name": "SECURE",
    "controller.listener.names": "SECURE_CONTROLLER,CONTROLLER",
}
NO_PLAIN_LISTENERS = {
    "controller.listener.names": "SECURE_CONTROLLER",
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:node;User:admin",
    "allow.everyone.if.no.acl.found": "true",
}
ONLY_ACLS = {"allow.everyone.if.no.acl.found": "false"}


class Node(BrokerProcess):
    """A node, and the settings it is started with next time."""

    def __init__(self, node_id: int, roles: str, directory: Path) -> None:
        self.log = BrokerLog()
        super().__init__(self.log, STOP_S)
        self.listeners = LISTENERS_OF[roles]
        self.ports: dict[str, int] = {}
        self.settings: dict[str, str] = {
            **DEFAULTS,
            "node.id": str(node_id),
            "process.roles": roles,
            "log.dirs": str(directory / str(node_id)),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "1",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SECURE:SASL_SSL,SECURE_CONTROLLER:SASL_SSL",
        }

    def begin(self) -> None:
        self.launch(self.settings, None)


class SecuredLater:
    """Three nodes that begin in plain text; if `apart`, three brokers and three controllers."""

    def __init__(self, directory: Path, stack: ExitStack, *, apart: bool) -> None:
        roles = "broker" if apart else "broker,controller"
        self.nodes = {node_id: Node(node_id, roles, directory) for node_id in NODES}
        if apart:
            for node_id in CONTROLLERS:
                self.nodes[node_id] = Node(node_id, "controller", directory)
        self.authority = CertificateAuthority.create(directory / "certs")
        keystore = self.authority.issue_broker("node", LOOPBACK_HOSTS)
        self.stores = {
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.location": str(self.authority.certificate_path),
        }
        for node in self.nodes.values():
            for name in node.listeners:
                node.ports[name] = stack.enter_context(hold_port()).number
            stack.callback(lambda node: node.kill() if node.is_running else None, node)
        self.set(PLAIN_SETTINGS, *PLAIN_LISTENERS, voters_at="CONTROLLER")
        for node in self.nodes.values():
            node.begin()
        for node in self.nodes.values():
            node.wait_until_ready(START_S)

    def set(self, settings: Mapping[str, str], *listeners: str, voters_at: str) -> None:
        """Change the properties file of every node; it takes effect with its next start."""
        voters = ",".join(
            f"{node_id}@{HOST}:{node.ports[voters_at]}"
            for node_id, node in self.nodes.items()
            if voters_at in node.ports
        )
        for node in self.nodes.values():
            own = ",".join(
                f"{name}://{HOST}:{node.ports[name]}" for name in listeners if name in node.ports
            )
            node.settings |= {"listeners": own, "controller.quorum.voters": voters, **settings}

    def restart_each(self, admin: headrace.Admin) -> None:
        """Restart the nodes, each when all replicas are in sync again."""
        for node in self.nodes.values():
            wait_until(lambda: all_in_sync(admin), 60, "all replicas in sync")
            node.stop()
            node.begin()
            node.wait_until_ready(START_S)
        wait_until(lambda: all_in_sync(admin), 60, "all replicas in sync")

    def servers(self, listener: str) -> str:
        return ",".join(f"{HOST}:{self.nodes[node_id].ports[listener]}" for node_id in NODES)

    def plain(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.servers("PLAIN")}

    def secured(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers("SECURE"),
            "security_protocol": "SASL_SSL",
            "ssl_truststore_location": str(self.authority.certificate_path),
            "sasl_mechanism": MECHANISM,
            "sasl_username": user,
            "sasl_password": PASSWORDS[user],
        }


def all_in_sync(admin: headrace.Admin) -> bool:
    topics = admin.describe_topics([TOPIC, "__consumer_offsets"]).values()
    return all(len(partition.isr) == 3 for topic in topics for partition in topic.partitions)


class Traffic:
    """A producer and a member of a group, until `stop`: what was acknowledged, and received."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[float, int]] = []
        self.received: set[int] = set()
        self.errors: list[BaseException] = []
        self._next = 0
        self._lock = threading.Lock()

    @contextmanager
    def through(self, options: dict[str, Any]) -> Iterator[None]:
        """Producer and consumer with these options, for the length of the block and beyond it
        until every acknowledged record has been received.
        """
        over = threading.Event()
        threads = [
            threading.Thread(target=self._guarded, args=(work, options, over))
            for work in (self._produce, self._consume)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def count(self) -> int:
        return len(self.acknowledged)

    def _guarded(
        self,
        work: Callable[[dict[str, Any], threading.Event], None],
        options: dict[str, Any],
        over: threading.Event,
    ) -> None:
        try:
            work(options, over)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self, options: dict[str, Any], over: threading.Event) -> None:
        with headrace.Producer(**options, linger_ms=0) as producer:
            while not over.wait(0.01):
                with self._lock:
                    number = self._next
                    self._next += 1
                future = producer.send(TOPIC, b"%d" % number)
                future.add_callback(partial(self._acknowledge, number))
                future.add_errback(self.errors.append)

    def _acknowledge(self, number: int, _: headrace.RecordMetadata) -> None:
        self.acknowledged.append((time.monotonic(), number))

    def _consume(self, options: dict[str, Any], over: threading.Event) -> None:
        with headrace.Consumer(
            TOPIC, **options, group_id=GROUP, auto_offset_reset="earliest"
        ) as consumer:
            while not over.is_set():
                for record in consumer.poll(200):
                    self.received.add(int(record.value or b""))

    def outage_s(self) -> float:
        """The longest time without an acknowledgement."""
        times = sorted(moment for moment, _ in self.acknowledged)
        return max(later - sooner for sooner, later in pairwise(times))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("apart", "voters_in_log"),
    [(False, False), (True, False), (False, True)],
    ids=["nodes with both roles", "controllers that are no brokers", "voters in the log"],
)
def test_a_cluster_in_use_is_secured_listener_by_listener(
    tmp_path: Path, apart: bool, voters_in_log: bool
) -> None:
    traffic = Traffic()
    with ExitStack() as stack:
        cluster = SecuredLater(tmp_path, stack, apart=apart)
        admin = stack.enter_context(headrace.Admin(**cluster.plain()))
        admin.create_topics([headrace.NewTopic(TOPIC, 3, 3)])
        if voters_in_log:
            admin.update_features({"kraft.version": 1})
        # 1. Users.
        users = [
            headrace.ScramUpsertion(name, MECHANISM, password)
            for name, password in PASSWORDS.items()
        ]
        admin.alter_user_scram_credentials(users)
        with traffic.through(cluster.plain()):
            wait_until(lambda: len(traffic.received) > 10, 60, "records at the consumer")
            # 2. Secured listeners beside the plain ones.
            cluster.set(SECURED_LISTENERS | cluster.stores, *LISTENERS, voters_at="CONTROLLER")
            cluster.restart_each(admin)
            # 3. Brokers and controllers use them.
            cluster.set(SECURED_NODES, *LISTENERS, voters_at="SECURE_CONTROLLER")
            cluster.restart_each(admin)
            # 4. Clients, some sooner and some later.
            with traffic.through(cluster.secured("app")):
                before = traffic.count()
                wait_until(lambda: traffic.count() > before + 10, 60, "records of both clients")
        secured_admin = stack.enter_context(headrace.Admin(**cluster.secured("admin")))
        with traffic.through(cluster.secured("app")):
            # 5. No plain listeners, and an authorizer that allows what no ACL is about.
            cluster.set(NO_PLAIN_LISTENERS, *SECURE_LISTENERS, voters_at="SECURE_CONTROLLER")
            cluster.restart_each(secured_admin)
            # 6. ACLs, and then nothing without one.
            secured_admin.create_acls(
                [
                    headrace.Acl("User:app", "write", "topic", TOPIC),
                    headrace.Acl("User:app", "read", "topic", TOPIC),
                    headrace.Acl("User:app", "read", "group", GROUP),
                ]
            )
            cluster.set(ONLY_ACLS, *SECURE_LISTENERS, voters_at="SECURE_CONTROLLER")
            cluster.restart_each(secured_admin)
            sent = traffic.count()
            wait_until(lambda: traffic.count() > sent + 10, 60, "records under ACLs")
            wait_until(
                lambda: {number for _, number in list(traffic.acknowledged)} <= traffic.received,
                60,
                "every acknowledged record at a consumer",
            )
        with pytest.raises(headrace.KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            with headrace.Admin(**cluster.secured("app")) as app:
                app.delete_topics([TOPIC])
        with (
            pytest.raises(headrace.HeadraceError),
            headrace.Admin(**cluster.plain(), request_timeout_ms=500) as late,
        ):
            late.list_topics()
        for node in cluster.nodes.values():
            node.stop()
            assert "Traceback" not in node.log.text
            assert not any(password in node.log.text for password in PASSWORDS.values())
    assert traffic.errors == []
    assert traffic.outage_s() < scaled(OUTAGE_S)
