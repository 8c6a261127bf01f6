import threading

from headrace.client.blocking import GLANCE_S, wait_in_parts


def test_a_long_wait_on_the_main_thread_is_made_of_short_ones() -> None:
    asked: list[float | None] = []

    def wait(timeout_s: float | None) -> bool:
        asked.append(timeout_s)
        return len(asked) == 5

    assert wait_in_parts(wait, None)
    assert asked == [GLANCE_S] * 5


def test_a_wait_ends_at_its_timeout() -> None:
    event = threading.Event()
    assert not wait_in_parts(event.wait, 0.001)
    assert not wait_in_parts(event.wait, GLANCE_S * 1.5)
    event.set()
    assert wait_in_parts(event.wait, 0)


def test_other_threads_wait_in_one_go() -> None:
    asked: list[float | None] = []

    def wait(timeout_s: float | None) -> bool:
        asked.append(timeout_s)
        return False

    thread = threading.Thread(target=lambda: wait_in_parts(wait, 60.0))
    thread.start()
    thread.join()
    assert asked == [60.0]
