import os
import re
import signal
from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.batch import read_header
from headrace.protocol.compression import Compression
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.records import Record, decode_rows
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.fakes import AdminBrokers


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> AdminBrokers:
    brokers = AdminBrokers()
    brokers.add_topic("t")
    use(brokers, monkeypatch, "produce")
    return brokers


def records(brokers: AdminBrokers, topic: str = "t", partition: int = 0) -> list[Record]:
    batches = brokers.logs[TopicPartition(topic, partition)].batches
    return [record for batch in batches for record in decode_rows(batch)]


def values(brokers: AdminBrokers) -> list[bytes | None]:
    return [record.value for record in records(brokers)]


def test_each_line_is_a_record(brokers: AdminBrokers) -> None:
    result = invoke("produce", "t", stdin=b"one\n\ntw\xff\r\nlast")
    assert result.exit_code == 0
    assert values(brokers) == [b"one", b"", b"tw\xff\r", b"last"]
    assert result.stdout == ""
    assert result.stderr.startswith("4 records, 11 B in ")


def test_quiet_prints_nothing_and_json_prints_the_outcome(brokers: AdminBrokers) -> None:
    result = invoke("produce", "t", "--quiet", stdin=b"a\n")
    assert (result.exit_code, result.output) == (0, "")
    found = document(invoke("produce", "t", "--json", stdin=b"abc\nd\n"))
    assert found.pop("seconds") >= 0
    assert found == {"topic": "t", "records": 2, "bytes": 4, "failed": 0}


def test_keys_and_headers_come_from_options_and_lines(brokers: AdminBrokers) -> None:
    arguments = ["--key-separator", ":", "--header", "a=1", "--header", "a=2=3"]
    assert invoke("produce", "t", *arguments, stdin=b"k:v:w\n:\n").exit_code == 0
    assert [(record.key, record.value) for record in records(brokers)] == [
        (b"k", b"v:w"),
        (b"", b""),
    ]
    assert records(brokers)[0].headers == (("a", b"1"), ("a", b"2=3"))
    assert invoke("produce", "t", "--key", "same", stdin=b"x\n").exit_code == 0
    assert records(brokers)[2].key == b"same"


def test_json_lines_bring_everything_and_options_fill_in(brokers: AdminBrokers) -> None:
    line = b'{"value": "v", "key": "k", "headers": {"h": "1"}, "partition": 0, "timestamp": 7}\n'
    arguments = ["--format", "json", "--key", "other", "--header", "i=2"]
    assert invoke("produce", "t", *arguments, stdin=line + b'{"value": null}\n').exit_code == 0
    first, second = records(brokers)
    assert tuple(first) == (0, 7, b"k", b"v", (("h", b"1"), ("i", b"2")))
    assert (second.key, second.value) == (b"other", None)


def test_files_are_read_in_order_and_dash_is_standard_input(
    brokers: AdminBrokers, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"4\n")
    paths = [str(tmp_path / "a"), "-", str(tmp_path / "b")]
    assert invoke("produce", "t", *paths, stdin=b"3\n").exit_code == 0
    assert values(brokers) == [b"1", b"2", b"3", b"4"]


def test_a_whole_file_is_one_record(brokers: AdminBrokers, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "empty").write_bytes(b"")
    paths = [str(tmp_path / "a"), str(tmp_path / "empty")]
    assert invoke("produce", "t", "--whole-file", *paths).exit_code == 0
    assert values(brokers) == [b"1\n2\n", b""]


def test_empty_values_can_be_tombstones(brokers: AdminBrokers) -> None:
    invoke("produce", "t", "--tombstones", "--key-separator", ":", stdin=b"k:\nk:v\n")
    assert values(brokers) == [None, b"v"]


def test_partitions_come_from_the_input_unless_it_is_repartitioned(brokers: AdminBrokers) -> None:
    brokers.add_topic("two", 2)
    line = b'{"value": "x", "partition": 1}\n'
    arguments = ["--format", "json", "--partition", "0"]
    assert invoke("produce", "two", *arguments, stdin=line + b"{}\n").exit_code == 0
    assert [len(records(brokers, "two", number)) for number in (0, 1)] == [1, 1]
    assert invoke("produce", "two", *arguments, "--repartition", stdin=line).exit_code == 0
    assert [len(records(brokers, "two", number)) for number in (0, 1)] == [2, 1]


def test_acks_and_codecs_reach_the_broker(brokers: AdminBrokers) -> None:
    arguments = ["--acks", "1", "--compression", "zstd", "--batch-size", "1"]
    assert invoke("produce", "t", *arguments, stdin=b"a\nb\n").exit_code == 0
    assert [request.acks for request in brokers.sent(ProduceRequest)] == [1, 1]
    assert brokers.sent(InitProducerIdRequest) == []
    batches = brokers.logs[TopicPartition("t", 0)].batches
    assert [read_header(batch).compression for batch in batches] == [Compression.ZSTD] * 2
    assert invoke("produce", "t", stdin=b"c\n").exit_code == 0
    assert brokers.sent(ProduceRequest)[-1].acks == -1
    assert len(brokers.sent(InitProducerIdRequest)) == 1


def test_count_stops_reading(brokers: AdminBrokers) -> None:
    assert invoke("produce", "t", "--count", "2", stdin=b"1\n2\n3\n").exit_code == 0
    assert values(brokers) == [b"1", b"2"]


def test_ctrl_c_stops_reading_and_what_was_read_is_written(
    brokers: AdminBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.cli.produce.ProgressDisplay.advance",
        lambda self, count_bytes: os.kill(os.getpid(), signal.SIGINT),
    )
    result = invoke("produce", "t", stdin=b"1\n2\n")
    assert result.exit_code == 130
    assert values(brokers) == [b"1"]
    assert result.stderr.startswith("1 record, 1 B in ")


def test_rate_holds_back(brokers: AdminBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("headrace.cli.produce.time.sleep", slept.append)
    assert invoke("produce", "t", "--rate", "1000", stdin=b"1\n2\n3\n").exit_code == 0
    assert len(slept) == 3
    assert 0.001 < sum(slept) < 0.02
    assert values(brokers) == [b"1", b"2", b"3"]


def test_records_that_fail_are_named_and_the_rest_is_written(brokers: AdminBrokers) -> None:
    brokers.max_message_bytes = 150
    lines = b"ok\n" + b"x" * 200 + b"\nok too\n"
    result = invoke("produce", "t", stdin=lines)
    assert result.exit_code == 1
    assert values(brokers) == [b"ok", b"ok too"]
    first, second = result.stderr.splitlines()
    assert first.startswith(
        "headrace: line 2 of standard input not written: partition t-0: too large; send"
    )
    assert second.startswith("2 records, 8 B in ")
    found = invoke("produce", "t", "--json", stdin=lines)
    assert found.exit_code == 1
    assert '"records": 2, "bytes": 8, "failed": 1' in found.stdout


def test_of_many_failures_the_first_are_named_and_the_rest_counted(brokers: AdminBrokers) -> None:
    brokers.produce_faults.extend([ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 30)
    result = invoke("produce", "t", "--batch-size", "1", "--no-idempotence", stdin=b"x\n" * 30)
    assert result.exit_code == 1
    assert result.stderr.count("not written: partition t-0: topic authorization failed") == 10
    assert "headrace: 20 further records not written\n" in result.stderr


def test_records_that_fail_together_are_counted_after_the_first(brokers: AdminBrokers) -> None:
    brokers.produce_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    result = invoke("produce", "t", stdin=b"1\n2\n3\n")
    assert (
        "line 1 of standard input and 2 records after it not written: partition t-0"
        in result.stderr
    )


def test_records_that_nobody_takes_in_time_are_named_with_the_reason(
    brokers: AdminBrokers,
) -> None:
    brokers.produce_faults.extend([ErrorCode.NOT_ENOUGH_REPLICAS] * 1000)
    result = invoke("produce", "t", "--timeout", f"{scaled(0.3):.1f}", stdin=b"1\n2\n")
    assert result.exit_code == 1
    assert re.search(
        r"headrace: line 1 of standard input and 1 record after it not written:"
        r" t-0: not written within [\d.]+ s: NOT_ENOUGH_REPLICAS: partition t-0",
        result.stderr,
    )


def test_a_cluster_that_is_away_is_told_at_once(brokers: AdminBrokers) -> None:
    brokers.down = {1}
    result = invoke("produce", "t", stdin=b"1\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("headrace: no broker at 10.0.0.1:9092: nothing is listening")


def test_input_before_a_broken_line_is_written(brokers: AdminBrokers) -> None:
    result = invoke("produce", "t", "--format", "json", stdin=b'{"value": "a"}\nnope\n{}\n')
    assert result.exit_code == 1
    assert values(brokers) == [b"a"]
    assert result.stderr.startswith("headrace: line 2 of standard input is no record: ")
    result = invoke("produce", "t", "--format", "json", stdin=b'{"value": "b"}\n{"partition": 5}\n')
    assert result.exit_code == 1
    assert values(brokers) == [b"a", b"b"]
    assert result.stderr.startswith(
        "headrace: line 2 of standard input: topic t has no partition 5"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--partition", "3"], "topic t has no partition 3; it has 1"),
        (["/nowhere"], "/nowhere cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_work_fails_with_the_reason(
    brokers: AdminBrokers, arguments: list[str], text: str
) -> None:
    result = invoke("produce", "t", *arguments, stdin=b"x\n")
    assert result.exit_code == 1
    assert text in result.stderr
    assert values(brokers) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--key-separator", ":", "--format", "json"],
        ["--key-separator", ":", "--whole-file"],
        ["--key-separator", ""],
        ["--compression", "rar"],
        ["--acks", "2"],
        ["--rate", "0"],
        ["--batch-size", "0"],
        ["--batch-size", "3000000000"],
        ["--linger-ms", "99999999999"],
        ["--header", "x"],
    ],
)
def test_wrong_usage_is_refused_before_anything_is_read(
    brokers: AdminBrokers, arguments: list[str]
) -> None:
    assert invoke("produce", "t", *arguments, stdin=b"x\n").exit_code == 2
    assert brokers.requests == []
