"""Addresses of brokers: `host:port`, with brackets around an IPv6 host."""

import re
from typing import NamedTuple

from headrace.errors import ConfigError

DEFAULT_PORT = 9092

_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]+))(?::(?P<port>[0-9]{1,5}))?\Z"
)


class Address(NamedTuple):
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The addresses of a comma-separated list; ConfigError names an address that is wrong."""
    addresses = tuple(_parse_address(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ConfigError("no broker address is given; give one as host:port")
    return addresses


def _parse_address(text: str) -> Address:
    match = _ADDRESS.match(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 1 <= port <= 65_535:
        raise ConfigError(f"{text!r} is no broker address; write it as host:port")
    return Address(match["v6"] or match["host"], port)
