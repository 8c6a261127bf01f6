"""Free ports that stay a broker's own while it is down."""

import os
import random
import socket
from errno import EADDRINUSE

# Below the range that outgoing connections take theirs from. A port of that range could be taken,
# between a kill and the restart, by a client that is trying to reconnect: even to itself.
_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200


def listen_on_unused_port(host: str) -> socket.socket:
    """A socket that listens on such a port of a host; OSError if none was found."""
    # Workers of a test run that were forked share the state of the `random` module.
    for port in random.Random(os.urandom(8)).sample(_PORTS, _ATTEMPTS):
        try:
            return listen(host, port)
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
    raise OSError(EADDRINUSE, f"no free port was found between {_PORTS.start} and {_PORTS.stop}")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on a port of a host; OSError if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def unused_ports(host: str, count: int) -> tuple[int, ...]:
    """Ports nobody listens on; nothing but luck keeps them from being taken by somebody else."""
    # All of them are held until the last is found, so that none is found twice.
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            sockets.append(listen_on_unused_port(host))
        return tuple(one.getsockname()[1] for one in sockets)
    finally:
        for one in sockets:
            one.close()
