"""Pipelines on Spark: their runs, batches and lag, each drawn as a graph, and dead letters."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.errors import TimedOut
from headrace.console.dead_letter_replay import pending_letters, replay_group
from headrace.console.dead_letters import DeadLetter, newest_dead_letters
from headrace.console.errors import RequestRefused, not_found, words_of
from headrace.console.forms import read_form
from headrace.console.pipeline_graph import drawing_of
from headrace.console.pipeline_runs import FoundRuns
from headrace.console.rendering import page, redirect, segment
from headrace.console.viewers import LIVE_HEADER, access_of, console_of
from headrace.errors import HeadraceError, KafkaError
from headrace.monitoring.cluster_status import ClusterStatus
from headrace.pipelines.run.progress import BatchProgress, QueryProgress
from headrace.pipelines.run.run_state import RunState

_BATCHES_SHOWN = 12


async def _found(request: Request) -> FoundRuns | None:
    pipelines = console_of(request).pipelines
    return None if pipelines is None else await pipelines.read()


async def _run_of(request: Request) -> RunState:
    """The run that the path names; 404 if there is none."""
    name = request.path_params["name"]
    found = await _found(request)
    run = next((run for run in found.runs if run.pipeline == name), None) if found else None
    if run is None:
        raise not_found("pipeline", name, "see the list of pipelines")
    return run


async def pipelines(request: Request) -> Response:
    """`GET /pipelines`."""
    found = await _found(request)
    return page(request, "pipelines.html", title="Pipelines", found=found)


async def pipeline(request: Request) -> Response:
    """`GET /pipelines/{name}`."""
    run = await _run_of(request)
    access = access_of(request)
    topic = dead_letter_topic(run)
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
        title=run.pipeline,
        run=run,
        graph=drawing_of(run),
        batches=newest_batches(run),
        reasons=reasons_of(run),
        dead_letter_topic=topic,
        letters=letters,
        missing=missing,
        groups={query.name: _group(run, query, access.state) for query in run.queries},
    )


def dead_letter_topic(run: RunState) -> str:
    """The topic of the dead letters of a run; empty if it has none."""
    topics = [node.topics for node in run.graph.nodes if node.kind == "dead-letters"]
    return topics[0][0] if topics and topics[0] else ""


def newest_batches(run: RunState) -> list[tuple[QueryProgress, BatchProgress]]:
    """The newest batches of all queries, the newest first."""
    found = [(query, batch) for query in run.queries for batch in query.recent]
    found.sort(key=lambda pair: (pair[1].started, pair[1].batch), reverse=True)
    return found[:_BATCHES_SHOWN]


def reasons_of(run: RunState) -> list[tuple[str, int]]:
    """The dead letters of a run by kind of reason, the most frequent first."""
    counts: dict[str, int] = {}
    for query in run.queries:
        for reason, count in query.reasons.items():
            counts[reason] = counts.get(reason, 0) + count
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _group(run: RunState, query: QueryProgress, state: ClusterStatus | None) -> str:
    """The group that shows the query's position to the brokers; empty if there is none."""
    name = f"{run.pipeline}.{query.name}"
    return name if state and name in state.groups else ""


async def replay(request: Request) -> Response:
    """`GET` and `POST /pipelines/{name}/replay`: what it would write, its start, its progress."""
    run = await _run_of(request)
    access, replays = access_of(request), console_of(request).replays
    topic = dead_letter_topic(run)
    if not topic:
        raise RequestRefused(404, f"pipeline {run.pipeline} keeps no dead letters")
    path = f"/pipelines/{segment(run.pipeline)}/replay"
    error: HeadraceError | None = None
    if request.method == "POST":
        form = await read_form(request)
        newest = replays.find(access, run.pipeline)
        try:
            if form.text("action") == "cancel":
                if newest is not None:
                    newest.cancel()
                return redirect(request, path)
            form.confirm(run.pipeline)
            replays.begin(access, run.pipeline, topic)
            return redirect(request, path)
        except HeadraceError as refused:
            error = refused
    newest = replays.find(access, run.pipeline)
    pending = None
    if newest is None or newest.phase != "running":
        try:
            pending = await pending_letters(access, run.pipeline, topic)
        except (KafkaError, TimedOut) as failure:
            error = error or failure
    return page(
        request,
        "pipeline_replay.html",
        title=f"Replay dead letters of {run.pipeline}",
        status=400 if request.method == "POST" else 200,
        run=run,
        topic=topic,
        group=replay_group(run.pipeline),
        replay=newest,
        pending=pending,
        reasons=reasons_of(run),
        error=error,
    )


ROUTES = [
    Route("/pipelines", pipelines),
    Route("/pipelines/{name}", pipeline),
    Route("/pipelines/{name}/replay", replay, methods=["GET", "POST"]),
]
