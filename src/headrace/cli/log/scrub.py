"""`headrace log scrub`: read all segments of a data directory now; show the broker's scrubbing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.cli.output import bytes_text, counted, timestamp_text
from headrace.errors import CorruptBatch, StorageError
from headrace.storage.checkpoints import LEADER_EPOCHS, decode_epochs
from headrace.storage.damage import DamagedLog
from headrace.storage.files import FileMissing
from headrace.storage.log_start_offsets import known_start
from headrace.storage.scrubbing import (
    NEVER,
    SCRUB_CHECKPOINT,
    ScrubProgress,
    check_segment,
    decode_progress,
)
from headrace.storage.segment import Segment
from headrace.storage.stored_logs import (
    FILES,
    open_stored,
    stored_partitions,
)


@dataclass(slots=True)
class ScrubResult:
    """The result of scrubbing a data directory, and the progress of its broker's own pass."""

    directory: str
    progress: ScrubProgress
    segment_count: int = 0
    byte_count: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def broker_text(self) -> str:
        """The text about the progress and findings of the broker's own pass."""
        progress = self.progress
        if progress.started_ms == NEVER:
            return "has not begun to scrub it"
        read = f"{counted(progress.segment_count, 'segment')}, {bytes_text(progress.byte_count)}"
        found = f"{counted(len(progress.damage), 'damaged segment')} known"
        began = timestamp_text(progress.started_ms)
        if progress.finished_ms == NEVER:
            return f"has scrubbed {read} since {began}, {found}"
        ended = timestamp_text(progress.finished_ms)
        return f"scrubbed {read} from {began} to {ended}, {found}"

    def document(self) -> dict[str, Any]:
        """The result as a JSON document."""
        progress = self.progress
        return {
            "directory": self.directory,
            "segments": self.segment_count,
            "bytes": self.byte_count,
            "damage": self.damage,
            "broker": {
                "started_ms": progress.started_ms,
                "finished_ms": progress.finished_ms,
                "segments": progress.segment_count,
                "bytes": progress.byte_count,
                "damage": [
                    {
                        "topic": damage.key.partition.topic,
                        "partition": damage.key.partition.partition,
                        "segment": damage.key.base_offset,
                        "first_offset": damage.first_offset,
                        "end_offset": damage.end_offset,
                    }
                    for damage in progress.damage
                ],
            },
        }


def scrub_directory(directory: str) -> ScrubResult:
    """Read every log of a data directory; its broker may be running."""
    data = FILES.read_bytes(f"{directory}/{SCRUB_CHECKPOINT}")
    scrub = ScrubResult(directory, decode_progress(data))
    for partition, path in stored_partitions(directory).items():
        try:
            log = open_stored(partition, path)
        except FileMissing:
            continue  # Deleted a moment ago.
        except (CorruptBatch, StorageError) as error:
            scrub.damage.append(f"{partition}: {error}")
            continue
        start_offset = known_start(FILES, path, partition)
        first = log.segments[0] if log.segments else None
        if first is not None and start_offset is not None and start_offset < first.base_offset:
            scrub.damage.append(
                f"{partition}: the segments before {first.log_path} are missing, with offsets"
                f" {start_offset} to {first.base_offset - 1}"
            )
        ends = [segment.base_offset for segment in log.segments[1:]] + [log.end_offset]
        epochs = _leader_epochs(path)
        for segment, end_offset in zip(log.segments, ends, strict=True):
            _scrub_segment(scrub, segment, end_offset, epochs)
    return scrub


def _leader_epochs(directory: str) -> list[tuple[int, int]]:
    """The leader epochs of a log with their start offsets; none if their file is damaged."""
    data = FILES.read_bytes(f"{directory}/{LEADER_EPOCHS}")
    try:
        return decode_epochs(data) if data else []
    except ValueError:
        return []  # A start rebuilds the file from the batches.


def _scrub_segment(
    scrub: ScrubResult, segment: Segment, end_offset: int, epochs: Sequence[tuple[int, int]]
) -> None:
    try:
        size = sum(check_segment(segment, end_offset, epochs))
    except DamagedLog as error:
        if not FILES.exists(segment.log_path):
            return  # Retention or compaction deleted it meanwhile.
        scrub.damage.append(str(error))
        size = segment.size
    scrub.segment_count += 1
    scrub.byte_count += size
