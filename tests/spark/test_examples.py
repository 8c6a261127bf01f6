"""The examples do what they say: each runs on small data, and is compared with plain Python."""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from examples import demo
from examples.pipelines.clickstream import produce as clickstream
from examples.pipelines.lake import produce as lake
from examples.pipelines.mirror import mirror
from examples.pipelines.orders import produce as orders
from headrace import TopicPartition
from headrace.pipelines.run.runner import run
from headrace.pipelines.spec.yaml_file import load
from headrace.testing import Broker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
START = datetime(2026, 5, 1, 12, tzinfo=UTC)
GAP = timedelta(minutes=30)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One for the examples, whose topics have fixed names."""
    with Broker() as started:
        yield started


class Runner:
    """Runs examples from copies of their folders, which is where they put their files."""

    def __init__(self, directory: Path, variables: dict[str, str]) -> None:
        self.directory = directory
        self._variables = variables

    def __call__(self, name: str) -> Path:
        folder = self.directory / name
        if not folder.exists():
            shutil.copytree(EXAMPLES / name, folder)
        pipeline = load(folder / "pipeline.yaml", self._variables)
        run(pipeline, master="local[2]", available_now=True)
        return folder


@pytest.fixture
def run_example(spark: SparkSession, broker: Broker, tmp_path: Path) -> Runner:
    return Runner(tmp_path, {"HEADRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers})


def test_orders_are_counted_and_the_unreadable_replayed(
    broker: Broker, run_example: Runner
) -> None:
    servers = broker.bootstrap_servers
    made = list(orders.make_orders(3_000, start=START, span=timedelta(minutes=3)))
    orders.create_topic(servers)
    orders.send_orders(servers, iter(made))
    sent = demo.Totals()
    for order in made:
        sent.add(order)
    assert sent.unreadable == 3

    run_example("orders")
    assert demo.read_results(servers) == sent
    assert demo.lag(servers) == 0
    letters = [dict(record.headers) for record in demo.read_topic(servers, "orders-dead")]
    assert {letter["headrace.topic"] for letter in letters} == {b"orders"}

    broken = [("headrace.topic", b"orders")]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send("orders-dead", "beyond repair", headers=broken)
    run_example("replay")
    run_example("orders")
    whole = demo.Totals(unreadable=4)
    for order in made:
        whole.add(orders.Order(order.order_id, order.customer, order.region, order.cents, order.at))
    assert demo.read_results(servers) == whole


def test_every_change_is_in_the_lake_once(
    spark: SparkSession, broker: Broker, run_example: Runner
) -> None:
    changes = list(lake.make_changes(300, start=START, span=timedelta(days=3)))
    lake.send_changes(broker.bootstrap_servers, iter(changes))
    folder = run_example("lake")
    days = {path.name for path in (folder / "lake").glob("day=*")}
    assert days == {f"day={change.at:%Y-%m-%d}" for change in changes}
    rows = spark.read.parquet(str(folder / "lake"))
    found = [(row.id, row.op, row.name, row.city) for row in rows.collect()]
    assert sorted(found, key=str) == sorted(
        (
            (
                change.id,
                change.op,
                change.after and change.after.name,
                change.after and change.after.city,
            )
            for change in changes
        ),
        key=str,
    )

    now = {change.id: change.after for change in changes}
    text = (EXAMPLES / "lake" / "README.md").read_text()
    query = text.split("```sql\n")[1].split("```")[0]
    query = query.replace("examples/pipelines/lake/lake", str(folder / "lake"))
    table = {
        row.id: lake.Customer(row.id, row.name, row.city, float(row.credit))
        for row in spark.sql(query).collect()
    }
    assert table == {number: row for number, row in now.items() if row is not None}


def test_sessions_end_where_nobody_clicked_for_half_an_hour(
    broker: Broker, run_example: Runner
) -> None:
    servers = broker.bootstrap_servers
    clicks = clickstream.make_clicks(30, start=START, span=timedelta(hours=6))
    late = clickstream.Click("the last", "/", clickstream.PEOPLE, START + timedelta(days=1))
    clickstream.send_clicks(servers, [*clicks, late])
    run_example("clickstream")
    found = [json.loads(record.value or b"") for record in demo.read_topic(servers, "sessions")]
    assert sorted(map(_session, found)) == sorted(_sessions(clicks))


def _session(row: dict[str, Any]) -> tuple[Any, ...]:
    times = [datetime.fromisoformat(row[name]) for name in ("started", "ended")]
    return row["visitor"], *times, row["clicks"], tuple(row["sections"]), row["bought"]


def _sessions(clicks: list[clickstream.Click]) -> Iterator[tuple[Any, ...]]:
    lines = (EXAMPLES / "clickstream" / "sections.csv").read_text().splitlines()[1:]
    sections = dict(line.split(",") for line in lines)
    by_visitor = defaultdict(list)
    for click in clicks:
        if click.agent != clickstream.ROBOT:
            by_visitor[click.visitor].append(click)
    for visitor, theirs in by_visitor.items():
        groups = [[theirs[0]]]
        for before, click in pairwise(theirs):
            if click.at - before.at >= GAP:
                groups.append([])
            groups[-1].append(click)
        for group in groups:
            seen = {sections.get(entry.page, "other") for entry in group}
            first, last = (_milliseconds(entry.at) for entry in (group[0], group[-1]))
            yield (visitor, first, last, len(group), tuple(sorted(seen)), "checkout" in seen)


def _milliseconds(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def test_a_mirror_keeps_records_and_moves_groups(broker: Broker, run_example: Runner) -> None:
    with Broker() as second:
        source, target = broker.bootstrap_servers, second.bootstrap_servers
        run_example._variables |= {"MIRROR_FROM": source, "MIRROR_TO": target}
        first, other = TopicPartition("shop-orders", 0), TopicPartition("shop-orders", 1)
        with headrace.Admin(bootstrap_servers=source) as admin:
            admin.create_topic("shop-orders", partitions=2)
            admin.create_topic("shop-returns", partitions=1)
            _send(source, "shop-orders", 100)
            _send(source, "shop-returns", 10)
            # What is gone before the mirror begins makes offsets differ.
            admin.delete_records({first: 7})
            admin.alter_group_offsets("billing", {first: 20, other: 50})
        assert mirror.create_topics(source, target, "shop-.*") == ["shop-orders", "shop-returns"]
        run_example("mirror")
        for topic in ("shop-orders", "shop-returns"):
            assert list(mirror.differences(source, target, topic)) == []
        assert mirror.translate(source, target, "billing") == {first: (20, 13), other: (50, 50)}

        _send(source, "shop-orders", 10)
        assert list(mirror.differences(source, target, "shop-orders")) == [
            "shop-orders-0: 48 records, 43 of them copied",
            "shop-orders-1: 55 records, 50 of them copied",
        ]


def test_a_copy_made_twice_does_not_lead_past_what_is_wanted() -> None:
    # The mirror crashed after 5, and copied from 2 on again.
    copies = [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7]
    for wanted in range(9):
        at = mirror.first_copy_from(wanted, 0, len(copies), copies.__getitem__)
        assert set(range(wanted, 8)) <= set(copies[at:])
        assert at == 0 or copies[at - 1] < wanted


def _send(servers: str, topic: str, count: int) -> None:
    with headrace.Admin(bootstrap_servers=servers) as admin:
        partitions = len(admin.describe_topic(topic).partitions)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        sent = [
            producer.send(
                topic,
                f"value {number}" if number % 5 else None,
                key=f"key {number}" if number % 3 else None,
                headers=[("trace", b"%d" % number)] if number % 2 else [],
                partition=number % partitions,
                timestamp_ms=1_780_000_000_000 + number,
            )
            for number in range(count)
        ]
        assert len({future.result() for future in sent}) == count
