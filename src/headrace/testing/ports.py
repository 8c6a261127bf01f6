"""Ports of the brokers of a test, which stay theirs while they are down, and a broker's errors."""

import socket

from headrace.errors import HeadraceError
from headrace.net import ports
from headrace.net.ports import HeldPort

# How a broker process that met a taken port ends.
PORT_TAKEN_STATUS = 98


class BrokerError(HeadraceError):
    """The broker did not start or stop, or cannot do what was asked; the text says why."""


class PortTaken(BrokerError):
    """Another process listens on the broker's port."""


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
