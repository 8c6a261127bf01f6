"""Brokers: their load, disks and leaders, the quorum of controllers, and their settings."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.cluster import BrokerHealth
from headrace.client.errors import TimedOut
from headrace.console.charts import chart
from headrace.console.errors import not_found
from headrace.console.forms import read_form
from headrace.console.listing import SortKey, listing
from headrace.console.pages.overview import where
from headrace.console.rendering import page, rate_text, redirect
from headrace.console.viewers import access_of
from headrace.errors import KafkaError
from headrace.monitoring.cluster_status import BrokerStatus


def disk_share(broker: BrokerStatus) -> float | None:
    """The share of the broker's fullest disk that is in use."""
    if not broker.total_bytes or broker.usable_bytes is None:
        return None
    return 1 - broker.usable_bytes / broker.total_bytes


_COLUMNS: dict[str, SortKey[BrokerStatus]] = {
    "id": SortKey(lambda broker: broker.node_id),
    "leaders": SortKey(lambda broker: broker.leaders, descends=True),
    "replicas": SortKey(lambda broker: broker.replicas, descends=True),
    "rate": SortKey(lambda broker: broker.messages_per_s, descends=True),
    "size": SortKey(lambda broker: broker.size_bytes, descends=True),
    "disk": SortKey(disk_share, descends=True),
}


async def brokers(request: Request) -> Response:
    """`GET /brokers`."""
    access = access_of(request)
    state = access.state
    if state is None:
        return page(request, "waiting.html", title="Brokers")
    rows = listing(
        request.query_params,
        "/brokers",
        state.brokers.values(),
        _COLUMNS,
        text=lambda broker: f"{broker.node_id} {broker.address} {broker.rack or ''}",
    )
    return page(
        request,
        "brokers.html",
        title="Brokers",
        state=state,
        brokers=rows,
        share=disk_share,
    )


async def broker(request: Request) -> Response:
    """`GET /brokers/{node_id}`."""
    access = access_of(request)
    node_id = request.path_params["node_id"]
    state = access.state
    if state is None:
        return page(request, "waiting.html", title=f"Broker {node_id}")
    status = state.brokers.get(node_id)
    if status is None:
        raise not_found("broker", str(node_id), "see the list of brokers")
    health: BrokerHealth | None = None
    missing = ""
    if not status.is_fenced:
        try:
            health = (await access.admin.describe_health([node_id]))[node_id]
        except (KafkaError, TimedOut) as error:
            missing = str(error)
    settings, settings_missing = [], ""
    try:
        entries = await access.admin.describe_configs(broker=node_id)
        settings = [entry for entry in entries.values() if not entry.is_default]
    except (KafkaError, TimedOut) as error:
        settings_missing = str(error)
    return page(
        request,
        "broker.html",
        title=f"Broker {node_id}",
        state=state,
        broker=status,
        health=health,
        missing=missing,
        settings=settings,
        settings_missing=settings_missing,
        share=disk_share(status),
        problems=[
            (problem, where(problem))
            for problem in state.problems
            if problem.kind == "broker" and problem.name == str(node_id)
        ],
        rates=chart(
            "Messages per second into the partitions it leads",
            {"messages": access.history.broker_rates(node_id)},
            rate_text,
        ),
    )


async def elect(request: Request) -> Response:
    """`POST /brokers/elect`: the preferred replicas become leaders."""
    await read_form(request)
    access = access_of(request)
    changed = sum((await access.admin.elect_leaders()).values())
    access.sampler.refresh()
    words = f"{changed} partitions have a new leader." if changed else "All leaders were preferred."
    return redirect(request, "/brokers", words)


ROUTES = [
    Route("/brokers", brokers),
    Route("/brokers/elect", elect, methods=["POST"]),
    Route("/brokers/{node_id:int}", broker),
]
