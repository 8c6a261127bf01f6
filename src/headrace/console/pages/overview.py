"""The overview: health at a glance, live rates, and what is wrong now with what to do about it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.console.charts import chart
from headrace.console.rendering import link, page, rate_text, segment
from headrace.console.viewers import access_of, console_of
from headrace.monitoring.cluster_status import ClusterStatus
from headrace.monitoring.problems import CRITICAL, Problem

PROBLEMS_SHOWN_MAX = 100
_TOP_ROWS = 8


async def overview(request: Request) -> Response:
    """`GET /`."""
    access = access_of(request)
    state = access.state
    if state is None:
        return page(request, "waiting.html", title="Overview")
    topics = [topic for topic in state.topics.values() if not topic.is_internal]
    busiest = sorted(
        (topic for topic in topics if topic.messages_per_s),
        key=lambda topic: -(topic.messages_per_s or 0),
    )[:_TOP_ROWS]
    behind = sorted(
        (group for group in state.groups.values() if group.lag), key=lambda group: -(group.lag or 0)
    )[:_TOP_ROWS]
    pipelines = console_of(request).pipelines
    return page(
        request,
        "overview.html",
        title="Overview",
        state=state,
        problems=[(problem, where(problem)) for problem in state.problems[:PROBLEMS_SHOWN_MAX]],
        critical=sum(problem.severity == CRITICAL for problem in state.problems),
        rates=chart("Messages per second", {"messages": access.history.message_rates}, rate_text),
        topics=len(topics),
        partitions=sum(topic.partitions for topic in state.topics.values()),
        under_replicated=sum(topic.under_replicated for topic in state.topics.values()),
        offline=sum(topic.offline for topic in state.topics.values()),
        alive=sum(not broker.is_fenced for broker in state.brokers.values()),
        lag=total_lag(state),
        busiest=busiest,
        behind=behind,
        runs=(await pipelines.read()).runs if pipelines else (),
    )


def total_lag(state: ClusterStatus) -> int | None:
    """The lag of all groups; None if that of none is known."""
    lags = [group.lag for group in state.groups.values() if group.lag is not None]
    return sum(lags) if lags else None


def where(problem: Problem) -> str:
    """The page that shows the subject of a problem; empty if there is none."""
    match problem.kind:
        case "broker":
            return f"/brokers/{segment(problem.name)}"
        case "topic":
            return f"/topics/{segment(problem.name)}"
        case "group":
            return link("/group", name=problem.name)
    return ""


ROUTES = [Route("/", overview)]
