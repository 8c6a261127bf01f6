"""Kafka's command-line tools against a broker of ours and one of Apache Kafka, step by step.

Rule: a step that ends or prints otherwise than with Kafka is listed below with its reason, or the
test fails; so it does if a listed one no longer differs.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import headrace
from tests.compat.apache import apache_kafka
from tests.compat.kafka_commands import Step, newest_file, run_step
from tests.support import BrokerProcess

S = "--bootstrap-server {server}"
C = "--bootstrap-controller {controller}"
TOPIC = "commands"
THROTTLES = "retention.ms|throttled|cleanup"

STEPS = (
    Step("create a topic", "topics", f"{S} --create --topic {TOPIC} --partitions 2"),
    Step(
        "create a compacted topic",
        "topics",
        f"{S} --create --topic compacted --config cleanup.policy=compact"
        " --config compression.type=zstd --config compression.zstd.level=7",
    ),
    Step("create it again", "topics", f"{S} --create --topic {TOPIC}", kept="exit|exists"),
    Step("list topics", "topics", f"{S} --list --exclude-internal"),
    Step("describe a topic", "topics", f"{S} --describe --topic {TOPIC}"),
    Step("add partitions", "topics", f"{S} --alter --topic {TOPIC} --partitions 3"),
    Step("produce", "producer", f"{S} --topic {TOPIC}", stdin="a\nb\nc\n"),
    Step(
        "consume",
        "consumer",
        f"{S} --topic {TOPIC} --from-beginning --max-messages 3 --group readers"
        " --consumer-property enable.auto.commit=true",
    ),
    Step("end offsets", "get-offsets", f"{S} --topic {TOPIC}"),
    # -- settings
    Step(
        "set settings of a topic",
        "configs",
        f"{S} --alter --entity-type topics --entity-name {TOPIC}"
        " --add-config retention.ms=1000000,local.retention.ms=-2",
    ),
    Step(
        "describe settings of a topic",
        "configs",
        f"{S} --describe --entity-type topics --entity-name {TOPIC}",
    ),
    Step(
        "delete settings of a topic",
        "configs",
        f"{S} --alter --entity-type topics --entity-name {TOPIC}"
        " --delete-config retention.ms,local.retention.ms",
    ),
    Step(
        "set settings of a broker",
        "configs",
        f"{S} --alter --entity-type brokers --entity-name 1"
        " --add-config log.cleaner.threads=2,num.io.threads=9",
    ),
    Step(
        "set settings of all brokers",
        "configs",
        f"{S} --alter --entity-type brokers --entity-default --add-config background.threads=11",
    ),
    Step(
        "describe settings of a broker",
        "configs",
        f"{S} --describe --entity-type brokers --entity-name 1",
    ),
    Step(
        "set a setting that cannot change",
        "configs",
        f"{S} --alter --entity-type brokers --entity-name 1 --add-config node.id=7",
        kept="exit",
    ),
    Step(
        "set settings of a group",
        "configs",
        f"{S} --alter --entity-type groups --entity-name readers"
        " --add-config consumer.session.timeout.ms=50000",
    ),
    Step(
        "describe settings of a group",
        "configs",
        f"{S} --describe --entity-type groups --entity-name readers",
        kept="session",
    ),
    Step(
        "set a client metrics subscription",
        "client-metrics",
        f"{S} --alter --name watched --metrics org.apache.kafka.producer. --interval 30000",
    ),
    Step("describe client metrics", "client-metrics", f"{S} --describe --name watched"),
    Step("delete client metrics", "client-metrics", f"{S} --delete --name watched"),
    Step("describe users", "configs", f"{S} --describe --entity-type users"),
    # -- groups
    Step("list groups", "groups", f"{S} --list"),
    Step("list consumer groups", "consumer-groups", f"{S} --list"),
    Step("describe a group", "consumer-groups", f"{S} --describe --group readers"),
    Step(
        "reset offsets",
        "consumer-groups",
        f"{S} --reset-offsets --group readers --topic {TOPIC} --to-earliest --execute",
    ),
    Step("delete a group", "consumer-groups", f"{S} --delete --group readers"),
    # -- reassignments
    Step(
        "reassign with a throttle",
        "reassign",
        f"{S} --execute --reassignment-json-file {{plan}} --throttle 1000000",
        kept="exit|Success|throttle|Warning",
    ),
    Step("verify", "reassign", f"{S} --verify --reassignment-json-file {{plan}}"),
    Step(
        "throttles are gone",
        "configs",
        f"{S} --describe --entity-type topics --entity-name {TOPIC}",
    ),
    Step("cancel", "reassign", f"{S} --cancel --reassignment-json-file {{plan}}"),
    Step("list reassignments", "reassign", f"{S} --list"),
    Step(
        "reassign to a directory",
        "reassign",
        f"{S} --execute --reassignment-json-file {{dir_plan}}",
        kept="exit|Success",
    ),
    Step("describe directories", "log-dirs", f"{S} --describe --topic-list {TOPIC}", kept="exit"),
    # -- transactions
    Step("list transactions", "transactions", f"{S} list"),
    Step(
        "list transactions by pattern", "transactions", f"{S} list --transactional-id-pattern a.*"
    ),
    Step(
        "describe producers",
        "transactions",
        f"{S} describe-producers --topic {TOPIC} --partition 0 --broker-id 1",
        kept="exit|Producer",
    ),
    Step("find hanging", "transactions", f"{S} find-hanging --broker-id 1"),
    # -- the cluster
    Step("describe features", "features", f"{S} describe"),
    Step("describe features of a controller", "features", f"{C} describe"),
    Step(
        "downgrade a feature",
        "features",
        f"{S} downgrade --feature transaction.version=1 --dry-run",
    ),
    Step(
        "upgrade beyond what there is",
        "features",
        f"{S} upgrade --feature transaction.version=99",
        kept="exit",
    ),
    Step("quorum status", "quorum", f"{S} describe --status", kept="exit|Leader|Voters|Observers"),
    Step(
        "quorum status of a controller",
        "quorum",
        f"{C} describe --status",
        kept="exit|Leader|Voters|Observers",
    ),
    Step("quorum replication", "quorum", f"{S} describe --replication", kept="exit|NodeId"),
    Step(
        "quorum replication of a controller",
        "quorum",
        f"{C} describe --replication",
        kept="exit|NodeId",
    ),
    Step("cluster id", "cluster", f"cluster-id {S}", kept="exit"),
    Step("endpoints", "cluster", f"list-endpoints {S}"),
    Step("api versions", "api-versions", f"{S}"),
    Step(
        "elect leaders", "leader-election", f"{S} --election-type preferred --all-topic-partitions"
    ),
    Step("delete records", "delete-records", f"{S} --offset-json-file {{deletions}}"),
    Step("list ACLs", "acls", f"{S} --list", kept="exit"),
    Step(
        "describe delegation tokens",
        "delegation-tokens",
        f"{S} --describe --command-config {{empty}}",
        kept="exit",
    ),
    # -- files
    Step("dump a log", "dump-log", "--files {log} --print-data-log", kept="exit|payload"),
    Step("dump an index", "dump-log", "--files {index} --index-sanity-check", kept="exit|passed"),
    Step("dump offsets", "dump-log", "--files {offsets} --offsets-decoder", kept="exit|type"),
    Step(
        "dump transactions",
        "dump-log",
        "--files {transactions} --transaction-log-decoder",
        kept="exit",
    ),
    Step(
        "dump metadata",
        "dump-log",
        "--files {metadata} --cluster-metadata-decoder --skip-record-metadata",
        kept="exit|LeaderChange|Exception|Error",
    ),
    Step("delete a topic", "topics", f"{S} --delete --topic {TOPIC}"),
)

DIFFERENCES: dict[str, str] = {}


class Printed(NamedTuple):
    kafka: str
    headrace: str


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Printed]]:
    """What each step prints with both brokers."""
    directory = tmp_path_factory.mktemp("commands")
    with apache_kafka(directory / "kafka") as kafka:
        with BrokerProcess(directory / "headrace", {"node.id": "1"}) as ours:
            brokers = {
                "kafka": (kafka.bootstrap_servers, kafka.bootstrap_controllers, kafka.data),
                "headrace": (ours.address, ours.address, ours.data_dir),
            }
            results = {
                broker: _play(*where, directory / broker) for broker, where in brokers.items()
            }
            yield {
                step.title: Printed(results["kafka"][step.title], results["headrace"][step.title])
                for step in STEPS
            }


def _play(server: str, controller: str, data: Path, directory: Path) -> dict[str, str]:
    words = {"server": server, "controller": controller}
    words |= _plans(directory, data)
    found = {}
    for step in STEPS:
        if step.title == "list transactions":
            _commit_a_transaction(server)
        if step.command == "dump-log" and "log" not in words:
            words |= _files(data)
        found[step.title] = run_step(step, words)
    return found


def _plans(directory: Path, data: Path) -> dict[str, str]:
    partition = {"topic": TOPIC, "partition": 0, "replicas": [1]}
    documents = {
        "plan": {"version": 1, "partitions": [partition]},
        "dir_plan": {"version": 1, "partitions": [{**partition, "log_dirs": [str(data)]}]},
        "deletions": {
            "version": 1,
            "partitions": [{"topic": TOPIC, "partition": 0, "offset": 0}],
        },
    }
    paths = {}
    for name, document in documents.items():
        path = directory / f"{name}.json"
        path.write_text(json.dumps(document))
        paths[name] = str(path)
    (directory / "empty.properties").touch()
    return paths | {"empty": str(directory / "empty.properties")}


def _commit_a_transaction(server: str) -> None:
    with headrace.Producer(bootstrap_servers=server, transactional_id="a-transaction") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(TOPIC, b"committed", partition=0)


def _files(data: Path) -> dict[str, str]:
    """Files of the logs that the steps have filled."""

    def fullest(topic: str) -> Path:
        return max(data.glob(f"{topic}-*/*.log"), key=lambda path: path.stat().st_size)

    return {
        "log": str(fullest(TOPIC)),
        "index": str(fullest(TOPIC).with_suffix(".index")),
        "offsets": str(fullest("__consumer_offsets")),
        "transactions": str(fullest("__transaction_state")),
        "metadata": newest_file(data / "__cluster_metadata-0", ".log"),
    }


@pytest.mark.parametrize("title", [step.title for step in STEPS])
def test_a_command_ends_and_prints_as_with_kafka(printed: dict[str, Printed], title: str) -> None:
    kafka, ours = printed[title]
    if title in DIFFERENCES:
        print(f"{title}: {DIFFERENCES[title]}\n-- Kafka\n{kafka}\n-- headrace\n{ours}")
        assert kafka != ours, "the difference is gone; take it off the list"
    else:
        assert ours == kafka
