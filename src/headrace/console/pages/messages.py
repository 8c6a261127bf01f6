"""Messages of a topic: pages of records, a record by itself, and a form that writes one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.cluster_metadata import TopicInfo
from headrace.client.types import RecordMetadata
from headrace.console.cluster_access import REQUEST_TIMEOUT_MS, ClusterAccess
from headrace.console.errors import FieldError, not_found
from headrace.console.forms import Form, read_form
from headrace.console.record_reader import FETCH_OPTIONS, Place, RangeReading, RecordPage, read_page
from headrace.console.record_views import SHOWN_BYTES, RecordView, record_path
from headrace.console.rendering import failed_form, link, page, redirect, segment
from headrace.console.viewers import access_of
from headrace.errors import HeadraceError
from headrace.search.expressions import EXPRESSION_LENGTH_MAX, parse_expression
from headrace.search.scan_ranges import ScanRange
from headrace.types import TopicPartition

_HEADERS_MAX = 100
_NAME_CHARS_MAX = 249
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """What the address of a page of messages asks for."""

    partition: int | None
    place: Place
    offset: int | None
    time_ms: int | None
    expression: str
    ignore_case: bool
    newest_first: bool
    error: HeadraceError | None = None

    @property
    def is_search(self) -> bool:
        return bool(self.expression)

    @property
    def time_text(self) -> str:
        """The time as a field of a form has it, in UTC."""
        if self.time_ms is None:
            return ""
        try:
            moment = datetime.fromtimestamp(self.time_ms / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return ""
        return moment.strftime("%Y-%m-%dT%H:%M:%S")


def message_query(query: Mapping[str, str], *, partitions: int) -> MessageQuery:
    """The query of a page; FieldError for a value that cannot be meant."""
    number = _number(query, "partition", "the partition", partitions - 1)
    time_ms = _number(query, "until", "the time", _INT64_MAX)
    if query.get("time"):
        time_ms = _time_ms(query["time"])
    try:
        place = Place(query.get("at") or Place.NEWEST.value)
    except ValueError:
        raise FieldError("at", "there is no such place to begin") from None
    expression = query.get("q", "").strip()[: EXPRESSION_LENGTH_MAX + 1]
    ignore_case = query.get("case", "") == "ignore"
    error: HeadraceError | None = None
    try:
        parse_expression(expression, ignore_case=ignore_case)
    except HeadraceError as problem:
        error = problem
    return MessageQuery(
        partition=number,
        place=place,
        offset=_number(query, "offset", "the offset", _INT64_MAX),
        time_ms=time_ms,
        expression=expression,
        ignore_case=ignore_case,
        newest_first=query.get("order", "") != "oldest",
        error=error,
    )


def _number(query: Mapping[str, str], name: str, label: str, highest: int) -> int | None:
    text = query.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > highest:
        raise FieldError(name, f"{label} is {text[:40]}", advice=f"give 0 to {highest}")
    return int(text)


def _time_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FieldError(
            "time", f"{text[:40]} is no time", advice="write it as 2026-01-31T12:00"
        ) from None
    # The field of a browser has no zone; the page says that it is UTC.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(int(moment.timestamp() * 1000), 0)


async def topic_of(request: Request, access: ClusterAccess) -> TopicInfo:
    """The topic that the path names; UnknownTopic if there is none."""
    name: str = request.path_params["name"]
    if not 0 < len(name) <= _NAME_CHARS_MAX:
        raise not_found("topic", name[:_NAME_CHARS_MAX])
    return (await access.admin.describe_topics([name]))[name]


async def messages(request: Request) -> Response:
    """`GET /topics/{name}/messages`: records, or the results of a search that its script runs."""
    access = access_of(request)
    info = await topic_of(request, access)
    query = message_query(request.query_params, partitions=len(info.partitions))
    found = None
    if not query.is_search:
        chosen = [query.partition] if query.partition is not None else numbers_of(info)
        found = await read_page(
            access, info.name, chosen, query.place, offset=query.offset, time_ms=query.time_ms
        )
    return page(
        request,
        "messages.html",
        title=f"Messages of {info.name}",
        info=info,
        wanted=query,
        found=found,
        older=_older(info.name, query, found),
        newer=_newer(info.name, query, found),
        stream_query=request.url.query,
        failure=query.error,
    )


def numbers_of(info: TopicInfo) -> list[int]:
    """The numbers of a topic's partitions."""
    return [partition.index for partition in info.partitions]


def _older(topic: str, query: MessageQuery, found: RecordPage | None) -> str:
    """The page of older records; empty if there is none to link to."""
    if found is None or not found.records or query.place is not Place.NEWEST:
        return ""
    path = f"/topics/{segment(topic)}/messages"
    if query.partition is not None:
        lowest = min(record.offset for record in found.records)
        if lowest <= found.start_offsets[query.partition]:
            return ""
        return link(path, partition=query.partition, offset=lowest)
    times = [record.timestamp_ms for record in found.records]
    # Records of the oldest time are shown again, unless there are only such.
    until = min(times) + (1 if min(times) < max(times) else 0)
    return link(path, until=until) if until > 0 else ""


def _newer(topic: str, query: MessageQuery, found: RecordPage | None) -> str:
    """The page that goes on after this one, in one partition."""
    if found is None or not found.records or query.place is Place.NEWEST:
        return ""
    if query.partition is None:
        return ""
    following = max(record.offset for record in found.records) + 1
    if following >= found.end_offsets[query.partition]:
        return ""
    path = f"/topics/{segment(topic)}/messages"
    return link(path, partition=query.partition, at=Place.OFFSET.value, offset=following)


async def read_record(access: ClusterAccess, tp: TopicPartition, offset: int) -> RecordView | None:
    """The record at an offset, or the next one after it; None if there is none."""
    async with access.consumer(**FETCH_OPTIONS) as consumer:
        start = (await consumer.beginning_offsets(tp))[tp]
        end = (await consumer.end_offsets(tp))[tp]
        ranges = {tp: ScanRange(max(offset, start), end)}
        reading = RangeReading(consumer, ranges, 1, SHOWN_BYTES)
        await reading.run()
    return reading.records[0] if reading.records else None


async def record(request: Request) -> Response:
    """`GET /topics/{name}/messages/{partition}/{offset}`."""
    access = access_of(request)
    info = await topic_of(request, access)
    number, offset = request.path_params["partition"], request.path_params["offset"]
    if number not in numbers_of(info) or offset > _INT64_MAX:
        raise not_found("record", f"{info.name}-{number} {offset}")
    found = await read_record(access, TopicPartition(info.name, number), offset)
    return page(
        request,
        "record.html",
        title=f"{info.name}-{number}, offset {offset}",
        status=200 if found is not None and found.offset == offset else 404,
        info=info,
        partition=number,
        offset=offset,
        record=found,
        before=record_path(info.name, number, offset - 1) if offset else "",
        after=record_path(info.name, number, offset + 1),
    )


async def produce(request: Request) -> Response:
    """`GET` and `POST /topics/{name}/produce`: a form that writes a record."""
    access = access_of(request)
    info = await topic_of(request, access)
    title = f"Write to {info.name}"
    if request.method == "GET":
        return page(request, "produce.html", title=title, info=info, form=Form([]))
    form = await read_form(request)
    try:
        written = await _written(access, info, form)
    except HeadraceError as error:
        return failed_form(
            request, "produce.html", error, title=title, values={"info": info, "form": form}
        )
    access.sampler.refresh()
    notice = f"The record was written to partition {written.partition}, offset {written.offset}."
    return redirect(request, record_path(info.name, written.partition, written.offset), notice)


async def _written(access: ClusterAccess, info: TopicInfo, form: Form) -> RecordMetadata:
    key = form.verbatim("key")
    value = None if "tombstone" in form else _lines(form.verbatim("value"))
    if value is None and form.verbatim("value"):
        raise FieldError(
            "value", "a record without a value has none", advice="empty the field, or the box"
        )
    partition = None
    if form.text("partition"):
        partition = form.number("partition", "Partition", 0, len(info.partitions) - 1)
    headers = _headers(form.verbatim("headers"))
    options = {
        # Written once or not at all: a viewer sees an error and decides.
        "delivery_timeout_ms": REQUEST_TIMEOUT_MS + 1_000,
        "max_block_ms": REQUEST_TIMEOUT_MS,
        "linger_ms": 0,
        "max_request_size": 8 * 1024 * 1024,
    }
    async with access.producer(**options) as producer:
        future = await producer.send(
            info.name,
            None if value is None else value.encode(),
            key=key.encode() if key else None,
            headers=headers,
            partition=partition,
        )
        return await future


def _lines(text: str) -> str:
    """Text of a form, in which browsers end lines by two characters."""
    return text.replace("\r\n", "\n")


def _headers(text: str) -> list[tuple[str, bytes]]:
    """Headers, `name: value` on each line."""
    headers = []
    for line in _lines(text).split("\n"):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise FieldError(
                "headers", f"{line[:60]!r} is no header", advice="write name: value on each line"
            )
        headers.append((name.strip(), value.strip().encode()))
    if len(headers) > _HEADERS_MAX:
        raise FieldError("headers", f"{len(headers)} headers are too many for this form")
    return headers


ROUTES = [
    Route("/topics/{name}/messages", messages),
    Route("/topics/{name}/messages/{partition:int}/{offset:int}", record),
    Route("/topics/{name}/produce", produce, methods=["GET", "POST"]),
]
