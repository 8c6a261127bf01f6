"""The screen of `headrace top`: the effects of keys, and the lines of a screen of some size.

Rule: pure; `top` reads the keys and writes the lines. Every line has the width of the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from headrace.cli.output import bytes_text, counted
from headrace.cli.terminal_text import printable
from headrace.cli.top_views import (
    VIEW_NAMES,
    TopData,
    View,
    cells,
    rate_text,
    views,
)

FILTER_CHARS_MAX = 100
_PROBLEMS_SHOWN = 2
_TEXT_WIDTH_MIN = 12
_GAP = 2
_STYLES = {"critical": "bold red", "warning": "yellow", "": ""}
_BARS = " ▁▂▃▄▅▆▇█"

HELP = (
    "1-6, Tab     another view",
    "s, S         sort by the next column, by the one before",
    "r            reverse the order",
    "/            show only rows with a text; Enter keeps it, Esc drops it",
    "i            show internal topics too",
    "arrows, PgUp, PgDn, Home, End   scroll",
    "p            pause, and go on",
    "?            this help",
    "q, Ctrl-C    quit",
)

# The sequences that terminals send for keys, of xterm and of the Linux console.
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[Z": "back tab",
}
_NAMED = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
_SEQUENCE_BYTES_MAX = 16


class KeyReader:
    """Keys from the bytes of a terminal; a sequence may come in parts."""

    def __init__(self) -> None:
        self._pending = b""

    @property
    def is_waiting(self) -> bool:
        """Whether the beginning of a sequence came, or the key Escape."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        """The keys in these bytes: names such as "up", or single characters."""
        self._pending += data
        keys = []
        while self._pending:
            key, length = self._next()
            if not length:
                break
            self._pending = self._pending[length:]
            if key:
                keys.append(key)
        return keys

    def flush(self) -> list[str]:
        """The keys in the pending bytes, if nothing follows: Escape alone."""
        pending, self._pending = self._pending, b""
        return ["escape"] if pending.startswith(b"\x1b") else []

    def _next(self) -> tuple[str, int]:
        """The first key and its bytes; no bytes if more are needed."""
        data = self._pending
        if data[0] != 0x1B:
            # A character has up to four bytes.
            for length in range(1, min(len(data), 4) + 1):
                try:
                    character = data[:length].decode()
                except UnicodeDecodeError:
                    continue
                return _NAMED.get(character, character), length
            return ("", 1) if len(data) >= 4 else ("", 0)
        if len(data) == 1:
            return "", 0
        if data[1] not in b"[O":
            return "escape", 1
        for length in range(3, min(len(data), _SEQUENCE_BYTES_MAX) + 1):
            if 0x40 <= data[length - 1] <= 0x7E:
                # Sequences that mean nothing here are dropped as a whole.
                return _SEQUENCES.get(data[:length], ""), length
        return ("", len(data)) if len(data) >= _SEQUENCE_BYTES_MAX else ("", 0)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a view: the column, and whether from the largest value."""

    column: int
    descending: bool


@dataclass(frozen=True, slots=True)
class Screen:
    """The choices of the user: view, order, filter, position."""

    view: int = 0
    orders: dict[str, Order] = field(default_factory=dict)
    wanted: str = ""
    is_typing: bool = False
    internal: bool = False
    first_row: int = 0
    is_paused: bool = False
    has_help: bool = False
    is_over: bool = False

    def order_of(self, view: View) -> Order:
        """The order of a view: the chosen one, or its own."""
        return self.orders.get(view.name) or Order(view.sort, view.descends(view.sort))

    def pressed(self, key: str, view: View, page: int) -> "Screen":
        """The screen after a key; `page` is the number of rows on it."""
        if self.is_typing:
            return self._typed(key)
        if self.has_help:
            return replace(self, has_help=False, is_over=key == "q")
        if key in "123456" and len(key) == 1:
            return replace(self, view=int(key) - 1, first_row=0)
        order = self.order_of(view)
        match key:
            case "q" | "\x03":
                return replace(self, is_over=True)
            case "tab" | "back tab":
                step = 1 if key == "tab" else -1
                return replace(self, view=(self.view + step) % len(VIEW_NAMES), first_row=0)
            case "s" | "S":
                column = (order.column + (1 if key == "s" else -1)) % len(view.columns)
                return self._ordered(view, Order(column, view.descends(column)))
            case "r":
                return self._ordered(view, Order(order.column, not order.descending))
            case "/":
                return replace(self, is_typing=True)
            case "escape":
                return replace(self, wanted="", first_row=0)
            case "i":
                return replace(self, internal=not self.internal, first_row=0)
            case "p" | " ":
                return replace(self, is_paused=not self.is_paused)
            case "?" | "h":
                return replace(self, has_help=True)
        return self._scrolled(key, len(view.rows), page)

    def _typed(self, key: str) -> "Screen":
        if key == "enter":
            return replace(self, is_typing=False)
        if key == "escape":
            return replace(self, is_typing=False, wanted="", first_row=0)
        if key == "backspace":
            return replace(self, wanted=self.wanted[:-1], first_row=0)
        if key == "\x03":
            return replace(self, is_over=True)
        if len(key) == 1 and key.isprintable() and len(self.wanted) < FILTER_CHARS_MAX:
            return replace(self, wanted=self.wanted + key, first_row=0)
        return self

    def _ordered(self, view: View, order: Order) -> "Screen":
        return replace(self, orders={**self.orders, view.name: order}, first_row=0)

    def _scrolled(self, key: str, rows: int, page: int) -> "Screen":
        steps = {
            "up": -1,
            "down": 1,
            "page up": -page,
            "page down": page,
            "home": -rows,
            "end": rows,
        }
        first = min(self.first_row + steps.get(key, 0), rows - page)
        return replace(self, first_row=max(first, 0))


def shown_views(screen: Screen, data: TopData) -> tuple[View, ...]:
    """All views, as the screen wants them."""
    return views(data, internal=screen.internal)


def page_rows(data: TopData, height: int) -> int:
    """How many rows of a table a screen has room for."""
    return max(height - len(_head(data, 0)) - 3, 1)


def screen_lines(
    screen: Screen, data: TopData, rates: Sequence[float], width: int, height: int
) -> list[Text]:
    """The lines of a screen: the head, the tabs, a table, the keys."""
    all_views = shown_views(screen, data)
    view = all_views[screen.view]
    head = _head(data, width, rates, is_paused=screen.is_paused)
    lines = [*head, _tabs(screen, all_views, width)]
    room = page_rows(data, height)
    if screen.has_help:
        lines += [_line(f"  {text}", width) for text in HELP]
    else:
        lines += _table(screen, view, width, room)
    lines = lines[: height - 1]
    lines += [_line("", width)] * (height - 1 - len(lines))
    return [*lines, _foot(screen, view, width)]


def _head(
    data: TopData, width: int, rates: Sequence[float] = (), *, is_paused: bool = False
) -> list[Text]:
    state = data.state
    controller = (
        "no controller" if state.controller_id is None else f"controller {state.controller_id}"
    )
    counts = (
        counted(len(state.brokers), "broker"),
        counted(len(state.topics), "topic"),
        counted(len(state.groups), "group"),
    )
    clock = datetime.fromtimestamp(state.time_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    paused = "  PAUSED" if is_paused else ""
    title = f"headrace top  {clock}{paused}  {', '.join(counts)}, {controller}"
    rate = "?" if state.messages_per_s is None else rate_text(state.messages_per_s)
    size = "" if state.size_bytes is None else f"  {bytes_text(state.size_bytes)} on all brokers"
    lines = [
        _line(title, width, "bold"),
        _line(
            f"{rate} messages/s {_chart(rates)}{size}  cluster {printable(str(state.cluster_id))}",
            width,
        ),
    ]
    for problem in state.problems[:_PROBLEMS_SHOWN]:
        text = printable(f"{problem.subject}: {problem.detail}"[:1000])
        lines.append(_line(text, width, _STYLES[problem.severity]))
    hidden = len(state.problems) - _PROBLEMS_SHOWN
    if hidden > 0:
        lines.append(_line(f"and {counted(hidden, 'more problem')}: 6 shows all", width, "yellow"))
    if state.errors:
        parts = ", ".join(sorted(state.errors))
        lines.append(_line(f"not known at the moment, see 6: {parts}", width, "yellow"))
    return lines


def _chart(rates: Sequence[float], points: int = 30) -> str:
    """The newest rates as bars."""
    newest = list(rates)[-points:]
    top = max(newest, default=0.0)
    if top <= 0:
        return ""
    return "".join(_BARS[min(int(rate / top * 8 + 0.999), 8)] for rate in newest)


def _tabs(screen: Screen, all_views: Sequence[View], width: int) -> Text:
    line = Text(no_wrap=True)
    for number, view in enumerate(all_views):
        text = f" {number + 1} {view.name} {len(view.rows)} "
        line.append(text, "reverse bold" if number == screen.view else "dim")
    return _fitted(line, width)


def _table(screen: Screen, view: View, width: int, room: int) -> list[Text]:
    order = screen.order_of(view)
    rows = view.arranged(order.column, order.descending, screen.wanted)
    if not rows:
        text = f"nothing has {screen.wanted!r} in it" if screen.wanted and view.rows else view.empty
        return [_line("", width), _line(f"  {text}", width)]
    first = max(min(screen.first_row, len(rows) - room), 0)
    page = rows[first : first + room]
    headings = [
        f"{column.heading} {'▼' if order.descending else '▲'}"
        if at == order.column
        else column.heading
        for at, column in enumerate(view.columns)
    ]
    texts = cells(view, page)
    widths = _widths(view, headings, texts, width)
    lines = [_row_line(view, headings, widths, width, "bold underline")]
    lines += [
        _row_line(view, text, widths, width, _STYLES[row.urgency])
        for text, row in zip(texts, page, strict=True)
    ]
    return lines


def _widths(
    view: View, headings: Sequence[str], texts: Sequence[Sequence[str]], width: int
) -> dict[int, int]:
    """The width of each shown column: numbers whole, the texts share the rest."""
    needed = {
        at: max(cell_len(text) for text in (heading, *(row[at] for row in texts)))
        for at, heading in enumerate(headings)
    }

    def least(columns: Sequence[int]) -> int:
        return sum(
            needed[at] if view.columns[at].text else min(needed[at], _TEXT_WIDTH_MIN)
            for at in columns
        ) + _GAP * (len(columns) - 1)

    kept = list(needed)
    # The optional columns go first, then others from the right; the first column stays.
    for at in [
        *(at for at in reversed(kept) if view.columns[at].is_optional),
        *(at for at in reversed(kept) if not view.columns[at].is_optional),
    ]:
        if least(kept) <= width or len(kept) == 1:
            break
        kept.remove(at)
    widths = {
        at: needed[at] if view.columns[at].text else min(needed[at], _TEXT_WIDTH_MIN) for at in kept
    }
    left = width - least(kept)
    for at in kept:
        more = min(max(left, 0), needed[at] - widths[at])
        widths[at] += more
        left -= more
    return widths


def _row_line(
    view: View, texts: Sequence[str], widths: dict[int, int], width: int, style: str
) -> Text:
    parts = []
    for at, room in widths.items():
        text = texts[at]
        if cell_len(text) > room:
            text = set_cell_size(text, max(room - 1, 0)) + "…"
        padding = " " * (room - cell_len(text))
        parts.append(padding + text if view.columns[at].text else text + padding)
    return _line((" " * _GAP).join(parts), width, style)


def _foot(screen: Screen, view: View, width: int) -> Text:
    if screen.is_typing:
        return _line(f"/{screen.wanted}▏  Enter keeps it, Esc drops it", width, "reverse")
    wanted = f"/{screen.wanted} (Esc drops it)  " if screen.wanted else ""
    keys = "1-6 view  s sort  r reverse  / filter  i internal  p pause  ? help  q quit"
    return _line(f"{wanted}{keys}", width, "reverse")


def _line(text: str, width: int, style: str = "") -> Text:
    return _fitted(Text(text, style=style, no_wrap=True), width)


def _fitted(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis", pad=True)
    return line
