"""Every method of Kafka's Java Admin client against a broker of ours and one of Apache Kafka.

Rule: an answer that differs from Kafka's is listed below with its reason, or the test fails; so it
does if a listed one no longer differs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import headrace
from tests.compat.admin_calls import CALLS, TOPIC, Calls
from tests.compat.apache import apache_kafka
from tests.compat.java_admin import java_gateway, outcome
from tests.support import BrokerProcess

DIFFERENCES: dict[str, str] = {}


class Answers(NamedTuple):
    kafka: str
    headrace: str


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Answers]]:
    """What both brokers answer to each call."""
    directory = tmp_path_factory.mktemp("admin")
    with apache_kafka(directory / "kafka") as kafka, java_gateway() as gateway:
        with BrokerProcess(directory / "headrace", {"node.id": "1"}) as ours:
            admins = {
                "kafka": Calls(gateway, kafka.bootstrap_servers, str(kafka.data)),
                "headrace": Calls(gateway, ours.address, str(ours.data_dir)),
            }
            found: dict[str, Answers] = {}
            for name, call in CALLS.items():
                said = [
                    outcome(lambda call=call, each=each: call(each)) for each in admins.values()
                ]
                found[name] = Answers(*said)
                if name == "createTopics":
                    for address in (kafka.bootstrap_servers, ours.address):
                        _write_records(address)
            yield found


def _write_records(address: str) -> None:
    with headrace.Producer(bootstrap_servers=address) as producer:
        for number in range(10):
            producer.send(TOPIC, b"%d" % number, partition=0)


def test_every_method_is_called() -> None:
    with java_gateway() as gateway:
        methods = gateway.jvm.java.lang.Class.forName(
            "org.apache.kafka.clients.admin.Admin"
        ).getMethods()
        names = {method.getName() for method in methods}
    assert names - {"create", "wait", "notify", "notifyAll", "equals", "hashCode"} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_answer_is_kafkas(answers: dict[str, Answers], name: str) -> None:
    kafka, ours = answers[name]
    if name in DIFFERENCES:
        print(f"{name}: {DIFFERENCES[name]}\n  Kafka: {kafka}\n  headrace: {ours}")
        assert kafka != ours, "the difference is gone; take it off the list"
    else:
        assert ours == kafka
