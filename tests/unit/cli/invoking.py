"""Commands run in this process, against brokers in memory."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import cli
from tests.unit.client.fake_brokers import FakeBrokers


def invoke(*arguments: str, stdin: bytes | str | None = None) -> Result:
    """Run a command; an exception that no user should see fails the test."""
    result = CliRunner().invoke(cli, arguments, input=stdin, prog_name="headrace")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(result: Result) -> Any:
    """The one JSON document a command printed."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def use(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let the commands of a module talk to these brokers."""
    monkeypatch.setattr(
        f"headrace.cli.{module}.open_cluster",
        lambda bootstrap, timeout_s: brokers.cluster(timeout_s),
    )
