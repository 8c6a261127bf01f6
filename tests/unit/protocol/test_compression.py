"""The codecs: what other clients can read, what is read of theirs, and what is refused."""

import gzip
import random
import zlib
from contextlib import suppress

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatch
from headrace.protocol.compression import Compression, compress, decompress

CODECS = list(Compression)
COMPRESSING = CODECS[1:]

AIOKAFKA_DECODERS = {
    Compression.GZIP: aiokafka.codec.gzip_decode,
    Compression.SNAPPY: aiokafka.codec.snappy_decode,
    Compression.LZ4: aiokafka.codec.lz4_decode,
    Compression.ZSTD: aiokafka.codec.zstd_decode,
}
AIOKAFKA_ENCODERS = {
    Compression.GZIP: aiokafka.codec.gzip_encode,
    Compression.SNAPPY: aiokafka.codec.snappy_encode,
    Compression.LZ4: aiokafka.codec.lz4_encode,
    Compression.ZSTD: aiokafka.codec.zstd_encode,
}


def text(size: int, seed: int = 1) -> bytes:
    """Something a codec can shrink, but not to nothing."""
    rng = random.Random(seed)
    words = [rng.randbytes(5).hex().encode() for _ in range(50)]
    return b" ".join(rng.choices(words, k=size // 10))[:size].ljust(size, b".")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=2000))
def test_data_comes_back_as_it_was(codec: Compression, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_large_data_and_any_buffer_come_back(codec: Compression, size: int) -> None:
    data = text(size)
    compressed = compress(codec, memoryview(data))
    assert bytes(decompress(codec, memoryview(bytes(compressed)), size)) == data
    assert bytes(decompress(codec, bytearray(compressed), size)) == data


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_other_clients_read_what_we_compress(codec: Compression, size: int) -> None:
    data = text(size)
    assert AIOKAFKA_DECODERS[codec](bytes(compress(codec, data))) == data


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_we_read_what_other_clients_compress(codec: Compression, size: int) -> None:
    data = text(size)
    assert bytes(decompress(codec, AIOKAFKA_ENCODERS[codec](data), size)) == data


def test_lz4_blocks_are_independent_as_the_java_client_demands() -> None:
    frame = bytes(compress(Compression.LZ4, text(200_000)))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    version, independent = frame[4] >> 6, frame[4] >> 5 & 1
    assert (version, independent) == (1, 1)
    assert frame[4] & 0b1101 == 0, (
        "a content size, content checksum or dictionary was not asked for"
    )


def test_lz4_frame_begins_as_the_java_client_writes_it() -> None:
    assert bytes(compress(Compression.LZ4, text(200_000)))[:7] == b"\x04\x22\x4d\x18\x60\x40\x82"


@pytest.mark.parametrize("size", [1, 12, 65_536, 65_537, 200_000])
def test_lz4_stores_blocks_that_do_not_shrink(size: int) -> None:
    data = random.Random(size).randbytes(size)
    frame = bytes(compress(Compression.LZ4, data))
    blocks = -(-size // 65_536)
    assert len(frame) == 7 + blocks * 4 + size + 4
    assert bytes(decompress(Compression.LZ4, frame, size)) == data
    assert aiokafka.codec.lz4_decode(frame) == data


@pytest.mark.parametrize("level", [0, 1, 2, 3, 12, 17])
def test_lz4_of_every_level_has_independent_blocks(level: int) -> None:
    data = text(200_000)
    frame = bytes(compress(Compression.LZ4, data, level))
    assert frame[4] >> 5 & 1 == 1
    assert aiokafka.codec.lz4_decode(frame) == data


def test_lz4_with_linked_blocks_is_read() -> None:
    data = text(200_000)
    frame = bytes(cramjam.lz4.compress(data))
    assert frame[4] >> 5 & 1 == 0
    assert bytes(decompress(Compression.LZ4, frame, len(data))) == data


def test_snappy_is_framed_in_blocks_as_the_java_client_does() -> None:
    data = text(70_000)
    stream = bytes(compress(Compression.SNAPPY, data))
    assert stream[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    position, blocks = 16, []
    while position < len(stream):
        size = int.from_bytes(stream[position : position + 4], "big")
        blocks.append(bytes(cramjam.snappy.decompress_raw(stream[position + 4 :][:size])))
        position += 4 + size
    assert [len(block) for block in blocks] == [32768, 32768, 70_000 - 2 * 32768]
    assert b"".join(blocks) == data


def test_snappy_without_framing_is_read() -> None:
    data = text(70_000)
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert bytes(decompress(Compression.SNAPPY, raw, len(data))) == data


def test_zstd_frame_that_does_not_tell_its_size_is_read() -> None:
    data = text(70_000)
    compressor = cramjam.zstd.Compressor(level=3)
    compressor.compress(data)
    frame = bytes(compressor.finish())
    size_flag, single_segment = frame[4] >> 6, frame[4] >> 5 & 1
    assert (size_flag, single_segment) == (0, 0), "the frame tells its size after all"
    assert bytes(decompress(Compression.ZSTD, frame, len(data))) == data


@pytest.mark.parametrize(
    ("codec", "fast", "small"),
    [(Compression.GZIP, 1, 9), (Compression.LZ4, 1, 9), (Compression.ZSTD, 1, 15)],
)
def test_level_trades_time_for_size(codec: Compression, fast: int, small: int) -> None:
    data = text(100_000)
    assert len(compress(codec, data, small)) < len(compress(codec, data, fast))
    assert bytes(decompress(codec, compress(codec, data, small), len(data))) == data


@pytest.mark.parametrize(
    ("codec", "default"), [(Compression.GZIP, 6), (Compression.LZ4, 1), (Compression.ZSTD, 3)]
)
def test_default_levels_are_the_documented_ones(codec: Compression, default: int) -> None:
    data = text(100_000)
    assert bytes(compress(codec, data)) == bytes(compress(codec, data, default))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [text(50_000), bytes(1_000_000)], ids=["text", "zeros"])
def test_bound_is_exact(codec: Compression, data: bytes) -> None:
    compressed = compress(codec, data)
    assert len(decompress(codec, compressed, len(data))) == len(data)
    for bound in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptBatch, match="expand"):
            decompress(codec, compressed, bound)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("room", [0, 1, 49_999, 50_000, 50_001])
def test_scratch_may_be_of_any_size(codec: Compression, room: int) -> None:
    data = text(50_000)
    compressed = compress(codec, data)
    scratch = memoryview(bytearray(room))
    assert bytes(decompress(codec, compressed, len(data), scratch)) == data
    assert bytes(decompress(codec, compressed, 1_000_000, scratch)) == data
    for bound in (0, 1, len(data) - 1):
        with pytest.raises(CorruptBatch, match="expand"):
            decompress(codec, compressed, bound, scratch)


@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD])
def test_scratch_is_used_again_and_again(codec: Compression) -> None:
    scratch = memoryview(bytearray(100_000))
    for size in (100_000, 10, 0, 50_000):
        result = decompress(codec, compress(codec, text(size)), 1_000_000, scratch)
        assert isinstance(result, memoryview)
        assert result.obj is scratch.obj
        assert bytes(result) == text(size)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bomb_is_refused(codec: Compression) -> None:
    bomb = compress(codec, bytes(50_000_000))
    assert len(bomb) < 4_000_000
    for scratch in (None, memoryview(bytearray(1000)), memoryview(bytearray(2_000_000))):
        with pytest.raises(CorruptBatch, match="expand"):
            decompress(codec, bomb, 1_000_000, scratch)


def test_snappy_claim_beyond_what_its_bytes_can_hold_is_refused_before_memory_is_set_aside() -> (
    None
):
    with pytest.raises(CorruptBatch, match="claims to hold 4294967295"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f\x00abc", 1 << 40)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_truncation_is_refused(codec: Compression) -> None:
    data = text(500)
    compressed = bytes(compress(codec, data))
    header = 16 if codec is Compression.SNAPPY else 0
    for size in range(header + 1, len(compressed)):
        with pytest.raises(CorruptBatch):
            decompress(codec, compressed[:size], 10_000)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_something_after_the_end_is_refused(codec: Compression) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, bytes(compress(codec, text(500))) + b"more", 10_000)


def test_second_gzip_member_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="followed by something"):
        decompress(Compression.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 100)


def test_zlib_stream_is_not_gzip() -> None:
    with pytest.raises(CorruptBatch):
        decompress(Compression.GZIP, zlib.compress(b"data"), 100)


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(max_size=200))
def test_garbage_is_corrupt_and_nothing_else(codec: Compression, data: bytes) -> None:
    with suppress(CorruptBatch):
        assert len(decompress(codec, data, 10_000)) <= 10_000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_mutated_data_is_corrupt_or_decompresses_within_the_bound(codec: Compression) -> None:
    rng = random.Random(3)
    good = bytes(compress(codec, text(2000)))
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for scratch in (None, memoryview(bytearray(1000)), memoryview(bytearray(9000))):
            with suppress(CorruptBatch):
                assert len(decompress(codec, data, 5000, scratch)) <= 5000


def test_unknown_codec_is_the_callers_mistake_one_way_and_damage_the_other() -> None:
    with pytest.raises(ValueError, match="number 5"):
        compress(5, b"data")
    with pytest.raises(CorruptBatch, match="number 7"):
        decompress(7, b"data", 100)
