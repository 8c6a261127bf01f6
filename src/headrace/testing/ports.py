"""Ports that stay a broker's own while it is down."""

import os
import random
import socket

from headrace.testing.failures import BrokerError

HOST = "127.0.0.1"

# Below the range that outgoing connections take theirs from. A port of that range could be taken,
# between a kill and the restart, by a client that is trying to reconnect: even to itself.
_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200


def unused_port() -> int:
    """A port nobody listens on; nothing but luck keeps it from being taken by somebody else."""
    with listen_on_unused_port() as sock:
        port: int = sock.getsockname()[1]
    return port


def listen_on_unused_port() -> socket.socket:
    """A socket that listens on such a port."""
    # Workers of a test run that were forked share the state of the `random` module.
    for port in random.Random(os.urandom(8)).sample(_PORTS, _ATTEMPTS):
        try:
            return listen(port)
        except OSError:
            continue
    raise BrokerError(f"no free port was found between {_PORTS.start} and {_PORTS.stop}")


def listen(port: int) -> socket.socket:
    """A socket that listens on a port of this machine; OSError if it is taken."""
    return socket.create_server((HOST, port), backlog=1024)
