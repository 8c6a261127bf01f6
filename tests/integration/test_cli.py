"""The real commands, as processes, against a real broker."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.testing.time_limits import scaled
from tests.integration.commands import (
    Cli,
    end,
    on_terminal,
    read_line,
    unread_bytes,
    wait_until,
)
from tests.support import BrokerProcess, headrace_command, unused_port

Start = Callable[..., BrokerProcess]


@pytest.fixture
def cli(broker: BrokerProcess) -> Cli:
    return Cli(broker.address)


def lines_of(text: str) -> list[str]:
    return text.splitlines()


def test_topics_live_from_creation_to_deletion(cli: Cli) -> None:
    created = cli.json("topics", "create", "b", "a", "--partitions", "3", "--config", "flush.ms=9")
    assert [
        (topic["name"], topic["created"], topic["partitions"]) for topic in created["topics"]
    ] == [
        ("b", True, 3),
        ("a", True, 3),
    ]
    listed = cli.json("topics", "list")["topics"]
    assert [entry["name"] for entry in listed] == ["a", "b"]
    assert listed[1]["topic_id"] == created["topics"][0]["topic_id"]
    assert lines_of(cli.text("topics", "list"))[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    cli.run("topics", "alter", "a", "--partitions", "5")
    (described,) = cli.json("topics", "describe", "a")["topics"]
    assert described["configs"] == {"flush.ms": "9"}
    assert [partition["partition"] for partition in described["partitions"]] == list(range(5))
    assert all(
        partition["replicas"] == partition["isr"] == [partition["leader"]]
        for partition in described["partitions"]
    )
    cli.run("topics", "delete", "a", "--yes")
    assert [topic["name"] for topic in cli.json("topics", "list")["topics"]] == ["b"]


def test_errors_of_topics_say_what_to_do(cli: Cli) -> None:
    cli.run("topics", "create", "a")
    assert "already exists; choose another name" in cli.error("topics", "create", "a")
    assert cli.text("topics", "create", "a", "--if-not-exists") == "topic a exists already\n"
    assert "not a topic name" in cli.error("topics", "create", "not a name")
    assert "unknown setting 'retention.mss'" in cli.error(
        "topics", "create", "b", "--config", "retention.mss=1"
    )
    assert "larger number" in cli.error("topics", "alter", "a", "--partitions", "1")
    assert "topic nope" in cli.error("topics", "describe", "nope")
    assert "nope" in cli.error("topics", "delete", "nope", "--yes")
    assert cli.run("topics", "delete", "nope", "--yes", "--if-exists").returncode == 0


def test_settings_are_changed_and_taken_back(cli: Cli, broker: BrokerProcess) -> None:
    cli.run("topics", "create", "t")
    cli.run("configs", "alter", "--topic", "t", "--set", "retention.ms=5000")
    (entry,) = cli.json("configs", "describe", "--topic", "t")["configs"]
    assert (entry["name"], entry["value"], entry["source"]) == (
        "retention.ms",
        "5000",
        "topic_config",
    )
    assert len(cli.json("configs", "describe", "--topic", "t", "--all")["configs"]) > 10
    cli.run("configs", "alter", "--broker", "1", "--set", "log.retention.ms=7000")
    broker.restart()
    shown = {
        config["name"]: config
        for config in cli.json("configs", "describe", "--broker", "1")["configs"]
    }
    assert shown["log.retention.ms"]["source"] == "dynamic_broker_config"
    cli.run("configs", "alter", "--topic", "t", "--delete", "retention.ms")
    (entry,) = cli.json("configs", "describe", "--topic", "t")["configs"]
    assert (entry["name"], entry["value"]) == ("retention.ms", "7000")
    assert "retention.ms cannot be 'x'" in cli.error(
        "configs", "alter", "--topic", "t", "--set", "retention.ms=x"
    )
    assert "no broker 77; the cluster has 1" in cli.error("configs", "describe", "--broker", "77")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_line_comes_back_as_it_was(cli: Cli, codec: str) -> None:
    lines = b"".join(b"%d:%s\n" % (n, bytes([n % 256]) * (n % 50)) for n in range(5000) if n != 10)
    data = lines.replace(b"\n:", b":")
    cli.run("produce", "t", "--compression", codec, stdin=data)
    assert cli.run("consume", "t").stdout == data


def test_everything_about_a_record_is_kept(cli: Cli) -> None:
    cli.run("topics", "create", "t", "--partitions", "4")
    record = {
        "key": "k",
        "value_base64": "/w==",
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": None}],
        "partition": 2,
        "timestamp": 1_714_564_800_123,
    }
    cli.run("produce", "t", "--format", "json", stdin=json.dumps(record).encode())
    assert cli.json("consume", "t") == {"topic": "t", "offset": 0, **record}
    assert cli.text("consume", "t", "--format", "%t %p %o %T %k %h %S\\n") == (
        "t 2 0 1714564800123 k a=1,a=NULL 1\n"
    )


def test_a_key_goes_to_one_partition_and_a_topic_can_be_copied(cli: Cli) -> None:
    cli.run("topics", "create", "t", "--partitions", "5")
    data = "".join(f"key{n % 20}:{n}\n" for n in range(1000)).encode()
    cli.run("produce", "t", "--key-separator", ":", stdin=data)
    homes: dict[str, set[str]] = {}
    for line in lines_of(cli.text("consume", "t", "--format", "%k %p\\n")):
        key, partition = line.split()
        homes.setdefault(key, set()).add(partition)
    assert len(homes) == 20
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert len(set.union(*homes.values())) == 5
    stream = cli.run("consume", "t", "--json").stdout
    cli.run("produce", "copy", "--format", "json", "--repartition", stdin=stream)
    copied = lines_of(cli.text("consume", "copy", "--format", "%k:%v\\n"))
    assert sorted(copied) == sorted(lines_of(data.decode()))


def test_reading_begins_where_it_is_told(cli: Cli) -> None:
    old = [{"value": str(n), "timestamp": 1_600_000_000_000 + n} for n in range(10)]
    stream = "\n".join(map(json.dumps, old)).encode()
    cli.run("produce", "t", "--format", "json", "--batch-size", "1", stdin=stream)
    cli.run("produce", "t", stdin=b"new\n")

    def read(start: str, *more: str) -> list[str]:
        return lines_of(cli.text("consume", "t", "--from", start, *more))

    everything = [*map(str, range(10)), "new"]
    assert read("beginning") == everything
    assert read("end") == []
    assert read("8") == everything[8:]
    assert read("-2") == ["9", "new"]
    assert read("@1600000000007") == everything[7:]
    assert read("2020-09-13T12:26:40.009Z") == ["9", "new"]
    assert read("-1h") == ["new"]
    assert read("2090-01-01") == []
    assert read("3", "--max-messages", "2") == ["3", "4"]
    assert "t-0 has [0, 11)" in cli.error("consume", "t", "--from", "12")


def test_files_of_any_kind_are_read(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1\n2\n")
    (tmp_path / "b.bin").write_bytes(bytes(range(256)) * 1000)
    paths = [str(tmp_path / "a.txt"), "-"]
    found = cli.json("produce", "lines", *paths, stdin=b"3\n")
    assert (found["records"], found["bytes"], found["failed"]) == (3, 3, 0)
    assert cli.text("consume", "lines") == "1\n2\n3\n"
    cli.run("produce", "whole", "--whole-file", str(tmp_path / "b.bin"))
    assert cli.run("consume", "whole", "--format", "%v").stdout == bytes(range(256)) * 1000
    assert "/nowhere cannot be read" in cli.error("produce", "lines", "/nowhere")


def test_records_that_cannot_be_written_are_named(cli: Cli) -> None:
    cli.run("topics", "create", "t", "--config", "max.message.bytes=1000")
    data = b"".join(b"%d\n" % n for n in range(500)) + b"x" * 2000 + b"\nlast\n"
    result = cli.run("produce", "t", stdin=data, status=1)
    first, second = lines_of(result.stderr.decode())
    assert first.startswith("headrace: line 501 of standard input not written: partition t-0: ")
    assert second.startswith("501 records, ")
    assert cli.text("consume", "t") == "".join(f"{n}\n" for n in range(500)) + "last\n"


def test_lines_are_written_when_they_come_and_seen_by_a_follower(cli: Cli) -> None:
    cli.run("topics", "create", "t")
    with cli.start("consume", "t", "--follow") as follower, cli.start("produce", "t") as producer:
        assert producer.stdin is not None
        for line in (b"one\n", b"two\n"):
            producer.stdin.write(line)
            producer.stdin.flush()
            assert read_line(follower) == line
        assert end(producer, 0).startswith(b"2 records, 6 B")
        follower.send_signal(signal.SIGINT)
        assert end(follower, 0) == b""


def test_a_producer_that_is_interrupted_ends_with_its_summary(cli: Cli) -> None:
    cli.run("topics", "create", "t")
    with cli.start("produce", "t") as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"one\n")
        producer.stdin.flush()
        wait_until(lambda: cli.text("consume", "t") == "one\n")
        producer.send_signal(signal.SIGINT)
        assert end(producer, 130).startswith(b"1 record, 3 B")


def test_a_second_interrupt_ends_a_producer_that_waits_for_a_broker(
    cli: Cli, broker: BrokerProcess
) -> None:
    with cli.start("produce", "t") as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"one\n")
        producer.stdin.flush()
        wait_until(lambda: "t" in cli.text("topics", "list"))
        wait_until(lambda: cli.text("consume", "t") == "one\n")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            producer.stdin.write(b"two\n")
            producer.stdin.flush()
            wait_until(lambda: unread_bytes(broker.address) > 0)
            # A first one lets it end what it began, which takes as long as the broker does.
            producer.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                producer.wait(1)
            producer.send_signal(signal.SIGINT)
            assert producer.wait(scaled(10)) == 130
            assert producer.stderr is not None
            lines = producer.stderr.read().decode().split("\n")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    assert lines[0].startswith("headrace: line 2 of standard input not written: the producer was")
    assert "".join(lines[1:]) == ""


def test_a_follower_gives_up_a_broker_that_does_not_answer(cli: Cli, broker: BrokerProcess) -> None:
    cli.run("produce", "t", stdin=b"one\n")
    with cli.start("consume", "t", "--follow", "--timeout", f"{scaled(1):.0f}") as follower:
        assert read_line(follower) == b"one\n"
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            assert follower.wait(scaled(20)) == 1
            assert follower.stderr is not None
            assert b"gave up after " in follower.stderr.read()
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_following_goes_on_through_a_restart(cli: Cli, broker: BrokerProcess) -> None:
    cli.run("produce", "t", stdin=b"before\n")
    with cli.start("consume", "t", "--follow") as follower:
        assert read_line(follower) == b"before\n"
        broker.kill()
        broker.start()
        cli.run("produce", "t", stdin=b"after\n")
        assert read_line(follower) == b"after\n"
        follower.send_signal(signal.SIGINT)
        assert end(follower, 0) == b""


def test_a_producer_goes_on_through_a_restart_and_writes_each_record_once(
    cli: Cli, broker: BrokerProcess
) -> None:
    numbers = [f"{n}\n" for n in range(3000)]
    with cli.start("produce", "t", "--batch-size", "500") as producer:
        assert producer.stdin is not None
        producer.stdin.write("".join(numbers[:1000]).encode())
        producer.stdin.flush()
        wait_until(lambda: '"t"' in cli.text("topics", "list", "--json"))
        wait_until(lambda: cli.text("consume", "t", "-n", "1") == "0\n")
        broker.restart()
        producer.stdin.write("".join(numbers[1000:]).encode())
        producer.stdin.close()
        producer.stdin = None
        assert b"3,000 records" in end(producer, 0)
    assert cli.text("consume", "t") == "".join(numbers)


def test_a_reader_that_leaves_is_no_failure(cli: Cli) -> None:
    cli.run("produce", "t", stdin=b"".join(b"%d\n" % n for n in range(200_000)))
    command = f"{headrace_command()} consume t | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], env=cli.environment, capture_output=True, check=True
    )
    assert (result.stdout, result.stderr) == (b"0\n0\n", b"")


def test_without_a_broker_the_error_comes_at_once_and_says_how_to_start_one() -> None:
    cli = Cli(f"127.0.0.1:{unused_port()}")
    begun = time.monotonic()
    for arguments in (["topics", "list"], ["consume", "t"], ["produce", "t"]):
        assert "start a broker with `headrace up`" in cli.error(*arguments)
    assert time.monotonic() - begun < scaled(10)


def test_a_server_of_another_kind_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        error = Cli(f"127.0.0.1:{server.getsockname()[1]}").error("topics", "list")
        thread.join()
    assert "plaintext port of a Kafka broker" in error


def test_a_server_that_says_nothing_is_given_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cli = Cli(f"127.0.0.1:{server.getsockname()[1]}")
        error = cli.error("topics", "list", "--timeout", f"{scaled(0.3):.1f}")
    assert "no answer in time; see whether this is the plaintext port of a Kafka broker" in error


def test_an_address_in_use_is_reported(broker: BrokerProcess, tmp_path: Path) -> None:
    arguments = ["up", "--listen", broker.address, "--data-dir", str(tmp_path / "other")]
    error = Cli("").run(*arguments, status=1).stderr.decode()
    assert broker.address in error
    assert "in use" in error
    assert error.splitlines()[-1].startswith("headrace: ")


def test_a_broker_starts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=5\nlog.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    with Cli("").start("broker", "--config", str(path), "--set", "num.partitions=3") as process:
        address = re.search(rb"ready on ([\d.]+:\d+)", read_line(process))
        assert address is not None
        cli = Cli(address[1].decode())
        cli.run("produce", "t", stdin=b"x\n")
        (topic,) = cli.json("topics", "describe")["topics"]
        assert [partition["leader"] for partition in topic["partitions"]] == [5, 5, 5]
        process.terminate()
        end(process, 0)


def test_the_files_of_a_broker_pass_verification_running_and_stopped(
    start_broker: Start,
) -> None:
    broker = start_broker(**{"log.segment.bytes": "1048576", "log.index.interval.bytes": "100"})
    cli = Cli(broker.address)
    for codec in ("none", "zstd"):
        data = b"".join(b"%d:%s\n" % (n, b"x" * 50) for n in range(20_000))
        arguments = ["--key-separator", ":", "--compression", codec, "--batch-size", "5000"]
        cli.run("produce", "t", *arguments, stdin=data)
    for _ in ("running", "stopped"):
        found = cli.json("log", "dump", "--verify", str(broker.data_dir))
        assert found["problems"] == []
        assert found["records"] >= 40_000
        if broker.running:
            broker.stop()
    partition = broker.data_dir / "t-0"
    dumped = cli.run("log", "dump", "--records", "--json", str(partition)).stdout.splitlines()
    documents = list(map(json.loads, dumped))
    kinds = {document["kind"] for document in documents}
    assert {"batch", "record", "index_entry", "time_entry", "producer", "leader_epoch"} <= kinds
    offsets = [document["offset"] for document in documents if document["kind"] == "record"]
    assert offsets == list(range(40_000))
    assert len({document["file"] for document in documents if document["kind"] == "batch"}) > 1
    damage(sorted(partition.glob("*.log"))[0])
    result = cli.run("log", "dump", "--verify", str(partition), status=1)
    assert b".log at position " in result.stderr
    assert result.stdout.endswith(b": 1 problem\n")


def damage(path: Path) -> None:
    """Change a byte in the middle of the first batch's records."""
    data = bytearray(path.read_bytes())
    data[100] ^= 255
    path.write_bytes(data)


def test_a_terminal_gets_tables_progress_and_questions(cli: Cli, tmp_path: Path) -> None:
    status, shown = on_terminal(cli, ["topics", "create", "a"])
    assert (status, shown) == (0, "created topic a with 1 partition, replication factor 1\r\n")
    status, shown = on_terminal(cli, ["topics", "list"])
    assert status == 0
    assert "\x1b[1m" in shown  # The headings are bold.
    path = tmp_path / "data.txt"
    path.write_bytes(b"line\n" * 200_000)
    status, shown = on_terminal(cli, ["produce", "a", str(path)])
    assert status == 0
    assert "to a" in shown
    assert "1.0 MB" in shown
    assert "200,000 records, 800.0 kB in " in shown
    status, shown = on_terminal(cli, ["produce", "a", "--quiet", str(path)])
    assert (status, shown) == (0, "")
    status, shown = on_terminal(cli, ["topics", "delete", "a"], b"n\n")
    assert status == 130
    assert "Delete a and all records?" in shown
    assert [topic["name"] for topic in cli.json("topics", "list")["topics"]] == ["a"]
    status, shown = on_terminal(cli, ["topics", "delete", "a"], b"y\n")
    assert status == 0
    assert "deleted topic a" in shown


def test_what_records_and_groups_contain_does_not_command_a_terminal(cli: Cli) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eexe.gpj " + 1_000_000 * "x"
    cli.run("topics", "create", "a", "--config", "max.message.bytes=4000000")
    document = json.dumps({"key": hostile, "value": hostile}) + "\n"
    cli.run("produce", "a", "--format", "json", stdin=document.encode())
    cli.run("groups", "reset-offsets", hostile[:40], "--topic", "a", "--to-latest", "--execute")
    for arguments in (
        ["consume", "a"],
        ["consume", "a", "--json"],
        ["consume", "a", "--format", "table"],
        ["consume", "a", "--format", "%k %v\\n"],
        ["groups", "list"],
        ["groups", "list", "--json"],
        ["groups", "describe"],
        ["groups", "describe", hostile[:40] + "?"],
    ):
        _, shown = on_terminal(cli, arguments)
        assert "owned" in shown, arguments
        # Tables have colours of their own.
        colours = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        assert not set(colours) & {"\x1b", "\x07", "\x9b", "\u202e"}, arguments
    # In a pipe the bytes of the record are what is asked for.
    assert cli.run("consume", "a").stdout == hostile.encode() + b"\n"
    assert cli.json("groups", "list")["groups"][0]["name"] == hostile[:40]
