"""The account of which disks hold each committed record, and of losses by faults.

Rule: a committed record may be lost only if a fault took it from every disk that held it. A
deletion by a broker itself is never an excuse. Kept for batches by their first offset, and for
records in compacted topics, whose batches are rewritten.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.protocol.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, LOG_OVERHEAD, crc32c
from headrace.storage.segment import LOG_SUFFIX, SWAP_SUFFIX
from headrace.testing.simulation.batches import ComparedBatch, batches_in, is_compacted, units
from headrace.testing.simulation.simulated_disk import SimulatedDisk
from headrace.types import TopicPartition

# A topic that was deleted and created again has other partitions.
Place = tuple[bytes, TopicPartition]


class CommittedUnit(NamedTuple):
    """A committed batch or record: its first and last offset and a checksum of its content."""

    offset: int
    last_offset: int
    checksum: int


@dataclass
class _CommittedCopy:
    unit: CommittedUnit
    hosts: set[str] = field(default_factory=set)

    def covers(self, offset: int) -> bool:
        return self.unit.offset <= offset <= self.unit.last_offset


class Copies:
    """The account of committed records in one run."""

    def __init__(self) -> None:
        self._held: dict[Place, dict[int, _CommittedCopy]] = {}
        self._damaged: set[tuple[str, str]] = set()
        # Logs that compaction has rewritten on a host: their segments need not join up.
        self._rewritten: set[tuple[str, str]] = set()
        # Units that were overwritten after every disk had lost them.
        self._replaced: dict[TopicPartition, list[CommittedUnit]] = {}

    def hold(self, place: Place, unit: CommittedUnit, host: str) -> None:
        """Note that a host's log has a committed unit; ValueError if it replaces another one there.

        `lost` has the units that may be replaced.
        """
        held = self._held.setdefault(place, {})
        copy = held.get(unit.offset)
        if copy is None:
            copy = held[unit.offset] = _CommittedCopy(unit)
        elif copy.unit.checksum != unit.checksum:
            if copy.hosts:
                raise ValueError(f"intact on {', '.join(sorted(copy.hosts))}")
            self._replaced.setdefault(place[1], []).append(copy.unit)
            copy = held[unit.offset] = _CommittedCopy(unit)
        copy.hosts.add(host)

    def harmed(self, host: str, disk: SimulatedDisk, root: str) -> None:
        """Remove units from the account of a disk that a fault took from it."""
        names = {partition for _, partition in self._held}
        intact = {
            name: intact_units(
                name,
                {path: bytes(node.cache) for path, node in disk.files(f"{root}/{name}")},
                rewritten=(host, str(name)) in self._rewritten,
            )
            for name in names
        }
        for (_, partition), held in self._held.items():
            there = intact[partition]
            for offset, copy in held.items():
                if host in copy.hosts and there.get(offset) != copy.unit.checksum:
                    copy.hosts.discard(host)

    def renamed(self, host: str, old: str) -> None:
        """Note the rename of a file or a directory, by its path below the data directory."""
        directory, _, name = old.partition("/")
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            self._rewritten.add((host, directory))
        elif not name:
            self._rewritten.discard((host, directory))

    def damaged(self, host: str, directory: str) -> None:
        """Note damage to a log: none of its units count, for it is set aside as a whole."""
        self._damaged.add((host, directory))
        for (_, partition), held in self._held.items():
            if str(partition) == directory:
                for copy in held.values():
                    copy.hosts.discard(host)

    def was_damaged(self, host: str, partition: TopicPartition) -> bool:
        """Whether a fault has ever damaged a host's log of a partition."""
        return (host, str(partition)) in self._damaged

    def holders(self, partition: TopicPartition, offset: int) -> set[str]:
        """The disks that still hold the record at an offset; none if it may be lost.

        Offset -1 means that the producer does not know the record's offset.
        """
        if offset < 0:
            return set() if partition in self.lost() else {"a disk"}
        covering = [copy for copy in self._copies_of(partition) if copy.covers(offset)]
        # Other batches may have replaced a lost one, with other boundaries.
        if not all(copy.hosts for copy in covering):
            return set()
        return set().union(*(copy.hosts for copy in covering))

    def _copies_of(self, partition: TopicPartition) -> Iterator[_CommittedCopy]:
        yield from map(_CommittedCopy, self._replaced.get(partition, ()))
        for (_, name), held in self._held.items():
            if name == partition:
                yield from held.values()

    def lost(self) -> dict[TopicPartition, list[CommittedUnit]]:
        """The units that no disk holds any more, by faults alone, by partition."""
        found = {name: list(replaced) for name, replaced in self._replaced.items()}
        for (_, name), held in self._held.items():
            gone = [copy.unit for copy in held.values() if not copy.hosts]
            if gone:
                found.setdefault(name, []).extend(gone)
        return found


def units_of(topic: str, found: Iterable[ComparedBatch]) -> Iterator[CommittedUnit]:
    """Batches as units of the account."""
    for batch in found:
        for offset, checksum in units(topic, [batch]):
            last = offset if is_compacted(topic) else batch.last_offset
            yield CommittedUnit(offset, last, checksum)


def intact_units(
    partition: TopicPartition, files: Mapping[str, bytes], *, rewritten: bool = False
) -> Mapping[int, int]:
    """The checksums in the files of a log, by offset, up to the first damage or gap.

    Only compaction leaves gaps between segments: in a log that it has not `rewritten` a fault took
    the end of a segment, and what follows on it is lost to the log.
    """
    contents = {
        path.removesuffix(LOG_SUFFIX): content
        for path, content in files.items()
        if path.endswith(LOG_SUFFIX) and path.removesuffix(LOG_SUFFIX).isdigit()
    }
    found: dict[int, int] = {}
    end = -1
    for name in sorted(contents):
        if end not in (-1, int(name)) and not rewritten:
            break
        end, content = int(name), contents[name]
        valid = 0
        for batch in batches_in(content):
            if not is_valid(batch.data):
                break
            found.update(units(partition.topic, [batch]))
            valid, end = valid + len(batch.data), batch.last_offset + 1
        if valid < len(content):
            break
    return found


def is_valid(data: bytes) -> bool:
    """Whether the checksum of a batch is correct."""
    crc = int.from_bytes(data[CRC_AT:ATTRIBUTES_AT], "big")
    return len(data) >= max(HEADER_SIZE, LOG_OVERHEAD) and crc32c(data[ATTRIBUTES_AT:]) == crc
