"""Batches as they are stored: recompressed with the level that the topic asks for."""

import pytest

from headrace.broker.replication.partition import admit
from headrace.config import TopicConfig
from headrace.protocol.compression import Compression
from headrace.protocol.records import decode_rows, encode_batch

NOW_MS = 1_000_000
# Text that a better level makes smaller.
VALUES = [b" ".join(b"%d" % (number * 7919 % 251) for number in range(3000))] * 2


def stored(**settings: object) -> tuple[Compression, int]:
    """The codec and the size of a batch that came uncompressed."""
    rows = [(NOW_MS, None, value, ()) for value in VALUES]
    config = TopicConfig(**settings)  # type: ignore[arg-type]
    header, data = admit(memoryview(bytearray(encode_batch(rows))), config, NOW_MS)
    assert [row.value for row in decode_rows(data)] == VALUES
    return Compression(header.compression), len(data)


@pytest.mark.parametrize(
    ("codec", "fast", "best"), [("gzip", 1, 9), ("lz4", 9, 12), ("zstd", -50, 19)]
)
def test_a_batch_is_recompressed_with_the_level_of_its_topic(
    codec: str, fast: int, best: int
) -> None:
    name = f"compression_{codec}_level"
    first, large = stored(compression_type=codec, **{name: fast})
    second, small = stored(compression_type=codec, **{name: best})
    assert first is second is Compression[codec.upper()]
    assert small < large


def test_levels_of_other_codecs_change_nothing() -> None:
    assert stored(compression_type="snappy", compression_gzip_level=9) == stored(
        compression_type="snappy"
    )
    assert stored(compression_gzip_level=9)[0] is Compression.NONE
