"""The drawing of a pipeline: its parts as boxes in columns, and arrows from each to its readers.

Pure. A part stands one column to the right of the last of its inputs. An arrow that passes columns
has a place of its own in each, so that it runs between the boxes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from headrace.console.rendering import count_text, rate_text, segment
from headrace.pipelines.run.run_state import RunState
from headrace.pipelines.spec.part_graph import PartGraph, PartNode

BOX_WIDTH, BOX_HEIGHT = 190, 58
_GAP_X, _GAP_Y = 64, 18
_NAME_CHARS, _DETAIL_CHARS = 20, 30

# A part by its id, or the place of an arrow, by its ends, in a column that it passes.
Stop: TypeAlias = str | tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class PartBox:
    """A part of the pipeline where it is drawn, with a line about it and a line of figures."""

    x: int
    y: int
    kind: str
    name: str
    detail: str
    figures: str
    path: str = ""

    @property
    def short_name(self) -> str:
        return _short(self.name, _NAME_CHARS)

    @property
    def short_detail(self) -> str:
        return _short(self.detail, _DETAIL_CHARS)


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """Boxes, and the paths of the arrows between them."""

    width: int
    height: int
    boxes: tuple[PartBox, ...]
    arrows: tuple[str, ...]


def drawing_of(run: RunState) -> GraphDrawing:
    """The parts of a run with their newest figures."""
    graph = run.graph
    if not graph.nodes:
        return GraphDrawing(0, 0, (), ())
    columns = _columns(graph)
    routes = [_route(source, target, columns) for source, target in graph.edges]
    members = _members(graph, columns, routes)
    height = max(map(len, members)) * (BOX_HEIGHT + _GAP_Y) - _GAP_Y + 2
    places: dict[Stop, tuple[int, int]] = {}
    for column, stacked in enumerate(members):
        taken = len(stacked) * (BOX_HEIGHT + _GAP_Y) - _GAP_Y
        top = 1 + (height - 2 - taken) // 2
        x = 1 + column * (BOX_WIDTH + _GAP_X)
        for row, stop in enumerate(stacked):
            places[stop] = (x, top + row * (BOX_HEIGHT + _GAP_Y))
    boxes = [
        PartBox(
            *places[node.id],
            node.kind,
            node.name,
            node.detail,
            _figures(run, node),
            _path(node),
        )
        for node in graph.nodes
    ]
    return GraphDrawing(
        len(members) * (BOX_WIDTH + _GAP_X) - _GAP_X + 2,
        height,
        tuple(boxes),
        tuple(_arrow([places[stop] for stop in route]) for route in routes),
    )


def _columns(graph: PartGraph) -> dict[str, int]:
    """The column of each part; parts come after their inputs in `nodes`."""
    columns: dict[str, int] = {}
    for node in graph.nodes:
        inputs = [source for source, target in graph.edges if target == node.id]
        columns[node.id] = max((columns.get(source, 0) + 1 for source in inputs), default=0)
    return columns


def _route(source: str, target: str, columns: Mapping[str, int]) -> list[Stop]:
    """The stops of an arrow: its parts, and a free place in every column that it passes."""
    passed = range(columns[source] + 1, columns[target])
    return [source, *((source, target, column) for column in passed), target]


def _members(
    graph: PartGraph, columns: Mapping[str, int], routes: list[list[Stop]]
) -> list[list[Stop]]:
    """The stops of each column from top to bottom: each near those that lead to it."""
    members: list[list[Stop]] = [[] for _ in range(max(columns.values()) + 1)]
    for node in graph.nodes:
        members[columns[node.id]].append(node.id)
    before: dict[Stop, list[Stop]] = {}
    for route in routes:
        for column, stop in enumerate(route[1:-1], columns[str(route[0])] + 1):
            members[column].append(stop)
        for earlier, later in pairwise(route):
            before.setdefault(later, []).append(earlier)
    rows: dict[Stop, float] = {}
    for stacked in members:
        means = {
            stop: sum(rows[each] for each in before[stop]) / len(before[stop])
            for stop in stacked
            if stop in before
        }
        stacked.sort(key=lambda stop: means.get(stop, 0.0))
        rows |= {stop: row - len(stacked) / 2 for row, stop in enumerate(stacked)}
    return members


def _figures(run: RunState, node: PartNode) -> str:
    """Rows a second and rows of a part that a query writes, and the lag of a source."""
    if node.query:
        query = next((each for each in run.queries if each.name == node.query), None)
        if query is None:
            return ""
        written = "" if query.rows_out is None else f", {count_text(query.rows_out)} rows"
        return f"{rate_text(query.rows_per_second)} rows/s{written}"
    if node.kind == "source":
        # Every query reads its sources by itself; the slowest says how far behind the pipeline is.
        reached = _readers(run.graph, node.id)
        lags = [each.lag for each in run.queries if each.name in reached and each.lag is not None]
        return f"lag {count_text(max(lags))}" if lags else ""
    return ""


def _readers(graph: PartGraph, part: str) -> set[str]:
    """The queries that read a part, directly or through others."""
    found = {part}
    for node in graph.nodes:
        if any(source in found and target == node.id for source, target in graph.edges):
            found.add(node.id)
    return {node.query for node in graph.nodes if node.id in found and node.query}


def _path(node: PartNode) -> str:
    return f"/topics/{segment(node.topics[0])}" if len(node.topics) == 1 else ""


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _arrow(stops: list[tuple[int, int]]) -> str:
    """A curve from the right edge of a box to the left edge of another, by the places between."""
    middles = [(x, y + BOX_HEIGHT // 2) for x, y in stops]
    x, y = middles[0][0] + BOX_WIDTH, middles[0][1]
    path = [f"M{x},{y}"]
    for to_x, to_y in middles[1:]:
        is_last = (to_x, to_y) == middles[-1]
        end = to_x - 6 if is_last else to_x
        middle = (x + end) // 2
        path.append(f"C{middle},{y} {middle},{to_y} {end},{to_y}")
        if not is_last:
            path.append(f"H{to_x + BOX_WIDTH}")
        x, y = to_x + BOX_WIDTH, to_y
    return " ".join(path)
