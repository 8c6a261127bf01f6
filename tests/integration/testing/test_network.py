"""The network of a cluster: who is connected with whom, and what a cut does to connections."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.net.addresses import Address
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.testing.network import CLIENTS, LinkConditions, Network
from headrace.testing.ports import listen_on_unused_port
from headrace.testing.time_limits import scaled

BLOCKED = LinkConditions(blocked=True)
SHORT_S = 0.2
LONG_S = 60.0


class Ends:
    """A network with node 1 behind it, and connections to that."""

    def __init__(self, network: Network, listener: socket.socket) -> None:
        self.network = network
        self._listener = listener
        self._address = network.attach(1, Address(*listener.getsockname()))

    def connect(self, client_id: str) -> socket.socket:
        client = socket.create_connection(self._address, scaled(LONG_S))
        client.sendall(hello(client_id))
        return client

    def accept(self, timeout_s: float | None = None) -> socket.socket:
        self._listener.settimeout(timeout_s or scaled(LONG_S))
        server, _ = self._listener.accept()
        server.settimeout(scaled(30))
        return server


@pytest.fixture
def ends() -> Iterator[Ends]:
    with listen_on_unused_port() as listener, closing(Network()) as network:
        yield Ends(network, listener)


def hello(client_id: str) -> bytes:
    return b"".join(encode_request(MetadataRequest(topics=None), 12, 7, client_id))


def silent(sock: socket.socket) -> bool:
    sock.settimeout(SHORT_S)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        sock.settimeout(scaled(30))


def test_a_cut_is_between_two_nodes_only(ends: Ends) -> None:
    with ends.connect("node-2-fetcher") as two, ends.accept() as from_two:
        with ends.connect("node-3-fetcher") as three, ends.accept() as from_three:
            assert from_two.recv(1000) == hello("node-2-fetcher")
            assert from_three.recv(1000) == hello("node-3-fetcher")
            ends.network.set([(2, 1), (1, 2)], BLOCKED)
            for client in (two, three):
                client.sendall(b"x")
            assert from_three.recv(1000) == b"x"
            assert silent(from_two)
            ends.network.heal()
            assert from_two.recv(1000) == b"x"


def test_a_way_may_be_cut_alone(ends: Ends) -> None:
    with ends.connect("node-2-fetcher") as two, ends.accept() as server:
        server.recv(1000)
        ends.network.set([(2, 1)], BLOCKED)
        two.sendall(b"request")
        server.sendall(b"answer")
        assert two.recv(1000) == b"answer"
        assert silent(server)


def test_no_connection_is_made_across_a_cut_and_none_heard_of_that_was_given_up(
    ends: Ends,
) -> None:
    ends.network.set([(CLIENTS, 1)], BLOCKED)
    ends.connect("given up").close()
    with ends.connect("patient") as client:
        with pytest.raises(TimeoutError):
            ends.accept(SHORT_S)
        ends.network.heal()
        with ends.accept() as server:
            assert server.recv(1000) == hello("patient")
            client.sendall(b"more")
            assert server.recv(1000) == b"more"


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_the_end_of_a_connection_is_not_heard_of_across_a_cut(ends: Ends, how: str) -> None:
    client = ends.connect("node-2-fetcher")
    with ends.accept() as server:
        server.recv(1000)
        ends.network.set([(2, 1), (1, 2)], BLOCKED)
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert silent(server)
        ends.network.heal()
        assert server.recv(1000) == b""
