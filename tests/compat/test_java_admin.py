"""Every method of Kafka's Java Admin client against a broker of ours and one of Apache Kafka.

Rule: an answer that differs from Kafka's is listed in differences.py with its reason, or the test
fails; so it does if a listed one no longer differs.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import headrace
from tests.compat.admin_calls import CALLS, TOPIC, Calls
from tests.compat.brokers import Both, Node, ask_both, both_brokers, check
from tests.compat.differences import DIFFERENCES, of_method
from tests.compat.java_admin import outcome
from tests.compat.java_gateway import java_gateway


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with java_gateway() as classes:
        yield classes


@pytest.fixture(scope="module")
def answers(jvm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Both]]:
    """What both brokers answer to each call."""
    with both_brokers(tmp_path_factory.mktemp("admin")) as brokers:
        yield ask_both(partial(call_all, jvm), brokers)


def call_all(jvm: Any, node: Node) -> dict[str, str]:
    """What a broker answers to each call."""
    calls = Calls(jvm, node)
    found = {}
    for name, call in CALLS.items():
        found[name] = outcome(partial(call, calls))
        if name == "createTopics":
            _write_records(node.server)
    return found


def _write_records(address: str) -> None:
    with headrace.Producer(bootstrap_servers=address) as producer:
        for number in range(10):
            producer.send(TOPIC, b"%d" % number, partition=0)


def test_every_method_is_called(jvm: Any) -> None:
    methods = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.Admin").getMethods()
    names = {method.getName() for method in methods}
    assert names - {"create", "wait", "notify", "notifyAll", "equals", "hashCode"} == set(CALLS)


def test_every_difference_is_of_a_method() -> None:
    assert {name for each in DIFFERENCES for name in each.methods} <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_answer_is_kafkas(answers: dict[str, Both], name: str) -> None:
    check(name, answers[name], of_method(name))
