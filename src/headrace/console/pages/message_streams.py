"""Streams of messages: results of a search, new records as they are written, and downloads.

Rule: everything is bounded: searches at a time, records and bytes of each, the age of a stream. A
viewer who goes away ends it.
"""

import asyncio
import io
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.cluster_metadata import TopicInfo
from headrace.console.cluster_access import ClusterAccess
from headrace.console.errors import RequestRefused, words_of
from headrace.console.live import STREAMS_MAX, ClosingStream, closed_after
from headrace.console.pages.messages import MessageQuery, message_query, numbers_of, topic_of
from headrace.console.record_reader import FETCH_OPTIONS, Place, view_of
from headrace.console.record_views import LISTED_BYTES, record_document, record_view
from headrace.console.viewers import Console, access_of, console_of
from headrace.errors import HeadraceError
from headrace.search.scan_ranges import SearchRequest
from headrace.search.search_process import SHOWN_BYTES_MAX, SearchProcess
from headrace.search.topic_search import SearchHit, SearchProgress, SearchUpdate
from headrace.types import TopicPartition

SEARCHES_MAX = 4
SEARCH_HITS_MAX = 500
DOWNLOAD_RECORDS_MAX = 10_000
DOWNLOAD_BYTES_MAX = 64 * 1024 * 1024
TAIL_S_MAX = 1800.0
# More records than this in a moment are counted instead of shown.
TAIL_RECORDS_MAX = 50
_HEARTBEAT_S = 15.0
_ROW_GROUP_BYTES = 4 * 1024 * 1024


def _event(name: str, document: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"


def _failure(error: HeadraceError) -> bytes:
    what, advice = words_of(error)
    return _event("failed", {"what": what, "advice": advice})


def search_request(info: TopicInfo, query: MessageQuery, hits_max: int) -> SearchRequest:
    """The search that a page asks for; the error of its expression is raised."""
    if query.error is not None:
        raise query.error
    is_from = query.place is not Place.NEWEST
    chosen = [query.partition] if query.partition is not None else numbers_of(info)
    given = {} if query.offset is None else dict.fromkeys(chosen, query.offset)
    return SearchRequest(
        topic=info.name,
        expression=query.expression,
        ignore_case=query.ignore_case,
        partitions=tuple(chosen),
        from_ms=query.time_ms if is_from else None,
        to_ms=None if is_from else query.time_ms,
        start_offsets=given if is_from else {},
        end_offsets={} if is_from else given,
        hits_max=hits_max,
        newest_first=query.newest_first and not is_from,
    )


async def _updates(
    console: Console, access: ClusterAccess, request: SearchRequest, shown_bytes: int
) -> AsyncGenerator[SearchUpdate, None]:
    """The updates of a search, which ends with the viewer's session."""
    if console.searches >= SEARCHES_MAX:
        raise RequestRefused(
            503, f"{SEARCHES_MAX} searches run already", advice="wait for one, or cancel it"
        )
    console.searches += 1
    try:
        client: Any = access.consumer_arguments()
        process = SearchProcess(request, client, shown_bytes=shown_bytes)
        async with closed_after(process):
            async for update in process.updates():
                yield update
                if access.is_closed:
                    return
    finally:
        console.searches -= 1


async def search(request: Request) -> Response:
    """`GET /topics/{name}/search`: hits and progress of a search as events."""
    console, access = console_of(request), access_of(request)

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            info = await topic_of(request, access)
            query = message_query(request.query_params, partitions=len(info.partitions))
            wanted = search_request(info, query, SEARCH_HITS_MAX)
            async with aclosing(_updates(console, access, wanted, LISTED_BYTES)) as updates:
                async for update in updates:
                    if update.hits:
                        views = [_view(info.name, hit) for hit in update.hits]
                        yield _event("records", {"records": list(map(record_document, views))})
                    yield _event("progress", _progress_document(update.progress))
                    if update.end is not None:
                        yield _event("end", {"reason": update.end.value})
        except HeadraceError as error:
            yield _failure(error)

    return ClosingStream(events())


def _view(topic: str, hit: SearchHit) -> Any:
    return record_view(
        topic,
        (hit.partition, hit.offset, hit.timestamp_ms),
        hit.key,
        hit.value,
        hit.headers,
        sizes=(hit.key_size, hit.value_size),
    )


def _progress_document(progress: SearchProgress) -> dict[str, Any]:
    return {
        "total": progress.offsets_total,
        "done": progress.offsets_done,
        "read": progress.records_read,
        "bytes": progress.bytes_read,
        "bytes_total": progress.bytes_total,
        "hits": progress.hits,
        "rate": round(progress.records_per_s),
        "seconds": round(progress.seconds, 1),
        "seconds_left": progress.seconds_left,
    }


async def tail(request: Request) -> Response:
    """`GET /topics/{name}/tail`: new records as they are written."""
    console, access = console_of(request), access_of(request)
    if console.streams >= STREAMS_MAX:
        raise RequestRefused(503, "too many pages are open", advice="close some, and reload")

    async def events() -> AsyncGenerator[bytes, None]:
        console.streams += 1
        try:
            info = await topic_of(request, access)
            query = message_query(request.query_params, partitions=len(info.partitions))
            chosen = [query.partition] if query.partition is not None else numbers_of(info)
            partitions = [TopicPartition(info.name, number) for number in chosen]
            async with aclosing(_tail(access, partitions)) as found:
                async for event in found:
                    yield event
        except HeadraceError as error:
            yield _failure(error)
        finally:
            console.streams -= 1

    return ClosingStream(events())


async def _tail(
    access: ClusterAccess, partitions: list[TopicPartition]
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    until, heard = loop.time() + TAIL_S_MAX, loop.time()
    async with closed_after(access.consumer(**FETCH_OPTIONS)) as consumer:
        await consumer.assign(partitions)
        for tp, end in (await consumer.end_offsets(partitions)).items():
            await consumer.seek(tp, end)
        yield _event("ready", {"partitions": len(partitions)})
        while not access.is_closed and loop.time() < until:
            records = await consumer.poll(timeout_ms=1000)
            if records:
                shown = records[-TAIL_RECORDS_MAX:]
                views = [record_document(view_of(record)) for record in shown]
                heard = loop.time()
                yield _event("records", {"records": views, "skipped": len(records) - len(shown)})
                # A page draws no faster than this; what comes meanwhile is fetched, or waits.
                await asyncio.sleep(0.25)
            elif loop.time() - heard > _HEARTBEAT_S:
                heard = loop.time()
                yield b": \n\n"
    yield _event("end", {"reason": "age"})


async def download(request: Request) -> Response:
    """`GET /topics/{name}/download`: the records of a search, as JSON lines or as Parquet."""
    console, access = console_of(request), access_of(request)
    info = await topic_of(request, access)
    query = message_query(request.query_params, partitions=len(info.partitions))
    wanted = search_request(info, query, DOWNLOAD_RECORDS_MAX)
    is_parquet = request.query_params.get("format", "jsonl") == "parquet"
    updates = _updates(console, access, wanted, SHOWN_BYTES_MAX)
    # Until the first update nothing is sent, so that an error is a page.
    first = await anext(updates)
    encode = _parquet if is_parquet else _json_lines
    suffix = "parquet" if is_parquet else "jsonl"
    stem = "".join(letter if letter.isalnum() else "-" for letter in info.name)
    return ClosingStream(
        encode(info.name, _limited(first, updates)),
        media_type="application/vnd.apache.parquet" if is_parquet else "application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{stem}.{suffix}"'},
    )


async def _limited(
    first: SearchUpdate, updates: AsyncGenerator[SearchUpdate, None]
) -> AsyncGenerator[list[SearchHit], None]:
    """The hits of updates, up to the limits of a download."""
    left = DOWNLOAD_BYTES_MAX
    yield list(first.hits)
    async with aclosing(updates):
        async for update in updates:
            kept = []
            for hit in update.hits:
                left -= len(hit.key or b"") + len(hit.value or b"")
                if left < 0:
                    break
                kept.append(hit)
            yield kept
            if left < 0:
                return


async def _json_lines(
    topic: str, hits: AsyncGenerator[list[SearchHit], None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(hits):
        async for found in hits:
            for hit in found:
                yield orjson.dumps(_document(topic, hit)) + b"\n"


def _document(topic: str, hit: SearchHit) -> dict[str, Any]:
    """A record as `headrace consume --json` prints it."""
    headers = [{"name": name, **_content("value", data)} for name, data in hit.headers]
    return {
        "topic": topic,
        "partition": hit.partition,
        "offset": hit.offset,
        "timestamp": hit.timestamp_ms,
        **_content("key", hit.key),
        **_content("value", hit.value),
        "headers": headers,
    }


def _content(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as text if they are UTF-8, else as base64 under another name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


_PARQUET_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class DrainedSink(io.RawIOBase):
    """A file to write to, whose content is taken away piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._position += len(self._pieces[-1])
        return len(self._pieces[-1])

    def take(self) -> bytes:
        """What was written since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


async def _parquet(
    topic: str, hits: AsyncGenerator[list[SearchHit], None]
) -> AsyncGenerator[bytes, None]:
    """A Parquet file, a row group at a time."""
    sink = DrainedSink()
    rows: list[dict[str, Any]] = []
    size = 0
    with pq.ParquetWriter(sink, _PARQUET_SCHEMA, compression="zstd") as writer:
        async with aclosing(hits):
            async for found in hits:
                rows += [_row(topic, hit) for hit in found]
                size += sum(64 + len(hit.key or b"") + len(hit.value or b"") for hit in found)
                if size >= _ROW_GROUP_BYTES:
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_PARQUET_SCHEMA))
                    rows, size = [], 0
                    yield sink.take()
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=_PARQUET_SCHEMA))
    yield sink.take()


def _row(topic: str, hit: SearchHit) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": hit.partition,
        "offset": hit.offset,
        "timestamp": hit.timestamp_ms,
        "key": hit.key,
        "value": hit.value,
        "headers": [{"key": name, "value": data} for name, data in hit.headers],
    }


ROUTES = [
    Route("/topics/{name}/search", search),
    Route("/topics/{name}/tail", tail),
    Route("/topics/{name}/download", download),
]
