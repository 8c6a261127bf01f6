"""Types that every package shares. No logic beyond converting ids to text and back."""

from base64 import b64decode, urlsafe_b64encode
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)


class SecurityProtocol(IntEnum):
    """The transport of a listener below Kafka's protocol; the numbers are Kafka's."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class TopicPartition(NamedTuple):
    """A partition by name, as Kafka writes it: `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def uuid_text(raw: bytes) -> str:
    """A 16-byte id in Kafka's text form: URL-safe base64 without padding."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """The inverse of `uuid_text`; raises ValueError for anything else."""
    raw = b64decode(text + "==", altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"not a 16-byte id: {text!r}")
    return raw
