"""Random commits, in and out of transactions, against what the whole log says at its end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.coordinator.shard import NO_PRODUCER, GroupSettings
from headrace.errors import ErrorCode
from tests.unit.coordinator.driving import GROUP
from tests.unit.coordinator.transacting import TransactionalShell

producers = st.integers(1, 2)
partitions = st.integers(0, 1)
# Kept for ever: what goes with time is not what this model is about.
SETTINGS = GroupSettings(offsets_retention_ms=1 << 50)


class OffsetsModel(RuleBasedStateMachine):
    """The model is a list of what was written: offsets, deletions and the ends of transactions."""

    @initialize()
    def start(self) -> None:
        self.shell = TransactionalShell(SETTINGS)
        self.written: list[tuple[str, int, int, int]] = []
        self.offset = 0

    @rule(partition=partitions)
    def commit(self, partition: int) -> None:
        self.offset += 1
        assert self.shell.commit(offset=self.offset, partition=partition) == ErrorCode.NONE
        self.written.append(("offset", NO_PRODUCER, partition, self.offset))

    @rule(producer_id=producers, partition=partitions)
    def commit_in_transaction(self, producer_id: int, partition: int) -> None:
        self.offset += 1
        self.shell.send_txn_commit(producer_id, self.offset, partition=partition)
        self.written.append(("offset", producer_id, partition, self.offset))

    @rule(producer_id=producers, committed=st.booleans())
    def end(self, producer_id: int, committed: bool) -> None:
        self.shell.end(producer_id, committed)
        self.written.append(("end", producer_id, -1, int(committed)))

    @rule(partition=partitions)
    def delete(self, partition: int) -> None:
        if self.shell.shard.list():
            assert self.shell.delete_offset("t", partition) == ErrorCode.NONE
            self.written.append(("delete", NO_PRODUCER, partition, 0))

    @rule(ends=st.lists(st.tuples(producers, st.booleans()), max_size=2))
    def hold(self, ends: list[tuple[int, bool]]) -> None:
        """Let some of what is written be on its way together."""
        self.shell.is_holding = True
        self.commit_in_transaction(1, 0)
        for producer_id, committed in ends:
            self.end(producer_id, committed)
        self.commit_in_transaction(2, 0)
        assert self.shell.stable(0).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        self.shell.release()

    @invariant()
    def last_offset_that_counts_is_shown(self) -> None:
        for shell in (self.shell, self.shell.reload()):
            for partition in (0, 1):
                held, is_pending = self._expected(partition)
                assert shell.committed_at("t", partition) == held
                if is_pending:
                    assert shell.stable(partition).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
                else:
                    assert shell.stable(partition).committed_offset == held

    @invariant()
    def nothing_is_remembered_of_transactions_that_ended(self) -> None:
        pending = self.shell.shard._offsets._pending
        is_any = any(self._expected(partition)[1] for partition in (0, 1))
        assert bool(pending._places) == is_any
        assert bool(pending._by_producer) == is_any
        assert pending.has_group(GROUP) == is_any

    def _expected(self, partition: int) -> tuple[int, bool]:
        """The offset that holds, and whether a transaction may still change it."""
        for position in reversed(range(len(self.written))):
            kind, producer_id, where, offset = self.written[position]
            if where != partition:
                continue
            if kind == "delete":
                return -1, False
            outcome = self._outcome(producer_id, position)
            if outcome is None:
                return self._held_before(partition, position), True
            if outcome:
                return offset, False
        return -1, False

    def _held_before(self, partition: int, end: int) -> int:
        for position in reversed(range(end)):
            kind, producer_id, where, offset = self.written[position]
            if where == partition:
                if kind == "delete":
                    return -1
                if self._outcome(producer_id, position):
                    return offset
        return -1

    def _outcome(self, producer_id: int, position: int) -> bool | None:
        """Whether what was written at a position is committed; None if that is open."""
        if producer_id == NO_PRODUCER:
            return True
        for kind, other, _, committed in self.written[position:]:
            if (kind, other) == ("end", producer_id):
                return bool(committed)
        return None


TestOffsets = OffsetsModel.TestCase
TestOffsets.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
