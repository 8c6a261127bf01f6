"""Searches of topics on a real broker: in a process of their own, and by the command."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.client.producer.producer import Producer
from headrace.search.scan_ranges import SearchRequest
from headrace.search.search_messages import SearchFailed
from headrace.search.search_process import SearchProcess
from headrace.search.topic_search import SearchEnd, SearchHit, SearchUpdate
from tests.integration.client.feeding import create_topic, feed
from tests.integration.commands import Cli, end, on_terminal, read_line
from tests.support import BrokerProcess

PARTITIONS = 3
HOSTILE = [
    b"<script>alert('needle')</script>",
    b"\x1b[2Jneedle\x07\xe2\x80\xaetxet",
    b"\xff\xfe needle \x00\xc3",
    b"x" * 1_000_000 + b"needle",
    b'{"note": "needle", "deep": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"note": "needle", "amount": NaN}',
    b'{"note": "n\\u0065edle", "amount": 7}',
    None,
]


@pytest.fixture(scope="module")
def address(shared_broker: BrokerProcess) -> str:
    """A broker with the topic `orders`: hostile records among ordinary ones in three partitions."""
    address = shared_broker.address
    create_topic(address, "orders", PARTITIONS)
    for partition in range(PARTITIONS):
        ordinary = [b'{"order": %d, "note": "nothing"}' % number for number in range(20_000)]
        feed(address, "orders", ordinary[:10_000], partition=partition)
        feed(address, "orders", HOSTILE, partition=partition, keys=[b"hostile"] * len(HOSTILE))
        feed(address, "orders", ordinary[10_000:], partition=partition)
    return address


@pytest.fixture
def cli(address: str) -> Cli:
    return Cli(address)


async def updates_of(address: str, request: SearchRequest) -> list[SearchUpdate]:
    async with SearchProcess(request, {"bootstrap_servers": address}, shown_bytes=64) as search:
        return [update async for update in search.updates()]


def search(address: str, request: SearchRequest) -> tuple[list[SearchHit], SearchUpdate]:
    """All hits, and the last update."""
    updates = asyncio.run(updates_of(address, request))
    return [hit for update in updates for hit in update.hits], updates[-1]


def places(hits: Sequence[SearchHit]) -> list[tuple[int, int]]:
    return [(hit.partition, hit.offset) for hit in hits]


def test_hostile_records_of_all_partitions_are_found_and_cut(address: str) -> None:
    request = SearchRequest(topic="orders", expression="needle or value.note = 'needle'")
    hits, last = search(address, request)
    expected = [(partition, 10_000 + n) for partition in range(3) for n in range(7)]
    assert sorted(places(hits)) == expected
    assert [last.end, last.progress.hits] == [SearchEnd.COMPLETE, 21]
    assert last.progress.records_read == last.progress.offsets_done == 3 * 20_008
    (large,) = [hit for hit in hits if (hit.partition, hit.offset) == (0, 10_003)]
    assert [large.value, large.value_size, large.key] == [b"x" * 64, 1_000_006, b"hostile"]


def test_a_search_for_the_newest_finds_the_same_and_begins_at_the_end(address: str) -> None:
    request = SearchRequest(
        topic="orders", expression="value.order >= 9990 and value.order < 19999", hits_max=1_000
    )
    newest = replace(request, newest_first=True, expression="value.order in (0, 9995, 19995)")
    hits, last = search(address, newest)
    assert last.progress.records_read == 3 * 20_008
    assert [offset for _, offset in places(hits)] == [20_003] * 3 + [9_995] * 3 + [0] * 3
    hits, last = search(address, replace(request, hits_max=5))
    assert [len(hits), last.end] == [5, SearchEnd.HITS_MAX]
    assert last.progress.records_read < 3 * 20_008


def test_a_search_reads_no_more_than_request_and_expression_allow(address: str) -> None:
    expression = "partition = 1 and offset >= 10000"
    request = SearchRequest(topic="orders", expression=expression, end_offsets={1: 10_007})
    hits, last = search(address, request)
    assert places(hits) == [(1, offset) for offset in range(10_000, 10_007)]
    assert last.progress.records_read == last.progress.offsets_total == 7
    late = replace(request, from_ms=4_102_444_800_000)
    assert search(address, late)[1].progress.offsets_total == 0


def test_a_search_ends_where_a_log_ends_in_offsets_without_records(address: str) -> None:
    with Producer(bootstrap_servers=address, transactional_id="search") as producer:
        with producer.transaction():
            producer.send("payments", "needle")
    hits, last = search(address, SearchRequest(topic="payments", expression="needle"))
    assert [places(hits), last.end] == [[(0, 0)], SearchEnd.COMPLETE]


def test_a_search_that_is_left_ends_its_process_at_once(address: str) -> None:
    async def cancel() -> int:
        request = SearchRequest(topic="orders", expression="absent")
        async with SearchProcess(request, {"bootstrap_servers": address}) as search:
            async for _ in search.updates():
                break
        assert search.status is not None
        return search.status

    assert asyncio.run(cancel()) == -signal.SIGKILL


def test_a_search_that_fails_says_why(address: str) -> None:
    with pytest.raises(SearchFailed, match="absent"):
        search(address, SearchRequest(topic="absent", expression="x"))


def test_the_command_prints_what_it_finds(cli: Cli) -> None:
    lines = cli.text("search", "orders", "value.order = 19999").splitlines()
    assert lines[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]
    assert sorted(line.split()[:2] for line in lines[1:]) == [[str(p), "20007"] for p in range(3)]
    document = cli.json("search", "orders", "'needle\"'", "--partition", "0", "--limit", "1")
    assert [document["offset"], document["key"]] == [10_004, "hostile"]
    text = cli.text(
        "search", "orders", "NEEDLE", "-i", "--partition", "2", "--from", "10001", "--to", "10003",
        "--format", "%o %k\\n",
    )  # fmt: skip
    assert text.splitlines() == ["10001 hostile", "10002 hostile"]
    assert cli.text("search", "orders", "--from", "-1", "--format", "value").count("\n") == 3
    assert "'user' is no field" in cli.error("search", "orders", "user.id = 7", status=2)
    assert "not valid" in cli.error("search", "orders", "value matches '('", status=2)
    assert "absent" in cli.error("search", "absent", "x")


def test_the_command_shows_progress_and_no_control_characters_on_a_terminal(cli: Cli) -> None:
    arguments = ["search", "orders", "needle", "--partition", "0", "--to", "10004"]
    status, shown = on_terminal(cli, arguments)
    assert status == 0
    assert "4 of 10,004 records found" in shown
    assert "\\x1b[2Jneedle\\x07\\u202e" in shown
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown


def test_ctrl_c_ends_the_command(cli: Cli) -> None:
    process = cli.start("search", "orders", "value.order >= 0", "--format", "%o\\n")
    assert int(read_line(process)) >= 0
    os.kill(process.pid, signal.SIGINT)
    end(process, 130)


def test_json_of_the_command_can_be_written_again(cli: Cli) -> None:
    found = cli.run("search", "orders", "key = 'hostile'", "--partition", "1", "--json").stdout
    assert len(found.splitlines()) == len(HOSTILE)
    cli.run("topics", "create", "copies", "--partitions", "2")
    cli.run("produce", "copies", "--format", "json", stdin=found)
    copied = cli.run("consume", "copies", "--json").stdout.splitlines()
    read = [json.loads(line) for line in copied]
    assert [record["key"] for record in read] == ["hostile"] * len(HOSTILE)
