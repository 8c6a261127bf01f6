"""What can go wrong with the broker of a test."""

from headrace.errors import HeadraceError

# How a broker process that met a taken port ends.
PORT_TAKEN_STATUS = 98


class BrokerError(HeadraceError):
    """The broker did not start or stop, or cannot do what was asked; the text says why."""


class PortTaken(BrokerError):
    """Another process listens on the broker's port."""
