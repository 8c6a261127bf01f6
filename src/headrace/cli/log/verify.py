"""Checks of log files: each by itself, and against the others.

A segment is checked with its indexes in one pass. Segments of a directory must follow each other. A
running broker keeps its newest index entries in memory, so missing entries are no problem.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headrace.cli.log.dump import (
    LogFileType,
    base_offset_of,
    dump_file,
    index_entries,
    kind_of,
    open_segment,
    segment_encryption,
)
from headrace.errors import CorruptBatch, MissingKey, StorageError
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from headrace.protocol.column_decoder import decode_columns
from headrace.security.keyring import NO_KEYS, Keyring
from headrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from headrace.types import Buffer

PROBLEMS_KEPT_MAX = 1000


class FileProblem(NamedTuple):
    """A problem in a file, and its position."""

    path: str
    position: int | None
    text: str

    def __str__(self) -> str:
        where = "" if self.position is None else f" at position {self.position}"
        return f"{self.path}{where}: {self.text}"


@dataclass(slots=True)
class Findings:
    """The files checked and problems found. Only the first problems are kept, all are counted."""

    files: int = 0
    batches: int = 0
    records: int = 0
    encrypted: int = 0
    size_bytes: int = 0
    problem_count: int = 0
    problems: list[FileProblem] = field(default_factory=list)

    def add(self, path: Path, text: str, position: int | None = None) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT_MAX:
            self.problems.append(FileProblem(str(path), position, text))


def check_files(paths: Iterable[Path], keyring: Keyring = NO_KEYS) -> Findings:
    """Check files; the segments among them in the order in which they are given.

    Of encrypted batches for which `keyring` has no key, the checksum alone is checked.
    """
    findings = Findings()
    ends: dict[Path, _SegmentEnd] = {}
    wanted = list(paths)
    segments = {path.with_suffix(LOG_SUFFIX) for path in wanted if kind_of(path) is LogFileType.LOG}
    for path in wanted:
        kind = kind_of(path)
        findings.files += 1
        try:
            if kind is LogFileType.LOG:
                end = ends.get(path.parent, _SegmentEnd())
                ends[path.parent] = _SegmentCheck(path, findings, keyring).run(end)
            elif kind in (LogFileType.INDEX, LogFileType.TIME_INDEX):
                if path.with_suffix(LOG_SUFFIX) not in segments:
                    _check_index_alone(path, findings)
            else:
                _check_small(path, findings)
        except StorageError as error:
            findings.add(path, str(error))
    return findings


class _SegmentEnd(NamedTuple):
    """The end of a segment: the next one must begin there or later."""

    next_offset: int = 0
    leader_epoch: int = -1


class _SegmentCheck:
    """One pass over a segment, with its indexes if they are there."""

    def __init__(self, path: Path, findings: Findings, keyring: Keyring) -> None:
        self._path = path
        self._encryption = segment_encryption(path, keyring)
        self._findings = findings
        base_offset = base_offset_of(path)
        assert base_offset is not None, path
        self._base_offset = base_offset
        self._time_path = path.with_suffix(TIME_INDEX_SUFFIX)
        self._time_entries = self._entries(self._time_path)
        self._max_timestamp = -1

    def run(self, end: _SegmentEnd) -> _SegmentEnd:
        """Check the whole segment; returns its end."""
        path, findings = self._path, self._findings
        segment = open_segment(path)
        findings.size_bytes += segment.size
        if self._base_offset < end.next_offset:
            findings.add(path, f"begins before offset {end.next_offset}, where the last one ended")
        next_offset, epoch = max(end.next_offset, self._base_offset), end.leader_epoch
        try:
            for header, buffer, position in segment.batches(0, segment.size):
                findings.batches += 1
                if header.base_offset < next_offset:
                    text = f"offset {header.base_offset} follows {next_offset - 1}"
                    findings.add(path, text, position)
                if header.leader_epoch < epoch:
                    text = f"leader epoch {header.leader_epoch} follows {epoch}"
                    findings.add(path, text, position)
                findings.records += self._check_content(buffer, header, position)
                next_offset, epoch = max(next_offset, header.next_offset), header.leader_epoch
                self._check_time_entries(header)
        except CorruptBatch as error:
            where = f"at position {error.position}: " if error.path else ""
            findings.add(path, where + error.reason)
        for timestamp, relative in self._time_entries:
            text = f"the entry for {timestamp} names offset {self._base_offset + relative},"
            findings.add(self._time_path, f"{text} which the segment does not have")
        index_path = path.with_suffix(INDEX_SUFFIX)
        _check_offset_entries(path, index_path, self._entries(index_path), findings)
        return _SegmentEnd(next_offset, epoch)

    def _check_content(self, buffer: Buffer, header: BatchHeader, position: int) -> int:
        """Check the CRC and decode every record; how many there are."""
        try:
            check_batch(buffer, header, compacted=True)
            if header.is_encrypted:
                try:
                    buffer = self._encryption.decrypt_batch(buffer, header)
                except MissingKey:
                    self._findings.encrypted += 1
                    return header.record_count
                header = read_header(buffer)
            columns = decode_columns(
                buffer, header.position, header.position + header.size, with_control=True
            )
            return columns.length
        except CorruptBatch as error:
            self._findings.add(self._path, str(error), position)
            return 0

    def _entries(self, path: Path) -> list[tuple[int, int]]:
        if not path.exists():
            return []
        entries, left_over = index_entries(path)
        _check_order(path, entries, left_over, self._findings)
        return entries

    def _check_time_entries(self, header: BatchHeader) -> None:
        """Check that a time index entry has the largest timestamp up to its offset."""
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        while self._time_entries:
            timestamp, relative = self._time_entries[0]
            offset = self._base_offset + relative
            if offset > header.last_offset:
                return
            if timestamp != self._max_timestamp:
                self._findings.add(
                    self._time_path,
                    f"the entry for offset {offset} says {timestamp}, but the largest timestamp"
                    f" up to there is {self._max_timestamp}",
                )
            self._time_entries.pop(0)


def _check_order(
    path: Path, entries: Sequence[tuple[int, int]], left_over: int, findings: Findings
) -> None:
    if left_over:
        findings.add(path, f"{left_over} bytes after the last whole entry")
    for number, (before, after) in enumerate(pairwise(entries), 1):
        if after[0] <= before[0] or after[1] < before[1]:
            findings.add(path, f"entry {number} {after} does not follow {before}")


def _check_offset_entries(
    log_path: Path, path: Path, entries: Sequence[tuple[int, int]], findings: Findings
) -> None:
    """Check that every entry points to the batch that ends with its offset."""
    if not entries:
        return
    segment = open_segment(log_path)
    file = segment.file()
    for relative, position in entries:
        offset = segment.base_offset + relative
        if not 0 <= position <= segment.size - HEADER_SIZE:
            findings.add(path, f"offset {offset} is said to be at {position}, past the end")
            continue
        try:
            header = read_header(file.read_at(position, HEADER_SIZE))
        except CorruptBatch:
            findings.add(path, f"offset {offset} is said to be at {position}, where no batch is")
            continue
        if header.last_offset != offset:
            findings.add(
                path,
                f"offset {offset} is said to end the batch at {position},"
                f" which ends with {header.last_offset}",
            )


def _check_index_alone(path: Path, findings: Findings) -> None:
    """Check an index without its segment in the arguments; against the segment if it exists."""
    log_path = path.with_suffix(LOG_SUFFIX)
    entries, left_over = index_entries(path)
    _check_order(path, entries, left_over, findings)
    if not log_path.exists():
        findings.add(path, f"its segment {log_path.name} is missing")
    elif kind_of(path) is LogFileType.INDEX:
        _check_offset_entries(log_path, path, entries, findings)


def _check_small(path: Path, findings: Findings) -> None:
    """Check a small file by reading it as a whole."""
    for document in dump_file(path, with_records=False):
        if document["kind"] == "problem":
            findings.add(path, document["problem"], document.get("position"))
