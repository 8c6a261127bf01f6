"""Messages between a search and its worker process: JSON, one document on each line.

Pure. Bytes of records are base64, because they need not be text.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from headrace.client.options import ConsumerConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.search.scan_ranges import SearchRequest
from headrace.search.topic_search import SearchEnd, SearchHit, SearchProgress, SearchUpdate

UPDATE_BYTES_MAX = 4 * 1024 * 1024


class SearchFailed(HeadraceError):
    """A search that ended by an error, in the words of the error in its worker."""


class SearchOrder(NamedTuple):
    """The first message: the request, the options of the consumer, the bytes of a record shown."""

    request: SearchRequest
    client: ConsumerConfig
    shown_bytes: int


def encode_order(order: SearchOrder) -> bytes:
    """A line; ConfigError for an option that only this process has, such as a function."""
    document = {
        "request": asdict(order.request),
        "client": order.client,
        "shown_bytes": order.shown_bytes,
    }
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS) + b"\n"
    except TypeError as error:
        raise ConfigError(
            f"a search in a process of its own cannot have an option of the client: {error};"
            " give a file instead of a function"
        ) from None


def decode_order(line: bytes) -> SearchOrder:
    document = orjson.loads(line)
    request = document["request"]
    for name in ("start_offsets", "end_offsets"):
        request[name] = {int(number): offset for number, offset in request[name].items()}
    request["partitions"] = tuple(request["partitions"])
    return SearchOrder(SearchRequest(**request), document["client"], document["shown_bytes"])


def encode_update(update: SearchUpdate, shown_bytes: int) -> Iterator[bytes]:
    """Lines with an update, its records cut to `shown_bytes`.

    A line has not much more than `UPDATE_BYTES_MAX` of records: a batch may be large.
    """
    hits: list[SearchHit] = []
    size = 0
    for hit in update.hits:
        cut = hit.cut(shown_bytes)
        hits.append(cut)
        size += len(cut.key or b"") + len(cut.value or b"")
        size += sum(len(name) + len(data or b"") for name, data in cut.headers)
        if size >= UPDATE_BYTES_MAX:
            yield _update_line(hits, update.progress, None)
            hits, size = [], 0
    yield _update_line(hits, update.progress, update.end)


def _update_line(
    hits: Iterable[SearchHit], progress: SearchProgress, end: SearchEnd | None
) -> bytes:
    document = {
        "hits": list(map(_hit_document, hits)),
        "progress": asdict(progress),
        "end": end and end.value,
    }
    return orjson.dumps(document) + b"\n"


def encode_error(error: HeadraceError) -> bytes:
    return orjson.dumps({"error": str(error)}) + b"\n"


def decode_update(line: bytes) -> SearchUpdate:
    """The update of a line; SearchFailed if it has an error."""
    document = orjson.loads(line)
    if "error" in document:
        raise SearchFailed(document["error"])
    return SearchUpdate(
        tuple(map(_hit_of, document["hits"])),
        SearchProgress(**document["progress"]),
        SearchEnd(document["end"]) if document["end"] else None,
    )


def _hit_document(hit: SearchHit) -> list[Any]:
    headers = [(name, _text(data)) for name, data in hit.headers]
    return [
        hit.partition,
        hit.offset,
        hit.timestamp_ms,
        _text(hit.key),
        _text(hit.value),
        headers,
        hit.key_size,
        hit.value_size,
    ]


def _hit_of(document: list[Any]) -> SearchHit:
    partition, offset, timestamp_ms, key, value, headers, key_size, value_size = document
    return SearchHit(
        partition,
        offset,
        timestamp_ms,
        _data(key),
        _data(value),
        tuple((name, _data(data)) for name, data in headers),
        key_size,
        value_size,
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
