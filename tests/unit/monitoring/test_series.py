from hypothesis import given
from hypothesis import strategies as st

from headrace.monitoring.cluster_history import OffsetTimes, Series


def test_a_series_keeps_its_newest_points() -> None:
    series = Series(points_max=10)
    for time in range(1, 101):
        series.add(time, time / 2)
    assert 9 <= len(series) <= 10
    assert list(series)[-1] == (100, 50.0)
    assert series.last == 50.0


def test_a_series_begins_anew_when_the_clock_is_set_back() -> None:
    series = Series()
    series.add(1000, 1.0)
    series.add(900, 2.0)
    assert list(series) == [(900, 2.0)]


def test_the_time_of_an_offset_lies_between_the_samples_around_it() -> None:
    times = OffsetTimes()
    times.add(1000, 100)
    times.add(3000, 200)
    assert times.written_at(100) == (1000, True)
    assert times.written_at(150) == (2000, True)
    assert times.written_at(200) is None
    assert times.written_at(99) == (1000, False)


def test_a_quiet_log_dates_the_next_record_by_the_last_time_it_was_not_there() -> None:
    times = OffsetTimes()
    for time in (1000, 2000, 3000, 4000):
        times.add(time, 50)
    times.add(5000, 51)
    assert times.written_at(50) == (4000, True)


def test_a_truncated_log_begins_anew() -> None:
    times = OffsetTimes()
    times.add(1000, 100)
    times.add(2000, 10)
    assert times.written_at(50) is None
    assert times.written_at(5) == (2000, False)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=200), st.integers(0, 3000))
def test_offset_times_are_bounded_and_ascend(growths: list[int], offset: int) -> None:
    times, end = OffsetTimes(points_max=20), 0
    for number, growth in enumerate(growths):
        end += growth
        times.add(1000 * (number + 1), end)
    assert len(times) <= 20
    written = times.written_at(offset)
    assert (written is None) == (offset >= end)
    if written is not None:
        later = times.written_at(offset + 1)
        assert later is None or later[0] >= written[0]
