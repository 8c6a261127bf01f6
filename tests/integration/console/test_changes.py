"""Changes that viewers make in the console, seen by another client of the same broker."""

from collections.abc import Iterator

import pytest

from headrace import Admin, Producer, TopicPartition
from headrace.client.admin.topics import LATEST
from tests.integration.console.http_viewer import HttpViewer
from tests.integration.console.watched_pages import RunningConsole
from tests.support import BrokerProcess


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=shared_broker.address) as client:
        yield client


@pytest.fixture
def viewer(console: RunningConsole) -> HttpViewer:
    return console.viewer()


def test_a_topic_is_made_changed_and_deleted(
    console: RunningConsole, viewer: HttpViewer, admin: Admin
) -> None:
    made = viewer.submit(
        "/new-topic", {"name": "made", "partitions": "2", "settings": "retention.ms = 60000\n"}
    )
    assert "Topic made was created." in made.words
    assert len(admin.describe_topic("made").partitions) == 2
    # A notice is shown once.
    assert "was created" not in viewer.get("/topics/made").words
    changed = viewer.submit(
        "/topics/made/settings", {"setting": "retention.ms", "action": "set", "value": "90000"}
    )
    assert "retention.ms of made is 90000 now." in changed.words
    assert admin.describe_configs(topic="made")["retention.ms"].value == "90000"
    refused = viewer.submit(
        "/topics/made/settings", {"setting": "retention.ms", "action": "set", "value": "soon"}
    )
    assert refused.status == 400
    assert 'value="soon"' in refused.text
    viewer.submit("/topics/made/settings", {"setting": "retention.ms", "action": "restore"})
    assert admin.describe_configs(topic="made")["retention.ms"].is_default
    viewer.submit("/topics/made/replicas", {"action": "add", "count": "3"})
    assert len(admin.describe_topic("made").partitions) == 3
    kept = viewer.submit("/topics/made/delete", {"confirmation": "mad"})
    assert (kept.status, "made" in admin.list_topics()) == (400, True)
    console.wait_for("/topics", "made")
    viewer.submit("/topics/made/delete", {"confirmation": "made"})
    assert "made" not in admin.list_topics()


def test_a_wrong_topic_is_refused_with_what_was_typed(viewer: HttpViewer) -> None:
    answer = viewer.submit("/new-topic", {"name": "wrong", "partitions": "many"})
    assert answer.status == 400
    assert "The number of partitions is many. Give 1 to" in answer.words
    assert 'value="wrong"' in answer.text
    assert viewer.submit("/new-topic", {"name": "x", "settings": "no setting"}).status == 400
    assert viewer.get("/topics/nothing").status == 404


def test_offsets_are_shown_before_they_are_reset(
    console: RunningConsole, viewer: HttpViewer, admin: Admin, shared_broker: BrokerProcess
) -> None:
    name = "readers & <b>writers</b>"
    tp = TopicPartition("read", 0)
    admin.create_topic("read", 1, 1)
    with Producer(bootstrap_servers=shared_broker.address) as producer:
        for number in range(10):
            producer.send("read", str(number), partition=0)
    admin.alter_group_offsets(name, {tp: 7})
    console.wait_for("/groups", name)
    path = "/group/reset?name=readers+%26+%3Cb%3Ewriters%3C%2Fb%3E"
    wanted = {"topic": "", "target": "shift", "value": "-100"}
    viewer.get(path)
    shown = viewer.post(path, {**wanted, "action": "preview"})
    assert shown.status == 200
    # To before the first record is to the first record.
    assert "read-0 7 0 -7 10 nearest there is" in shown.words
    assert admin.group_offsets(name)[tp].offset == 7
    assert viewer.post(path, {**wanted, "action": "commit"}).status == 303
    assert admin.group_offsets(name)[tp].offset == 0
    late = viewer.submit(path, {"target": "time", "time": "2999-01-01T00:00", "action": "preview"})
    assert "read-0 0 10 +10 0" in late.words
    assert viewer.submit(path, {"target": "time", "time": "tomorrow"}).status == 400
    page = viewer.get("/group?name=readers+%26+%3Cb%3Ewriters%3C%2Fb%3E")
    assert "<b>writers" not in page.text
    viewer.submit(path.replace("reset", "delete"), {"confirmation": name})
    assert name not in admin.list_groups()


def test_hostile_names_can_neither_run_nor_hide(
    console: RunningConsole, viewer: HttpViewer, admin: Admin
) -> None:
    name = "<script>alert(1)</script>\u202egnp\x1b[2J"
    admin.create_topic("hostile", 1, 1)
    admin.alter_group_offsets(name, {TopicPartition("hostile", 0): 0})
    console.wait_for("/groups", "alert(1)")
    text = viewer.get("/groups").text
    assert "<script>alert" not in text
    assert "\u202e" not in text and "\x1b" not in text
    assert "\\u202egnp\\x1b[2J" in text


def test_users_and_quotas_are_added_and_removed(viewer: HttpViewer, admin: Admin) -> None:
    user = {"user": "dora", "password": "secret", "mechanism": "SCRAM-SHA-256"}
    answer = viewer.submit("/users", user)
    assert "User dora has a password for SCRAM-SHA-256." in answer.words
    assert "secret" not in answer.text
    assert list(admin.describe_user_scram_credentials()["dora"]) == ["SCRAM-SHA-256"]
    viewer.submit("/users", {"user": "dora", "action": "delete", "mechanism": "SCRAM-SHA-256"})
    assert "dora" not in admin.describe_user_scram_credentials()
    quota = {"user": "dora", "key": "producer_byte_rate", "value": "1000"}
    viewer.submit("/quotas", quota)
    [found] = admin.describe_client_quotas(user="dora")
    assert found.quotas == {"producer_byte_rate": 1000}
    viewer.submit("/quotas", {**quota, "action": "delete"})
    assert admin.describe_client_quotas(user="dora") == []
    assert viewer.submit("/quotas", {**quota, "value": "many"}).status == 400


def test_a_cluster_without_an_authorizer_says_so(viewer: HttpViewer) -> None:
    answer = viewer.get("/acls")
    assert answer.status == 200
    assert "This cluster has no authorizer" in answer.words


def test_an_open_transaction_is_shown_and_aborted(
    viewer: HttpViewer, admin: Admin, shared_broker: BrokerProcess
) -> None:
    admin.create_topic("paid", 1, 1)
    with Producer(bootstrap_servers=shared_broker.address, transactional_id="till-1") as producer:
        producer.begin_transaction()
        producer.send("paid", "10 euros").result()
        page = viewer.get("/transactions")
        assert "till-1 Ongoing" in page.words
        assert "paid-0" in page.words
        assert "No open" not in viewer.get("/transactions?hanging=1").words
        viewer.submit("/transactions/abort", {})
        viewer.get("/transactions")
        viewer.post("/transactions/abort", {"transactional_id": "till-1"})
        assert admin.list_transactions()["till-1"].state != "Ongoing"
        producer.close(timeout_ms=0)
    assert admin.offsets({TopicPartition("paid", 0): LATEST})[TopicPartition("paid", 0)].offset == 2
