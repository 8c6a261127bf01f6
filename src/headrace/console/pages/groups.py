"""Groups: lag in offsets and in seconds, members and their partitions, resets, deletion."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.groups import GroupDescription
from headrace.console.charts import chart
from headrace.console.errors import FieldError, not_found
from headrace.console.forms import Form, read_form
from headrace.console.listing import SortKey, listing
from headrace.console.offset_resets import TARGETS, NewOffset, planned_resets
from headrace.console.rendering import (
    count_text,
    duration_text,
    failed_form,
    link,
    page,
    redirect,
)
from headrace.console.viewers import access_of
from headrace.errors import HeadraceError
from headrace.monitoring.cluster_status import GroupStatus, PartitionLag
from headrace.types import TopicPartition

_COLUMNS: dict[str, SortKey[GroupStatus]] = {
    "name": SortKey(lambda group: group.name),
    "state": SortKey(lambda group: group.state),
    "members": SortKey(lambda group: group.members, descends=True),
    "lag": SortKey(lambda group: group.lag, descends=True),
    "seconds": SortKey(lambda group: group.lag_s, descends=True),
}
_LAG_COLUMNS: dict[str, SortKey[PartitionLag]] = {
    "partition": SortKey(lambda lag: f"{lag.tp.topic} {lag.tp.partition:09}"),
    "lag": SortKey(lambda lag: lag.lag, descends=True),
    "seconds": SortKey(lambda lag: lag.lag_s, descends=True),
}
_RESET_FIELDS = ("topic", "target", "value", "time")


async def groups(request: Request) -> Response:
    """`GET /groups`."""
    state = access_of(request).state
    if state is None:
        return page(request, "waiting.html", title="Groups")
    kind = request.query_params.get("state", "")
    states = sorted({group.state for group in state.groups.values()})
    rows = listing(
        request.query_params,
        "/groups",
        (group for group in state.groups.values() if not kind or group.state == kind),
        _COLUMNS,
        text=lambda group: f"{group.name} {' '.join(group.topics[:20])}",
        kept=("state",),
    )
    return page(
        request, "groups.html", title="Groups", state=state, groups=rows, states=states, kind=kind
    )


def _group_of(request: Request) -> GroupStatus | None:
    """The group that the query names; None before the first sample. 404 if there is none."""
    state = access_of(request).state
    name = request.query_params.get("name", "")
    if state is None:
        return None
    group = state.groups.get(name)
    if group is None:
        raise not_found("group", name, "see the list of groups")
    return group


async def group(request: Request) -> Response:
    """`GET /group?name=...`."""
    access, status = access_of(request), _group_of(request)
    if status is None:
        return page(request, "waiting.html", title="Group")
    described = access.history.members(status.name)
    lags = access.history.partition_lags(status.name)
    in_offsets, in_seconds = access.history.group_lag(status.name)
    rows = listing(
        request.query_params,
        "/group",
        lags,
        _LAG_COLUMNS,
        text=lambda lag: f"{lag.tp.topic} {lag.tp.partition}",
        kept=("name",),
    )
    return page(
        request,
        "group.html",
        title=status.name,
        group=status,
        described=described,
        members=described.members[:500] if described else (),
        clients=_clients(described),
        lags=rows,
        offsets=chart("Lag in records", {"lag": in_offsets}, count_text),
        seconds=chart("Lag in time", {"lag": in_seconds}, duration_text),
    )


def _clients(described: GroupDescription | None) -> dict[str, str]:
    """The client and host of each member, for the table of partitions."""
    members = described.members if described else ()
    return {member.member_id: f"{member.client_id} {member.host}" for member in members}


async def reset(request: Request) -> Response:
    """`/group/reset?name=...`: a preview of new offsets, and then their commit."""
    access, status = access_of(request), _group_of(request)
    if status is None:
        return page(request, "waiting.html", title="Reset offsets")
    topics = list(status.topics)
    if request.method == "GET":
        return _reset_page(request, status, topics, {"target": "earliest"})
    form = await read_form(request)
    values = {name: form.text(name) for name in _RESET_FIELDS}
    try:
        resets = await _planned(request, status, form)
        if form.text("action") != "commit":
            return _reset_page(request, status, topics, values, resets)
        await access.admin.alter_group_offsets(
            status.name, {change.tp: change.new_offset for change in resets}
        )
    except HeadraceError as error:
        return _reset_page(request, status, topics, values, error=error)
    access.sampler.refresh()
    return redirect(
        request,
        link("/group", name=status.name),
        f"{len(resets)} offsets of group {status.name} were reset.",
    )


async def _planned(request: Request, status: GroupStatus, form: Form) -> list[NewOffset]:
    admin = access_of(request).admin
    found = await admin.group_offsets(status.name)
    committed = {tp: commit.offset for tp, commit in found.items()}
    chosen = form.text("topic")
    described = await admin.describe_topics({tp.topic for tp in committed} | ({chosen} - {""}))
    partitions = [
        TopicPartition(info.name, partition.index)
        for info in described.values()
        for partition in info.partitions
        if (info.name == chosen)
        or (not chosen and TopicPartition(info.name, partition.index) in committed)
    ]
    if not partitions:
        raise FieldError(
            "topic", f"group {status.name} has committed no offsets", advice="name a topic"
        )
    target = form.text("target")
    value = form.text("time") if target == "time" else form.text("value")
    return await planned_resets(admin, committed, partitions, target, value)


def _reset_page(
    request: Request,
    status: GroupStatus,
    topics: list[str],
    values: dict[str, str],
    resets: list[NewOffset] | None = None,
    error: HeadraceError | None = None,
) -> Response:
    return page(
        request,
        "group_reset.html",
        title=f"Reset offsets of {status.name}",
        status=400 if error else 200,
        group=status,
        topics=topics,
        values={name: values.get(name, "") for name in _RESET_FIELDS},
        targets=TARGETS,
        resets=resets,
        error=error,
    )


async def delete(request: Request) -> Response:
    """`/group/delete?name=...`: after its name was typed."""
    access, status = access_of(request), _group_of(request)
    if status is None:
        return page(request, "waiting.html", title="Delete group")
    title = f"Delete {status.name}"
    if request.method == "GET":
        return page(request, "group_delete.html", title=title, group=status)
    form = await read_form(request)
    try:
        form.confirm(status.name)
        await access.admin.delete_groups([status.name])
    except HeadraceError as error:
        values = {"group": status}
        return failed_form(request, "group_delete.html", error, title=title, values=values)
    access.sampler.refresh()
    return redirect(request, "/groups", f"Group {status.name} was deleted.")


_BOTH = ["GET", "POST"]
ROUTES = [
    Route("/groups", groups),
    Route("/group", group),
    Route("/group/reset", reset, methods=_BOTH),
    Route("/group/delete", delete, methods=_BOTH),
]
