"""Finding where two logs part, for logs as elections leave them."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.raft.divergence import position_answer, truncation_point
from tests.unit.raft.memory import MemoryLog


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The epochs of two logs that match: every leader began with a prefix of some earlier log."""
    logs: list[list[int]] = [[]]
    for epoch in range(1, draw(st.integers(1, 6)) + 1):
        base = draw(st.sampled_from(logs))
        kept = draw(st.integers(0, len(base)))
        logs.append(base[:kept] + [epoch] * draw(st.integers(1, 3)))
    return draw(st.sampled_from(logs)), draw(st.sampled_from(logs))


def common(one: list[int], other: list[int]) -> int:
    """How far two logs agree. An epoch begins at one offset only, so epochs are all there is."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


@given(two_logs())
def test_follower_ends_where_the_logs_part(logs: tuple[list[int], list[int]]) -> None:
    leader, follower = MemoryLog(*logs[0]), MemoryLog(*logs[1])
    for _ in range(len(logs[1]) + 1):
        diverging, snapshot = position_answer(leader, follower.end_offset, follower.last_epoch)
        assert snapshot is None
        if diverging is None:
            break
        point = truncation_point(follower, diverging, high_watermark=common(*logs))
        assert point is not None, "each round has to bring it nearer"
        follower.truncate_to(point)
    assert [entry.epoch for entry in follower.entries] == logs[0][: common(*logs)]


@given(two_logs(), st.data())
def test_follower_of_a_leader_with_a_snapshot_ends_there_or_takes_it(
    logs: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    leader, follower = MemoryLog(*logs[0]), MemoryLog(*logs[1])
    # Only what is committed is in a snapshot, and a follower never gives up what it knows to be.
    start = data.draw(st.integers(0, len(logs[0])))
    if start:
        leader.take_snapshot(start, None)
    for _ in range(len(logs[1]) + 1):
        diverging, snapshot = position_answer(leader, follower.end_offset, follower.last_epoch)
        if snapshot is not None:
            follower.install(leader)
        elif diverging is not None:
            point = truncation_point(follower, diverging, high_watermark=0)
            assert point is not None
            follower.truncate_to(point)
        else:
            break
    epochs = [entry.epoch for entry in follower.state + follower.entries]
    assert epochs == logs[0][: len(epochs)]
    assert len(epochs) >= min(start, common(*logs))
