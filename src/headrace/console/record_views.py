"""Views of a record for pages: its key, value and headers as JSON, Avro, text and hex.

Pure. Rule: every text here is made visible (`headrace.visible_text`) and bounded, so that whoever
shows it has only to put it into a page as text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from headrace.console.avro_views import container_text
from headrace.console.rendering import link, segment
from headrace.search.record_predicate import Headers
from headrace.visible_text import printable, printable_lines

# Of a record in a list, and on a page of its own.
LISTED_BYTES = 4096
SHOWN_BYTES = 256 * 1024
PREVIEW_CHARS = 160
HEX_BYTES = 1024
_HEADERS_MAX = 100
_INDENTS_MAX = 32
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


@dataclass(frozen=True, slots=True)
class CellView:
    """A key, a value, or the value of a header. `views` are pairs of a name and a text."""

    kind: str
    size: int
    preview: str
    views: tuple[tuple[str, str], ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as pages show it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: CellView
    value: CellView
    headers: tuple[tuple[str, CellView], ...]
    path: str


def record_view(
    topic: str,
    place: tuple[int, int, int],
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    sizes: tuple[int, int] | None = None,
    shown: int = LISTED_BYTES,
) -> RecordView:
    """The view of a record; `place` is partition, offset and timestamp, `sizes` if it is cut."""
    partition, offset, timestamp_ms = place
    key_size, value_size = sizes or (len(key or b""), len(value or b""))
    return RecordView(
        partition,
        offset,
        timestamp_ms,
        cell_view(key, key_size, shown),
        cell_view(value, value_size, shown),
        tuple(
            (printable(name[:PREVIEW_CHARS]), cell_view(data, len(data or b""), HEX_BYTES))
            for name, data in headers[:_HEADERS_MAX]
        ),
        record_path(topic, partition, offset),
    )


def record_path(topic: str, partition: int, offset: int) -> str:
    """The address of the page of a record."""
    return link(f"/topics/{segment(topic)}/messages/{partition}/{offset}")


def record_document(view: RecordView) -> dict[str, Any]:
    """A view as JSON, for scripts."""
    return asdict(view)


def cell_view(data: bytes | None, size: int, shown: int) -> CellView:
    """The view of bytes, of which at most `shown` are looked at."""
    if data is None:
        return CellView("null", 0, "null", (), False)
    if not data:
        return CellView("empty", 0, "", (), False)
    part = data[:shown]
    is_cut = size > len(part)
    text = _text_of(part, is_cut=is_cut)
    hexadecimal = ("Hex", hex_dump(part[:HEX_BYTES] if shown <= LISTED_BYTES else part[:16384]))
    if not is_cut and (avro := container_text(part)):
        preview = printable(" ".join(avro[: 4 * PREVIEW_CHARS].split())[:PREVIEW_CHARS])
        return CellView(
            "Avro", size, preview, (("Avro", printable_lines(avro)), hexadecimal), False
        )
    if text is None:
        preview = printable(part[:PREVIEW_CHARS].decode(errors="backslashreplace"))
        return CellView("bytes", size, preview[:PREVIEW_CHARS], (hexadecimal,), is_cut)
    views = [("Text", printable_lines(text)), hexadecimal]
    kind = "text"
    if not is_cut and part[:1] in b'{["-0123456789tfn ' and (pretty := indented_json(part)):
        kind = "JSON"
        views.insert(0, ("JSON", printable_lines(pretty)))
    return CellView(kind, size, printable(text[:PREVIEW_CHARS]), tuple(views), is_cut)


def _text_of(part: bytes, *, is_cut: bool) -> str | None:
    """The text in UTF-8; None if it is none. A cut may go through a character."""
    for end in range(len(part), max(len(part) - 4, 0) if is_cut else len(part) - 1, -1):
        try:
            return part[:end].decode()
        except UnicodeDecodeError:
            continue
    return None


def hex_dump(data: bytes) -> str:
    """Bytes in hex, sixteen on a line, with their offset before and their letters behind."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):47}  {letters}")
    return "\n".join(lines)


def indented_json(data: bytes) -> str:
    """JSON with a line for each value, its numbers and texts as they are; empty if it is none."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return ""
    size_max = 4 * len(data) + 65_536
    parts: list[str] = []
    size = 0
    for part in _indented(_TOKEN.findall(data.decode())):
        parts.append(part)
        size += len(part)
        # Deeply nested lists of small values: mostly blanks.
        if size > size_max:
            return ""
    return "".join(parts)


def _indented(tokens: Sequence[str]) -> Iterator[str]:
    depth = 0
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else ""
        if token in "]}":
            depth -= 1
            if before not in "[{":
                yield _line(depth)
        elif before and before in "[{,":
            yield _line(depth)
        yield ": " if token == ":" else token
        if token in "[{":
            depth += 1


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _INDENTS_MAX)
