"""TxnOffsetCommit: offsets that hold when, and if, their transaction is committed."""

import pytest

from headrace.coordinator.shard import GroupSettings, TransactionalProducer
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from tests.unit.coordinator.driving import DELAY_MS, GROUP
from tests.unit.coordinator.transacting import TransactionalShell

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
RETENTION_MS = 86_400_000
CHECK_MS = 600_000


@pytest.fixture
def shell() -> TransactionalShell:
    return TransactionalShell(
        GroupSettings(
            initial_rebalance_delay_ms=DELAY_MS,
            offsets_retention_ms=RETENTION_MS,
            offsets_retention_check_interval_ms=CHECK_MS,
            offset_metadata_bytes_max=10,
        )
    )


def test_offset_holds_once_its_transaction_is_committed(shell: TransactionalShell) -> None:
    shell.commit(offset=1)
    assert shell.txn_commit(7, 5) == ErrorCode.NONE
    assert shell.committed() == {("t", 0): 1}
    assert shell.reload().committed() == {("t", 0): 1}
    shell.end(7)
    assert shell.committed() == {("t", 0): 5}
    assert shell.reload().committed() == {("t", 0): 5}


def test_offset_of_an_aborted_transaction_never_holds(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5)
    shell.end(7, committed=False)
    shell.end(7)
    assert shell.committed() == {}
    assert shell.reload().committed() == {}


def test_aborted_transaction_has_offsets_of_several_partitions(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5, partition=0)
    shell.txn_commit(7, 5, partition=1)
    shell.txn_commit(7, 5, group="b")
    shell.end(7, committed=False)
    assert (shell.committed(), shell.committed("b")) == ({}, {})


def test_records_are_written_as_part_of_the_transaction(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5)
    shell.commit(offset=6)
    first, second = shell.batches
    assert first.producer == TransactionalProducer(7, 3)
    assert second.producer == TransactionalProducer()
    assert len(first.records) == 1


def test_transactions_of_other_producers_are_left_alone(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5, partition=0)
    shell.txn_commit(8, 6, partition=1)
    shell.end(8)
    assert shell.committed() == {("t", 1): 6}
    shell.end(7)
    assert shell.committed() == {("t", 0): 5, ("t", 1): 6}


def test_last_offset_of_a_transaction_counts(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 9)
    shell.txn_commit(7, 5)
    shell.end(7)
    assert shell.committed() == {("t", 0): 5}


def test_one_transaction_has_offsets_of_several_groups(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5, group="a")
    shell.txn_commit(7, 6, group="b")
    shell.end(7)
    assert (shell.committed("a"), shell.committed("b")) == ({("t", 0): 5}, {("t", 0): 6})


def test_later_ordinary_commit_wins_over_a_transaction(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5)
    shell.commit(offset=3)
    shell.end(7)
    assert shell.committed() == {("t", 0): 3}
    assert shell.reload().committed() == {("t", 0): 3}


@pytest.mark.parametrize("first_to_end", [7, 8])
def test_offset_written_last_wins_whichever_transaction_ends_last(
    shell: TransactionalShell, first_to_end: int
) -> None:
    shell.txn_commit(7, 5)
    shell.txn_commit(8, 4)
    shell.end(first_to_end)
    shell.end(15 - first_to_end)
    assert shell.committed() == {("t", 0): 4}


def test_aborted_transaction_uncovers_the_one_before_it(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5)
    shell.txn_commit(8, 4)
    shell.end(8, committed=False)
    shell.end(7)
    assert shell.committed() == {("t", 0): 5}


def test_stable_fetch_refuses_while_a_transaction_is_open(shell: TransactionalShell) -> None:
    shell.commit(offset=1, partition=0)
    shell.commit(offset=2, partition=1)
    shell.txn_commit(7, 5, partition=0)
    refused = shell.stable(0)
    assert (refused.error_code, refused.committed_offset) == (UNSTABLE, -1)
    assert (shell.stable(1).error_code, shell.stable(1).committed_offset) == (0, 2)
    assert shell.reload().stable(0).error_code == UNSTABLE
    request = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    [every] = shell.shard.fetch_offsets(request, require_stable=True).topics
    assert [partition.error_code for partition in every.partitions] == [UNSTABLE, 0]
    assert shell.committed_at("t", 0) == 1
    shell.end(7)
    assert (shell.stable(0).error_code, shell.stable(0).committed_offset) == (0, 5)


def test_stable_fetch_refuses_what_is_on_its_way_to_the_log(shell: TransactionalShell) -> None:
    shell.is_holding = True
    token = shell.send_txn_commit(7, 5)
    assert token in shell.waiting
    assert shell.stable().error_code == UNSTABLE
    shell.end(7)
    assert shell.stable().error_code == UNSTABLE
    shell.release()
    assert shell.stable().committed_offset == 5
    assert token not in shell.waiting


def test_answer_waits_for_the_commit_of_the_record(shell: TransactionalShell) -> None:
    shell.is_holding = True
    token = shell.send_txn_commit(7, 5)
    assert shell.waiting == {token}
    shell.release()
    assert shell.waiting == set()


def test_simple_group_is_made_by_a_transaction(shell: TransactionalShell) -> None:
    assert shell.txn_commit(7) == ErrorCode.NONE
    [listed] = shell.shard.list()
    assert (listed.group_id, listed.group_state, listed.protocol_type) == (GROUP, "Empty", "")
    assert len(shell.reload().shard.list()) == 1


def test_members_are_checked_where_the_producer_names_one(shell: TransactionalShell) -> None:
    assert shell.txn_commit(7, generation=1, member_id="m") == ErrorCode.ILLEGAL_GENERATION
    [member] = shell.stable_group(1)
    assert shell.txn_commit(7, generation=1, member_id=member) == ErrorCode.NONE
    assert shell.txn_commit(7, generation=0, member_id=member) == ErrorCode.ILLEGAL_GENERATION
    assert shell.txn_commit(7, generation=-1, member_id=member) == ErrorCode.ILLEGAL_GENERATION
    assert shell.txn_commit(7, generation=1, member_id="m") == ErrorCode.UNKNOWN_MEMBER_ID
    unknown = shell.txn_commit(7, generation=1, member_id=member, instance="i")
    assert unknown == ErrorCode.UNKNOWN_MEMBER_ID
    # Producers of versions before 3 cannot say who they read as.
    assert shell.txn_commit(7) == ErrorCode.NONE


def test_static_member_that_was_replaced_is_fenced(shell: TransactionalShell) -> None:
    token = shell.join(instance="i")
    shell.advance(2 * DELAY_MS)
    old = shell.joined(token).member_id
    shell.finish_rebalance([old], 1)
    shell.join(instance="i")
    fenced = shell.txn_commit(7, generation=1, member_id=old, instance="i")
    assert fenced == ErrorCode.FENCED_INSTANCE_ID


def test_member_commits_in_a_transaction_before_it_knows_its_assignment(
    shell: TransactionalShell,
) -> None:
    first, second = shell.stable_group(2)
    shell.join(first)
    shell.join(second)
    assert shell.state() == "CompletingRebalance"
    assert shell.commit(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.txn_commit(7, generation=2, member_id=first) == ErrorCode.NONE
    assert shell.txn_commit(7, generation=1, member_id=first) == ErrorCode.ILLEGAL_GENERATION


def test_bad_requests_are_refused(shell: TransactionalShell) -> None:
    assert shell.txn_commit(7, group="") == ErrorCode.INVALID_GROUP_ID
    assert shell.txn_commit(7, group="g" * 32_768) == ErrorCode.INVALID_GROUP_ID
    assert shell.txn_commit(-1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shell.txn_commit(7, metadata="x" * 11) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert shell.batches == []
    answer = shell.answers[shell.send(TxnOffsetCommitRequest(group_id=GROUP), 3)]
    assert answer == TxnOffsetCommitResponse()


def test_deleted_offset_does_not_come_back_with_its_transaction(shell: TransactionalShell) -> None:
    shell.commit(topic="u")
    shell.txn_commit(7, 5)
    assert shell.delete_offset("t") == ErrorCode.NONE
    shell.end(7)
    assert shell.committed() == {("u", 0): 1}
    assert shell.reload().committed() == {("u", 0): 1}


def test_deleted_group_does_not_come_back_with_its_transaction(shell: TransactionalShell) -> None:
    shell.commit(topic="u")
    shell.txn_commit(7, 5)
    shell.is_holding = True
    shell.send_txn_commit(8, 6, partition=1)
    assert shell.delete() == ErrorCode.NONE
    shell.release()
    shell.end(7)
    shell.end(8)
    assert shell.shard.list() == []
    assert shell.reload().shard.list() == []


def test_group_is_not_forgotten_while_a_transaction_is_open(shell: TransactionalShell) -> None:
    shell.commit(topic="t", offset=1)
    shell.commit(topic="u", offset=1)
    shell.txn_commit(7, 5, topic="t")
    shell.advance(3 * RETENTION_MS)
    assert shell.committed() == {("t", 0): 1}
    shell.end(7, committed=False)
    shell.advance(2 * CHECK_MS)
    assert shell.committed() == {}
    assert shell.shard.list() == []


def test_group_with_nothing_but_an_open_transaction_stays(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5)
    shell.advance(3 * RETENTION_MS)
    assert len(shell.shard.list()) == 1
    shell.end(7, committed=False)
    shell.advance(2 * CHECK_MS)
    assert shell.shard.list() == []


def test_offset_of_a_transaction_expires_like_any_other(shell: TransactionalShell) -> None:
    shell.txn_commit(7, 5)
    shell.end(7)
    shell.advance(RETENTION_MS - CHECK_MS)
    assert shell.committed() == {("t", 0): 5}
    shell.advance(3 * CHECK_MS)
    assert shell.committed() == {}
