"""What the planner of a scan asks of data directories, in the way `topics` asks brokers."""

import re
from collections.abc import Mapping

from headrace.client.consumer.resets import NOTHING
from headrace.client.options_table import hint
from headrace.pipelines.source.bounds import EARLIEST, LATEST, listed
from headrace.pipelines.source.failures import SourceError
from headrace.pipelines.source.offsets import Offsets
from headrace.pipelines.source.options import ReadOptions
from headrace.pipelines.source.topics import Found, Topics
from headrace.storage.stored import StoredLog, current_logs, open_stored
from headrace.types import TopicPartition

# Topics of the cluster itself, which nobody means who does not name them.
_INTERNAL = "__"


class StoredTopics(Topics):
    """The topics of a read, as their logs were when each was first asked about."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.path is not None
        self._options = options
        found = current_logs(path.strip() for path in options.path.split(","))
        self._directories = {tp: path for tp, (path, _) in found.items()}
        self._starts: Offsets = {tp: start for tp, (_, start) in found.items()}
        self._logs: dict[TopicPartition, StoredLog] = {}

    def log(self, topic: str, partition: int) -> StoredLog:
        """The log of a partition."""
        tp = TopicPartition(topic, partition)
        if tp not in self._logs:
            self._logs[tp] = open_stored(tp, self._directories[tp], self._starts.get(tp, 0))
        return self._logs[tp]

    def find(self) -> Found:
        """The partitions the options select."""
        options = self._options
        there = sorted(self._directories)
        if options.topics:
            names = {tp.topic for tp in there}
            missing = tuple(name for name in options.topics if name not in names)
            return Found(tuple(tp for tp in there if tp.topic in options.topics), missing)
        if options.assigned:
            absent = tuple(str(tp) for tp in options.assigned if tp not in self._directories)
            return Found(tuple(tp for tp in there if tp in options.assigned), absent)
        pattern = re.compile(options.pattern if options.pattern is not None else ".*")
        return Found(
            tuple(
                tp
                for tp in there
                if not tp.topic.startswith(_INTERNAL) and pattern.fullmatch(tp.topic)
            )
        )

    def require(self) -> Found:
        """The same, where nothing may be missing."""
        found = self.find()
        if found.missing:
            raise self.missing(found.missing)
        if not found.partitions:
            what = "log" if self._options.pattern is None else "topic that subscribePattern matches"
            raise SourceError(
                f"{self._options.path} holds no {what}; it must be a data directory of a broker"
                " (log.dirs), as this machine sees it"
            )
        return found

    def missing(self, names: tuple[str, ...]) -> SourceError:
        """The error for topics or partitions that are not there."""
        known = {tp.topic for tp in self._directories} | {str(tp) for tp in self._directories}
        advice = hint(names[0], known) or "; see whether it is in another of the log.dirs"
        return SourceError(f"{self._options.path} holds no log of {listed(names)}{advice}")

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        return {tp: _offset(self.log(*tp), asked) for tp, asked in wanted.items()}


def _offset(log: StoredLog, asked: int) -> int:
    """The offset at one of the ends of a log, or at a time."""
    if asked == EARLIEST:
        return log.start_offset
    if asked == LATEST:
        return log.end_offset
    record = log.find_timestamp(asked)
    return NOTHING if record is None else record.offset
