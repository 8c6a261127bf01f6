"""The table of keys, its hash, and the checksum of batches."""

from random import Random

import pytest

from headrace.protocol.batch import crc32c
from headrace.storage.compaction.checksums import checksum
from headrace.storage.compaction.key_table import KeyTable

SECRET = bytes(range(16))


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ],
)
def test_keys_are_hashed_as_the_authors_of_siphash_do(size: int, digest: str) -> None:
    assert KeyTable(2, 1, SECRET).digest(bytes(range(size))).hex() == digest


def test_another_secret_is_another_hash() -> None:
    assert KeyTable(2, 1, SECRET).digest(b"k") != KeyTable(2, 1, bytes(16)).digest(b"k")


def test_a_table_is_a_dictionary_of_the_largest_offsets() -> None:
    rng = Random(5)
    table, model = KeyTable(50, 40, SECRET), dict[bytes, int]()
    for _ in range(2000):
        key = b"%d" % rng.randrange(60)
        offset = rng.randrange(1000)
        fits = key in model or len(model) < 40
        assert table.put(key, offset) == fits
        if fits:
            model[key] = max(model.get(key, -1), offset)
        assert len(table) == len(model)
    assert {key: table.get(key) for key in (b"%d" % number for number in range(60))} == {
        key: model.get(key, -1) for key in (b"%d" % number for number in range(60))
    }
    assert len(model) == 40


@pytest.mark.parametrize(
    ("slots", "limit", "secret"), [(1, 1, SECRET), (2, 0, SECRET), (2, 1, b"")]
)
def test_a_table_without_a_free_slot_or_a_secret_is_refused(
    slots: int, limit: int, secret: bytes
) -> None:
    with pytest.raises(ValueError, match=r"slots|secret"):
        KeyTable(slots, limit, secret)


def test_checksums_are_those_of_the_protocol() -> None:
    rng = Random(1)
    for size in (*range(20), 61, 1000):
        data = rng.randbytes(size)
        assert checksum(data) == crc32c(data)
