"""The compaction of a log, as the log's owner sees it: what to begin with, and what to do between.

Rule: everything is taken from the log in the thread that owns it, before the first step. What the
log gets afterwards lies behind the end of the plan, so it need not be known.
"""

from collections.abc import Iterator

from headrace.storage.compaction.cleaner import (
    Compaction,
    LastBatches,
    Limits,
    Progress,
    Replacement,
)
from headrace.storage.compaction.planning import Plan, plan
from headrace.storage.log import Log
from headrace.storage.producers import Producers
from headrace.storage.segment import Segment


def plan_for(log: Log, high_watermark: int, now_ms: int) -> Plan[Segment]:
    """What of a log can be compacted."""
    return plan(
        log.segments,
        log.config,
        now_ms,
        clean_offset=log.clean_offset,
        log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset(high_watermark),
        recovery_point=log.recovery_point,
    )


class LogCompaction:
    """One compaction of a log by a plan that was just made.

    `steps` and `sync_names` may run in a worker thread; the rest belongs to the log's owner.
    """

    def __init__(
        self, log: Log, wanted: Plan[Segment], limits: Limits, secret: bytes, now_ms: int
    ) -> None:
        self._log = log
        self._truncations = log.truncations
        self.work = Compaction(
            wanted,
            log.open_files,
            log.directory,
            log.config,
            limits,
            secret,
            now_ms,
            last_batches=last_batches(log.producers),
            aborted_in=log.aborted_transactions,
        )

    def steps(self) -> Iterator[Progress | Replacement]:
        """See `Compaction.steps`."""
        return self.work.steps()

    @property
    def is_outdated(self) -> bool:
        """Whether the log was cut meanwhile, and a segment may not be what it was read as."""
        return self._log.truncations != self._truncations

    def replace(self, step: Replacement, now_ms: int) -> bool:
        """Put a new segment in its place; false if it is not to have it any more."""
        return not self.is_outdated and self._log.replace_segments(step.old, step.new, now_ms)

    def sync_names(self) -> None:
        """Make a replacement durable. May run in a worker thread."""
        self._log.open_files.files.sync_directory(self._log.directory)

    def finish(self) -> None:
        """Note how far the log is compacted, when every replacement was made and is durable."""
        if not self.is_outdated:
            self._log.clean_offset = self.work.end_offset


def last_batches(producers: Producers) -> LastBatches:
    """What must stay of every producer that is remembered."""
    offsets = [one.batches[-1].last_offset for _, one in producers if one.batches]
    epochs = {producer_id: one.epoch for producer_id, one in producers if not one.batches}
    return LastBatches(sorted(offsets), epochs)
