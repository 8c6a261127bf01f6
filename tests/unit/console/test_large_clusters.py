"""List pages of a cluster with 10,000 topics and 5,000 groups: what one answer takes."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.client.admin.cluster import ClusterDescription
from headrace.client.admin.groups import GroupDescription, GroupListing
from headrace.client.cluster_metadata import BrokerInfo, PartitionInfo, TopicInfo
from headrace.console.app import ConsoleSettings, create_app
from headrace.console.cluster_access import ClusterAccess, ClusterConnection
from headrace.monitoring.cluster_history import ClusterHistory, ClusterSample
from headrace.net.addresses import Address
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition

TOPICS, GROUPS, PARTITIONS = 10_000, 5_000, 2
ANSWER_S_MAX = 0.3


def sample(time_ms: int, written: int) -> ClusterSample:
    """A sample in which every partition has as many records."""
    replicas = (1, 2, 3)
    topics = {
        f"topic-{number:05}": TopicInfo(
            f"topic-{number:05}",
            number.to_bytes(16, "big"),
            False,
            tuple(
                PartitionInfo(index, 1 + index, 1, replicas, replicas, ())
                for index in range(PARTITIONS)
            ),
        )
        for number in range(TOPICS)
    }
    tps = [TopicPartition(name, index) for name in topics for index in range(PARTITIONS)]
    groups = {
        f"group-{number:04}": GroupListing(f"group-{number:04}", "Stable", "classic", "consumer", 1)
        for number in range(GROUPS)
    }
    return ClusterSample(
        time_ms,
        description=ClusterDescription(
            "large", 1, tuple(BrokerInfo(node, Address("h", node), None) for node in replicas)
        ),
        topics=topics,
        offsets_ms=time_ms,
        end_offsets=dict.fromkeys(tps, written),
        start_offsets=dict.fromkeys(tps, 0),
        groups=groups,
        members={name: GroupDescription(name, "Stable", "", "", 1, ()) for name in groups},
        committed={
            name: dict.fromkeys(tps[PARTITIONS * number : PARTITIONS * (number + 1)], 5)
            for number, name in enumerate(groups)
        },
        has_controller=True,
    )


async def answer(app: Any, path: str) -> tuple[int, bytes]:
    """The answer of an application to a GET, without a server."""
    place, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": place,
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
        "http_version": "1.1",
    }
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])


@pytest.fixture(scope="module")
def large() -> Any:
    """An application whose samples are of a large cluster."""
    history = ClusterHistory()
    for round_ in range(2):
        history.add(sample(1_000_000 + 2000 * round_, 10 + round_))
    app = create_app(ConsoleSettings(ClusterConnection("localhost:1")))
    access = SimpleNamespace(state=history.state, history=history, user=None, is_closed=False)
    app.state.console.everybody = cast("ClusterAccess", access)
    return app


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/topics",
        "/topics?sort=-size&page=150",
        "/topics?q=topic-099",
        "/groups",
        "/groups?sort=-lag&page=50",
        "/groups?q=topic-0001",
        "/brokers",
    ],
)
def test_a_list_page_answers_soon_and_is_small(large: Any, path: str) -> None:
    asyncio.run(answer(large, path))  # Compiles the template.
    begun = time.perf_counter()
    status, body = asyncio.run(answer(large, path))
    taken_s = time.perf_counter() - begun
    print(f"{path}: {1000 * taken_s:.0f} ms, {len(body):,} bytes")
    assert status == 200
    assert len(body) < 100_000
    assert taken_s < scaled(ANSWER_S_MAX)


def test_a_sample_does_not_keep_pages_waiting_for_long() -> None:
    """The state after a sample is made on the event loop, and a page may come just then."""
    history = ClusterHistory()
    history.add(sample(1_000_000, 10))
    following = sample(1_002_000, 11)
    # Of this thread: what others do on the machine meanwhile is not the sample's.
    begun = time.thread_time()
    history.add(following)
    taken_s = time.thread_time() - begun
    print(f"a sample of {TOPICS} topics and {GROUPS} groups: {1000 * taken_s:.0f} ms")
    assert taken_s < scaled(ANSWER_S_MAX)
