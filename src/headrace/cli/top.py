"""`headrace top`: a live view of a cluster on a terminal, or its figures once, for scripts."""

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from headrace import aio
from headrace.cli.clients import open_cluster
from headrace.cli.options import client_options, examples, pipelines_option
from headrace.cli.output import print_json, print_table
from headrace.cli.terminal_text import printable
from headrace.cli.top_views import VIEW_NAMES, TopData, View, cells, document, rows_in_order, views
from headrace.clock import SystemClock
from headrace.monitoring.broker_metrics import BrokerMetrics, MetricsReader
from headrace.monitoring.cluster_status import ClusterStatus
from headrace.monitoring.sampler import Sampler
from headrace.pipelines.run.run_state import RunState, read_state

if TYPE_CHECKING:
    from rich.live import Live

    from headrace.cli.top_screen import Screen

# A lone Escape and the beginning of an arrow key look alike, until nothing follows.
_ESCAPE_S = 0.1
_READ_BYTES = 1024
_INTERVAL_S_MIN = 0.2


class TopSources:
    """The sources of `top`: the cluster, the metrics of brokers, and the notes of pipelines."""

    def __init__(
        self, admin: aio.Admin, interval_s: float, metrics: tuple[str, ...], notes: tuple[Path, ...]
    ) -> None:
        self.sampler = Sampler(admin, interval_s=interval_s)
        self._reader = MetricsReader(metrics, SystemClock())
        self._notes = notes

    async def data(self, state: ClusterStatus) -> TopData:
        """A state of the cluster, with the data of the other sources."""
        read: tuple[BrokerMetrics, ...] = await self._reader.read()
        return TopData(state, read, self._runs(), bool(self._reader.urls), bool(self._notes))

    def _runs(self) -> tuple[RunState, ...]:
        runs = (read_state(directory) for directory in self._notes)
        return tuple(run for run in runs if run is not None)


class TopTerminal:
    """The terminal of a live view: its size, its keys, its lines."""

    def __init__(self, live: "Live") -> None:
        from headrace.cli.top_screen import KeyReader, Screen  # noqa: PLC0415

        self._live = live
        self._keys = KeyReader()
        self.screen: Screen = Screen()
        self.data: TopData | None = None
        self.is_over = asyncio.Event()
        self._rates: tuple[float, ...] = ()
        self._escape: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, self._on_input)
        loop.add_signal_handler(signal.SIGWINCH, self.draw)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.is_over.set)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(sys.stdin)
        for number in (signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        if self._escape is not None:
            self._escape.cancel()

    def show(self, data: TopData, rates: tuple[float, ...]) -> None:
        """Show newer data, unless somebody has paused the view."""
        if self.screen.is_paused and self.data is not None:
            return
        self.data, self._rates = data, rates
        self.draw()

    def draw(self) -> None:
        """Draw the screen at the present size of the terminal."""
        from rich.text import Text  # noqa: PLC0415

        from headrace.cli.top_screen import screen_lines  # noqa: PLC0415

        width, height = shutil.get_terminal_size()
        if self.data is None:
            self._live.update(Text("asking the cluster..."), refresh=True)
            return
        lines = screen_lines(self.screen, self.data, self._rates, width, height)
        self._live.update(Text("\n").join(lines), refresh=True)

    def _on_input(self) -> None:
        data = os.read(sys.stdin.fileno(), _READ_BYTES)
        if not data:  # The terminal is gone.
            self.is_over.set()
            return
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        self._press(self._keys.feed(data))
        if self._keys.is_waiting:
            loop = asyncio.get_running_loop()
            self._escape = loop.call_later(_ESCAPE_S, self._on_escape)

    def _on_escape(self) -> None:
        self._escape = None
        self._press(self._keys.flush())

    def _press(self, keys: list[str]) -> None:
        from headrace.cli.top_screen import page_rows, shown_views  # noqa: PLC0415

        for key in keys:
            if self.data is None:
                if key in ("q", "\x03"):
                    self.is_over.set()
                continue
            view = shown_views(self.screen, self.data)[self.screen.view]
            page = page_rows(self.data, shutil.get_terminal_size().lines)
            self.screen = self.screen.pressed(key, view, page)
        if self.screen.is_over:
            self.is_over.set()
        elif keys:
            self.draw()


@contextmanager
def _raw_keys() -> Iterator[None]:
    """Keys one by one, without echo. Ctrl-Z does nothing: it would leave the screen behind."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    now = termios.tcgetattr(sys.stdin)
    now[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, now)
    try:
        yield
    finally:
        # What was typed last is no command for the shell.
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)


async def _live(sources: TopSources, first: "Screen") -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    sampler = sources.sampler
    # rich measures with its own console; a line is never wider than the terminal.
    console = Console()
    with _raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        with TopTerminal(live) as terminal:
            terminal.screen = first
            terminal.draw()
            async with sampler:
                over = asyncio.ensure_future(terminal.is_over.wait())
                version = 0
                while not over.done():
                    newer = asyncio.ensure_future(sampler.newer(version))
                    await asyncio.wait((over, newer), return_when=asyncio.FIRST_COMPLETED)
                    if over.done():
                        newer.cancel()
                        break
                    version = newer.result().version
                    rates = tuple(rate for _, rate in sampler.history.message_rates)
                    terminal.show(await sources.data(newer.result()), rates)


async def _once(sources: TopSources, interval_s: float) -> TopData:
    """Two samples, so that there are rates between them."""
    await sources.data(await sources.sampler.sample())
    await asyncio.sleep(interval_s)
    sources.sampler.refresh()
    return await sources.data(await sources.sampler.sample())


def _print_once(data: TopData, chosen: tuple[View, ...], as_json: bool) -> None:
    if as_json:
        print_json(document(data, chosen))
        return
    for number, view in enumerate(chosen):
        if number:
            click.echo()
        click.echo(view.name.upper())
        if view.rows:
            headings = [column.heading for column in view.columns]
            print_table(headings, cells(view, rows_in_order(view)))
        else:
            click.echo(view.empty)
    for part, text in data.state.errors.items():
        click.echo(printable(f"headrace: {part} could not be read: {text}"), err=True)


@click.command(
    short_help="Watch a cluster live.",
    epilog=examples(
        "headrace top",
        "headrace top --view groups --metrics 127.0.0.1:9644",
        "headrace top --once --view topics",
        "headrace top --json | jq .groups",
    ),
)
@click.option(
    "--view",
    "view_name",
    type=click.Choice(VIEW_NAMES),
    metavar="VIEW",
    help=f"What to show first, or with --once alone: {', '.join(VIEW_NAMES)}.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=_INTERVAL_S_MIN),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="How often to ask the cluster.",
)
@click.option(
    "--metrics",
    "metrics",
    multiple=True,
    metavar="[http[s]://]HOST:PORT",
    help="Where a broker shows its metrics, its `admin.listener`; may be repeated.",
)
@pipelines_option
@click.option("--internal", is_flag=True, help="Show internal topics too.")
@click.option("--once", is_flag=True, help="Print tables once, with rates over one interval.")
@client_options
def top(
    view_name: str | None,
    interval_s: float,
    metrics: tuple[str, ...],
    pipelines: tuple[Path, ...],
    internal: bool,
    once: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Watch brokers, topics by rate, groups by lag, connections, pipelines and problems.

    On a terminal it is live: ? shows the keys. With --once it prints tables and ends, with --json
    one document.
    """
    is_live = not (once or as_json)
    if is_live and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("A live view needs a terminal; use --once or --json elsewhere.")
    notes = tuple(map(_notes_of, pipelines))

    async def run() -> TopData | None:
        async with aio.Admin.over(open_cluster(bootstrap, timeout_s)) as admin:
            # A cluster that cannot be reached is an error, no empty screen.
            await admin.describe_cluster()
            sources = TopSources(admin, interval_s, metrics, notes)
            if not is_live:
                return await _once(sources, interval_s)
            from headrace.cli.top_screen import Screen  # noqa: PLC0415

            await _live(
                sources, Screen(VIEW_NAMES.index(view_name or VIEW_NAMES[0]), internal=internal)
            )
            return None

    data = asyncio.run(run())
    if data is not None:
        chosen = views(data, internal=internal)
        if view_name is not None:
            chosen = tuple(view for view in chosen if view.name == view_name)
        _print_once(data, chosen, as_json)


def _notes_of(file: Path) -> Path:
    """The directory in which a pipeline's run keeps its state."""
    # PyYAML takes long to import, and is only needed for pipelines.
    from headrace.cli.pipeline import load_pipeline  # noqa: PLC0415
    from headrace.pipelines.locations import notes_directory  # noqa: PLC0415

    return notes_directory(load_pipeline(file))
