"""Numbers of requests, counted by compiled code or by the same in Python."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.request_counters import RequestCounters
from headrace.metrics.registry import SECONDS, Histogram
from headrace.types import Buffer

TIMES = st.floats(0, 100) | st.sampled_from(SECONDS)


@given(st.lists(st.tuples(TIMES, TIMES, st.booleans(), TIMES)))
def test_times_are_counted_as_a_histogram_counts_them(
    requests: list[tuple[float, float, bool, float]],
) -> None:
    queue, handler, total = (Histogram(SECONDS) for _ in range(3))
    wanted_queue, wanted_handler, wanted_total = (Histogram(SECONDS) for _ in range(3))
    cells = RequestCounters(SECONDS, queue.counts, handler.counts, total.counts)
    for queue_s, handler_s, is_answered, total_s in requests:
        reply: list[Buffer] | None = [b"12", bytearray(3)] if is_answered else None
        cells.handled(7, queue_s, handler_s, reply, is_answered)
        wanted_queue.observe(queue_s)
        wanted_handler.observe(handler_s)
        if is_answered:
            wanted_total.observe(queue_s + handler_s)
        else:
            cells.answered(total_s, [b"1234"])
            wanted_total.observe(total_s)
    assert queue.counts == wanted_queue.counts
    assert handler.counts == wanted_handler.counts
    assert total.counts == wanted_total.counts
    assert (cells.queue_s, cells.handler_s) == (wanted_queue.sum, wanted_handler.sum)
    assert cells.total_s == wanted_total.sum
    answered = sum(is_answered for _, _, is_answered, _ in requests)
    assert cells.received_bytes == 7 * len(requests)
    assert cells.sent_bytes == 5 * answered + 4 * (len(requests) - answered)
