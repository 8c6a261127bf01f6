"""Divergence of two logs: the leader's answer to a fetch position, the follower's truncation."""

from headrace.errors import HeadraceError
from headrace.raft.messages import LogView, OffsetAndEpoch


class CommittedRecordsLost(HeadraceError):
    """The leader's log lacks records that this node knows to be committed: the quorum is broken.

    The node has to stop; it may have the last copy of those records.
    """


def position_answer(
    log: LogView, offset: int, last_epoch: int
) -> tuple[OffsetAndEpoch | None, OffsetAndEpoch | None]:
    """The `diverging` and `snapshot` for a replica whose log ends at `offset` after `last_epoch`.

    Both are None if its log is a prefix of ours (Raft §5.3, log matching), so that records may
    follow. `diverging` is the newest position that may be in both logs. If that is before the start
    of our log, the replica has to fetch the snapshot.
    """
    snapshot = log.snapshot
    if offset < log.start_offset:
        assert snapshot is not None, "a log that does not begin at 0 begins after a snapshot"
        return None, snapshot
    if offset == 0 or snapshot == OffsetAndEpoch(offset, last_epoch):
        return None, None
    epoch, end_offset = log.end_offset_for_epoch(last_epoch)
    if epoch == last_epoch and offset <= end_offset:
        return None, None
    if snapshot is not None and end_offset <= log.start_offset:
        return None, snapshot
    return OffsetAndEpoch(end_offset, epoch), None


def truncation_point(log: LogView, diverging: OffsetAndEpoch, high_watermark: int) -> int | None:
    """The end offset to truncate to after a leader's answer, None if no record is beyond it.

    The logs may still differ before that offset: the next fetch has an older epoch, and so on until
    they agree.
    """
    _, end_offset = log.end_offset_for_epoch(diverging.epoch)
    point = min(end_offset, diverging.offset)
    if point < max(high_watermark, log.start_offset):
        raise CommittedRecordsLost(
            f"the leader's log leaves ours at offset {point}, and what is before"
            f" {max(high_watermark, log.start_offset)} is committed"
        )
    return point if point < log.end_offset else None
