"""Commands run in this process, against brokers in memory."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import cli
from headrace.client.administration.admin import Admin
from tests.unit.client.administration.fakes import AdminBrokers


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


def use(brokers: AdminBrokers, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let the commands of a module talk to these brokers."""
    where = f"headrace.cli.{module}"
    monkeypatch.setattr(
        f"{where}.open_cluster",
        lambda bootstrap, timeout_s: brokers.cluster(timeout_s),
        raising=False,
    )
    monkeypatch.setattr(
        f"{where}.open_admin",
        lambda bootstrap, timeout_s: Admin.over(brokers.new_cluster(timeout_s, patient=False)),
        raising=False,
    )
    monkeypatch.setattr(f"{where}.now_ms", brokers.clock.now_ms, raising=False)
