"""Pipelines on Spark: their runs, rates and lag, and each drawn as a graph."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.errors import TimedOut
from headrace.console.dead_letters import DeadLetter, newest_dead_letters
from headrace.console.errors import not_found, words_of
from headrace.console.pipeline_runs import FoundRuns
from headrace.console.rendering import page
from headrace.console.viewers import LIVE_HEADER, access_of, console_of
from headrace.errors import KafkaError
from headrace.monitoring.cluster_status import ClusterStatus
from headrace.pipelines.run.progress import QueryProgress
from headrace.pipelines.run.run_state import RunState

_DEAD_LETTERS = "dead-letters-"
_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 190, 44, 90, 18
_NODES_MAX = 40


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A box of the graph: a topic, a query or a sink, with a line of figures."""

    x: int
    y: int
    kind: str
    name: str
    detail: str
    path: str = ""

    @property
    def short(self) -> str:
        return self.name if len(self.name) <= 24 else f"{self.name[:23]}…"


@dataclass(frozen=True, slots=True)
class Graph:
    """A drawing of a pipeline: boxes, and the paths of the arrows between them."""

    width: int
    height: int
    nodes: tuple[GraphNode, ...]
    arrows: tuple[str, ...]


async def _found(request: Request) -> FoundRuns | None:
    pipelines = console_of(request).pipelines
    return None if pipelines is None else await pipelines.read()


async def pipelines(request: Request) -> Response:
    """`GET /pipelines`."""
    found = await _found(request)
    return page(request, "pipelines.html", title="Pipelines", found=found)


async def pipeline(request: Request) -> Response:
    """`GET /pipelines/{name}`."""
    name = request.path_params["name"]
    found = await _found(request)
    run = next((run for run in found.runs if run.pipeline == name), None) if found else None
    if run is None:
        raise not_found("pipeline", name, "see the list of pipelines")
    access = access_of(request)
    state = access.state
    pipelines = console_of(request).pipelines
    topic = pipelines.dead_letters.get(name, "") if pipelines else ""
    letters: list[DeadLetter] = []
    missing = ""
    # Not at every sample: the page keeps those that it was opened with.
    if topic and LIVE_HEADER not in request.headers:
        try:
            letters = await newest_dead_letters(access, topic)
        except (KafkaError, TimedOut) as error:
            missing = " ".join(words_of(error))
    return page(
        request,
        "pipeline.html",
        title=name,
        run=run,
        graph=graph(run, state),
        dead_letter_topic=topic,
        letters=letters,
        missing=missing,
        dead_letters=[query for query in run.queries if query.name.startswith(_DEAD_LETTERS)],
        groups={query.name: _group(run, query, state) for query in run.queries},
    )


def _group(run: RunState, query: QueryProgress, state: ClusterStatus | None) -> str:
    """The group that shows the query's position to the brokers; empty if there is none."""
    name = f"{run.pipeline}.{query.name}"
    return name if state and name in state.groups else ""


def graph(run: RunState, state: ClusterStatus | None) -> Graph:
    """The topics that queries read, the queries, and their sinks, from left to right."""
    queries = run.queries[:_NODES_MAX]
    sources: dict[str, list[int]] = {}
    for number, query in enumerate(queries):
        group = state.groups.get(f"{run.pipeline}.{query.name}") if state else None
        for topic in (group.topics if group else ())[:_NODES_MAX]:
            sources.setdefault(topic, []).append(number)
    rows = max(len(queries), len(sources), 1)
    height = rows * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y + 2

    def top(number: int, count: int) -> int:
        taken = count * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y
        return 1 + (height - 2 - taken) // 2 + number * (_BOX_HEIGHT + _GAP_Y)

    columns = [1 + column * (_BOX_WIDTH + _GAP_X) for column in range(3)]
    nodes: list[GraphNode] = []
    arrows: list[str] = []
    for place, (topic, readers) in enumerate(sources.items()):
        y = top(place, len(sources))
        nodes.append(GraphNode(columns[0], y, "topic", topic, "topic", f"/topics/{topic}"))
        arrows += [
            _arrow(columns[0], y, columns[1], top(reader, len(queries))) for reader in readers
        ]
    for number, query in enumerate(queries):
        y = top(number, len(queries))
        is_dead = query.name.startswith(_DEAD_LETTERS)
        rate = f"{query.rows_per_second:,.0f} rows/s"
        nodes.append(GraphNode(columns[1], y, "query", query.name, rate))
        arrows.append(_arrow(columns[1], y, columns[2], y))
        written = "rows not counted" if query.rows_out is None else f"{query.rows_out:,} rows"
        kind = "dead" if is_dead else "sink"
        sink = "dead letters" if is_dead else query.name
        nodes.append(GraphNode(columns[2], y, kind, sink, written))
    return Graph(columns[2] + _BOX_WIDTH + 1, height, tuple(nodes), tuple(arrows))


def _arrow(left: int, y: int, right: int, to_y: int) -> str:
    """A curve from the right edge of a box to the left edge of another."""
    start, end = left + _BOX_WIDTH, right - 6
    middle = (start + end) // 2
    y, to_y = y + _BOX_HEIGHT // 2, to_y + _BOX_HEIGHT // 2
    return f"M{start},{y} C{middle},{y} {middle},{to_y} {end},{to_y}"


ROUTES = [Route("/pipelines", pipelines), Route("/pipelines/{name}", pipeline)]
