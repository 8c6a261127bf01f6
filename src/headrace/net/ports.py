"""Free ports that stay reserved for a broker while it is down."""

import os
import random
import socket
import sys
import weakref
from errno import EADDRINUSE
from typing import Self

# Below the ephemeral range. An ephemeral port could be taken, between the kill of a broker and its
# restart, by a client that tries to reconnect to it: a socket can even connect to itself.
_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200
_BACKLOG = 1024


class HeldPort:
    """A reserved port of a host, for a broker that stops and starts; OSError if none is free.

    No other process gets the port from this module until `release()`, or until this object or its
    process is gone: it is held by a socket that is bound and does not listen. Only Linux lets
    another socket listen beside such a socket. Elsewhere the port is not held at all.
    """

    def __init__(self, host: str) -> None:
        holder = _bind_unused(host)
        self.number: int = holder.getsockname()[1]
        self.release = weakref.finalize(self, holder.close)
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def listen_on_unused_port(host: str) -> socket.socket:
    """A socket that listens on a free port of a host; OSError if none was found."""
    bound = _bind_unused(host)
    bound.listen(_BACKLOG)
    return bound


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on a port of a host; OSError if it is taken."""
    return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)


def _bind_unused(host: str) -> socket.socket:
    # Not the `random` module's own generator: forked workers of a test run share its state.
    for port in random.Random(os.urandom(8)).sample(_PORTS, _ATTEMPTS):
        bound = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            # Without SO_REUSEADDR, under which a bind succeeds to a port that is held.
            bound.bind((host, port))
        except OSError as error:
            bound.close()
            if error.errno != EADDRINUSE:
                raise
        else:
            return bound
    raise OSError(EADDRINUSE, f"no free port was found between {_PORTS.start} and {_PORTS.stop}")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
