"""Sessions and failed sign-ins: how long they last, and how many there are."""

import asyncio
from typing import cast

from headrace.console.cluster_access import ClusterAccess
from headrace.console.sessions import (
    AGE_S_MAX,
    FAILURES_MAX,
    FAILURES_S,
    IDLE_S_MAX,
    CsrfTokens,
    Sessions,
    SignInLimit,
)


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


class FakeAccess:
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def access() -> ClusterAccess:
    return cast("ClusterAccess", FakeAccess())


def test_a_session_ends_when_it_is_idle_or_old_and_closes_its_clients() -> None:
    async def run() -> None:
        clock = ManualClock()
        sessions = Sessions(clock)
        idle, used = await sessions.begin(access()), await sessions.begin(access())
        clock.now += IDLE_S_MAX - 1
        assert sessions.find(used.token) is used
        # A page in the background asks for itself again, which is no use of it.
        assert sessions.find(idle.token, is_use=False) is idle
        clock.now += 2
        assert sessions.find(idle.token) is None
        await sessions.end_expired()
        assert idle.access.is_closed and not used.access.is_closed
        for _ in range(int(AGE_S_MAX / IDLE_S_MAX) + 1):
            sessions.find(used.token)
            clock.now += IDLE_S_MAX - 1
        assert sessions.find(used.token) is None

    asyncio.run(run())


def test_the_longest_unused_session_makes_room() -> None:
    async def run() -> None:
        sessions = Sessions(ManualClock(), sessions_max=2)
        first, second = await sessions.begin(access()), await sessions.begin(access())
        sessions.find(first.token)
        third = await sessions.begin(access())
        assert second.access.is_closed
        assert sessions.find(first.token) and sessions.find(third.token)
        assert len(sessions) == 2

    asyncio.run(run())


def test_failed_sign_ins_are_limited_for_a_time() -> None:
    clock = ManualClock()
    limit = SignInLimit(clock)
    for _ in range(FAILURES_MAX):
        assert limit.wait_s("10.0.0.1", "alice") == 0
        limit.note_failure("10.0.0.1", "alice")
    assert limit.wait_s("10.0.0.1", "alice") == FAILURES_S
    # Neither others at the address nor the user elsewhere are locked out by so few.
    assert limit.wait_s("10.0.0.1", "bob") == limit.wait_s("10.0.0.2", "alice") == 0
    clock.now += FAILURES_S + 1
    assert limit.wait_s("10.0.0.1", "alice") == 0


def test_guesses_from_many_addresses_and_of_many_users_are_limited_too() -> None:
    limit = SignInLimit(ManualClock())
    for number in range(8 * FAILURES_MAX):
        limit.note_failure(f"10.0.0.{number}", "alice")
    assert limit.wait_s("10.9.9.9", "alice") > 0
    for number in range(4 * FAILURES_MAX):
        limit.note_failure("10.1.1.1", f"user-{number}")
    assert limit.wait_s("10.1.1.1", "carol") > 0


def test_a_forms_token_is_good_for_its_viewer_only() -> None:
    tokens = CsrfTokens()
    assert tokens.is_valid("viewer", tokens.token("viewer"))
    assert not tokens.is_valid("viewer", tokens.token("another"))
    assert not CsrfTokens().is_valid("viewer", tokens.token("viewer"))
    assert not tokens.is_valid("viewer", "ü")
