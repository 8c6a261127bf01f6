"""Groups too large for one record of the log: refused, and the shard lives on."""

from headrace.coordinator.shard import GroupSettings
from headrace.errors import ErrorCode
from tests.unit.coordinator.driving import REBALANCE_MS, Shell, subscription

BYTES_MAX = 2_000


def new_shell() -> Shell:
    return Shell(GroupSettings(initial_rebalance_delay_ms=0, record_bytes_max=BYTES_MAX))


def test_member_that_no_record_could_hold_is_not_let_in() -> None:
    shell = new_shell()
    protocols = [("range", bytes(BYTES_MAX // 2)), ("sticky", bytes(BYTES_MAX // 2))]
    assert shell.refused(shell.join(protocols=protocols)) == ErrorCode.INVALID_REQUEST
    assert shell.state() == "Dead"


def test_assignment_that_does_not_fit_is_refused_and_the_group_rebalances() -> None:
    shell = new_shell()
    leader, _ = shell.enter()
    shell.advance(0)
    written = len(shell.log)
    sync = shell.sync_request(leader, 1, {leader: bytes(BYTES_MAX)})
    assert shell.synced(sync).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(shell.log) == written
    assert shell.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.joined(shell.join(leader)).generation_id == 2
    synced = shell.synced(shell.sync_request(leader, 2, {leader: b"less"}))
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"less")
    assert shell.state() == "Stable"


def test_everybody_who_waits_hears_that_the_assignment_does_not_fit() -> None:
    shell = new_shell()
    leader, _ = shell.enter()
    shell.advance(0)
    follower, _ = shell.enter()
    shell.join(leader)
    waiting = shell.sync_request(follower, 2)
    shell.sync_request(leader, 2, {follower: bytes(BYTES_MAX)})
    assert shell.synced(waiting).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    shell.advance(REBALANCE_MS)
    assert shell.state() == "Empty"


def test_static_member_that_comes_back_too_large_starts_a_rebalance() -> None:
    shell = new_shell()
    first = shell.join(instance="one")
    shell.advance(0)
    old_id = shell.joined(first).member_id
    # With what it was assigned and what it tells now the record would be too large.
    shell.sync_request(old_id, 1, {old_id: bytes(BYTES_MAX // 2)}, instance="one")
    larger = subscription("t") + bytes(BYTES_MAX // 2)
    again = shell.joined(shell.join(instance="one", protocols=[("range", larger)]))
    assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 2)
    synced = shell.sync_request(again.member_id, 2, {again.member_id: b"less"}, instance="one")
    assert shell.synced(synced).error_code == ErrorCode.NONE
    assert shell.state() == "Stable"
