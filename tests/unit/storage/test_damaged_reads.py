"""Reads of a damaged log: what is intact is given, what is not is refused, and it is remembered."""

from pathlib import Path

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.damage import DamagedLog
from headrace.storage.log import Log
from headrace.storage.log_segments import sound_headers
from headrace.storage.scrubbing import check_segment
from tests.unit.storage.logs import UnsyncedFiles, append, config, open_log, values

BATCHES = 12
LENGTH_AT, MAGIC_AT, RECORDS_AT = 10, 16, 61


def damaged_log(path: Path, byte: int, *, interval: int = 100_000, number: int = 5) -> Log:
    """A log of batches of two records in one segment, with a bit of one turned over."""
    settings = config(segment_bytes=1_000_000, index_interval_bytes=interval)
    log = open_log(path, settings, files=UnsyncedFiles())
    for index in range(BATCHES):
        append(log, 2, value=b"%d" % index * 10)
    log.active.finish_indexes()
    log._state.hints.clear()  # As after a restart.
    segment = path / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[_at(content, number) + byte] ^= 1
    with segment.open("r+b") as file:
        file.write(content)
    return log


def _at(content: bytearray, number: int) -> int:
    position = 0
    for _ in range(number):
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    return position


def check(log: Log) -> DamagedLog:
    """Check the only segment, as scrubbing does, and have the log know what is damaged."""
    with pytest.raises(DamagedLog) as raised:
        list(check_segment(log.active, log.log_end_offset, log.epochs.entries))
    damage = raised.value
    log.mark_damaged([(damage.first_offset, damage.end_offset)])
    return damage


def offsets(log: Log, offset: int, max_offset: int | None = None) -> list[int]:
    limit = log.log_end_offset if max_offset is None else max_offset
    records = log.read(offset, 10_000, limit, at_least_one=True).records
    return [found for found, _ in values(records)]


@pytest.mark.parametrize("byte", [LENGTH_AT, MAGIC_AT, RECORDS_AT])
@pytest.mark.parametrize("interval", [100, 100_000])
def test_known_damage_is_refused_and_the_rest_is_read(
    tmp_path: Path, byte: int, interval: int
) -> None:
    log = damaged_log(tmp_path, byte, interval=interval)
    damage = check(log)
    assert (damage.first_offset, damage.end_offset) == (10, 12)
    assert offsets(log, 0) == list(range(10))
    assert offsets(log, 0, max_offset=6) == list(range(6))
    # Where those stop who read what is committed: it lies behind the damage.
    assert offsets(log, 2, max_offset=20) == list(range(2, 10))
    for offset in (10, 11):
        with pytest.raises(KafkaError, match="offsets 10 to 11 are damaged; 12 may be") as raised:
            log.read(offset, 10_000, log.log_end_offset)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert offsets(log, 12) == list(range(12, 24))
    assert offsets(log, 15) == list(range(14, 24))
    assert log.suspected_offset is None
    append(log, 2)
    assert offsets(log, 24) == [24, 25]
    log.mark_damaged(())
    log.close(clean=False)


@pytest.mark.parametrize("byte", [LENGTH_AT, MAGIC_AT])
def test_a_read_that_meets_damage_leaves_word_of_it(tmp_path: Path, byte: int) -> None:
    log = damaged_log(tmp_path, byte)
    assert log.suspected_offset is None
    with pytest.raises(KafkaError) as raised:
        log.read(14, 10_000, log.log_end_offset)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.suspected_offset == 14
    log.clear_suspicion()
    assert log.suspected_offset is None


def test_what_was_cut_off_is_not_damaged_any_more(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, RECORDS_AT)
    check(log)
    log.truncate_to(10)
    append(log, 4)
    assert offsets(log, 10) == [10, 11, 12, 13]


def test_headers_are_given_up_to_one_that_cannot_be_true(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, MAGIC_AT)
    data = (tmp_path / f"{0:020d}.log").read_bytes()
    headers, error = sound_headers(data)
    assert [header.base_offset for header in headers] == [0, 2, 4, 6, 8]
    assert error is not None
    log.close(clean=False)
