"""Timers fire at their deadline, however often it moves, and leave nothing behind."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.deadlines import Deadlines, Timer

actions = st.lists(
    st.tuples(st.sampled_from(["start", "stop", "pass"]), st.integers(0, 4), st.integers(0, 50)),
    max_size=60,
)


@given(actions=actions)
def test_timers_fire_at_the_first_look_after_their_deadline(
    actions: list[tuple[str, int, int]],
) -> None:
    deadlines = Deadlines()
    fired: list[int] = []

    def recorder(index: int) -> Callable[[int], None]:
        return lambda now_ms: fired.append(index)

    timers = [Timer(recorder(index)) for index in range(5)]
    expected: dict[int, int] = {}
    now_ms = 0
    for action, index, duration_ms in actions:
        if action == "start":
            deadlines.start(timers[index], now_ms + duration_ms)
            expected[index] = now_ms + duration_ms
        elif action == "stop":
            deadlines.stop(timers[index])
            expected.pop(index, None)
        else:
            now_ms += duration_ms
            due = {index for index, deadline_ms in expected.items() if deadline_ms <= now_ms}
            fired.clear()
            deadlines.fire_due(now_ms, 1_000)
            assert set(fired) == due
            assert len(fired) == len(due)
            expected = {entry: at for entry, at in expected.items() if entry not in due}
        if expected:
            assert deadlines.next_ms is not None
            assert deadlines.next_ms <= min(expected.values())


def test_deadline_that_moves_back_is_not_pushed_again() -> None:
    deadlines = Deadlines()
    timer = Timer(lambda now_ms: None)
    for now_ms in range(10_000):
        deadlines.start(timer, now_ms + 50)
    assert len(deadlines) == 1


def test_deadline_that_moves_forward_leaves_a_bounded_number_of_entries() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    timers = [Timer(fired.append) for _ in range(10)]
    for deadline_ms in range(10_000, 0, -1):
        for timer in timers:
            deadlines.start(timer, deadline_ms)
        assert len(deadlines) <= 100
    deadlines.fire_due(1, 1_000)
    assert fired == [1] * 10
    deadlines.fire_due(20_000, 1_000)
    assert fired == [1] * 10
    assert deadlines.next_ms is None


def test_timers_that_are_stopped_leave_a_bounded_number_of_entries() -> None:
    deadlines = Deadlines()
    for _ in range(10_000):
        timer = Timer(lambda now_ms: None)
        deadlines.start(timer, 100)
        deadlines.stop(timer)
        assert len(deadlines) <= 100


def test_stopped_timer_can_be_started_again_after_its_entry_was_dropped() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    timer = Timer(fired.append)
    deadlines.start(timer, 10)
    deadlines.stop(timer)
    for deadline_ms in range(200):
        other = Timer(lambda now_ms: None)
        deadlines.start(other, deadline_ms)
        deadlines.stop(other)
    deadlines.start(timer, 500)
    deadlines.fire_due(499, 1_000)
    assert fired == []
    deadlines.fire_due(500, 1_000)
    assert fired == [500]


def test_one_look_is_bounded() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    for _ in range(25):
        deadlines.start(Timer(fired.append), 5)
    deadlines.fire_due(7, 10)
    assert len(fired) == 10
    assert deadlines.next_ms == 5
    deadlines.fire_due(7, 10)
    deadlines.fire_due(7, 10)
    assert len(fired) == 25


def test_timer_may_start_itself_again_when_it_fires() -> None:
    deadlines = Deadlines()
    fired: list[int] = []

    def again(now_ms: int) -> None:
        fired.append(now_ms)
        deadlines.start(timer, now_ms + 10)

    timer = Timer(again)
    deadlines.start(timer, 10)
    for now_ms in range(40):
        deadlines.fire_due(now_ms, 10)
    assert fired == [10, 20, 30]
