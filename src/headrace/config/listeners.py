"""Listener addresses, `PLAINTEXT://host:port`, as `listeners` and `advertised.listeners` hold."""

import re
from typing import NamedTuple

_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})\Z"
)

ANY_ADDRESS = ("", "0.0.0.0", "::")


class Listener(NamedTuple):
    """An address clients connect to. An empty host is every interface; port 0 is any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(texts: tuple[str, ...]) -> tuple[Listener, ...]:
    """The listeners of a list setting; ValueError names the wrong one."""
    listeners = tuple(_parse_listener(text) for text in texts)
    for number, listener in enumerate(listeners):
        for other in listeners[:number]:
            # One name may listen on IPv4 and IPv6 at once, if it does so on one port.
            dual_stack = (":" in other.host) != (":" in listener.host)
            if other.name == listener.name and not (dual_stack and other.port == listener.port):
                raise ValueError(f"the listener name {listener.name} is used twice")
    return listeners


def parse_advertised_listeners(texts: tuple[str, ...]) -> tuple[Listener, ...]:
    """Like `parse_listeners`, for addresses that clients must be able to reach."""
    listeners = parse_listeners(texts)
    for listener in listeners:
        if listener.host in ANY_ADDRESS:
            raise ValueError(f"clients cannot connect to {listener}; give a host name or address")
    return listeners


def _parse_listener(text: str) -> Listener:
    match = _LISTENER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form PLAINTEXT://host:port")
    name, port = match["name"].upper(), int(match["port"])
    if port > 65_535:
        raise ValueError(f"port {port} is above 65535")
    return Listener(name, match["v6"] or match["host"], port)
