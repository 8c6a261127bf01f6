"""Kafka's commands for users, ACLs, quotas and tokens, with a broker of ours and one of Kafka.

Rule: as in test_kafka_commands.py, a difference is listed in differences.py, or the test fails.
"""

import json
import re
from collections.abc import Iterator

import pytest

from tests.compat.brokers import Both, ask_both, check
from tests.compat.differences import of_step
from tests.compat.kafka_commands import run_command, run_step, shown_end
from tests.compat.secured_brokers import (
    SecuredNode,
    client_properties,
    secured_brokers,
    with_password,
    write_properties,
)
from tests.compat.security_steps import ORDERS, PASSWORDS, SECURITY_STEPS

_CREATED = "create a token"
# A row of the table of tokens: the id, the HMAC in base64.
_TOKEN_ROW = re.compile(r"^(?P<id>[\w-]{22})\s+(?P<hmac>[\w+/=]{60,})\s", re.MULTILINE)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Both]]:
    """The output of each step with both brokers."""
    with secured_brokers(tmp_path_factory.mktemp("commands")) as brokers:
        yield ask_both(run_all, brokers)


def run_all(node: SecuredNode) -> dict[str, str]:
    """The output of each step with a broker."""
    words = {"plain": node.plain, "secure": node.addresses["SECURE"], **_files(node)}
    found = {}
    for step in SECURITY_STEPS:
        if step.title == _CREATED:
            done = run_command(step, words)
            found[step.title] = shown_end(step, done)
            token = _TOKEN_ROW.search(done.stdout)
            assert token is not None, done.stdout + done.stderr
            words["hmac"] = token["hmac"]
            words["token"] = _login_file(node, "token", token["id"], token["hmac"], token=True)
        else:
            found[step.title] = run_step(step, words)
    return found


def _files(node: SecuredNode) -> dict[str, str]:
    deletions = node.directory / "deletions.json"
    partition = {"topic": ORDERS, "partition": 0, "offset": 1}
    deletions.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    empty = node.directory / "empty.properties"
    empty.touch()
    files = {name: _login_file(node, name, name, secret) for name, secret in PASSWORDS.items()}
    guess = _login_file(node, "guess", "alice", "guess")
    return {**files, "guess": guess, "deletions": str(deletions), "empty": str(empty)}


def _login_file(
    node: SecuredNode, title: str, name: str, password: str, *, token: bool = False
) -> str:
    properties = client_properties(node.credentials, node.addresses["SECURE"], tls=True)
    login = with_password(properties, "SCRAM-SHA-256", name, password, token=token)
    return str(write_properties(node, title, login))


@pytest.mark.parametrize("title", [step.title for step in SECURITY_STEPS])
def test_a_command_ends_and_prints_as_with_kafka(printed: dict[str, Both], title: str) -> None:
    check(title, printed[title], of_step(title))
