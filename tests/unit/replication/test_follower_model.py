"""Three replicas, elections among those in sync, and followers that cut and copy: a model.

Whatever happens, what was committed stays, and at the end all logs are alike.
"""

from bisect import bisect_left
from random import Random

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import EpochEndOffset, PartitionData
from headrace.replication.follower import FetchAction, decide, decide_out_of_range, position_of

NODES = (1, 2, 3)


class Replica:
    """A log of (epoch, value) and its leader epochs, as storage keeps them."""

    def __init__(self) -> None:
        self.log_start_offset = 0
        self.base_offset = 0
        self.records: list[tuple[int, int]] = []
        self.entries: list[tuple[int, int]] = []

    @property
    def log_end_offset(self) -> int:
        return self.base_offset + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if not self.entries or epoch > self.latest_epoch or epoch < 0:
            return -1, -1
        ends = [*(start for _, start in self.entries[1:]), self.log_end_offset]
        for (known, _), end in reversed(list(zip(self.entries, ends, strict=True))):
            if known <= epoch:
                return known, end
        return epoch, self.entries[0][1]

    def start_epoch(self, epoch: int) -> None:
        if epoch > self.latest_epoch:
            keep = bisect_left([start for _, start in self.entries], self.log_end_offset)
            self.entries = [*self.entries[:keep], (epoch, self.log_end_offset)]

    def append(self, records: list[tuple[int, int]]) -> None:
        for epoch, value in records:
            self.start_epoch(epoch)
            self.records.append((epoch, value))

    def truncate_to(self, offset: int) -> None:
        if offset < self.base_offset:
            self.restart_at(offset)
            return
        del self.records[offset - self.base_offset :]
        end = self.log_end_offset
        self.log_start_offset = min(self.log_start_offset, end)
        self.entries = [entry for entry in self.entries if entry[1] < end]

    def restart_at(self, offset: int) -> None:
        self.base_offset = self.log_start_offset = offset
        self.records, self.entries = [], []

    def drop_before(self, offset: int) -> None:
        """Retention."""
        del self.records[: offset - self.base_offset]
        self.base_offset = self.log_start_offset = offset
        older = [entry for entry in self.entries if entry[1] <= offset]
        if older:
            self.entries = [(older[-1][0], offset), *self.entries[len(older) :]]

    def dump(self) -> dict[int, tuple[int, int]]:
        return {self.base_offset + index: record for index, record in enumerate(self.records)}


class Cluster:
    """One partition of three brokers."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.replicas = {node: Replica() for node in NODES}
        self.epoch = 0
        self.leader = 1
        self.isr = list(NODES)
        self.known_ends: dict[int, int] = {}
        self.start_offset = 0
        self.high_watermark = 0
        self.committed: dict[int, tuple[int, int]] = {}
        self.next_value = 0
        self.replicas[1].start_epoch(0)

    def produce(self) -> None:
        count = self.rng.randrange(1, 4)
        values = range(self.next_value, self.next_value + count)
        self.next_value += count
        self.replicas[self.leader].append([(self.epoch, value) for value in values])

    def elect(self) -> None:
        """Anybody in sync may be next, the leader of before included."""
        self.epoch += 1
        self.leader = self.rng.choice(self.isr)
        log = self.replicas[self.leader]
        log.start_epoch(self.epoch)
        self.start_offset = log.log_end_offset
        self.known_ends = {}

    def shrink(self) -> None:
        gone = self.rng.choice(NODES)
        if gone != self.leader and gone in self.isr:
            self.isr.remove(gone)

    def wipe(self) -> None:
        node = self.rng.choice(NODES)
        if node not in self.isr:
            self.replicas[node] = Replica()
            self.known_ends.pop(node, None)

    def retire(self) -> None:
        log = self.replicas[self.leader]
        if self.high_watermark > log.base_offset:
            log.drop_before(self.rng.randrange(log.base_offset, self.high_watermark + 1))

    def fetch(self, node: int) -> None:
        if node == self.leader:
            return
        leader, log = self.replicas[self.leader], self.replicas[node]
        answer, records = self._answer(node)
        verdict = decide(answer, log)
        if verdict.act is FetchAction.LOCATE:
            verdict = decide_out_of_range(log, leader.log_start_offset, leader.log_end_offset)
        before = position_of(log)
        if verdict.act is FetchAction.APPEND:
            log.append(records)
            # What lies below the leader's start may be another's, and must not be seen.
            start = min(leader.log_start_offset, log.log_end_offset)
            log.log_start_offset = max(log.log_start_offset, start)
            return
        if verdict.act is FetchAction.TRUNCATE:
            log.truncate_to(verdict.offset)
        elif verdict.act is FetchAction.RESTART:
            log.restart_at(verdict.offset)
        assert position_of(log) != before, (verdict, before)

    def _answer(self, node: int) -> tuple[PartitionData, list[tuple[int, int]]]:
        leader, log = self.replicas[self.leader], self.replicas[node]
        offset, last_epoch, _ = position_of(log)
        answer = PartitionData()
        epoch, end = leader.end_offset_for_epoch(last_epoch)
        if last_epoch >= 0 and end >= 0 and (epoch != last_epoch or end < offset):
            answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return answer, []
        if not leader.log_start_offset <= offset <= leader.log_end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer, []
        self.known_ends[node] = offset
        self._advance()
        if node not in self.isr and offset >= max(self.high_watermark, self.start_offset):
            self.isr.append(node)
        at = offset - leader.base_offset
        return answer, leader.records[at : at + self.rng.randrange(1, 6)]

    def _advance(self) -> None:
        leader = self.replicas[self.leader]
        ends = [self.known_ends.get(node, 0) for node in self.isr if node != self.leader]
        reached = min([leader.log_end_offset, *ends])
        for offset in range(self.high_watermark, reached):
            self.committed[offset] = leader.dump()[offset]
        self.high_watermark = max(self.high_watermark, reached)

    def check(self) -> None:
        for node in self.isr:
            log = self.replicas[node]
            dump = log.dump()
            for offset, record in self.committed.items():
                if log.log_start_offset <= offset < self.high_watermark:
                    assert dump.get(offset) == record, (node, offset)


@pytest.mark.parametrize("seed", range(150))
def test_what_is_committed_stays_and_logs_become_alike(seed: int) -> None:
    rng = Random(seed)
    cluster = Cluster(rng)
    for _ in range(rng.randrange(20, 120)):
        chance = rng.random()
        if chance < 0.3:
            cluster.produce()
        elif chance < 0.4:
            cluster.elect()
        elif chance < 0.45:
            cluster.shrink()
        elif chance < 0.47:
            cluster.wipe()
        elif chance < 0.49:
            cluster.retire()
        else:
            cluster.fetch(rng.choice(NODES))
        cluster.check()
    cluster.produce()
    leader = cluster.replicas[cluster.leader]
    for node in NODES:
        log = cluster.replicas[node]
        position = None
        while node != cluster.leader and position != position_of(log):
            position = position_of(log)
            cluster.fetch(node)
        start = max(log.log_start_offset, leader.log_start_offset)
        theirs = {offset: entry for offset, entry in leader.dump().items() if offset >= start}
        assert {offset: entry for offset, entry in log.dump().items() if offset >= start} == theirs
    cluster.check()
    assert cluster.high_watermark == leader.log_end_offset
