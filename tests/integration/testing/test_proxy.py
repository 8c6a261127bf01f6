"""The proxy passes bytes on as they are, and ends as they end."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from headrace.net.addresses import Address
from headrace.testing.network import LinkConditions, Proxy
from headrace.testing.ports import listen_on_unused_port
from headrace.testing.time_limits import scaled
from tests.support import unused_port

PAYLOAD = bytes(range(256)) * 40_000


@contextmanager
def connected() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and both ends of a connection through it."""
    with listen_on_unused_port() as listener:
        with closing(Proxy(Address(*listener.getsockname()))) as proxy:
            with socket.create_connection(proxy.address) as client:
                server, _ = listener.accept()
                with server:
                    for sock in (client, server):
                        sock.settimeout(scaled(30))
                    yield proxy, client, server


def receive_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def send_all(sock: socket.socket) -> threading.Thread:
    def send() -> None:
        sock.sendall(PAYLOAD)
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_streams_larger_than_every_buffer_pass_both_ways_at_once() -> None:
    with connected() as (_, client, server):
        threads = [send_all(client), send_all(server)]
        assert receive_all(server) == PAYLOAD
        assert receive_all(client) == PAYLOAD
        for thread in threads:
            thread.join()


def test_a_stream_stays_in_order_while_its_speed_changes() -> None:
    with connected() as (proxy, client, server):
        thread = send_all(server)
        received = b""
        for latency_s, rate in [(0.05, None), (0.0, 1e6), (0.02, 1e7), (0.0, None)]:
            proxy.slow(LinkConditions(latency_s, rate))
            received += client.recv(65_536)
        assert received + receive_all(client) == PAYLOAD
        thread.join()


def test_one_direction_may_end_before_the_other() -> None:
    with connected() as (_, client, server):
        client.shutdown(socket.SHUT_WR)
        assert receive_all(server) == b""
        server.sendall(b"still here")
        server.close()
        assert receive_all(client) == b"still here"


def test_a_connection_to_nobody_ends() -> None:
    with closing(Proxy(Address("127.0.0.1", unused_port()))) as proxy:
        with socket.create_connection(proxy.address) as client:
            client.settimeout(scaled(30))
            assert receive_all(client) == b""


def test_what_waits_in_a_proxy_goes_with_it() -> None:
    with connected() as (proxy, client, server):
        proxy.slow(LinkConditions(latency_s=600))
        server.sendall(b"late")
        proxy.close()
        proxy.close()
        assert receive_all(client) == b""
        assert receive_all(server) == b""
