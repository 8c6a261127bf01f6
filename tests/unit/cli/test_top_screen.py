"""The screen of `headrace top`: keys, and lines of a width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli.top_screen import KeyReader, Order, Screen, page_rows, screen_lines, shown_views
from headrace.cli.top_views import TopData
from headrace.monitoring.problems import Problem
from tests.unit.cli.test_top_views import group, status, topic

DATA = TopData(status())
MANY = TopData(status(topics={f"t{n:03}": topic(f"t{n:03}", float(n)) for n in range(100)}))


def press(screen: Screen, *keys: str, data: TopData = DATA, page: int = 10) -> Screen:
    for key in keys:
        screen = screen.pressed(key, shown_views(screen, data)[screen.view], page)
    return screen


def texts(screen: Screen, data: TopData = DATA, width: int = 120, height: int = 24) -> list[str]:
    return [line.plain.rstrip() for line in screen_lines(screen, data, (1.0, 8.0), width, height)]


def test_keys_choose_a_view() -> None:
    assert press(Screen(), "3").view == 2
    assert press(Screen(), "tab", "tab").view == 2
    assert press(Screen(), "back tab").view == 5


def test_keys_choose_an_order_for_each_view() -> None:
    screen = press(Screen(view=1), "s")
    assert screen.orders == {"topics": Order(2, descending=True)}
    assert press(screen, "r").orders == {"topics": Order(2, descending=False)}
    # Texts are sorted from A to Z.
    assert press(screen, "S", "S").orders == {"topics": Order(0, descending=False)}
    assert press(Screen(view=1), "S", "S").orders["topics"].column == 7
    assert "TOPIC ▲" in texts(press(screen, "S", "S"))[4]


def test_a_filter_is_typed_kept_and_dropped() -> None:
    screen = press(Screen(view=1), "/", "f", "q", "backspace", "a", "enter")
    assert (screen.wanted, screen.is_typing) == ("fa", False)
    shown = "\n".join(texts(screen))
    assert "fast" in shown
    assert "slow" not in shown
    assert press(screen, "escape").wanted == ""
    assert press(screen, "/", "x", "escape").wanted == ""
    nothing = press(screen, "/", "ü")
    assert "nothing has 'faü' in it" in "\n".join(texts(nothing))


def test_scrolling_stays_within_the_rows() -> None:
    at = Screen(view=1)
    assert press(at, "up", data=MANY).first_row == 0
    assert press(at, "down", "down", data=MANY).first_row == 2
    assert press(at, "page down", data=MANY, page=10).first_row == 10
    assert press(at, "end", data=MANY, page=10).first_row == 90
    assert press(at, "end", "page down", "home", data=MANY).first_row == 0
    assert press(at, "end", "1", data=MANY).first_row == 0
    last = press(at, "end", data=MANY, page=page_rows(MANY, 24))
    assert any("t000" in line for line in texts(last, MANY))


def test_keys_end_pause_and_explain() -> None:
    assert press(Screen(), "q").is_over
    assert press(Screen(), "/", "\x03").is_over
    assert not press(Screen(), "/", "q").is_over
    assert "PAUSED" in texts(press(Screen(), "p"))[0]
    assert any("reverse the order" in line for line in texts(press(Screen(), "?")))
    assert not press(Screen(), "?", "x").has_help
    assert press(Screen(), "x") == Screen()


def test_the_head_says_what_is_wrong_first() -> None:
    problems = tuple(Problem("broker", f"broker {n}", "it is down") for n in range(4))
    lines = texts(Screen(), TopData(status(problems=problems, errors={"groups": "no right"})))
    assert lines[2] == "broker 0: it is down"
    assert lines[4] == "and 2 more problems: 6 shows all"
    assert "groups" in lines[5]


def test_names_of_wide_characters_and_no_width_fit() -> None:
    name = "東京" * 100 + "\u200b\x1b[31m"
    data = TopData(status(groups={name: group(name, 1, 1.0)}))
    for line in screen_lines(Screen(view=2), data, (), 60, 20):
        assert cell_len(line.plain) == 60
        assert not set(line.plain) & {"\x1b", "\u200b"}


@pytest.mark.parametrize("view", range(6))
@given(width=st.integers(1, 250), height=st.integers(1, 60))
def test_lines_fill_a_screen_of_any_size(view: int, width: int, height: int) -> None:
    lines = screen_lines(Screen(view=view), MANY, [5.0] * 50, width, height)
    assert len(lines) == max(height, 1)
    assert {cell_len(line.plain) for line in lines} == {width}


def test_narrow_terminals_keep_what_matters() -> None:
    wide, narrow = texts(Screen(view=1)), texts(Screen(view=1), width=40)
    assert "OFFLINE" in wide[4]
    assert narrow[4].split()[:2] == ["TOPIC", "MSG/S"]
    assert "REPLICAS" not in narrow[4]


def test_keys_are_read_from_the_bytes_of_a_terminal() -> None:
    keys = KeyReader()
    assert keys.feed(b"q\x1b[A\x1bOB\x1b[5~\r\x7f\t\x03") == [
        "q",
        "up",
        "down",
        "page up",
        "enter",
        "backspace",
        "tab",
        "\x03",
    ]
    assert keys.feed("ü".encode()[:1]) == []
    assert keys.feed("ü".encode()[1:]) == ["ü"]
    # Sequences that mean nothing here are no keys.
    assert keys.feed(b"\x1b[1;5Cx") == ["x"]
    assert keys.feed(b"\x1b") == []
    assert keys.is_waiting
    assert keys.feed(b"[B") == ["down"]
    keys.feed(b"\x1b")
    assert keys.flush() == ["escape"]
    assert keys.feed(b"\x1bx") == ["escape", "x"]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_to_their_end(data: bytes) -> None:
    keys = KeyReader()
    keys.feed(data)
    keys.flush()
    assert keys.feed(b"q")[-1:] == ["q"]
