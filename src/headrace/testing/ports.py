"""Ports of the brokers of a test, which stay theirs while they are down."""

import socket

from headrace.net import ports
from headrace.net.ports import HeldPort
from headrace.testing.failures import BrokerError

HOST = "127.0.0.1"


def hold_port() -> HeldPort:
    """A port of this machine that nobody uses, and no other test gets until it is released."""
    try:
        return HeldPort(HOST)
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
