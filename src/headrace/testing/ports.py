"""Ports of a test's brokers, which stay reserved while these are down, and their errors."""

import socket

from headrace.errors import HeadraceError
from headrace.net import ports
from headrace.net.ports import HeldPort

# The exit status of a broker process whose port was taken.
PORT_TAKEN_STATUS = 98


class BrokerError(HeadraceError):
    """The broker did not start or stop, or cannot carry out the call; the text says why."""


class PortTaken(BrokerError):
    """Another process listens on the broker's port."""


HOST = "127.0.0.1"


def hold_port() -> HeldPort:
    """A free port of this machine, reserved until it is released."""
    try:
        return HeldPort(HOST)
    except OSError as error:
        raise BrokerError(error.strerror or str(error)) from None


def listen_on_unused_port() -> socket.socket:
    """A socket that listens on a free port."""
    try:
        return ports.listen_on_unused_port(HOST)
    except OSError as error:
        raise BrokerError(error.strerror or str(error)) from None


def listen(port: int) -> socket.socket:
    """A socket that listens on a port of this machine; OSError if it is taken."""
    return ports.listen(HOST, port)
