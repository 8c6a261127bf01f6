"""Ports of the brokers of a test, which stay theirs while they are down."""

import socket

from headrace.net import ports
from headrace.testing.failures import BrokerError

HOST = "127.0.0.1"


def unused_port() -> int:
    """A port nobody listens on; nothing but luck keeps it from being taken by somebody else."""
    return unused_ports(1)[0]


def unused_ports(count: int) -> tuple[int, ...]:
    """Several such ports, all different."""
    try:
        return ports.unused_ports(HOST, count)
    except OSError as error:
        raise BrokerError(error.strerror or str(error)) from None


def listen_on_unused_port() -> socket.socket:
    """A socket that listens on such a port."""
    try:
        return ports.listen_on_unused_port(HOST)
    except OSError as error:
        raise BrokerError(error.strerror or str(error)) from None


def listen(port: int) -> socket.socket:
    """A socket that listens on a port of this machine; OSError if it is taken."""
    return ports.listen(HOST, port)
