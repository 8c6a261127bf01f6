"""Pages of a pipeline, and the replay of its dead letters, on a real broker and no Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import Admin, Consumer, Producer, TopicPartition
from headrace.clock import SystemClock
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from headrace.console.pipeline_runs import PipelineRuns
from headrace.pipelines.run.progress import BatchProgress, QueryProgress
from headrace.pipelines.run.run_state import RunPhase, locked, new_state, write_state
from headrace.pipelines.spec.part_graph import PartGraph, PartNode
from headrace.testing.time_limits import wait_until
from tests.integration.console.http_viewer import HttpViewer
from tests.integration.console.watched_pages import RunningConsole
from tests.support import BrokerProcess

HOSTILE = "<script>alert(1)</script>\u202e"
REPLAY = "/pipelines/shop/replay"
GRAPH = PartGraph(
    (
        PartNode("source orders", "source", "orders", "topic orders", ("orders",)),
        PartNode("step large", "step", HOSTILE, "SQL"),
        PartNode("sink lake", "sink", "lake", "parquet files in lake", (), "lake"),
        PartNode("dead", "dead-letters", "orders", "topic dead", ("dead",), "dead-letters-orders"),
    ),
    (("source orders", "step large"), ("step large", "sink lake"), ("source orders", "dead")),
)
QUERIES = (
    QueryProgress(
        "lake",
        rows_per_second=12.5,
        lag=7,
        recent=(BatchProgress(41, "2026-01-01T00:00:00Z", 70, 68, 300),),
    ),
    QueryProgress("dead-letters-orders", rows_out=3, reasons={HOSTILE: 2, "no JSON": 1}),
)


def letter(pipeline: str, number: int, topic: str = "orders") -> list[tuple[str, bytes]]:
    """The headers of a dead letter."""
    added = {"pipeline": pipeline, "topic": topic, "partition": "2", "offset": str(number)}
    own = ("trace", b"abc")
    return [own, *((f"headrace.{name}", text.encode()) for name, text in added.items())]


@pytest.fixture(scope="module")
def admin(shared_broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=shared_broker.address) as client:
        client.create_topic("orders", 3, 1)
        client.create_topic("dead", 2, 1)
        yield client


@pytest.fixture(scope="module")
def shop(
    shared_broker: BrokerProcess, admin: Admin, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningConsole]:
    """A console that shows a pipeline with dead letters."""
    directory = tmp_path_factory.mktemp("pipelines")
    notes = directory / "shop" / "_headrace"
    state = new_state("shop", master="local[2]", available_now=False, graph=GRAPH)
    with locked(notes, "shop"):
        write_state(notes, replace(state, phase=RunPhase.RUNNING, queries=QUERIES))
        settings = ConsoleSettings(
            ClusterConnection(shared_broker.address),
            interval_s=0.2,
            pipelines=PipelineRuns((), (Path(directory),), SystemClock()),
        )
        with RunningConsole(settings) as running:
            running.wait_for("/topics", "dead")
            yield running


def values_of(broker: BrokerProcess, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Partition, key and value of all committed records."""
    found = []
    with Consumer(bootstrap_servers=broker.address, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for record in consumer.poll(timeout_ms=500):
                assert list(record.headers) == [("trace", b"abc")]
                found.append((record.partition, record.key, record.value))
    return sorted(found, key=str)


def replayed(viewer: HttpViewer, words: str) -> None:
    """Begin a replay, and wait until its page says how it ended."""
    viewer.submit(REPLAY, {"action": "start", "confirmation": "shop"})
    wait_until(lambda: words in viewer.get(REPLAY).words, 30, f"the replay is not {words!r}")


def test_a_pipeline_is_drawn_with_its_batches_and_reasons(shop: RunningConsole) -> None:
    answer = shop.viewer().get("/pipelines/shop")
    assert "2026-01-01 00:00:00 UTC lake 41 0.3 s 70 68" in answer.words
    assert "no JSON 1" in answer.words
    assert "12 rows/s" in answer.words
    assert "lag 7" in answer.words
    assert answer.text.count('class="arrow"') == 3
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    assert shop.viewer().get("/pipelines/other/replay").status == 404


def test_dead_letters_are_replayed_once(
    shop: RunningConsole, shared_broker: BrokerProcess, admin: Admin
) -> None:
    viewer = shop.viewer()
    assert "Every dead letter was replayed" in viewer.get(REPLAY).words
    with Producer(bootstrap_servers=shared_broker.address) as producer:
        for number in range(3):
            producer.send(
                "dead", b"{bad", key=b"k", headers=letter("shop", number), partition=number % 2
            )
        producer.send("dead", b"of another", headers=letter("other", 1), partition=0)
        producer.send("dead", b"of nobody", partition=1)
    refused = viewer.submit(REPLAY, {"action": "start", "confirmation": "sho"})
    assert "Nothing was changed" in refused.words
    assert shop.viewer().post(REPLAY, {"action": "start", "confirmation": "shop"}).status == 403
    assert "5 offsets of dead were not replayed" in viewer.get(REPLAY).words
    replayed(viewer, "done 3 records were written back, 2 dead letters of other pipelines left out")
    assert values_of(shared_broker, "orders") == [(2, b"k", b"{bad")] * 3
    # A second replay begins behind the first.
    assert "Every dead letter was replayed" in viewer.get(REPLAY).words
    with Producer(bootstrap_servers=shared_broker.address) as producer:
        producer.send("dead", b"{late", headers=letter("shop", 9), partition=0)
    replayed(viewer, "done 1 records were written back")
    assert values_of(shared_broker, "orders").count((2, None, b"{late")) == 1
    assert admin.group_offsets("shop.replay")[TopicPartition("dead", 0)].offset == 4


def test_a_replay_to_a_topic_that_is_gone_writes_nothing(
    shop: RunningConsole, shared_broker: BrokerProcess, admin: Admin
) -> None:
    before = values_of(shared_broker, "orders")
    with Producer(bootstrap_servers=shared_broker.address) as producer:
        producer.send("dead", b"{good", headers=letter("shop", 1), partition=0)
        producer.send("dead", b"{lost", headers=letter("shop", 1, "gone"), partition=0)
    viewer = shop.viewer()
    replayed(viewer, "failed 0 records")
    assert "gone" in viewer.get(REPLAY).words
    assert "gone" not in admin.list_topics()
    assert values_of(shared_broker, "orders") == before
