"""What is written has the time of day; what waits goes by the steady clock.

A suspended machine is one whose time of day has moved on when it wakes, and whose steady clock has
not. A clock that was wrong at the start is one that jumps when it is corrected.
"""

import pytest

from headrace.coordinator.records import decode_group, decode_key, decode_offset
from headrace.coordinator.shard import GroupSettings
from headrace.coordinator.transactions.transaction_metadata import TransactionStatus
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offsets_records import OffsetCommitKey
from tests.unit.coordinator import driving
from tests.unit.coordinator.driving import GROUP
from tests.unit.coordinator.transactions import driving as transactions
from tests.unit.coordinator.transactions.driving import ID, TIMEOUT_MS, A, B

DAY_MS = 86_400_000
CHECK_MS = 600_000
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=driving.DELAY_MS,
    offsets_retention_ms=7 * DAY_MS,
    offsets_retention_check_interval_ms=CHECK_MS,
)


def restarted(shell: driving.Shell) -> driving.Shell:
    """Another coordinator, whose clocks both begin at the time of day."""
    return driving.Shell(SETTINGS, shell.log, shell.now_ms + shell.shard.times.ahead_ms)


@pytest.fixture
def shell() -> driving.Shell:
    return driving.Shell(SETTINGS)


@pytest.mark.parametrize("jump_ms", [30 * DAY_MS, -30 * DAY_MS])
def test_records_of_groups_have_the_time_of_day(shell: driving.Shell, jump_ms: int) -> None:
    shell.shard.times.ahead_ms = jump_ms
    shell.commit(offset=5)
    shell.stable_group(1)
    wall_ms = []
    for record in shell.log:
        assert record.value is not None
        if isinstance(decode_key(record.key), OffsetCommitKey):
            wall_ms.append(decode_offset(record.value).commit_timestamp)
        else:
            wall_ms.append(decode_group(record.value).current_state_timestamp)
    assert wall_ms == [driving.START_MS + jump_ms, shell.now_ms + jump_ms]


def test_offset_committed_after_a_suspend_survives_a_restart(shell: driving.Shell) -> None:
    shell.shard.times.ahead_ms = 30 * DAY_MS
    shell.commit(offset=5)
    again = restarted(shell)
    again.advance(6 * DAY_MS)
    assert again.committed() == {("t", 0): 5}
    again.advance(2 * DAY_MS)
    assert again.committed() == {}


@pytest.mark.parametrize("jump_ms", [30 * DAY_MS, -30 * DAY_MS])
def test_a_jump_neither_expires_offsets_nor_keeps_them(shell: driving.Shell, jump_ms: int) -> None:
    shell.commit(offset=5)
    shell.commit(offset=6, group="recorded")
    shell.shard.times.ahead_ms = jump_ms
    shell.advance(6 * DAY_MS)
    assert (shell.committed(), shell.committed("recorded")) == ({("t", 0): 5}, {("t", 0): 6})
    shell.advance(2 * DAY_MS)
    assert (shell.committed(), shell.committed("recorded")) == ({}, {})


def test_offset_from_the_future_is_from_now(shell: driving.Shell) -> None:
    shell.shard.times.ahead_ms = 30 * DAY_MS
    shell.commit(offset=5)
    shell.shard.times.ahead_ms = 0
    again = restarted(shell)
    again.advance(6 * DAY_MS)
    assert again.committed() == {("t", 0): 5}
    again.advance(2 * DAY_MS)
    assert again.committed() == {}


def test_retention_that_a_client_asks_for_is_a_duration(shell: driving.Shell) -> None:
    request = OffsetCommitRequest(
        group_id=GROUP,
        retention_time_ms=DAY_MS,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
            )
        ],
    )
    shell.shard.times.ahead_ms = 30 * DAY_MS
    shell.send(request, 4)
    # The clock of the next coordinator is right.
    shell.shard.times.ahead_ms = 0
    again = restarted(shell)
    again.advance(DAY_MS - 1)
    assert again.committed() == {("t", 0): 5}
    again.advance(CHECK_MS + 2)
    assert again.committed() == {}


def test_an_empty_group_keeps_its_offsets_from_when_it_became_empty(shell: driving.Shell) -> None:
    [member] = shell.stable_group(1)
    shell.commit(member, 1, offset=5)
    shell.shard.times.ahead_ms = 30 * DAY_MS
    shell.leave((member, None))
    again = restarted(shell)
    again.advance(6 * DAY_MS)
    assert again.committed() == {("t", 0): 5}
    again.advance(2 * DAY_MS)
    assert again.committed() == {}


# -- transactions


def status(shell: transactions.Shell) -> str:
    return shell.shard.describe(ID).transaction_state


def restarted_transactions(shell: transactions.Shell) -> transactions.Shell:
    now_ms = shell.now_ms + shell.shard.times.ahead_ms
    return transactions.Shell(shell.settings, shell.log, now_ms, 2)


def test_an_open_transaction_outlives_a_jump_and_times_out_when_it_is_due() -> None:
    shell = transactions.Shell()
    producer = shell.start()
    assert shell.add(producer, A) is ErrorCode.NONE
    shell.advance(TIMEOUT_MS // 2)
    shell.shard.times.ahead_ms = 30 * DAY_MS
    # Added to after the jump, it has the start of the day before.
    assert shell.add(producer, B) is ErrorCode.NONE
    shell.advance(TIMEOUT_MS // 2 - 1)
    assert status(shell) == TransactionStatus.ONGOING.title
    shell.advance(10)
    assert status(shell) == TransactionStatus.PREPARE_ABORT.title


@pytest.mark.parametrize("jump_ms", [30 * DAY_MS, -30 * DAY_MS])
def test_a_transaction_begun_after_a_jump_is_not_aborted_by_a_restart(jump_ms: int) -> None:
    shell = transactions.Shell()
    shell.shard.times.ahead_ms = jump_ms
    shell.add(shell.start(), A)
    again = restarted_transactions(shell)
    again.advance(TIMEOUT_MS - 1)
    assert status(again) == TransactionStatus.ONGOING.title
    again.advance(10)
    assert status(again) == TransactionStatus.PREPARE_ABORT.title


def test_transactional_id_used_after_a_suspend_is_not_forgotten_by_a_restart() -> None:
    shell = transactions.Shell()
    shell.shard.times.ahead_ms = 30 * DAY_MS
    shell.start()
    again = restarted_transactions(shell)
    again.advance(6 * DAY_MS)
    assert status(again) == TransactionStatus.EMPTY.title
    again.advance(2 * DAY_MS)
    assert shell.shard.describe(ID).error_code == ErrorCode.NONE
    assert again.shard.describe(ID).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_timestamps_from_the_future_are_from_now() -> None:
    shell = transactions.Shell()
    shell.shard.times.ahead_ms = 30 * DAY_MS
    shell.add(shell.start(), A)
    shell.shard.times.ahead_ms = 0
    again = restarted_transactions(shell)
    again.advance(TIMEOUT_MS + 10)
    assert status(again) == TransactionStatus.PREPARE_ABORT.title
