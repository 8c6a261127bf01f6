"""The network between the brokers of a cluster, and between them and their clients.

Each broker is reached through a port of the network's, and every connection there is carried over
the ways between its two ends: who connects is known from the client id of the first request, which
a broker sends with its node id in it.
"""

import asyncio
import re
import socket
from collections import defaultdict
from functools import partial

from headrace.client.transport.thread import LoopThread
from headrace.net.addresses import Address
from headrace.testing.acceptor import Acceptor
from headrace.testing.ports import HOST, listen_on_unused_port
from headrace.testing.proxy import join
from headrace.testing.ways import Conditions, Way

CLIENTS = 0
"""Who is no broker; the node ids of a cluster begin with 1."""

_NODE = re.compile(rb"node-(\d+)-")
# Length of the frame, API key, version, correlation id, length of the client id.
_HEADER_BYTES = 14
_CLIENT_ID_BYTES_MAX = 64
_CHUNK_BYTES = 65_536


class Network:
    """A port for each node, and a way from every node to every other.

    It works on a thread of its own; its methods are for other threads and return when what they do
    is done.
    """

    def __init__(self) -> None:
        self._ways: defaultdict[tuple[int, int], Way] = defaultdict(Way)
        self._acceptors: list[Acceptor] = []
        self._thread = LoopThread("headrace-network")

    def attach(self, node_id: int, target: Address) -> Address:
        """A new address under which everybody reaches a node, which listens on `target`."""
        listener = listen_on_unused_port()
        self._thread.run(self._attach(node_id, target, listener))
        return Address(HOST, listener.getsockname()[1])

    def set(self, ways: list[tuple[int, int]], conditions: Conditions) -> None:
        """Change ways, each given as from where it leads to where."""
        self._thread.run(self._set(ways, conditions))

    def heal(self) -> None:
        """Make every way fast and open again."""
        self.set(list(self._ways), Conditions())

    def close(self) -> None:
        """Drop everything and end the thread."""
        if not self._thread.is_closed:
            self._thread.run(self._close())
            self._thread.close()

    async def _attach(self, node_id: int, target: Address, listener: socket.socket) -> None:
        self._acceptors.append(Acceptor(listener, partial(self._link, node_id, target)))

    async def _set(self, ways: list[tuple[int, int]], conditions: Conditions) -> None:
        for way in ways:
            self._ways[way].set(conditions)

    async def _close(self) -> None:
        for acceptor in self._acceptors:
            await acceptor.close()

    async def _link(self, node_id: int, target: Address, client: socket.socket) -> None:
        first = await _first_bytes(client)
        source = node_of(first)
        there, back = self._ways[source, node_id], self._ways[node_id, source]
        # No connection is made while packets are lost, and who gave up was never heard of.
        await there.open()
        await back.open()
        if not _has_ended(client):
            await join(client, target, there, back, first)


def node_of(first: bytes) -> int:
    """Whose connection begins with these bytes; CLIENTS for one that no broker made."""
    size = max(int.from_bytes(first[_HEADER_BYTES - 2 : _HEADER_BYTES], "big", signed=True), 0)
    found = _NODE.match(first[_HEADER_BYTES : _HEADER_BYTES + size])
    return int(found[1]) if found else CLIENTS


async def _first_bytes(client: socket.socket) -> bytes:
    """What a client sends first, as far as the end of its client id unless the client ends."""
    loop = asyncio.get_running_loop()
    data = b""
    wanted = _HEADER_BYTES + _CLIENT_ID_BYTES_MAX
    while len(data) < wanted:
        try:
            chunk = await loop.sock_recv(client, _CHUNK_BYTES)
        except OSError:
            break
        if not chunk:
            break
        data += chunk
        if len(data) >= _HEADER_BYTES:
            size = int.from_bytes(data[_HEADER_BYTES - 2 : _HEADER_BYTES], "big", signed=True)
            wanted = _HEADER_BYTES + min(max(size, 0), _CLIENT_ID_BYTES_MAX)
    return data


def _has_ended(client: socket.socket) -> bool:
    try:
        return not client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
