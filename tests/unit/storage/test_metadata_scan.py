"""Whether a metadata log is whole: torn tails, and what is damage."""

from pathlib import Path

import pytest

from headrace.config import TopicConfig
from headrace.protocol.batch import scan_headers
from headrace.protocol.records import encode_batch
from headrace.storage.data_directory import METADATA_LOG
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.metadata_scan import MetadataScan, scan_metadata_log

CONFIG = TopicConfig(retention_ms=-1, retention_bytes=-1)
BATCHES = 6
RECORDS = 2


def make_log(directory: Path, *, roll_after: int | None = None) -> bytes:
    """A log of batches of two records, in epochs 1 and 2; the content of its first segment."""
    log = Log.open(Files(), str(directory), METADATA_LOG, CONFIG, 0)
    for number in range(BATCHES):
        value = b"value %d " % number * 40
        batch = encode_batch([(0, None, value, ())] * RECORDS)
        log.append(batch, scan_headers(batch), 1 + number // 3, 0)
        if number == roll_after:
            log.roll(0)
    log.flush()
    log.close(clean=False)
    return segment(directory).read_bytes()


def segment(directory: Path, base_offset: int = 0) -> Path:
    return directory / f"{base_offset:020}.log"


def scan(
    directory: Path, flushed_offset: int | None = None, epoch_max: int | None = None
) -> MetadataScan:
    return scan_metadata_log(
        Files(), str(directory), flushed_offset=flushed_offset, epoch_max=epoch_max
    )


def test_whole_log(tmp_path: Path) -> None:
    make_log(tmp_path, roll_after=2)
    found = scan(tmp_path, 12, 2)
    assert (found.start_offset, found.end_offset, found.last_epoch) == (0, 12, 2)
    assert (found.damage, found.torn_bytes, len(found.batches)) == (None, 0, BATCHES)


def test_directory_without_a_log(tmp_path: Path) -> None:
    found = scan(tmp_path / "missing")
    assert (found.damage, found.end_offset, found.segment_count) == (None, 0, 0)


def test_every_flipped_byte_is_damage(tmp_path: Path) -> None:
    """Also of the last batch, and of what its checksum does not cover, but for the epoch."""
    data = make_log(tmp_path)
    headers = scan_headers(data)
    for number, header in enumerate(headers):
        for at in (*range(12), *range(16, 70, 3), header.size - 1):
            changed = bytearray(data)
            changed[header.position + at] ^= 4
            segment(tmp_path).write_bytes(changed)
            damage = scan(tmp_path, RECORDS * BATCHES).damage
            assert damage is not None, (number, at)
            assert damage.first_offset == number * RECORDS, (number, at)


@pytest.mark.parametrize("flushed_offset", [None, 6, 10])
def test_changed_batch_that_was_written_whole_is_no_torn_tail(
    tmp_path: Path, flushed_offset: int | None
) -> None:
    data = make_log(tmp_path)
    last = scan_headers(data)[-1]
    for at in (8, last.size // 2, last.size - 1):
        changed = bytearray(data)
        changed[last.position + at] ^= 4
        segment(tmp_path).write_bytes(changed)
        damage = scan(tmp_path, flushed_offset).damage
        assert damage is not None and damage.first_offset == 10, at
        assert damage.end_offset is None


def test_damage_in_the_middle_names_the_extent_and_finds_what_follows(tmp_path: Path) -> None:
    data = bytearray(make_log(tmp_path))
    header = scan_headers(data)[2]
    data[header.position + 100] ^= 1
    segment(tmp_path).write_bytes(data)
    found = scan(tmp_path)
    assert (found.end_offset, found.last_epoch) == (4, 1)
    assert [header.base_offset for _, header in found.batches_after] == [6, 8, 10]
    assert found.damage is not None
    text = str(found.damage)
    assert f"{segment(tmp_path)} at position {header.position}: " in text
    assert text.endswith("(offsets 4 to 5)")


def test_wrong_length_does_not_hide_what_follows(tmp_path: Path) -> None:
    data = bytearray(make_log(tmp_path))
    data[scan_headers(data)[1].position + 9] ^= 1
    segment(tmp_path).write_bytes(data)
    found = scan(tmp_path)
    assert [header.base_offset for _, header in found.batches_after] == [4, 6, 8, 10]


def test_write_that_stops_short_is_a_torn_tail(tmp_path: Path) -> None:
    data = make_log(tmp_path)
    last = scan_headers(data)[-1]
    for size in (1, 20, 61, last.size - 1):
        segment(tmp_path).write_bytes(data[: last.position + size])
        for flushed_offset in (None, 10):
            found = scan(tmp_path, flushed_offset)
            assert (found.damage, found.end_offset, found.torn_bytes) == (None, 10, size)
        damage = scan(tmp_path, 12).damage
        assert damage is not None and damage.first_offset == 10, "it was flushed"


@pytest.mark.parametrize("sector", [64, 512])
def test_write_of_which_sectors_are_missing_is_a_torn_tail(tmp_path: Path, sector: int) -> None:
    data = make_log(tmp_path)
    headers = scan_headers(data)
    for header in headers[3:]:
        changed = bytearray(data)
        start = header.position + header.size // 2 // sector * sector
        start -= start % sector
        changed[max(start, header.position) : start + sector] = bytes(
            start + sector - max(start, header.position)
        )
        segment(tmp_path).write_bytes(changed[: len(data)])
        found = scan(tmp_path, 6)
        assert found.damage is None, "sectors of one write may arrive in any order"
        assert found.end_offset <= header.base_offset
        damage = scan(tmp_path, 12).damage
        assert damage is not None and damage.first_offset == found.end_offset


def test_zeros_before_a_sound_batch_are_damage_if_nothing_says_what_was_flushed(
    tmp_path: Path,
) -> None:
    data = bytearray(make_log(tmp_path))
    header = scan_headers(data)[2]
    data[header.position : header.position + header.size] = bytes(header.size)
    segment(tmp_path).write_bytes(data)
    damage = scan(tmp_path).damage
    assert damage is not None and (damage.first_offset, damage.end_offset) == (4, 6)


def test_log_that_ends_below_what_was_flushed_is_damaged(tmp_path: Path) -> None:
    data = make_log(tmp_path)
    segment(tmp_path).write_bytes(data[: scan_headers(data)[3].position])
    assert scan(tmp_path).damage is None
    damage = scan(tmp_path, 12).damage
    assert damage is not None and (damage.first_offset, damage.end_offset) == (6, 12)
    segment(tmp_path).unlink()
    damage = scan(tmp_path, 12).damage
    assert damage is not None and (damage.first_offset, damage.end_offset) == (0, 12)


def test_missing_segment_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path, roll_after=2)
    data = segment(tmp_path).read_bytes()
    segment(tmp_path).write_bytes(data[: scan_headers(data)[2].position])
    damage = scan(tmp_path, 12).damage
    assert damage is not None and (damage.first_offset, damage.end_offset) == (4, 6)
    assert scan(tmp_path, 4).damage is None, "what was not flushed of it may be missing"


def test_epochs_do_not_fall_nor_exceed_the_quorum_state(tmp_path: Path) -> None:
    data = bytearray(make_log(tmp_path))
    data[scan_headers(data)[4].position + 15] = 1
    segment(tmp_path).write_bytes(data)
    damage = scan(tmp_path, 12, 2).damage
    assert damage is not None and "epoch 1 follows epoch 2" in damage.reason
    data[scan_headers(data)[4].position + 15] = 2
    data[scan_headers(data)[5].position + 15] = 18
    segment(tmp_path).write_bytes(data)
    assert scan(tmp_path, 12).damage is None
    damage = scan(tmp_path, 12, 2).damage
    assert damage is not None and "epoch 18 is above 2" in damage.reason
