"""Transactions: open ones, those that hang, and the abort of either."""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.transactions import (
    ProducerState,
    TransactionDescription,
    TransactionListing,
    hanging,
)
from headrace.client.errors import SomeFailed, TimedOut
from headrace.clock import SystemClock
from headrace.console.cluster_access import ClusterAccess
from headrace.console.forms import read_form
from headrace.console.listing import SortKey, listing
from headrace.console.rendering import page, redirect
from headrace.console.viewers import access_of
from headrace.errors import KafkaError
from headrace.types import TopicPartition

# Transactions under way that are described for a page.
_DESCRIBED_MAX = 500
# Partitions whose producers are asked for at one look for hanging transactions.
_PARTITIONS_MAX = 20_000
# A transaction may be open for `transaction.max.timeout.ms`, 15 minutes unless it is changed.
_HANGING_MS = 15 * 60_000 + 60_000
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transactional id, and for one with an open transaction more of it."""

    listing: TransactionListing
    described: TransactionDescription | None
    open_s: float | None


_COLUMNS: dict[str, SortKey[TransactionRow]] = {
    "id": SortKey(lambda row: row.listing.transactional_id),
    "state": SortKey(lambda row: row.listing.state),
    "open": SortKey(lambda row: row.open_s, descends=True),
    "producer": SortKey(lambda row: row.listing.producer_id),
}


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction of a partition that no coordinator knows."""

    tp: TopicPartition
    producer: ProducerState


async def transactions(request: Request) -> Response:
    """`GET /transactions`; `?hanging=1` looks for those that hang, which takes longer."""
    access = access_of(request)
    only_open = request.query_params.get("all") != "1"
    listed = await access.admin.list_transactions(_OPEN if only_open else ())
    under_way = [name for name, listed_id in listed.items() if listed_id.state in _OPEN][
        :_DESCRIBED_MAX
    ]
    described = await _described(access, under_way)
    now_ms = SystemClock().now_ms()
    rows = [_row(listed_id, described.get(name), now_ms) for name, listed_id in listed.items()]
    found: list[HangingTransaction] = []
    looked_at: int | None = None
    if request.query_params.get("hanging") == "1":
        found, looked_at = await _hanging(access, described, now_ms)
    return page(
        request,
        "transactions.html",
        title="Transactions",
        transactions=listing(
            request.query_params,
            "/transactions",
            rows,
            _COLUMNS,
            text=lambda row: f"{row.listing.transactional_id} {row.listing.producer_id}",
            kept=("all",),
            sort="open" if only_open else "id",
        ),
        only_open=only_open,
        hanging=found,
        looked_at=looked_at,
    )


def _row(
    listed: TransactionListing, described: TransactionDescription | None, now_ms: int
) -> TransactionRow:
    start_ms = described.start_ms if described else None
    return TransactionRow(
        listed, described, None if start_ms is None else max(now_ms - start_ms, 0) / 1000
    )


async def _described(access: ClusterAccess, names: list[str]) -> dict[str, TransactionDescription]:
    if not names:
        return {}
    try:
        return await access.admin.describe_transactions(names)
    except SomeFailed as failed:
        # Those that ended meanwhile.
        return {
            name: found
            for name, found in failed.outcomes.items()
            if not isinstance(found, KafkaError)
        }


async def _hanging(
    access: ClusterAccess, described: dict[str, TransactionDescription], now_ms: int
) -> tuple[list[HangingTransaction], int]:
    """The hanging transactions, and in how many partitions they were looked for."""
    known = access.state.described if access.state else {}
    partitions = [
        TopicPartition(name, partition.index)
        for name, topic in known.items()
        for partition in topic.partitions
        if partition.leader >= 0
    ][:_PARTITIONS_MAX]
    if not partitions:
        return [], 0
    try:
        async with asyncio.timeout(30):
            producers = await access.admin.describe_producers(partitions)
    except SomeFailed as failed:
        producers = {
            tp: states
            for tp, states in failed.outcomes.items()
            if not isinstance(states, KafkaError)
        }
    except TimeoutError:
        raise TimedOut("the producers of all partitions could not be read in 30 s") from None
    found = hanging(producers, described.values(), before_ms=now_ms - _HANGING_MS)
    return [HangingTransaction(tp, state) for tp, states in found.items() for state in states], len(
        partitions
    )


async def abort(request: Request) -> Response:
    """`POST /transactions/abort`: fences the producer of an id, or ends a hanging transaction."""
    admin = access_of(request).admin
    form = await read_form(request)
    transactional_id = form.verbatim("transactional_id")
    if transactional_id:
        await admin.fence_producers([transactional_id])
        return redirect(
            request,
            "/transactions",
            f"The transaction of {transactional_id} was aborted, and its producer fenced.",
        )
    topic = form.required("topic", "the topic")
    tp = TopicPartition(topic, form.number("partition", "the partition", 0, 2**31 - 1))
    start = form.number("start_offset", "the offset", 0, 2**63 - 1)
    await admin.abort_transaction(tp, start_offset=start)
    return redirect(
        request, "/transactions?hanging=1", f"The transaction at {start} of {tp} was aborted."
    )


ROUTES = [
    Route("/transactions", transactions),
    Route("/transactions/abort", abort, methods=["POST"]),
]
