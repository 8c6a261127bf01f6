"""Pages of messages beside a real broker: reading, searching, following, writing, downloading."""

import io
import json
from collections.abc import Generator, Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from headrace import Admin, Producer, ScramUpsertion
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from headrace.console.pages.message_streams import SEARCHES_MAX
from headrace.testing import Broker
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.client.feeding import create_topic, feed
from tests.integration.console.watched_pages import RunningConsole
from tests.support import BrokerProcess

HOSTILE = [
    b"<script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>",
    b"\x1b[2J\x1b]0;needle\x07\x00",
    "needle \u202eright to left\u2066\u200b".encode(),
    b"\xff\xfe needle \xc3",
    b"<b>" + b"x" * 1_000_000 + b"needle",
    b'{"note": "needle", "deep": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"note": "needle", "user": {"id": 7}, "text": "</pre></details><script>hurt()</script>"}',
    None,
]


@pytest.fixture(scope="module")
def topic(shared_broker: BrokerProcess) -> str:
    """A topic of two partitions: ordinary messages, and hostile ones behind them in the first."""
    create_topic(shared_broker.address, "orders", 2)
    for partition in range(2):
        values = [b'{"order": %d}' % number for number in range(200)]
        feed(shared_broker.address, "orders", values, partition=partition, keys=[b"k"] * 200)
    feed(
        shared_broker.address,
        "orders",
        HOSTILE,
        keys=[b"<i>hostile</i>"] * len(HOSTILE),
        headers=[("<u>trace</u>", b"<script>hurt()</script>")],
    )
    return "orders"


ALICE = "alice-secret"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that asks for a login, where alice has no rights."""
    with Broker(security=True, in_process=True) as running:
        with Admin(**running.client_options) as admin:
            mechanism = running.client_config["sasl.mechanism"]
            admin.alter_user_scram_credentials([ScramUpsertion("alice", mechanism, ALICE)])
            admin.create_topic("orders", 1, 1)
        with Producer(**running.client_options) as producer:
            producer.send("orders", "secret").result()
        yield running


@pytest.fixture(scope="module")
def secured(broker: Broker) -> Iterator[RunningConsole]:
    connection = ClusterConnection(broker.bootstrap_servers, broker.client_config)
    with RunningConsole(ConsoleSettings(connection, signs_in=True, interval_s=0.2)) as running:
        yield running


def events(url: str, path: str, cookie: str = "") -> Generator[tuple[str, Any], None, None]:
    """The events of a stream, up to its end."""
    place = urlsplit(url)
    assert place.hostname is not None
    connection = HTTPConnection(place.hostname, place.port, timeout=scaled(30))
    try:
        connection.request("GET", path, headers={"Cookie": cookie})
        stream = connection.getresponse()
        assert stream.getheader("content-type", "").startswith("text/event-stream")
        name = ""
        while line := stream.readline():
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])
    finally:
        connection.close()


def test_the_newest_messages_are_shown_first_and_lead_to_older_ones(
    console: RunningConsole, topic: str
) -> None:
    viewer = console.viewer()
    first = viewer.get("/topics/orders/messages?partition=0")
    assert first.status == 200
    places = [place for place in range(150, 210) if f">0:{place}<" in first.text]
    assert places == list(range(158, 208))
    assert first.text.index(">0:207<") < first.text.index(">0:158<")
    older = viewer.get("/topics/orders/messages?partition=0&offset=158")
    assert ">0:157<" in older.text and ">0:158<" not in older.text
    oldest = viewer.get("/topics/orders/messages?partition=1&at=offset&offset=190")
    assert ">1:190<" in oldest.text and ">1:189<" not in oldest.text
    assert viewer.get("/topics/orders/messages?at=time&time=2099-01-01T00:00").status == 200
    assert viewer.get("/topics/orders/messages?partition=7").status == 400
    assert viewer.get("/topics/absent/messages").status == 404


def test_hostile_messages_are_shown_as_text(console: RunningConsole, topic: str) -> None:
    page = console.viewer().get("/topics/orders/messages?partition=0").text
    assert "&lt;script&gt;window.hurt" in page
    assert "<script>window" not in page and "<img src=x" not in page and "<i>" not in page
    assert "\\x1b[2J" in page and "\\u202eright" in page
    assert "\x1b" not in page and "\u202e" not in page and "\x00" not in page
    assert len(page) < 2_000_000


def test_a_record_has_a_page_of_its_own(console: RunningConsole, topic: str) -> None:
    viewer = console.viewer()
    found = viewer.get("/topics/orders/messages/0/206")
    assert found.status == 200
    assert '"user": { "id": 7' in found.words and "Hex" in found.words and "Text" in found.words
    assert "&lt;u&gt;trace&lt;/u&gt;" in found.text
    missing = viewer.get("/topics/orders/messages/0/5000")
    assert missing.status == 404
    assert "There is no record at this offset" in missing.words
    assert viewer.get("/topics/orders/messages/0/204").status == 200


def test_a_search_streams_records_progress_and_its_end(console: RunningConsole, topic: str) -> None:
    found = list(events(console.url, "/topics/orders/search?q=needle"))
    records = [record for name, data in found if name == "records" for record in data["records"]]
    assert sorted(record["offset"] for record in records) == [201, 202, 203, 204, 205, 206]
    assert "\\u202eright" in records[1]["value"]["preview"] or "\u202e" not in str(records)
    progress = [data for name, data in found if name == "progress"]
    assert progress[-1]["done"] == progress[-1]["total"] == 408
    assert found[-1] == ("end", {"reason": "complete"})
    ((name, failure),) = events(console.url, "/topics/orders/search?q=user.id%20=%207")
    assert name == "failed" and "is no field" in failure["what"]
    assert "is no field" in console.viewer().get("/topics/orders/messages?q=user.id%20=%207").words


def test_new_messages_are_followed(console: RunningConsole, shared_broker: BrokerProcess) -> None:
    create_topic(shared_broker.address, "followed", 1)
    stream = events(console.url, "/topics/followed/tail")
    assert next(stream) == ("ready", {"partitions": 1})
    feed(shared_broker.address, "followed", [b"fresh"])
    name, data = next(stream)
    assert name == "records"
    assert data["records"][0]["value"]["preview"] == "fresh"
    stream.close()


def test_a_record_is_written_with_key_headers_and_lines(
    console: RunningConsole, shared_broker: BrokerProcess
) -> None:
    create_topic(shared_broker.address, "written", 2)
    viewer = console.viewer()
    fields = {"value": "one\r\ntwo <b>", "key": "k", "headers": "trace: 4bf9", "partition": "1"}
    answer = viewer.submit("/topics/written/produce", fields)
    assert "The record was written to partition 1, offset 0." in answer.words
    assert "one two &lt;b&gt;" in " ".join(answer.text.split()) and "4bf9" in answer.words
    assert viewer.submit("/topics/written/produce", {"tombstone": "1", "key": "k"}).status == 200
    again = viewer.submit("/topics/written/produce", {"value": "x", "headers": "no header"})
    assert again.status == 400
    assert "is no header" in again.words
    viewer.get("/topics/written/produce")
    assert viewer.post("/topics/written/produce", {"value": "x", "csrf": "0" * 64}).status == 403


def test_messages_are_downloaded(console: RunningConsole, topic: str) -> None:
    place = urlsplit(console.url)
    assert place.hostname is not None

    def download(kind: str) -> bytes:
        connection = HTTPConnection(str(place.hostname), place.port, timeout=scaled(30))
        connection.request("GET", f"/topics/orders/download?q=needle&format={kind}")
        response = connection.getresponse()
        disposition = response.getheader("content-disposition", "")
        assert disposition == f'attachment; filename="orders.{kind}"'
        data = response.read()
        connection.close()
        return data

    lines = [json.loads(line) for line in download("jsonl").splitlines()]
    table = pq.read_table(io.BytesIO(download("parquet")))
    assert (
        {line["offset"] for line in lines}
        == set(table["offset"].to_pylist())
        == set(range(201, 207))
    )
    by_offset = dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert by_offset[204] == HOSTILE[4]
    assert by_offset[203] == HOSTILE[3]
    assert next(line for line in lines if "value_base64" in line)["offset"] == 203


def test_a_viewer_who_goes_away_ends_the_search(console: RunningConsole, topic: str) -> None:
    state = console.app.state.console
    stream = events(console.url, "/topics/orders/search?q=absent")
    assert next(stream)[0] == "progress"
    stream.close()
    wait_until(lambda: state.searches == 0, 20, "the search goes on without its viewer")
    state.searches = SEARCHES_MAX
    ((name, failure),) = events(console.url, "/topics/orders/search?q=absent")
    state.searches = 0
    assert (name, failure["advice"]) == ("failed", "Wait for one, or cancel it.")


def test_the_rights_of_the_viewer_decide(secured: RunningConsole, broker: Broker) -> None:
    viewer = secured.viewer()
    viewer.get("/sign-in")
    assert viewer.post("/sign-in", {"user": "alice", "password": ALICE}).status == 303
    for path in ("messages", "messages/0/0", "produce", "download"):
        answer = viewer.get(f"/topics/orders/{path}")
        assert answer.status in (403, 404), path
        assert "secret" not in answer.text
    cookie = "; ".join(f"{name}={value}" for name, value in viewer.cookies.items())
    ((name, _),) = events(secured.url, "/topics/orders/search?q=secret", cookie)
    assert name == "failed"
