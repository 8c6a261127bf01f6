"""Unsigned varints outside of messages: in the request header and before metadata records."""

from headrace.errors import ProtocolError
from headrace.types import Buffer


def encode_uvarint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(buffer):
            raise ProtocolError("a varint is cut short")
        byte = buffer[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ProtocolError("a varint has more than five bytes")
