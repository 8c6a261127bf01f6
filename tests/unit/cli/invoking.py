"""Commands run in this process, against brokers in memory."""

import json
from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import cli
from headrace.client.admin.admin import Admin
from headrace.client.cluster import ClusterClient
from tests.unit.client.admin.fakes import AdminBrokers


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

    def new_cluster(addresses: object = (), **options: Any) -> ClusterClient:
        # Not by the brokers' clock: time passes for the threads of clients.
        return ClusterClient([brokers.nodes[1]], connect=brokers.open, **options)  # type: ignore[arg-type]

    def open_admin(bootstrap: str, timeout_s: float) -> Admin:
        return Admin.over(new_cluster(request_timeout_s=timeout_s, patient=False))

    where = f"headrace.cli.{module}"
    # Before `session` is changed: what a module imports from it stays there.
    import_module(where)
    monkeypatch.setattr("headrace.cli.clients.open_admin", open_admin)
    monkeypatch.setattr(f"{where}.open_admin", open_admin, raising=False)
    monkeypatch.setattr(f"{where}.now_ms", brokers.clock.now_ms, raising=False)
    monkeypatch.setattr("headrace.client.producer.producer_engine.ClusterClient", new_cluster)
    monkeypatch.setattr("headrace.client.consumer.consumer_engine.ClusterClient", new_cluster)
