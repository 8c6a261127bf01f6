"""The audit log: its lines, their bound, and its file."""

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.apis import SERVED
from headrace.broker.audit_log import AuditFile, AuditLog, AuditRate, AuditSettings
from headrace.broker.request import RequestContext
from headrace.broker.thread_pools import ThreadPools
from headrace.errors import StorageError
from headrace.metrics import catalog
from headrace.metrics.registry import Registry
from headrace.protocol.apis import Api, RequestHeader
from headrace.security.acls import AclOperation, AclResourceType
from headrace.security.authorization import Decision, Principal, Right
from headrace.storage.files import DiskFull, File, Files
from tests.unit.client.fake_brokers import FakeClock

READ_ORDERS = Right(AclOperation.READ, AclResourceType.TOPIC, "orders\n")
DENIED, ALLOWED = Decision(False, "no ACL allows it"), Decision(True, "a rule")


def context() -> RequestContext:
    node: Any = SimpleNamespace(apis={row.api: row for row in SERVED})
    header = RequestHeader(Api.FETCH, 12, 1, "c" * 10_000, 0)
    return RequestContext(node, header, "10.0.0.7", principal=Principal("User", "alice", ("g",)))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_log(path: Path, decisions: list[Decision], **settings: Any) -> list[dict[str, Any]]:
    given = AuditSettings(str(path), False, 100, 10_000_000)._replace(**settings)

    async def run() -> None:
        workers = ThreadPools()
        log = AuditLog(given, Files(), cast("Any", FakeClock()), workers, Registry())
        for decision in decisions:
            log.note(context(), READ_ORDERS, decision)
        await asyncio.sleep(0)
        log.close()
        workers.close()

    asyncio.run(run())
    return lines_of(path)


def test_a_denial_is_one_line_that_nobody_else_can_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text("")
    path.chmod(0o644)
    [line] = run_log(path, [DENIED, ALLOWED])
    assert path.stat().st_mode & 0o777 == 0o600
    assert line["decision"] == "denied"
    assert (line["principal"], line["host"], line["groups"]) == ("User:alice", "10.0.0.7", ["g"])
    assert (line["operation"], line["resource_type"]) == ("READ", "TOPIC")
    assert (line["resource"], line["api"], line["rule"]) == ("orders\n", "Fetch", DENIED.rule)
    assert len(line["client_id"]) < 600 and line["time"].endswith("Z")


def test_what_is_allowed_is_written_if_asked_for(tmp_path: Path) -> None:
    found = run_log(tmp_path / "audit.log", [DENIED, ALLOWED], all_decisions=True)
    assert [line["decision"] for line in found] == ["denied", "allowed"]


def test_more_than_the_rate_is_counted_and_not_written(tmp_path: Path) -> None:
    found = run_log(tmp_path / "audit.log", [DENIED] * 7, max_per_second=3)
    assert [line.get("dropped", line.get("decision")) for line in found] == [4, *["denied"] * 3]


class FullDisk(Files):
    """Files that find no room for another one while `is_full`."""

    is_full = False

    def open_private(self, path: str) -> File:
        if self.is_full:
            raise DiskFull(f"cannot open {path}: no space")
        return super().open_private(path)


def test_lines_that_a_full_disk_did_not_take_are_counted_in_the_next(tmp_path: Path) -> None:
    path, files, metrics = tmp_path / "audit.log", FullDisk(), Registry()
    settings = AuditSettings(str(path), False, 2, 10_000_000)

    async def run() -> None:
        workers = ThreadPools()
        clock = FakeClock()
        log = AuditLog(settings, files, cast("Any", clock), workers, metrics)
        path.unlink()
        for files.is_full, decisions in ((True, 3), (True, 2), (False, 1)):
            for _ in range(decisions):
                log.note(context(), READ_ORDERS, DENIED)
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)
            clock.sleep(1)
        log.close()
        workers.close()

    asyncio.run(run())
    assert [line.get("dropped", line.get("decision")) for line in lines_of(path)] == [5, "denied"]
    assert metrics.counter(catalog.AUDIT_DROPPED).value == 5


def test_the_rate_is_that_of_each_second() -> None:
    rate = AuditRate(2)
    assert [rate.admit(now_s) for now_s in (1.0, 1.5, 1.9, 2.0)] == [True, True, False, True]
    assert (rate.take_dropped(), rate.take_dropped()) == (1, 0)


def test_a_full_file_is_renamed_and_a_moved_one_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(Files(), str(path), 20)
    file.append(b"first line\n")
    file.append(b"second line\n")
    assert (tmp_path / "audit.log.1").read_text() == "first line\n"
    os.rename(path, tmp_path / "moved")
    file.append(b"third\n")
    assert path.read_text() == "third\n"
    assert (tmp_path / "moved").read_text() == "second line\n"
    AuditFile(Files(), str(path), 100).append(b"after a restart\n")
    assert path.read_text() == "third\nafter a restart\n"


def test_a_path_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open"):
        run_log(tmp_path / "missing" / "audit.log", [])
