"""`headrace top` on a terminal, and for scripts."""

import os
import pty
import re
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.testing.time_limits import Deadline
from tests.integration.commands import SECONDS, Cli
from tests.support import BrokerProcess, headrace_command


class Terminal:
    """A command on a terminal of its own, its keys and what it writes."""

    def __init__(self, cli: Cli, arguments: list[str], columns: int = 110, lines: int = 30) -> None:
        self.pid, self.number = pty.fork()
        if self.pid == 0:
            environment = {
                **{k: v for k, v in cli.environment.items() if k not in ("COLUMNS", "LINES")},
                "TERM": "xterm-256color",
            }
            os.execve(headrace_command(), [headrace_command(), *arguments], environment)
        termios.tcsetwinsize(self.number, (lines, columns))
        self.before = termios.tcgetattr(self.number)
        self.written = b""
        self._seen = 0

    def press(self, keys: bytes) -> None:
        os.write(self.number, keys)

    def wait_for(self, pattern: str) -> str:
        """Read until something new has the pattern; what matched."""
        deadline = Deadline(SECONDS)
        while True:
            text = re.sub(r"\x1b\[[0-9;]*m", "", self.written[self._seen :].decode(errors="ignore"))
            if found := re.search(pattern, text):
                self._seen = len(self.written)
                return found[0]
            assert not deadline.has_passed, text
            if select.select([self.number], [], [], 0.2)[0]:
                self.written += os.read(self.number, 65536)

    def end(self) -> int:
        """Read to the end; the exit status."""
        while True:
            try:
                data = os.read(self.number, 65536)
            except OSError:
                break
            if not data:
                break
            self.written += data
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def terminal(cli: Cli, *arguments: str) -> Iterator[Terminal]:
    shown = Terminal(cli, ["top", "--interval", "0.2", *arguments])
    try:
        yield shown
    finally:
        os.close(shown.number)


@pytest.fixture(scope="module")
def cli(shared_broker: BrokerProcess) -> Cli:
    cli = Cli(shared_broker.address)
    cli.run("topics", "create", "orders", "--partitions", "3")
    cli.run("produce", "orders", stdin=b"".join(b"%d\n" % n for n in range(500)))
    cli.run("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute")
    hostile = "\x1b[2J\x07\u202ehostile"
    cli.run("groups", "reset-offsets", hostile, "--topic", "orders", "--to-latest", "--execute")
    return cli


def test_keys_walk_through_the_views_and_quit(cli: Cli) -> None:
    with terminal(cli) as shown:
        shown.wait_for(r"1 broker, \d topics?, 2 groups")
        shown.press(b"2")
        shown.wait_for(r"orders +[\d.]+ +3 +1 +500 ")
        shown.press(b"3")
        shown.wait_for(r"billing +Empty +500 ")
        shown.wait_for(r"\\x1b\[2J\\x07\\u202ehostile")
        shown.press(b"/bill\r")
        shown.wait_for(r"/bill \(Esc drops it\)")
        shown.press(b"\x1b")
        shown.wait_for(r"hostile")
        shown.press(b"\x1b[B\x1b[A?")
        shown.wait_for(r"reverse the order")
        shown.press(b"xq")
        assert shown.end() == 0
    # The other screen was left, and the cursor is back.
    assert shown.written.count(b"\x1b[?1049h") == shown.written.count(b"\x1b[?1049l") == 1
    assert shown.written.rstrip().endswith((b"\x1b[?25h", b"\x1b[?1049l"))
    assert not {"\x07", "\u202e"} & set(shown.written.decode())
    assert b"\x1b[2J" not in shown.written.replace(b"\x1b[2J\x1b[H", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(cli: Cli, number: int) -> None:
    with terminal(cli) as shown:
        shown.wait_for("1 broker")
        termios.tcsetwinsize(shown.number, (10, 40))
        os.kill(shown.pid, signal.SIGWINCH)
        shown.wait_for(r"1-6 view  s sort[^\n]*…")
        os.kill(shown.pid, number)
        assert shown.end() == 0
        assert b"\x1b[?1049l" in shown.written
        assert termios.tcgetattr(shown.number)[3] == shown.before[3]


def test_figures_are_printed_once_for_scripts(cli: Cli) -> None:
    document = cli.json("top", "--interval", "0.2")
    assert [topic["name"] for topic in document["topics"]] == ["orders"]
    assert {group["name"]: group["lag"] for group in document["groups"]}["billing"] == 500
    assert document["messages_per_s"] == 0.0
    assert document["brokers"][0]["state"] == "up"
    tables = cli.text("top", "--once", "--interval", "0.2", "--view", "topics", "--internal")
    assert re.search(r"^orders +0 +3 +1 +500 ", tables, re.MULTILINE)
    assert "__consumer_offsets" in tables
    assert "GROUPS" not in tables


def test_without_a_terminal_or_a_cluster_it_says_what_to_do(cli: Cli) -> None:
    assert "use --once or --json" in cli.error("top", status=2)
    nowhere = Cli("127.0.0.1:1")
    assert "127.0.0.1:1" in nowhere.error("top", "--once")
    assert "HOST:PORT" in cli.error("top", "--once", "--metrics", "file:///etc/passwd", status=2)
