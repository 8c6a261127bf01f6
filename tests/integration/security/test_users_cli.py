"""`headrace users`, with passwords from standard input and files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from headrace.config.sasl import parse_bootstrap_credentials
from headrace.testing.time_limits import scaled
from tests.support import BrokerProcess


def users(broker: BrokerProcess, *arguments: str, password: str = "", status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "users", *arguments],
        input=password,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
        env={**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": broker.address},
    )
    assert done.returncode == status, done.stderr
    assert "secret" not in done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_users_are_added_listed_and_deleted(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    broker = shared_broker
    assert "alice can log in by SCRAM-SHA-256 and SCRAM-SHA-512" in users(
        broker, "add", "alice", password="alice-secret\n"
    )
    file = tmp_path / "password"
    file.write_text("bob-secret\n")
    users(broker, "add", "bob", "--mechanism", "SCRAM-SHA-512", "--password-file", str(file))
    assert json.loads(users(broker, "list", "--json")) == [
        {"user": "alice", "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}},
        {"user": "bob", "mechanisms": {"SCRAM-SHA-512": 4096}},
    ]
    assert "SCRAM-SHA-512" in users(broker, "describe", "bob")
    users(broker, "delete", "alice", "--yes", "--mechanism", "SCRAM-SHA-256")
    users(broker, "delete", "bob", "--yes")
    assert "no SCRAM credentials" in users(broker, "describe", "bob", status=1)
    assert "the password is empty" in users(broker, "add", "carol", status=2)


def test_a_hashed_password_is_a_first_user(shared_broker: BrokerProcess) -> None:
    line = users(shared_broker, "hash", "admin", password="admin-secret\n").strip()
    name, _, value = line.partition("=")
    assert name == "scram.bootstrap.credentials"
    assert re.fullmatch(r"(SCRAM-SHA-(256|512)=\[name=admin,[^\]]+\],?){2}", value)
    assert len(parse_bootstrap_credentials(value)) == 2
