"""Log lines: their forms, and the limit on repeated ones."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log_output import (
    JsonFormatter,
    LogOutput,
    MessageKey,
    MessageLimits,
    TextFormatter,
    configure_logging,
)
from headrace.metrics import catalog
from headrace.metrics.registry import Registry

KEY = MessageKey("headrace.net", logging.WARNING, "refused %s")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Logged:
    """A logger whose records go to a `LogOutput`, and what it wrote."""

    def __init__(self, formatter: logging.Formatter, lines_max: int = 3) -> None:
        self.clock = Clock()
        self.stream = io.StringIO()
        self.output = LogOutput(
            self.stream, formatter, MessageLimits(lines_max, window_s=10), self.clock
        )
        self.logger = logging.Logger("headrace.test")
        self.logger.addHandler(self.output)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def logged() -> Logged:
    return Logged(TextFormatter())


def test_a_message_that_repeats_is_written_so_often_and_then_counted(logged: Logged) -> None:
    for number in range(10):
        logged.logger.warning("refused %s", f"peer-{number}")
        logged.logger.info("something else")
    assert sum("refused" in line for line in logged.lines) == 3
    logged.clock.now_s += 10
    logged.logger.info("later")
    assert [line.split(" ", 2)[2] for line in logged.lines[-3:]] == [
        "WARNING 7 more lines like this were left out: refused %s",
        "INFO 7 more lines like this were left out: something else",
        "INFO later",
    ]
    logged.logger.warning("refused %s", "peer")
    assert "WARNING refused peer" in logged.lines[-1]


def test_counts_are_told_although_nothing_else_is_logged(logged: Logged) -> None:
    import asyncio

    for _ in range(5):
        logged.logger.error("no space")
    asyncio.run(logged.output.report_suppressed())
    assert len(logged.lines) == 3
    logged.clock.now_s += 10
    asyncio.run(logged.output.report_suppressed())
    assert logged.lines[-1].endswith("ERROR 2 more lines like this were left out: no space")


def test_the_last_words_of_a_process_are_never_left_out(logged: Logged) -> None:
    for _ in range(10):
        logged.logger.critical("this node must stop")
    assert len(logged.lines) == 10


def test_without_a_limit_everything_is_written() -> None:
    logged = Logged(TextFormatter(), lines_max=0)
    for _ in range(1000):
        logged.logger.warning("again")
    assert len(logged.lines) == 1000


@given(st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 3))))
def test_no_line_is_lost_without_being_counted(steps: list[tuple[int, float]]) -> None:
    limits, now_s, written, counted = MessageLimits(2, window_s=5), 0.0, 0, 0
    for message, wait_s in steps:
        now_s += wait_s
        counted += sum(found.lines for found in limits.ended(now_s))
        written += limits.admit(KEY._replace(template=str(message)), now_s)
    counted += sum(found.lines for found in limits.ended(now_s + 5))
    assert written + counted == len(steps)


def test_messages_that_never_end_take_bounded_memory() -> None:
    limits = MessageLimits(1)
    for number in range(5000):
        limits.ended(0.0)
        limits.admit(KEY._replace(template=str(number)), 0.0)
    assert len(limits._windows) <= 1001


def test_text_of_a_peer_is_one_line_without_commands_to_the_terminal(logged: Logged) -> None:
    logged.logger.warning("client %s", "a\nERROR \x1b[2J\u202e\x00é")
    [line] = logged.lines
    assert line.endswith("client a\\nERROR \\x1b[2J\\u202e\\x00é")
    logged.logger.warning("client %s", "x" * 1_000_000)
    assert len(logged.lines[-1]) < 20_000


def test_json_has_an_object_in_a_line() -> None:
    logged = Logged(JsonFormatter({"node_id": 7}))
    logged.logger.warning("client %s", "a\nb", extra={"listener": "TLS"})
    try:
        raise ValueError("planted")
    except ValueError:
        logged.logger.exception("it failed")
    first, second = map(json.loads, logged.lines)
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "headrace.test",
        "node_id": 7,
        "message": "client a\nb",
        "listener": "TLS",
    }
    assert second["exception"].endswith("ValueError: planted")


@pytest.fixture
def root() -> Iterator[None]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", Terminal(), False),
        ("auto", io.StringIO(), True),
        ("text", io.StringIO(), False),
        ("json", Terminal(), True),
    ],
)
@pytest.mark.usefixtures("root")
def test_people_get_text_and_programs_json(
    log_format: str, stream: io.StringIO, is_json: bool
) -> None:
    output = configure_logging(logging.INFO, log_format, 100, {}, stream)
    logging.getLogger("headrace").info("hello")
    logging.getLogger("headrace").debug("not this")
    assert stream.getvalue().startswith("{") == is_json
    assert output.lines["info"] == 1


def test_lines_are_counted_by_level(logged: Logged) -> None:
    registry = Registry()
    logged.output.observe(registry)
    for _ in range(5):
        logged.logger.warning("again")
    samples = {
        entry.family: dict(sample for read in entry.samplers for sample in read())
        for entry in registry.collect()
    }
    assert samples[catalog.LOG_LINES][("warning",)] == 3
    assert samples[catalog.LOG_LINES_SUPPRESSED][("warning",)] == 2


def test_a_stream_that_is_gone_does_not_stop_the_program(logged: Logged) -> None:
    logged.stream.close()
    logged.logger.warning("nobody reads this")
