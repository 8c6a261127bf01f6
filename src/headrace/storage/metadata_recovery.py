"""Recovery of the metadata log at startup: checks, and the replacement of a damaged log.

Rule: nothing is removed. A damaged log is set aside as `__cluster_metadata-0.<id>-damaged`, and a
new directory replaces it. If a snapshot has the damaged records, the new log begins there.
Otherwise it has nothing but the epoch and the vote: the voter fetches the log again and does not
vote until it has. The only voter of a quorum cannot fetch it, and does not start.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError, StorageError
from headrace.metadata.records import MetadataError, decode_control_batch
from headrace.metadata.snapshot import SnapshotContent
from headrace.protocol.batch import BatchHeader
from headrace.protocol.messages.quorum_records import VotersRecord
from headrace.raft.messages import HardState
from headrace.storage.checkpoints import (
    FLUSHED_OFFSET,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    SEGMENT_SIZES,
    decode_epochs,
    decode_offsets,
    encode_epochs,
    encode_offsets,
)
from headrace.storage.data_directory import DAMAGED_SUFFIX, METADATA_LOG, parse_log_name
from headrace.storage.files import Files
from headrace.storage.log_start_offsets import (
    read_log_start_offsets,
    write_log_start_offsets,
)
from headrace.storage.metadata_log import (
    QUORUM_STATE,
    SUFFIX,
    MetadataSnapshots,
    QuorumStateFile,
    SnapshotId,
)
from headrace.storage.metadata_scan import (
    MetadataDamage,
    MetadataScan,
    scan_metadata_log,
    segment_paths,
)
from headrace.storage.recovery_point import read_flushed_offset
from headrace.storage.segment import LOG_SUFFIX
from headrace.types import Buffer, TopicPartition

logger = logging.getLogger(__name__)

_NEW_SUFFIX = "-new"

Batch = tuple[Buffer, BatchHeader]


class DamagedMetadata(HeadraceError):
    """The metadata log of the only voter is damaged; the text has the place and advice."""


@dataclass(slots=True)
class SoundRemains:
    """The usable part of a damaged log: perhaps a snapshot, and the batches that follow it.

    `lost` are sound batches that cannot be kept, since batches before them are missing.
    """

    start_offset: int
    end_offset: int
    snapshots: tuple[SnapshotId, ...]
    batches: list[Batch]
    lost: list[Batch]

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        if self.batches:
            return self.batches[-1][1].leader_epoch
        return self.snapshots[-1].epoch if self.snapshots else 0


@dataclass(slots=True)
class Examination:
    """The result of an examination of a metadata log and of the small files beside it.

    `hard_state` is None if `quorum-state` is missing or damaged; only if it is damaged there is a
    `hard_state_error`. `flushed_offset` is None if no file has it. `voters` are the ids in the last
    VotersRecord that can be read, None if there is none. `epochs` are the entries of
    `leader-epoch-checkpoint`, None if it is missing or damaged.
    """

    data_directory: str
    directory: str
    scan: MetadataScan
    hard_state: HardState | None
    hard_state_error: str
    flushed_offset: int | None
    recorded_start: int
    epochs: list[tuple[int, int]] | None
    snapshots: tuple[SnapshotId, ...] = ()
    damaged_snapshots: dict[SnapshotId, str] = field(default_factory=dict)
    voters: tuple[int, ...] | None = None
    damage: MetadataDamage | None = None

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        """The newest snapshot that is sound."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def base_offset(self) -> int:
        """The end offset of the newest sound snapshot; 0 if there is none."""
        return 0 if self.newest_snapshot is None else self.newest_snapshot.end_offset


# -- examination


def examine(
    files: Files, data_directory: str, directories: Sequence[str] = (), name: str | None = None
) -> Examination:
    """Examine a metadata log without changing anything.

    `directories` are all data directories of the node: logs of partitions in them show that there
    was a metadata log. `name` is that of a log that was set aside, to examine it instead.
    """
    directory = f"{data_directory}/{name or METADATA_LOG}"
    hard_state, hard_state_error = _read_hard_state(files, directory)
    flushed = [read_flushed_offset(files, directory)]
    if name is None:
        flushed.append(_read_offsets(files, data_directory, RECOVERY_POINTS).get(METADATA_LOG))
    flushed_offset = max((offset for offset in flushed if offset is not None), default=None)
    if hard_state is not None and hard_state.recovering:
        flushed_offset = 0  # It has acknowledged no record since it began to recover.
    epochs = _read_epochs(files, directory)
    scan = _scan(files, directory, flushed_offset, hard_state, epochs)
    found = Examination(
        data_directory,
        directory,
        scan,
        hard_state,
        hard_state_error,
        flushed_offset,
        read_log_start_offsets(files, data_directory)[0].get(METADATA_LOG, 0),
        epochs,
    )
    _read_snapshots(files, found)
    _read_voters(found)
    found.damage = _damage(files, found, directories)
    return found


def _scan(
    files: Files,
    directory: str,
    flushed_offset: int | None,
    hard_state: HardState | None,
    epochs: list[tuple[int, int]] | None,
) -> MetadataScan:
    """Scan the log; if a loss of power undid a truncation and the appends after it, only up to
    there.

    The epoch checkpoint has survived then: it has an epoch without any batch, which begins at an
    offset where there are batches of older epochs.
    """
    epoch_max = None if hard_state is None else hard_state.epoch
    scan = scan_metadata_log(files, directory, flushed_offset=flushed_offset, epoch_max=epoch_max)
    for epoch, start_offset in epochs or ():
        is_known = epoch_max is None or epoch <= epoch_max
        if is_known and scan.last_epoch < epoch and start_offset < scan.end_offset:
            return scan_metadata_log(
                files,
                directory,
                flushed_offset=flushed_offset,
                epoch_max=epoch_max,
                cut_offset=start_offset,
            )
    return scan


def _read_epochs(files: Files, directory: str) -> list[tuple[int, int]] | None:
    data = files.read_bytes(f"{directory}/{LEADER_EPOCHS}")
    try:
        return None if data is None else decode_epochs(data)
    except ValueError:
        return None


def _read_hard_state(files: Files, directory: str) -> tuple[HardState | None, str]:
    try:
        return QuorumStateFile(files, directory).read(), ""
    except StorageError as error:
        return None, str(error)


def _read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, int]:
    data = files.read_bytes(f"{directory}/{name}")
    try:
        return {} if data is None else decode_offsets(data)
    except ValueError:
        return {}  # It is written again by the next checkpoint.


def _read_snapshots(files: Files, found: Examination) -> None:
    snapshots = MetadataSnapshots(files, found.directory, keep_parts=True)
    sound = []
    for snapshot in snapshots.ids:
        try:
            content = SnapshotContent(snapshots.read(snapshot))
        except (MetadataError, StorageError) as error:
            found.damaged_snapshots[snapshot] = str(error)
            continue
        sound.append(snapshot)
        if content.voters is not None:
            found.voters = _ids(content.voters)
    found.snapshots = tuple(sound)


def _read_voters(found: Examination) -> None:
    for data, header in found.scan.batches:
        if header.is_control:
            for message in decode_control_batch(data, header):
                if isinstance(message, VotersRecord):
                    found.voters = _ids(message)


def _ids(record: VotersRecord) -> tuple[int, ...]:
    return tuple(sorted(voter.voter_id for voter in record.voters))


def _damage(files: Files, found: Examination, directories: Sequence[str]) -> MetadataDamage | None:
    """The damage of the log, with regard to its snapshots; None if it can be used."""
    scan, base_offset = found.scan, found.base_offset
    if scan.damage is not None:
        is_short = scan.damage.path == found.directory
        flushed_offset = found.flushed_offset or 0
        # A snapshot of another node was about to replace the log.
        return None if is_short and base_offset >= flushed_offset else scan.damage
    if scan.segment_count and scan.start_offset > base_offset:
        reason = "there is no sound snapshot of what came before its first segment"
        return MetadataDamage(found.directory, -1, base_offset, scan.start_offset, reason)
    is_blank = scan.end_offset == 0 and not found.snapshots
    is_recovering = found.hard_state is not None and found.hard_state.recovering
    if is_blank and found.damaged_snapshots:
        return MetadataDamage(
            found.directory, -1, 0, None, "its snapshot is damaged and it has no log"
        )
    if is_blank and not is_recovering and (trace := _trace(files, found, directories)):
        return MetadataDamage(
            found.directory, -1, 0, None, f"there is no metadata log, but {trace}"
        )
    return None


def _trace(files: Files, found: Examination, directories: Sequence[str]) -> str:
    """The evidence, as text, that a metadata log existed here before; empty if there is none."""
    aside = set_aside_names(files, found.data_directory)
    if aside:
        return f"there is {aside[-1]}"
    for directory in directories:
        for name in files.list_directories(directory) if files.exists(directory) else ():
            partition = parse_log_name(name)
            if partition is not None and partition != METADATA_LOG:
                return f"{directory} has topics, such as {partition}"
    return ""


def set_aside_names(files: Files, data_directory: str) -> list[str]:
    """The names of the metadata logs that were set aside."""
    if not files.exists(data_directory):
        return []
    return [
        name
        for name in files.list_directories(data_directory)
        if name.startswith(f"{METADATA_LOG}.") and name.endswith(DAMAGED_SUFFIX)
    ]


def remains_of(found: Examination) -> SoundRemains | None:
    """The longest usable part of a damaged log; None if its beginning is missing."""
    scan, base_offset = found.scan, found.base_offset
    if scan.end_offset >= base_offset:
        if scan.start_offset > base_offset:
            return None
        return SoundRemains(
            scan.start_offset,
            scan.end_offset,
            found.snapshots,
            scan.batches,
            scan.batches_after,
        )
    newest = found.newest_snapshot
    assert newest is not None
    end_offset, kept, lost = base_offset, list[Batch](), list[Batch]()
    for data, header in scan.batches_after:
        if header.base_offset == end_offset:
            kept.append((data, header))
            end_offset = header.next_offset
        elif header.base_offset > end_offset:
            lost.append((data, header))
    return SoundRemains(base_offset, end_offset, (newest,), kept, lost)


def is_lossless(found: Examination, remains: SoundRemains) -> bool:
    """Whether no record is lost with the damaged part, because a snapshot has them all."""
    assert found.damage is not None
    return (
        not remains.lost
        and found.damage.first_offset < remains.start_offset
        and found.flushed_offset is not None
        and remains.end_offset >= found.flushed_offset
    )


# -- recovery


def prepare_metadata_log(
    files: Files,
    directories: Sequence[str],
    *,
    node_id: int,
    has_peers: bool,
    new_id: Callable[[], bytes],
) -> None:
    """Make the metadata log in the first directory usable, replacing it if it is damaged.

    The directories are locked, and nothing in them is open. `has_peers` says whether other
    controllers are configured. DamagedMetadata if this node is the only voter and needs an
    operator; then nothing is changed.
    """
    data_directory = directories[0]
    _finish_replacement(files, data_directory)
    found = examine(files, data_directory, directories)
    is_alone = not has_peers or found.voters == (node_id,)
    if found.damage is not None:
        _handle_damage(files, found, new_id, is_alone=is_alone)
        return
    _cut_torn_tail(files, found)
    _check_epochs(files, found)
    _drop_damaged_snapshots(files, found)
    _check_start(files, found)
    if found.hard_state_error:
        _replace_hard_state(files, found, is_alone=is_alone)
    elif found.hard_state is not None and found.hard_state.recovering:
        logger.warning(
            "%s was damaged or lost before: this node does not vote until it has fetched what the"
            " other controllers have committed",
            found.directory,
        )
        _forget_flushed(files, found)


def _forget_flushed(files: Files, found: Examination) -> None:
    """Remove the records of the log's flushed length: a recovering node fetches it all again."""
    for name in (FLUSHED_OFFSET, SEGMENT_SIZES):
        files.remove(f"{found.directory}/{name}")
    _forget_recovery_point(files, found.data_directory)


def _handle_damage(
    files: Files, found: Examination, new_id: Callable[[], bytes], *, is_alone: bool
) -> None:
    remains = remains_of(found)
    if remains is not None and is_lossless(found, remains) and not found.hard_state_error:
        state = found.hard_state
        aside = replace_log(files, found, new_id(), state=state, remains=remains)
        logger.warning(
            "the metadata log is damaged: %s. Its snapshot %s has those records, so that nothing is"
            " lost: it begins there now, and the damaged log is kept as %s",
            found.damage,
            remains.snapshots[-1],
            aside,
        )
        return
    if is_alone:
        raise DamagedMetadata(refusal(found, remains))
    hard = found.hard_state or HardState()
    if hard.epoch < found.scan.last_epoch:
        hard = HardState(found.scan.last_epoch)
    state = hard._replace(may_vote=False, recovering=True)
    aside = replace_log(files, found, new_id(), state=state, remains=None)
    logger.error(
        "the metadata log is damaged: %s. %s. This node fetches it again from the other"
        " controllers and does not vote until it has what they have committed; that takes a"
        " majority of controllers whose metadata log is whole",
        found.damage,
        f"It is set aside as {aside}" if aside else "There is nothing to set aside",
    )


def refusal(found: Examination, remains: SoundRemains | None) -> str:
    """The text of DamagedMetadata: why the only controller does not start, and advice."""
    restore = (
        f"the metadata log is damaged: {found.damage}. Nothing was changed. This node is the only"
        f" controller, so no other one has the log. Restore {found.directory} from a backup"
    )
    if remains is not None and (remains.batches or remains.snapshots):
        return (
            f"{restore}, or run `headrace log repair-metadata {found.data_directory}`: it shows"
            f" what is lost if the log ends at offset {remains.end_offset}, and with --apply it"
            " cuts it there; logs of partitions are not touched"
        )
    return (
        f"{restore}. Without one the topics cannot be known: to begin an empty cluster, move the"
        " data directories away as a whole, and keep them"
    )


def replace_log(
    files: Files,
    found: Examination,
    unique: bytes,
    *,
    state: HardState | None,
    remains: SoundRemains | None,
) -> str | None:
    """Replace the metadata log by its usable part; return the path of the old log, or None.

    After a crash the old log is in place, or the next start finishes the replacement.
    """
    current = f"{found.data_directory}/{METADATA_LOG}"
    fresh, aside = (f"{current}.{unique.hex()}{suffix}" for suffix in (_NEW_SUFFIX, DAMAGED_SUFFIX))
    files.make_directory(fresh)
    files.make_private(fresh)
    if remains is not None:
        _write_remains(files, found, remains, fresh)
    if state is not None:
        QuorumStateFile(files, fresh).write(state)
    files.sync_directory(fresh)
    files.sync_directory(found.data_directory)
    is_there = files.exists(current)
    if is_there:
        files.rename(current, aside)
    _forget_checkpoints(files, found.data_directory)
    files.rename(fresh, current)
    files.sync_directory(found.data_directory)
    return aside if is_there else None


def _write_remains(files: Files, found: Examination, remains: SoundRemains, directory: str) -> None:
    for snapshot in remains.snapshots:
        data = files.read_bytes(f"{found.directory}/{snapshot}{SUFFIX}")
        assert data is not None
        files.write_atomically(f"{directory}/{snapshot}{SUFFIX}", data)
    data = b"".join(
        memoryview(data)[header.position : header.position + header.size]
        for data, header in remains.batches
    )
    files.write_atomically(f"{directory}/{remains.start_offset:020}{LOG_SUFFIX}", data)


def _forget_checkpoints(files: Files, data_directory: str) -> None:
    """Remove the metadata log's recovery point and start offset from the checkpoints."""
    _forget_recovery_point(files, data_directory)
    starts, _ = read_log_start_offsets(files, data_directory)
    if starts.pop(METADATA_LOG, None) is not None:
        write_log_start_offsets(files, data_directory, starts)


def _forget_recovery_point(files: Files, data_directory: str) -> None:
    points = _read_offsets(files, data_directory, RECOVERY_POINTS)
    if points.pop(METADATA_LOG, None) is not None:
        files.write_atomically(f"{data_directory}/{RECOVERY_POINTS}", encode_offsets(points))


def _finish_replacement(files: Files, data_directory: str) -> None:
    """Finish or undo a replacement of the log that a crash interrupted."""
    if not files.exists(data_directory):
        return
    names = files.list_directories(data_directory)
    fresh = [
        name for name in names if name.startswith(f"{METADATA_LOG}.") and name.endswith(_NEW_SUFFIX)
    ]
    for name in fresh:
        if str(METADATA_LOG) in names:
            # The old log is still in place, so the new log was never used.
            files.remove_tree(f"{data_directory}/{name}")
        else:
            _forget_checkpoints(files, data_directory)
            files.rename(f"{data_directory}/{name}", f"{data_directory}/{METADATA_LOG}")
            files.sync_directory(data_directory)
            names.append(str(METADATA_LOG))


def _cut_torn_tail(files: Files, found: Examination) -> None:
    """Remove a torn tail, whose records were never acknowledged."""
    if found.scan.torn_at is None:
        return
    torn_path, position = found.scan.torn_at
    for _, path in reversed(segment_paths(files, found.directory)):
        if path == torn_path and position > 0:
            file = files.open(path)
            file.truncate(position)
            file.sync()
        elif path >= torn_path:
            files.remove(path)
    files.sync_directory(found.directory)
    logger.warning(
        "the metadata log ends at offset %d: %d bytes after it are the end of a write that was"
        " interrupted, and are cut off",
        found.scan.end_offset,
        found.scan.torn_bytes,
    )


def _check_epochs(files: Files, found: Examination) -> None:
    """Rewrite the epoch checkpoint if it does not agree with the batches."""
    batches, epochs = found.scan.batches, found.epochs
    if not batches or _epochs_agree(found, epochs):
        return
    entries: list[tuple[int, int]] = []
    for _, header in batches:
        if not entries or header.leader_epoch > entries[-1][0]:
            entries.append((header.leader_epoch, header.base_offset))
    path = f"{found.directory}/{LEADER_EPOCHS}"
    files.write_atomically(path, encode_epochs(entries))
    if not epochs:
        logger.warning("%s is missing or damaged; it is made again from the log", path)
    elif _epochs_contradict(found, epochs):
        logger.warning("%s does not agree with the log; it is made again from the log", path)


def _epochs_contradict(found: Examination, epochs: list[tuple[int, int]]) -> bool:
    """Whether the epoch checkpoint is wrong, rather than incomplete.

    The newest epochs may not have been flushed, and the oldest are dropped with the log's start,
    whose checkpoint may be older.
    """
    offsets, newest = [start_offset for _, start_offset in epochs], epochs[-1][0]
    return any(
        epochs[bisect_right(offsets, header.base_offset) - 1][0] != header.leader_epoch
        for _, header in found.scan.batches
        if header.base_offset >= offsets[0] and header.leader_epoch <= newest
    ) or offsets[0] > max(found.recorded_start, found.scan.start_offset, found.base_offset)


def _epochs_agree(found: Examination, epochs: list[tuple[int, int]] | None) -> bool:
    if not epochs:
        return False
    offsets = [start_offset for _, start_offset in epochs]
    if offsets[0] > max(found.recorded_start, found.scan.start_offset):
        return False
    return all(
        epochs[bisect_right(offsets, header.base_offset) - 1][0] == header.leader_epoch
        for _, header in found.scan.batches
        if header.base_offset >= offsets[0]
    )


def _drop_damaged_snapshots(files: Files, found: Examination) -> None:
    for snapshot, error in found.damaged_snapshots.items():
        path = f"{found.directory}/{snapshot}{SUFFIX}"
        files.rename(path, path + DAMAGED_SUFFIX)
        instead = (
            f"the snapshot {found.newest_snapshot} and the log have all it had"
            if found.newest_snapshot is not None
            else "the log has all it had"
        )
        logger.warning("%s: %s. It is kept as %s; %s", path, error, path + DAMAGED_SUFFIX, instead)
    if found.damaged_snapshots:
        files.sync_directory(found.directory)


def _check_start(files: Files, found: Examination) -> None:
    """Correct a log start offset in the checkpoint that is behind the newest snapshot."""
    if found.recorded_start <= found.base_offset:
        return
    offsets, _ = read_log_start_offsets(files, found.data_directory)
    logger.warning(
        "%s says that the metadata log begins at offset %d, and no snapshot ends there: it begins"
        " at %d",
        f"{found.data_directory}/{LOG_START_OFFSETS}",
        found.recorded_start,
        found.base_offset,
    )
    del offsets[METADATA_LOG]
    if found.base_offset:
        offsets[METADATA_LOG] = found.base_offset
    write_log_start_offsets(files, found.data_directory, offsets)


def _replace_hard_state(files: Files, found: Examination, *, is_alone: bool) -> None:
    """Replace a damaged `quorum-state`, without the vote in it."""
    path = f"{found.directory}/{QUORUM_STATE}"
    files.rename(path, path + DAMAGED_SUFFIX)
    last_epoch = found.scan.last_epoch
    if found.newest_snapshot is not None:
        last_epoch = max(last_epoch, found.newest_snapshot.epoch)
    state = HardState(last_epoch, may_vote=is_alone, recovering=not is_alone)
    QuorumStateFile(files, found.directory).write(state)
    follows = (
        "the only controller needs none"
        if is_alone
        else "this node does not vote until it has what the other controllers have committed"
    )
    logger.warning(
        "%s. It is kept as %s and made again with epoch %d, without the vote that was in it: %s",
        found.hard_state_error,
        path + DAMAGED_SUFFIX,
        last_epoch,
        follows,
    )
