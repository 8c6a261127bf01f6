"""CRC32C as RFC 3720 defines it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.batch import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_checksum_is_the_standard_one(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksum_goes_on_from_an_earlier_one(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


@given(st.binary(min_size=1, max_size=300))
def test_any_buffer_has_the_checksum_of_its_bytes(data: bytes) -> None:
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)
    assert crc32c(memoryview(b"x" + data + b"x")[1:-1]) == crc32c(data)
