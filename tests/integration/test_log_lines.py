"""Lines of the log that alerts and their runbook name: brokers write them so, and as JSON."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import Admin, Producer
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.security.sasl_nodes import plain_jaas, sasl_node
from tests.integration.security.test_sasl_connections import log_in
from tests.integration.test_damaged_logs import flip
from tests.integration.wire import Wire
from tests.support import BrokerProcess

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
# What the runbook names, each with the test that has it written.
TESTED = {
    "compaction failed": "test_a_compaction_that_fails_is_an_error_with_its_partition",
    "refused a login at": "test_a_refused_login_has_its_listener_address_mechanism_and_reason",
    # In the output of a run: tests/unit/pipelines/run/test_queries.py.
    "trying again": "test_what_passes_is_tried_again",
}


def objects(text: str) -> list[dict[str, Any]]:
    """Every line of a broker's standard error, which is an object of JSON."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_every_line_that_the_runbook_names_is_tested() -> None:
    named = re.findall(
        r"Lines (?:with|that end with) `([^`]+)`|Lines `([^`]+)`", RUNBOOK.read_text()
    )
    assert {first or second for first, second in named} == set(TESTED)


def test_a_compaction_that_fails_is_an_error_with_its_partition(
    start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = start_broker(**{"log.cleaner.backoff.ms": "50", "log.format": "json"})
    with Admin(bootstrap_servers=broker.address) as admin:
        day = 86_400_000
        configs: dict[str, str | int] = {
            "cleanup.policy": "compact",
            "segment.bytes": 1 << 20,
            "min.compaction.lag.ms": day,
            "min.cleanable.dirty.ratio": 0,
        }
        admin.create_topic(topic, configs=configs)
        with Producer(bootstrap_servers=broker.address, batch_size=16_384) as producer:
            for number in range(3000):
                producer.send(topic, b"%d" % number + b"x" * 1000, key=b"%d" % (number % 7))
        first = min((broker.data_dir / f"{topic}-0").glob("*.log"))
        flip(first, 3, 300)
        admin.alter_configs({"min.compaction.lag.ms": 0}, topic=topic)

        def failures() -> list[dict[str, Any]]:
            found = objects(broker.log_text)
            return [line for line in found if "compaction failed" in line["message"]]

        line = wait_until(lambda: next(iter(failures()), None), 60, "the compaction has failed")
    assert line["level"] == "error"
    assert line["logger"] == "headrace.broker.compactor"
    assert line["node_id"] == 1
    assert line["message"].startswith(f"{topic}-0: compaction failed: ")
    assert line["time"].endswith("Z")


def test_a_refused_login_has_its_listener_address_mechanism_and_reason(tmp_path: Path) -> None:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.inside.plain.sasl.jaas.config": plain_jaas(),
        "connection.failed.authentication.delay.ms": "1",
        "log.format": "json",
    }
    with sasl_node(tmp_path, settings, {"INSIDE": "SASL_PLAINTEXT"}) as node:
        with Wire(node.address) as wire:
            assert log_in(wire, b"\0eve\n\x1b[2J\0guess") != 0
        with Wire(node.address) as wire:
            assert log_in(wire) == 0
        wait_until(lambda: "refused a login" in node.output.text, 20, "the line is written")
        lines = objects(node.output.text)
    [refused] = [line for line in lines if line["message"].startswith("refused a login at ")]
    assert re.fullmatch(
        r"refused a login at INSIDE from 127\.0\.0\.1:\d+ by PLAIN: .+", refused["message"]
    )
    assert refused["level"] == "info"


def test_a_whole_life_of_a_broker_is_lines_of_json(
    start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = start_broker(**{"log.format": "json"})
    with Admin(
        bootstrap_servers=broker.address, request_timeout_ms=int(scaled(30) * 1000)
    ) as admin:
        admin.create_topic(topic)
    broker.kill()
    broker.start()
    broker.stop()
    lines = broker.log_text.splitlines()
    parsed = objects(broker.log_text)
    # The line that says that it is ready is for people and goes to standard output.
    others = [line for line in lines if not line.startswith("{")]
    assert all("ready" in line for line in others), others
    assert len(parsed) > 4
    for line in parsed:
        assert line.keys() >= {"time", "level", "logger", "node_id", "message"}
        assert line["level"] in ("debug", "info", "warning", "error", "critical")
