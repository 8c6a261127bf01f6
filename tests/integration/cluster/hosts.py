"""A cluster whose brokers are on hosts of their own: network namespaces of this machine.

Every host has two network cards, one in the network of the cluster and one in that of the clients,
and a card's cable can be pulled. It takes the rights of root; `available()` says whether they are
there.
"""

import subprocess
from typing import Any

from headrace.net.addresses import Address
from headrace.testing.cluster import Cluster, ClusterBroker

# Names of network cards on this machine have at most 15 characters.
_NAME = "hrsoak"
_INSIDE = "198.18.1"
_OUTSIDE = "198.18.2"
_GATEWAY = 254
_CLIENT_PORT = 9092
_CLUSTER_PORT = 9093


def available() -> bool:
    """Whether namespaces, and bridges between them, can be made."""
    try:
        _ip("netns", "add", f"{_NAME}try")
        _ip("netns", "del", f"{_NAME}try")
        _ip("link", "add", f"{_NAME}try", "type", "bridge")
        _ip("link", "del", f"{_NAME}try")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class HostCluster(Cluster):
    """Brokers on hosts. A cut loses packets in silence, in both directions, as a pulled cable."""

    def __init__(self, brokers: int = 3, **options: Any) -> None:
        super().__init__(brokers, **options)
        self._hosts: list[int] = []

    def start(self) -> "HostCluster":
        if not self._hosts:
            remove_leftovers()
            for network, prefix in (("c", _INSIDE), ("k", _OUTSIDE)):
                bridge = f"{_NAME}{network}"
                _ip("link", "add", bridge, "type", "bridge")
                _ip("addr", "add", f"{prefix}.{_GATEWAY}/24", "dev", bridge)
                _ip("link", "set", bridge, "up")
        super().start()
        return self

    def close(self) -> None:
        try:
            if self._hosts:
                self.heal()
            super().close()
        finally:
            remove_leftovers()
            self._hosts = []

    def isolate(self, node_id: int, *, clients: bool = False) -> None:
        _ip("link", "set", _card(node_id, "c"), "down")
        if clients:
            _ip("link", "set", _card(node_id, "k"), "down")
            self.broker(node_id).is_reachable = False

    def heal(self) -> None:
        for node_id in self._hosts:
            for network in ("c", "k"):
                _ip("link", "set", _card(node_id, network), "up")
        for broker in self.brokers:
            broker.is_reachable = True

    def _new_member(self, node_id: int) -> ClusterBroker:
        host = f"{_NAME}{node_id}"
        if node_id not in self._hosts:
            _make_host(node_id, host)
            self._hosts.append(node_id)
        address = Address(f"{_OUTSIDE}.{node_id}", _CLIENT_PORT)
        return self._member_at(node_id, address, address, ("ip", "netns", "exec", host))

    def _properties(self, member: ClusterBroker) -> dict[str, str]:
        properties = super()._properties(member)
        listeners = f"{properties['listeners']},INTERNAL://{_inside(member.node_id)}"
        voters = properties["controller.quorum.voters"].split(",")
        return properties | {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{number}@{_inside(int(number))}"
                for number in (voter.partition("@")[0] for voter in voters)
            ),
        }


def remove_leftovers() -> None:
    """Take away what a run has made, or one before it that was killed."""
    for name in _listed("netns", "list"):
        if name.startswith(_NAME):
            _ip("netns", "del", name)
    # A namespace lives on, with its cards, while the kernel sends for the dead that were in it.
    for card in _listed("-brief", "link"):
        if card.startswith(_NAME):
            name = card.partition("@")[0]
            subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL, check=False)


def _make_host(node_id: int, host: str) -> None:
    _ip("netns", "add", host)
    _ip("-n", host, "link", "set", "lo", "up")
    for network, prefix, inner in (("c", _INSIDE, "eth0"), ("k", _OUTSIDE, "eth1")):
        card = _card(node_id, network)
        _ip("link", "add", card, "type", "veth", "peer", "name", inner, "netns", host)
        _ip("link", "set", card, "master", f"{_NAME}{network}", "up")
        _ip("-n", host, "addr", "add", f"{prefix}.{node_id}/24", "dev", inner)
        _ip("-n", host, "link", "set", inner, "up")


def _inside(node_id: int) -> Address:
    return Address(f"{_INSIDE}.{node_id}", _CLUSTER_PORT)


def _card(node_id: int, network: str) -> str:
    return f"{_NAME}{node_id}{network}"


def _listed(*arguments: str) -> list[str]:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, check=True)
