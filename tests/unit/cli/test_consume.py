import json

import pytest

from headrace.cli.consume import PartitionReader
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.records import encode_batch
from headrace.types import TopicPartition
from tests.unit.cli.invoking import invoke, use
from tests.unit.client.admin.fakes import AdminBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> AdminBrokers:
    brokers = AdminBrokers(nodes=2)
    brokers.add_topic("t", 2)
    brokers.add_topic("u")
    for topic, partition, value in [
        ("t", 0, b"a"),
        ("t", 0, b"b"),
        ("t", 1, b"c"),
        ("t", 0, b"d"),
        ("u", 0, b"e"),
    ]:
        log = brokers.logs[TopicPartition(topic, partition)]
        log.append(bytes(encode_batch([(1000, b"k", value, ())])))
    use(brokers, monkeypatch, "consume")
    return brokers


def lines(*arguments: str) -> list[str]:
    result = invoke("consume", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


def test_values_are_printed_up_to_the_end(brokers: AdminBrokers) -> None:
    assert sorted(lines("t")) == ["a", "b", "c", "d"]
    assert lines("t", "--partition", "0") == ["a", "b", "d"]
    assert sorted(lines("t", "u", "t", "--format", "%t %v\\n"))[-1] == "u e"


def test_where_to_begin_is_chosen(brokers: AdminBrokers) -> None:
    assert lines("t", "--partition", "0", "--from", "1") == ["b", "d"]
    assert lines("t", "--partition", "0", "--from", "-1") == ["d"]
    assert lines("t", "--from", "end") == []


def test_a_number_of_messages_is_enough(brokers: AdminBrokers) -> None:
    assert lines("t", "--partition", "0", "--max-messages", "2") == ["a", "b"]
    assert lines("t", "--partition", "0", "--follow", "-n", "3") == ["a", "b", "d"]


def test_formats(brokers: AdminBrokers) -> None:
    assert json.loads(lines("u", "--json")[0])["value"] == "e"
    assert lines("u", "--json") == lines("u", "--format", "json")
    assert lines("u", "--format", "%k-%v;") == ["k-e;"]
    heading, row = lines("u", "--format", "table")
    assert heading.split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]
    assert row.split() == ["0", "0", "1970-01-01T00:00:01.000Z", "k", "e"]


@pytest.mark.parametrize(("level", "number"), [("read_uncommitted", 0), ("read_committed", 1)])
def test_whether_open_transactions_are_read_is_chosen(
    brokers: AdminBrokers, level: str, number: int
) -> None:
    assert lines("u", "--isolation-level", level) == ["e"]
    assert {request.isolation_level for request in brokers.sent(FetchRequest)} == {number}
    # Then the end is where the first open transaction begins.
    assert brokers.sent(ListOffsetsRequest)[-1].isolation_level == number


def test_ctrl_c_ends_reading_and_is_no_failure(
    brokers: AdminBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = PartitionReader.poll
    printed = False

    def interrupted(self: PartitionReader) -> object:
        nonlocal printed
        if printed:
            raise KeyboardInterrupt
        records = poll(self)
        printed = bool(records)
        return records

    monkeypatch.setattr(PartitionReader, "poll", interrupted)
    assert lines("u", "--follow") == ["e"]


def test_deleted_records_are_reported_and_passed_over(brokers: AdminBrokers) -> None:
    log = brokers.logs[TopicPartition("t", 0)]
    fetch = brokers._Fetch

    def delete_first(node: int, request: object) -> object:
        if log.start_offset == 0:
            log.start_offset = 2
            del log.batches[:2]
        return fetch(node, request)

    brokers._Fetch = delete_first  # type: ignore[assignment,method-assign]
    result = invoke("consume", "t", "--partition", "0")
    assert (result.exit_code, result.stdout) == (0, "d\n")
    assert result.stderr == (
        "headrace: 2 records of t-0 deleted by retention before they were read;"
        " going on at offset 2\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nope"], 1, "topic nope does not exist; list topics"),
        (["t", "--partition", "7"], 1, "topic t has no partition 7; it has 2"),
        (["t", "--from", "99"], 1, "no partition has offset 99: t-0 has [0, 3), t-1 has [0, 1)"),
        (["t", "--from", "yesterday"], 2, "--from 'yesterday' is none of"),
        (["t", "--format", "csv"], 2, "--format 'csv' is none of value, json, table"),
        (["t", "--format", "%q"], 2, "--format has no %q"),
        (["t", "--format", "table", "--json"], 2, "--json and --format say different things"),
        (["t", "-n", "0"], 2, "Invalid value for '-n'"),
    ],
)
def test_what_cannot_be_is_refused(
    brokers: AdminBrokers, arguments: list[str], status: int, text: str
) -> None:
    result = invoke("consume", *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert text in result.stderr
