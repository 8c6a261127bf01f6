"""Changes of topics: create, delete, add partitions, move replicas, change settings."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.configs import ConfigEntry
from headrace.client.cluster_metadata import TopicInfo
from headrace.console.errors import FieldError
from headrace.console.forms import Form, read_form
from headrace.console.listing import SortKey, listing
from headrace.console.pages.topics import described_topic
from headrace.console.rendering import failed_form, link, page, redirect, segment
from headrace.console.viewers import access_of
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

PARTITIONS_MAX = 100_000
REPLICAS_MAX = 1000
_CREATION_FIELDS = {"name": "", "partitions": "", "replicas": "", "settings": ""}
_SETTING = re.compile(r"\s*([A-Za-z0-9._-]+)\s*=(.*)\Z")
_ASSIGNMENT = re.compile(r"\s*(\d{1,9})\s*:\s*(\d{1,9}(?:[\s,]+\d{1,9})*)\s*\Z")


async def create(request: Request) -> Response:
    """`/new-topic`."""
    access = access_of(request)
    if request.method == "GET":
        return page(request, "new_topic.html", title="New topic", values=_CREATION_FIELDS)
    form = await read_form(request)
    try:
        name = form.required("name", "the name")
        created = await access.admin.create_topic(
            name,
            form.number("partitions", "the number of partitions", 1, PARTITIONS_MAX, -1),
            form.number("replicas", "the number of replicas", 1, REPLICAS_MAX, -1),
            _settings(form.text("settings")),
        )
    except (HeadraceError, ValueError) as error:
        values = {field: form.verbatim(field) for field in _CREATION_FIELDS}
        return failed_form(
            request, "new_topic.html", _told(error), title="New topic", values={"values": values}
        )
    access.sampler.refresh()
    path = f"/topics/{segment(created.name)}"
    return redirect(request, path, f"Topic {created.name} was created.")


def _told(error: HeadraceError | ValueError) -> HeadraceError:
    """An argument that the client refuses, as an error of a form."""
    return error if isinstance(error, HeadraceError) else FieldError("", str(error))


def _settings(text: str) -> dict[str, str]:
    """Settings of lines `name=value`."""
    found: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        match = _SETTING.match(line)
        if match is None:
            raise FieldError(
                "settings", f"the line {line!r} is no setting", advice="write name=value"
            )
        found[match[1]] = match[2].strip()
    return found


_ORIGINS = {
    "topic_config": "this topic",
    "dynamic_broker_config": "a broker, changed while it ran",
    "dynamic_default_broker_config": "all brokers, changed while they ran",
    "static_broker_config": "the broker's file",
    "default_config": "default",
    "group_config": "this group",
}

_COLUMNS: dict[str, SortKey[ConfigEntry]] = {
    "name": SortKey(lambda entry: entry.name),
    "source": SortKey(lambda entry: _ORIGINS.get(entry.source, entry.source)),
}


async def settings(request: Request) -> Response:
    """`/topics/{name}/settings`: the settings with their sources, and the change of one."""
    access, info = await described_topic(request)
    if request.method == "GET":
        return await _settings_page(request, info, request.query_params.get("edit", ""))
    form = await read_form(request)
    setting = form.required("setting", "the setting")
    restores = form.text("action") == "restore"
    value = None if restores else form.verbatim("value").strip()
    try:
        await access.admin.alter_configs({setting: value}, topic=info.name)
    except HeadraceError as error:
        return await _settings_page(request, info, setting, value or "", error)
    done = "has its default again" if restores else f"is {value} now"
    return redirect(
        request, f"/topics/{segment(info.name)}/settings", f"{setting} of {info.name} {done}."
    )


async def _settings_page(
    request: Request,
    info: TopicInfo,
    edited: str,
    value: str | None = None,
    error: HeadraceError | None = None,
) -> Response:
    entries = await access_of(request).admin.describe_configs(topic=info.name)
    edited_entry = entries.get(edited)
    changed = request.query_params.get("changed") == "1"
    rows = listing(
        request.query_params,
        request.url.path,
        (entry for entry in entries.values() if not changed or entry.source == "topic_config"),
        _COLUMNS,
        text=lambda one: f"{one.name} {one.value}",
        kept=("changed",),
    )
    return page(
        request,
        "topic_settings.html",
        title=f"{info.name}: settings",
        status=400 if error else 200,
        info=info,
        settings=rows,
        changed=changed,
        origins=_ORIGINS,
        edited=edited_entry,
        value=(edited_entry.value or "" if edited_entry else "") if value is None else value,
        error=error,
    )


async def replicas(request: Request) -> Response:
    """`/topics/{name}/replicas`: more partitions, replicas on other brokers, preferred leaders."""
    access, info = await described_topic(request)
    if request.method == "GET":
        return _replicas_page(request, info)
    form = await read_form(request)
    try:
        done = await _changed_replicas(request, info, form)
    except (HeadraceError, ValueError) as error:
        return _replicas_page(request, info, form, _told(error))
    access.sampler.refresh()
    return redirect(request, f"/topics/{segment(info.name)}", done)


def _replicas_page(
    request: Request,
    info: TopicInfo,
    form: Form | None = None,
    error: HeadraceError | None = None,
) -> Response:
    access = access_of(request)
    lines = "\n".join(
        f"{partition.index}: {', '.join(map(str, partition.replicas))}"
        for partition in info.partitions
    )
    moving = {tp: move for tp, move in access.history.reassignments().items() if tp[0] == info.name}
    return page(
        request,
        "topic_replicas.html",
        title=f"{info.name}: replicas",
        status=400 if error else 200,
        info=info,
        lines=form.verbatim("assignment") if form and "assignment" in form else lines,
        count=form.verbatim("count") if form else "",
        moving=moving,
        brokers=access.state.brokers if access.state else {},
        error=error,
    )


async def _changed_replicas(request: Request, info: TopicInfo, form: Form) -> str:
    """Do what the form asks for; returns what was done."""
    admin, name = access_of(request).admin, info.name
    match form.text("action"):
        case "add":
            now = len(info.partitions)
            count = form.number("count", "the number of partitions", now + 1, PARTITIONS_MAX)
            await admin.create_partitions({name: count})
            return f"{name} has {count} partitions now."
        case "move":
            targets = _targets(form.verbatim("assignment"), info)
            await admin.alter_partition_reassignments(targets)
            return f"{len(targets)} partitions of {name} move now."
        case "cancel":
            tps = [TopicPartition(name, partition.index) for partition in info.partitions]
            under_way = await admin.list_partition_reassignments(tps)
            await admin.alter_partition_reassignments(dict.fromkeys(under_way))
            return f"{len(under_way)} moves of {name} were cancelled."
        case "elect":
            tps = [TopicPartition(name, partition.index) for partition in info.partitions]
            changed = sum((await admin.elect_leaders(tps)).values())
            return f"{changed} partitions of {name} have a new leader."
    raise FieldError("action", "the form says nothing to do")


def _targets(text: str, info: TopicInfo) -> dict[TopicPartition, list[int]]:
    """The partitions of lines `partition: broker, broker` whose replicas are to be others."""
    now = {partition.index: list(partition.replicas) for partition in info.partitions}
    targets: dict[TopicPartition, list[int]] = {}
    for line in filter(str.strip, text.splitlines()):
        match = _ASSIGNMENT.match(line)
        if match is None or int(match[1]) not in now:
            raise FieldError(
                "assignment",
                f"the line {line!r} is no partition with its brokers",
                advice="write them as 0: 1, 2, 3",
            )
        brokers = [int(broker) for broker in re.split(r"[\s,]+", match[2].strip())]
        if brokers != now[int(match[1])]:
            targets[TopicPartition(info.name, int(match[1]))] = brokers
    if not targets:
        raise FieldError("assignment", "no partition has other brokers than now")
    return targets


async def delete(request: Request) -> Response:
    """`/topics/{name}/delete`: after its name was typed."""
    access, info = await described_topic(request)
    title = f"Delete {info.name}"
    if request.method == "GET":
        return page(request, "topic_delete.html", title=title, info=info, topic=_status(request))
    form = await read_form(request)
    try:
        form.confirm(info.name)
        await access.admin.delete_topic(info.name)
    except HeadraceError as error:
        values = {"info": info, "topic": _status(request)}
        return failed_form(request, "topic_delete.html", error, title=title, values=values)
    access.sampler.refresh()
    return redirect(request, link("/topics"), f"Topic {info.name} was deleted.")


def _status(request: Request) -> object:
    state = access_of(request).state
    return state.topics.get(request.path_params["name"]) if state else None


_BOTH = ["GET", "POST"]
ROUTES = [
    Route("/new-topic", create, methods=_BOTH),
    Route("/topics/{name}/settings", settings, methods=_BOTH),
    Route("/topics/{name}/replicas", replicas, methods=_BOTH),
    Route("/topics/{name}/delete", delete, methods=_BOTH),
]
